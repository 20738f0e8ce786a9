"""A notebook as the course sees it: which exercises it has, without outputs, with the solutions.

An exercise is a cell tagged "exercise" and "exercise-2.1" that ends in its check:

    def blocks_needed(num_tokens, block_size):
        raise NotImplementedError  # your turn

    check("2.1", blocks_needed)
    # solution("2.1")

or is nothing but check_value("2.2", ...). Notebooks are nbformat's, read as plain dicts and lists.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from minivllm.lab.exercise import Exercise
from minivllm.lab.registry import find

TAG = "exercise-"


def exercise_id_of(cell: dict[str, Any]) -> str | None:
    """The exercise of a cell; None for a cell without one."""
    for tag in cell["metadata"].get("tags", []):
        if tag.startswith(TAG):
            return tag.removeprefix(TAG)
    return None


def exercise_ids(notebook: dict[str, Any]) -> list[str]:
    """The exercises of a notebook in their order."""
    ids = [exercise_id_of(cell) for cell in notebook["cells"]]
    return [exercise_id for exercise_id in ids if exercise_id is not None]


def strip(notebook: dict[str, Any]) -> dict[str, Any]:
    """A copy without outputs: what a class is given."""
    stripped = copy.deepcopy(notebook)
    for cell in stripped["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return stripped


def solve(notebook: dict[str, Any]) -> dict[str, Any]:
    """A copy without outputs whose exercises hold the reference solutions."""
    solved = strip(notebook)
    for cell in solved["cells"]:
        exercise_id = exercise_id_of(cell)
        if exercise_id is not None:
            cell["source"] = solved_source(cell["source"], exercise_id)
    return solved


def solved_source(source: str, exercise_id: str) -> str:
    """An exercise's cell with the solution in the place of the stub. Raises ValueError when the
    cell does not end in its check.

    >>> solved_source('check_value("0.1", ...)  # guess', "0.1").split("  #")[0]
    'check_value("0.1", 68)'
    """
    item = find(exercise_id)
    name = "check" if isinstance(item, Exercise) else "check_value"
    call = re.search(rf'^{name}\("{re.escape(exercise_id)}", (.+?)\)( *#.*)?$', source, re.M)
    if call is None:
        raise ValueError(f"exercise {exercise_id}: no line {name}({exercise_id!r}, ...)")
    if isinstance(item, Exercise):
        return f"{item.solution}\n{source[call.start() :]}"
    start, end = call.span(1)
    return f"{source[:start]}{item.value!r}{source[end:]}"
