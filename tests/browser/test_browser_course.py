"""The course where its readers meet it: run in a real JupyterLab, and read as pages from a file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from browser_tools import axe_violations
from test_browser_lab import open_in_lab

from minivllm.lab.notebooks import exercise_ids

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
# Text only, first map, two maps under one slider, the whole engine.
IN_LAB = [path for path in NOTEBOOKS if path.name[:2] in ("00", "04", "07", "11")]
RUN_ALL = """async () => {
  const { commands } = jupyterapp;
  await commands.execute('notebook:clear-all-cell-outputs');
  commands.execute('notebook:run-all-cells');
}"""
DONE = """() => {
  const notebook = jupyterapp.shell.currentWidget;
  const cells = notebook.content.widgets.map((cell) => cell.model).filter((m) => m.type === 'code');
  const outputs = cells.flatMap((cell) => cell.sharedModel.outputs ?? []);
  const error = outputs.find((output) => output.output_type === 'error');
  if (error) throw new Error(error.ename + ': ' + error.evalue);
  return cells.every((cell) => cell.executionCount)
    && notebook.sessionContext.session.kernel.status === 'idle';
}"""

TEXTS = """() => jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model)
  .flatMap((cell) => cell.sharedModel.outputs ?? []).map((output) => [output.text].flat().join(''))
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", IN_LAB, ids=lambda path: path.name)
def test_a_chapter_runs_in_jupyterlab(path: Path, open_page: Any, lab: Any):
    """Every cell from top to bottom, no error, the checks open, the maps alive."""
    shutil.copy(path, lab.folder / path.name)
    page = open_in_lab(open_page, lab, path.name)
    page.wait_for_function(
        "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus"
        " === 'connected'",
        timeout=60_000,
    )
    page.evaluate(RUN_ALL)
    page.wait_for_function(DONE, timeout=240_000)
    texts = page.evaluate(TEXTS)
    stored = nbformat.read(path, as_version=4).cells
    assert sum("not done yet" in text for text in texts) == len(exercise_ids({"cells": stored}))
    outputs = [output for cell in stored for output in cell.get("outputs", [])]
    num_maps = sum("mv-host" in output.get("data", {}).get("text/html", "") for output in outputs)
    assert page.locator(".mv-host[data-mounted]").count() == num_maps


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, made as `make book` makes them."""
    folder = tmp_path_factory.mktemp("book")
    subprocess.run([sys.executable, "tools/make_book.py", str(folder)], cwd=ROOT, check=True)
    return folder


def test_the_index_leads_to_every_chapter_and_finds_words(book: Path, open_page: Any):
    page = open_page(book / "index.html")
    links = page.locator("table a")
    assert links.count() == len(NOTEBOOKS)
    page.fill("#query", "one pass, one token")
    assert page.locator("#hits a").first.inner_text() == "0 · One token at a time"
    page.locator("#hits a").first.click()
    assert page.locator("h1").first.inner_text().startswith("0 · One token at a time")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_page_works_offline_with_its_maps_alive(path: Path, book: Path, open_page: Any):
    """Each map is mounted, links lead to pages that exist; open_page finds any request outside."""
    page = open_page(book / f"{path.stem}.html")
    hosts = page.locator(".mv-host")
    page.wait_for_function("() => !document.querySelector('.mv-host:not([data-mounted])')")
    assert page.locator(".mv-host [data-mv=range]").count() == hosts.count()
    for link in page.locator("a[href$='.html']").all():
        target = link.get_attribute("href")
        assert (book / target).exists() or path == NOTEBOOKS[-1], target


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_can_be_read_in_both_themes(theme: str, book: Path, open_page: Any):
    """The reader's system decides at first, the button from then on."""
    page = open_page(book / f"{NOTEBOOKS[0].stem}.html", color_scheme=theme)
    colour = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(colour)
    assert (sum(map(int, re.findall(r"\d+", first)[:3])) < 200) == (theme == "dark")
    assert axe_violations(page, ".book-bar") == []
    page.click("#book-theme")
    assert page.evaluate(colour) != first
