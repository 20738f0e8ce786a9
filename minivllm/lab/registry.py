"""Finds exercises: those of chapter 4 stand in exercises/chapter_04.py, or chapter_04_more.py.

A chapter's module lists them in EXERCISES. Only the chapter that is asked for is imported.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from minivllm.lab import exercises
from minivllm.lab.exercise import Exercise, Question


def chapters() -> list[str]:
    """The modules with exercises: "chapter_00", ..."""
    names = [module.name for module in pkgutil.iter_modules(exercises.__path__)]
    return sorted(name for name in names if name.startswith("chapter_"))


def exercises_of(chapter: int) -> dict[str, Exercise | Question]:
    """The exercises of one chapter by id. Raises ValueError when an id occurs twice."""
    found: dict[str, Exercise | Question] = {}
    for name in chapters():
        if not name.startswith(f"chapter_{chapter:02}"):
            continue
        for item in import_module(f"{exercises.__name__}.{name}").EXERCISES:
            if item.id in found:
                raise ValueError(f"exercise {item.id} stands there twice")
            found[item.id] = item
    return found


def all_exercises() -> dict[str, Exercise | Question]:
    """Every exercise of the course by id."""
    numbers = sorted({int(name.split("_")[1]) for name in chapters()})
    return {key: item for number in numbers for key, item in exercises_of(number).items()}


def find(exercise_id: str) -> Exercise | Question:
    """The exercise of an id. Raises ValueError for one that does not exist."""
    chapter = str(exercise_id).split(".")[0]
    known = exercises_of(int(chapter)) if chapter.isdecimal() else {}
    if exercise_id not in known:
        raise ValueError(f"there is no exercise {exercise_id!r}")
    return known[exercise_id]
