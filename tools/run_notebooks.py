"""Runs notebooks and stores their outputs; the only writer of outputs in this repository.

    python tools/run_notebooks.py notebooks/04_*.ipynb       # all of notebooks/ when none is named

A notebook is stored in one form only, so that a diff shows what changed: cells c000, c001, ..., no
widget state, no clock, no paths, of the metadata just the kernel, the language and the cells' tags.
A cell that raises stops the run, and nothing is stored.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CELL_SECONDS = 120


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Execute all cells in `folder`. Raises CellExecutionError at the first one that fails."""
    NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
    ).execute()
    return notebook


def clean(notebook: NotebookNode) -> NotebookNode:
    """Drop what differs from run to run, or from machine to machine."""
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        cell.id = f"c{index:03}"
        tags = cell.metadata.get("tags", [])
        cell.metadata = {"tags": tags} if tags else {}
        cell.source = cell.source.strip("\n")
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = {}
    return notebook


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Pieces of one stream in one output: how a stream is cut depends on the clock."""
    kept: list[NotebookNode] = []
    for output in outputs:
        last = kept[-1] if kept else None
        if last and output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            kept.append(output)
    return kept


def main(names: list[str]) -> None:
    """Run the notebooks named, or all."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for path in [Path(name) for name in names] or sorted(FOLDER.glob("[0-9]*.ipynb")):
        notebook = clean(run(nbformat.read(path, as_version=4), path.parent))
        nbformat.write(notebook, path)
        print(f"{path.name}: {len(notebook.cells)} cells, {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
