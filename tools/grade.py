"""Runs a class's notebooks and tells which exercises are done: one line a notebook.

    python tools/grade.py submissions/             # every *.ipynb below, one folder per student
    python tools/grade.py submissions/ --csv grades.csv

Each notebook runs from top to bottom in a fresh kernel; a cell that raises costs only itself. What
is read are the lines that the checks print, so wrong and right are decided by the installed
package's checks, whatever the submission's own outputs said. The code is the students': run it
where it may do no harm (a container, a spare account).
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from minivllm.lab.notebooks import exercise_ids, strip

CELL_SECONDS = 120
LINE = re.compile(r"^([✓✗○]) (?:exercise|question) (\d+\.\d+)\b", re.MULTILINE)


def marks_of(notebook: NotebookNode, folder: Path) -> dict[str, str]:
    """Run a notebook in `folder`; exercise -> ✓ done, ✗ wrong, ○ open, or ! when its cell raised or
    was never reached."""
    fresh = nbformat.from_dict(strip(notebook))
    client = NotebookClient(
        fresh,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    marks = dict.fromkeys(exercise_ids(fresh), "!")
    try:
        client.execute()
    except (CellTimeoutError, DeadKernelError) as error:
        print(f"  stopped: {str(error).splitlines()[0]}", file=sys.stderr)
    for cell in fresh.cells:
        for output in cell.get("outputs", []):
            for mark, exercise_id in LINE.findall(output.get("text", "")):
                marks[exercise_id] = mark
    return marks


def grade(folder: Path) -> list[tuple[str, dict[str, str]]]:
    """(notebook, marks) of every notebook below `folder`. Raises ValueError when there is none."""
    paths = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not paths:
        raise ValueError(f"no notebooks below {folder}")
    rows = []
    for path in paths:
        name = str(path.relative_to(folder))
        try:
            marks = marks_of(nbformat.read(path, as_version=4), path.parent)
        except (OSError, ValueError, KeyError, nbformat.reader.NotJSONError) as error:
            print(f"{name}: cannot be read ({error})", file=sys.stderr)
            continue
        done = sum(mark == "✓" for mark in marks.values())
        story = " ".join(f"{exercise_id}{mark}" for exercise_id, mark in marks.items())
        print(f"{name}: {done} of {len(marks)} done   {story}", flush=True)
        rows.append((name, marks))
    return rows


def write_csv(rows: list[tuple[str, dict[str, str]]], path: Path) -> None:
    """One row per exercise of each notebook: notebook, exercise, mark."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["notebook", "exercise", "mark"])
        for name, marks in rows:
            writer.writerows([name, exercise_id, mark] for exercise_id, mark in marks.items())


def main(argv: list[str] | None = None) -> int:
    """The command; 2 when there is nothing to grade."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the marks to FILE too")
    args = parser.parse_args(argv)
    try:
        rows = grade(args.folder)
    except ValueError as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    if args.csv:
        write_csv(rows, args.csv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
