"""What a notebook calls: check an answer, check a prediction, show a solution.

    check("2.1", blocks_needed)      # ○ exercise 2.1 (blocks_needed): not done yet
    check_value("2.2", 5)            # ✓ question 2.2: yes, 5
    solution("2.1")                  # prints the tested reference solution

A check prints and never raises, so an unfinished notebook runs to its end; its one line is the same
each time, so the notebook can be tested.
"""

from __future__ import annotations

from typing import Any

from minivllm.lab.compare import short
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Question
from minivllm.lab.registry import find


def check(exercise_id: str, answer: Any) -> None:
    """Print whether an answer does what exercise `exercise_id` asks for; never raises."""
    print(report(exercise_id, answer))


def check_value(question_id: str, answer: Any = None) -> None:
    """Print whether a prediction is right; never raises."""
    print(report(question_id, answer))


def solution(exercise_id: str) -> None:
    """Print the reference solution, which the tests run."""
    try:
        print(find(exercise_id).solution, end="")
    except ValueError as error:
        print(f"? {error}")


def report(exercise_id: str, answer: Any) -> str:
    """What `check` prints: a line, and below it a block map where one shows what went wrong."""
    try:
        item = find(exercise_id)
    except ValueError as error:
        return f"? {error}"
    where = f"exercise {item.id} ({item.name})"
    if isinstance(item, Question):
        where = f"question {item.id}"
    exam = item.run(answer)
    if exam.is_open:
        return f"○ {where}: not done yet"
    if exam.wrong is None:
        right = f"yes, {short(answer)}" if isinstance(item, Question) else _all(exam.num_passed)
        return f"✓ {where}: {right}"
    count = ""
    if exam.num_cases:
        count = f" ({exam.num_passed} of {exam.num_cases} checks pass)"
    line = f"✗ {where}: {exam.wrong}{count}"
    if says := diagnose(item, exam):
        line += f". {says[0].upper()}{says[1:]}"
    return line + (f"\n{exam.picture}" if exam.picture else "")


def diagnose(item: Exercise | Question, exam: Exam) -> str | None:
    """What the usual mistake says that fails in exactly the same way, if there is one."""
    for wrong_answer, says in item.wrong_answers():
        other = item.run(wrong_answer)
        if other.wrong == exam.wrong and repr(other.evidence) == repr(exam.evidence):
            return says
    return None


def _all(number: int) -> str:
    return "the check passes" if number == 1 else f"all {number} checks pass"
