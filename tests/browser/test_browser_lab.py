"""The map in JupyterLab: live, linked with the kernel, watching an engine, reopened, exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browser_tools import axe_violations, check_map, read_all

from minivllm.config import SchedulerConfig
from minivllm.view import Trace
from minivllm.view.twin_runs import jobs_of, run_continuous

pytestmark = pytest.mark.browser

SET_UP = """from minivllm.config import SchedulerConfig
from minivllm.view import BlockMap, watch
from minivllm.view.twin_runs import jobs_of, run_continuous
trace = run_continuous(jobs_of([6, 5, 9, 4], [3, 8, 6, 9]), SchedulerConfig(12, 4))"""
MAP = "BlockMap(trace, step=2, timeline=True)"
WIDGET = """from ipywidgets import IntSlider, VBox, jslink
w = BlockMap(trace, step=0).widget()
slider = IntSlider(max=len(trace) - 1)
jslink((slider, "value"), (w, "step"))
VBox([slider, w])"""
WATCH = """from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
engine = Engine(Scheduler(SchedulerConfig(12, 4)), FakeExecutor(12, 4))
live = watch(engine, delay=0.05)"""
RUN = """for job in jobs_of([6, 5, 9, 4], [3, 30, 6, 9]):
    params = SamplingParams(temperature=0, max_tokens=job.max_tokens)
    engine.add_request(job.name, job.prompt_token_ids, params)
while engine.has_unfinished_requests:
    engine.step()"""


def lab_trace() -> Trace:
    """The trace that the notebook's first cell records."""
    return run_continuous(jobs_of([6, 5, 9, 4], [3, 8, 6, 9]), SchedulerConfig(12, 4))


def write_notebook(path: Path, cells: list[str]) -> None:
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)


def execute(path: Path) -> None:
    """Run a notebook and store its outputs, without widget state, as the course does."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120).execute()
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, path)


def open_in_lab(open_page: Any, lab: Any, name: str) -> Any:
    page = open_page(lab.url(name))
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    return page


def run_all(page: Any) -> None:
    """Clear, run all cells, and wait until the kernel has run them; fail on an error at once."""
    page.wait_for_function(
        "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus"
        " === 'connected'",
        timeout=60_000,
    )
    page.evaluate("jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => {
          const notebook = jupyterapp.shell.currentWidget;
          const cells = notebook.content.widgets.map((cell) => cell.model);
          const outputs = cells.flatMap((cell) => cell.sharedModel.outputs ?? []);
          const error = outputs.find((output) => output.output_type === 'error');
          if (error) throw new Error(error.ename + ': ' + error.evalue);
          return cells.every((cell) => cell.executionCount)
            && notebook.sessionContext.session.kernel.status === 'idle';
        }""",
        timeout=90_000,
    )


def ask_kernel(page: Any, expression: str) -> str:
    """The value of an expression in the kernel, as it would be printed."""
    return page.evaluate(
        """async (code) => {
          const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
          const future = kernel.requestExecute({ code });
          let text = '';
          future.onIOPub = (message) => { text += message.content.text ?? ''; };
          await future.done;
          return text.trim();
        }""",
        f"print({expression})",
    )


def wait_for_kernel(page: Any, expression: str, wanted: str) -> None:
    """The kernel hears of the page with a delay: ask until it has."""
    for _ in range(50):
        if ask_kernel(page, expression) == wanted:
            return
        page.wait_for_timeout(100)
    assert ask_kernel(page, expression) == wanted


def test_the_map_in_a_live_notebook(open_page: Any, lab: Any):
    """The default output is the map, block by block; keys move it and none reaches the notebook;
    axe finds nothing in it, light and dark."""
    write_notebook(lab.folder / "live.ipynb", [SET_UP, MAP])
    page = open_in_lab(open_page, lab, "live.ipynb")
    run_all(page)
    host = ".jp-OutputArea-output .mv-host"
    page.wait_for_selector(f"{host} .mv")
    check_map(read_all(page, host), lab_trace())
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    page.locator(f"{host} [data-block='3']").focus()
    for key in ("b", "a", "d", "d", "."):  # insert and delete cells, were they to reach it
        page.keyboard.press(key)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    page.locator(f"{host} [data-mv=range]").fill("3")
    assert page.locator(f"{host} .mv").get_attribute("data-step") == "3"
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{theme: '{theme}'}})")
        light = "true" if theme.endswith("Light") else "false"
        page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
        assert axe_violations(page, f"{host} .mv") == []


def test_the_widget_is_linked_both_ways(open_page: Any, lab: Any):
    """A slider of ipywidgets drives it, the kernel hears of it, and can set it."""
    write_notebook(lab.folder / "widget.ipynb", [SET_UP, WIDGET])
    page = open_in_lab(open_page, lab, "widget.ipynb")
    run_all(page)
    page.wait_for_selector(".jp-OutputArea-output [data-mv=range]")
    page.locator(".jp-OutputArea-output [data-mv=range]").fill("4")
    wait_for_kernel(page, "w.step, slider.value", "4 4")
    ask_kernel(page, "setattr(w, 'step', 2)")
    page.wait_for_selector(".mv[data-step='2']")
    ask_kernel(
        page, "setattr(w, 'trace', run_continuous(jobs_of([3], [5]), SchedulerConfig(6, 4)))"
    )
    page.wait_for_function("document.querySelectorAll('.mv [data-block]').length === 6")
    page.wait_for_selector(".mv[data-step='2']")


def test_watching_an_engine_while_it_runs(open_page: Any, lab: Any):
    """The map moves while a later cell runs, and in the end it is the whole trace."""
    write_notebook(lab.folder / "watch.ipynb", [SET_UP, WATCH, RUN])
    page = open_in_lab(open_page, lab, "watch.ipynb")
    page.evaluate(
        """() => { window.steps = new Set(); new MutationObserver(() => {
          for (const map of document.querySelectorAll('.mv')) window.steps.add(+map.dataset.step);
        }).observe(document.body, { subtree: true, attributes: true, childList: true }); }"""
    )
    run_all(page)
    last = int(ask_kernel(page, "len(live) - 1"))
    page.wait_for_selector(f".mv[data-step='{last}']")
    assert page.evaluate("window.steps.size") > 5
    engine_has = ask_kernel(page, "live[-1].num_output_tokens")
    assert f"{engine_has} tokens generated" in page.locator(".mv-counts").first.inner_text()


@pytest.fixture(scope="module")
def executed(lab: Any) -> Path:
    path = lab.folder / "stored.ipynb"
    write_notebook(path, [SET_UP, MAP])
    execute(path)
    return path


def test_a_stored_notebook_reopened(open_page: Any, lab: Any, executed: Path):
    """Not trusted, as after a clone: the text. Trusted: the map, without running anything."""
    page = open_in_lab(open_page, lab, executed.name)
    page.wait_for_selector(".jp-OutputArea-output pre")
    assert "iteration 2 of" in page.locator(".jp-OutputArea-output pre").first.inner_text()
    assert page.locator(".mv").count() == 0
    command = [sys.executable, "-m", "jupyter", "trust", str(executed)]
    subprocess.run(command, env=lab.environment, check=True, capture_output=True)
    page = open_in_lab(open_page, lab, executed.name)
    page.wait_for_selector(".jp-OutputArea-output .mv-host .mv")
    check_map(read_all(page, ".jp-OutputArea-output .mv-host"), lab_trace())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_exported_notebook_offline(open_page: Any, executed: Path, tmp_path: Path, theme: str):
    """nbconvert's page, from a file and without a network: the map lives and asks for nothing."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(mathjax_url="", require_js_url="", theme=theme)
    page_text, _ = exporter.from_filename(str(executed))
    (tmp_path / "page.html").write_text(page_text, encoding="utf-8")
    page = open_page(tmp_path / "page.html", offline=True)
    page.wait_for_selector(".mv-host .mv")
    check_map(read_all(page), lab_trace())
    assert axe_violations(page, ".mv") == []
