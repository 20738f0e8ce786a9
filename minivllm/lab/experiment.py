"""What an experiment is: named cases that run one by one, and findings read off their results.

A result is plain data for a JSON file, so that a run can be interrupted between two cases and go
on later. Each finding says what kind of figure it is: *published* by others, *modelled* (our
scheduler, a roofline clock) or *measured here*; and, where ours and theirs differ, why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MODELLED, MEASURED = "modelled", "measured here"

Result = dict[str, Any]
Results = Mapping[str, Result]  # by case; of an interrupted run some are missing


@dataclass(frozen=True)
class Options:
    """What may be chosen for a run of the experiments.

    scale: part of the full number of requests, to have a quick look. azure, mooncake: trace files,
    where they are at hand. model: which one is measured, in which dtype.
    """

    scale: float = 1.0
    azure: str | None = None
    mooncake: str | None = None
    model: str = "smollm2"
    dtype: str = "auto"

    def number(self, full: int, least: int = 16) -> int:
        """So many requests of `full` ones.

        >>> Options(scale=0.1).number(1200), Options(scale=0.001).number(1200)
        (120, 16)
        """
        return max(round(full * self.scale), least)


@dataclass(frozen=True)
class Finding:
    """Ours beside theirs. ours: None where the run could not be made. why: the reason for a
    difference, or what to keep in mind."""

    what: str
    ours: float | None
    label: str  # of ours
    published: float | None = None
    unit: str = ""
    why: str = ""

    def __str__(self) -> str:
        ours = "-" if self.ours is None else f"{self.ours:,.4g}"
        theirs = "-" if self.published is None else f"{self.published:,.4g}"
        line = f"{self.what:<62} {ours:>9} {self.label:<13} {theirs:>9} {self.unit}"
        return line + (f"\n    ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Experiment:
    """run(case, options) gives one case's result; read(results) the findings of those there are.

    measures: whether it takes times of the real model, which needs a quiet machine.
    """

    name: str
    title: str
    conditions: str
    cases: Sequence[str]
    run: Callable[[str, Options], Result]
    read: Callable[[Results], list[Finding]]
    measures: bool = False
