"""nbval guards the lessons, and this guards nbval: a notebook that says otherwise turns it red."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

SANITIZE = Path(__file__).with_name("nbval_sanitize.cfg")
MAP = (
    '<div class="mv-host"><pre>text</pre><script type="application/json">{"frames":[[%d]]}</script>'
    '</div>\n<script type="module">\n%s\n</script>'
)


def nbval(path: Path) -> subprocess.CompletedProcess:
    """What `make notebooks` runs, on one notebook."""
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    command += [f"--nbval-sanitize-with={SANITIZE}", "--rootdir", str(path.parent), str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent, timeout=300)


def write(path: Path, cells: list[tuple[str, nbformat.NotebookNode]]) -> Path:
    """A notebook with the outputs given."""
    made = [
        new_code_cell(source, execution_count=count, outputs=[output])
        for count, (source, output) in enumerate(cells, start=1)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


def printed(text: str) -> nbformat.NotebookNode:
    return new_output("stream", name="stdout", text=text)


def shown(html: str) -> nbformat.NotebookNode:
    return new_output("display_data", data={"text/html": html, "text/plain": "text"})


SHOW = 'display({"text/html": %r, "text/plain": "text"}, raw=True)'


@pytest.mark.slow
def test_a_changed_output_fails_and_a_new_renderer_does_not(tmp_path: Path):
    """One number, one wrong frame inside a map: red. Another block_map.js or address: green."""
    good = write(
        tmp_path / "good.ipynb",
        [
            ("print(2 + 3)", printed("5\n")),
            (SHOW % (MAP % (7, "new()")), shown(MAP % (7, "old()"))),
            ("print(object)", printed("<class 'object'>\n")),
        ],
    )
    assert nbval(good).returncode == 0, nbval(good).stdout
    wrong = write(
        tmp_path / "wrong.ipynb",
        [
            ("print(2 + 3)", printed("6\n")),
            (SHOW % (MAP % (7, "same()")), shown(MAP % (8, "same()"))),
            ("1 / 0", printed("5\n")),
        ],
    )
    run = nbval(wrong)
    assert run.returncode == 1
    assert "3 failed" in run.stdout, run.stdout
