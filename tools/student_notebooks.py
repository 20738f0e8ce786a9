"""Clean notebooks to hand out: without outputs, exercises open. With --solved: with the solutions.

    python tools/student_notebooks.py            # build/student
    python tools/student_notebooks.py --solved   # build/solved
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat

from minivllm.lab.notebooks import solve, strip

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def main(options: list[str]) -> None:
    """Write every chapter."""
    change, name = (solve, "solved") if "--solved" in options else (strip, "student")
    folder = Path("build") / name
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
    for path in paths:
        notebook = change(nbformat.read(path, as_version=4))
        nbformat.write(nbformat.from_dict(notebook), folder / path.name)
    print(f"{len(paths)} notebooks in {folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
