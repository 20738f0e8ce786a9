"""One examination of one answer: it ends with the first thing that is wrong.

    def examine(exam, MyPool):
        pool = MyPool(8)
        exam.equal(pool.get_new_blocks(2), [0, 1], "get_new_blocks(2) of a fresh pool of 8")
        exam.refuses(lambda: pool.free_blocks([5]), "freeing block 5, which is free already")
        exam.true(pool.num_free_blocks == 6, "a refused call has changed the pool")

Invariant: whatever an answer does, an Exam only takes note; nothing is raised to the learner.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minivllm.lab.compare import difference, is_open, same, short
from minivllm.lab.time_limit import TimeIsUp, time_limit

SECONDS = 20


class Raised(NamedTuple):
    """What a call does instead of giving a value."""

    kind: str
    message: str = ""


class Wrong(Exception):
    """The first thing that is wrong, in a sentence; picture: a block map that shows it."""

    def __init__(self, text: str, picture: str = "") -> None:
        super().__init__(text)
        self.picture = picture


class Exam:
    """Takes note of what one answer does, up to the first thing that is wrong.

    is_open: the answer is still the stub. wrong: what is wrong, if anything. evidence: all that the
    answer did, so that two answers which fail alike can be told from two which do not.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_passed = 0
        self.num_cases = 0
        self.is_open = False
        self.wrong: str | None = None
        self.picture = ""
        self.evidence: list[Any] = []

    @property
    def is_over(self) -> bool:
        return self.is_open or self.wrong is not None

    # --- whole examinations ---------------------------------------------------------------------

    def run_cases(
        self, answer: Any, cases: Sequence[Sequence[Any]], expected: Sequence[Any]
    ) -> None:
        """Call the answer with each list of arguments and compare with what is expected."""
        outcomes = outcomes_of(answer, cases)
        self.num_cases = len(cases)
        if any(outcome == Raised("NotImplementedError") for outcome in outcomes):
            self.is_open = True
            return
        self.evidence += outcomes
        good = [same(*pair) for pair in zip(outcomes, expected, strict=True)]
        self.num_passed += sum(good)
        if not all(good):
            first = good.index(False)
            call = f"{self.name}({', '.join(map(short, cases[first]))})"
            self.wrong = f"{call} {difference(outcomes[first], expected[first])}"

    def run_value(self, answer: Any, expected: Any, tolerance: float) -> None:
        """Compare one value; None and ... mean that none has been given yet."""
        self.is_open = is_open(answer)
        self.evidence.append(answer)
        if not self.is_open and same(answer, expected, tolerance):
            self.num_passed += 1
        elif not self.is_open:
            self.wrong = f"{short(answer)} is not it"

    def run(self, examine: Callable[[Exam, Any], None], answer: Any) -> None:
        """Let `examine` try the answer; whatever is raised is the answer's doing."""
        try:
            with time_limit(SECONDS):
                examine(self, answer)
        except NotImplementedError:
            self.is_open = True
        except Wrong as wrong:
            self.wrong, self.picture = str(wrong), wrong.picture
        except Exception as error:
            self.wrong = _told(error)
        self.evidence += [self.wrong, self.picture]

    # --- the words of an examination ------------------------------------------------------------

    def true(self, holds: bool, wrong: str) -> None:
        """`wrong` says what is wrong when it does not hold."""
        if not holds:
            raise Wrong(wrong)
        self.num_passed += 1

    def equal(self, got: Any, expected: Any, what: str, tolerance: float = 1e-9) -> None:
        """`what` is the thing compared: 'get_new_blocks(2)' becomes 'get_new_blocks(2) gave ...'"""
        if not same(got, expected, tolerance):
            raise Wrong(f"{what} {difference(got, expected)}")
        self.num_passed += 1

    def refuses(
        self, call: Callable[[], Any], what: str, kind: type[Exception] = ValueError
    ) -> None:
        """The call must raise `kind`."""
        try:
            call()
        except NotImplementedError:
            raise
        except Exception as error:
            if not isinstance(error, kind):
                raise Wrong(f"{what}: {_told(error)}, expected a {kind.__name__}") from None
            self.num_passed += 1
        else:
            raise Wrong(f"{what} raised nothing, expected a {kind.__name__}")


def outcomes_of(answer: Any, cases: Sequence[Sequence[Any]]) -> list[Any]:
    """What the answer gives for each list of arguments, or how it fails. Arguments are copies."""
    outcomes: list[Any] = []
    for case in cases:
        try:
            with time_limit(SECONDS):
                outcomes.append(answer(*copy.deepcopy(list(case))))
        except NotImplementedError:
            return outcomes + [Raised("NotImplementedError")] * (len(cases) - len(outcomes))
        except TimeIsUp as error:
            return outcomes + [Raised("TimeIsUp", str(error))] * (len(cases) - len(outcomes))
        except Exception as error:
            outcomes.append(Raised(type(error).__name__, str(error)))
    return outcomes


def _told(error: Exception) -> str:
    return f"it raised {type(error).__name__}: {short(str(error), 120)}"
