"""What an exercise is: a task, a reference solution, an examination, and the usual mistakes.

An answer is judged by what it does. When it fails, each usual mistake sits the same examination: if
one of them fails in exactly the same way, that is what the learner did, and its `says` is told. So
a hint needs no guessing from the text of the code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from minivllm.lab.exam import Exam, outcomes_of


class Mistake:
    """A usual mistake: an edit of the reference solution, or a wrong answer written out.

    Mistake("-(-", "((", says="it rounds down")            # replaces text that stands there once
    Mistake(wrong=function_or_value, says="...")

    says: the misunderstanding in a sentence, shown to whoever makes it.
    """

    def __init__(self, old: str = "", new: str = "", *, says: str, wrong: Any = None) -> None:
        if bool(old) == (wrong is not None):
            raise ValueError(f"a mistake is an edit (old, new) or a wrong answer: {says!r}")
        self.old, self.new, self.says, self.wrong = old, new, says, wrong

    def applied_to(self, reference: Callable[..., Any]) -> Any:
        """The wrong answer. Raises ValueError when the text to replace is not there just once."""
        if self.wrong is not None:
            return self.wrong
        source = inspect.getsource(reference)
        if source.count(self.old) != 1:
            raise ValueError(
                f"{reference.__name__}: {self.old!r} stands there {source.count(self.old)} times"
            )
        namespace = dict(vars(sys.modules[reference.__module__]))
        exec(compile(source.replace(self.old, self.new), "<mistake>", "exec"), namespace)
        return namespace[reference.__name__]


@dataclass(frozen=True)
class Exercise:
    """Write `reference` yourself.

    cases: lists of arguments; the answer must do what the reference does with each. examine:
    instead of cases, or after them, a function (exam, answer) that tries the answer (exam.py).
    Raises ValueError for fewer than three usual mistakes.
    """

    id: str  # "4.2": chapter and number
    reference: Callable[..., Any]
    mistakes: Sequence[Mistake]
    cases: Sequence[Sequence[Any]] = ()
    examine: Callable[[Exam, Any], None] | None = None

    def __post_init__(self) -> None:
        if len(self.mistakes) < 3:
            raise ValueError(f"exercise {self.id} lists {len(self.mistakes)} mistakes, not 3")
        if not self.cases and self.examine is None:
            raise ValueError(f"exercise {self.id} has neither cases nor an examination")

    @property
    def name(self) -> str:
        return self.reference.__name__

    @cached_property
    def expected(self) -> list[Any]:
        return outcomes_of(self.reference, self.cases)

    def run(self, answer: Any) -> Exam:
        """The examination of one answer; raises only what no answer can cause."""
        exam = Exam(self.name)
        exam.run_cases(answer, self.cases, self.expected)
        if self.examine is not None and not exam.is_over:
            exam.run(self.examine, answer)
        return exam

    def wrong_answers(self) -> list[tuple[Any, str]]:
        return [(mistake.applied_to(self.reference), mistake.says) for mistake in self.mistakes]

    @property
    def solution(self) -> str:
        return inspect.getsource(self.reference)


@dataclass(frozen=True)
class Question:
    """Predict a value before running the cell that computes it.

    answer: the right value, or a function of nothing that computes it (so that it cannot rot).
    working: how to get it, shown by `solution`. tolerance: how far off, relatively, still counts.
    """

    id: str
    answer: Any
    working: str
    mistakes: Sequence[Mistake] = field(default_factory=list)
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        if len(self.mistakes) < 3 and not isinstance(self.answer, bool):
            raise ValueError(f"question {self.id} lists {len(self.mistakes)} mistakes, not 3")

    @property
    def name(self) -> str:
        return "value"

    @cached_property
    def value(self) -> Any:
        return self.answer() if callable(self.answer) else self.answer

    def run(self, answer: Any) -> Exam:
        exam = Exam(self.name)
        exam.run_value(answer, self.value, self.tolerance)
        return exam

    def wrong_answers(self) -> list[tuple[Any, str]]:
        return [(mistake.wrong, mistake.says) for mistake in self.mistakes]

    @property
    def solution(self) -> str:
        return f"{self.value!r}\n# {self.working}\n"
