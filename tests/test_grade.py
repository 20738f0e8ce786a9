"""tools/grade.py: a class's notebooks, run and marked."""

import csv
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import grade

RIGHT = "def answer():\n    return 1\nprint('✓ exercise 9.1 (answer): the check passes')"
OPEN = "print('○ exercise 9.2 (other): not done yet')"
WRONG = "print('✗ exercise 9.3 (third): gave 2, expected 3')"
RAISES = "raise RuntimeError('the student forgot a name')"


def write(path: Path, sources: list[str]) -> None:
    """A submission whose cells are exercises 9.1, 9.2, ... and which claims that all are done."""
    notebook = nbformat.v4.new_notebook()
    for number, source in enumerate(sources, start=1):
        cell = nbformat.v4.new_code_cell(source)
        cell.metadata["tags"] = ["exercise", f"exercise-9.{number}"]
        claim = nbformat.v4.new_output("stream", text=f"✓ exercise 9.{number} (x): done")
        cell.outputs = [claim]
        notebook.cells.append(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def test_each_exercise_gets_the_mark_that_a_fresh_run_prints(tmp_path, capsys):
    """A cell that raises costs itself only, and the outputs handed in count for nothing."""
    write(tmp_path / "ada" / "09.ipynb", [RIGHT, OPEN, RAISES, WRONG.replace("9.3", "9.4")])
    write(tmp_path / "bob" / "09.ipynb", [RIGHT])
    assert grade.main([str(tmp_path), "--csv", str(tmp_path / "grades.csv")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ada/09.ipynb: 1 of 4 done   9.1✓ 9.2○ 9.3! 9.4✗",
        "bob/09.ipynb: 1 of 1 done   9.1✓",
    ]
    with (tmp_path / "grades.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["notebook", "exercise", "mark"] and len(rows) == 6
    assert rows[3] == ["ada/09.ipynb", "9.3", "!"]


def test_what_cannot_be_read_is_named_and_the_others_go_on(tmp_path, capsys):
    (tmp_path / "a.ipynb").write_text("this is no notebook")
    write(tmp_path / "b.ipynb", [RIGHT])
    assert [name for name, _ in grade.grade(tmp_path)] == ["b.ipynb"]
    assert capsys.readouterr().err.startswith("a.ipynb: cannot be read")


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_nothing_to_grade(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert grade.main([str(tmp_path / name)]) == 2
    assert "no notebooks below" in capsys.readouterr().err
