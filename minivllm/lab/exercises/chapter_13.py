"""Exercises of chapter 13: the bug museum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.fake_executor import FakeExecutor
from minivllm.lab.exam import Exam, Wrong
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial
from minivllm.page_table import num_blocks_for

# ---- 13.2 ----


def lying_entries(entries, contents):
    return sorted({block for block, prefix in entries if contents[block] != prefix})


# ---- 13.3 ----


def overtakers(events):
    owed, found = set(), []
    for kind, name in events:
        if kind == "preempt":
            owed.add(name)
        elif kind in ("resume", "abort"):
            owed.discard(name)
        elif kind == "admit":
            owed.discard(name)
            if owed:
                found.append(name)
    return found


EVENTS = [
    "admit A, admit B, finish A",
    "admit A, admit B, preempt B, wait B, admit C, resume B",
    "admit A, admit B, preempt B, resume B, admit C",
    "admit A, admit B, preempt B, abort B, admit C",
    "admit A, admit B, preempt B, admit C, admit D, admit B, admit E",
    "admit A, admit B, admit C, preempt C, preempt B, resume B, admit D, resume C, admit E",
    "admit A, admit B, preempt B, chunk A, preempt A, admit C, resume A, resume B",
]


def events_of(text: str) -> list[tuple[str, str]]:
    """The events of a line: "admit A, wait B" -> [("admit", "A"), ("wait", "B")]."""
    return [tuple(event.split()) for event in text.split(", ")]


# ---- 13.4 ----


def reserve(request):
    return request.num_tokens


def examine_reserve(exam: Exam, answer: Callable[[Any], int]) -> None:
    work = jobs([5, 5, 5], outputs=[9, 9, 9])
    run = trial(work, SchedulerConfig(num_blocks=8, block_size=4, watermark_blocks=0),
                reserve=answer)  # fmt: skip
    num_preemptions = run.engine.scheduler.stats.num_preemptions
    exam.true(num_preemptions > 0, "nobody was ever preempted: more is reserved than needed now")
    entries = [event for event in run.events if " enters with " in event or " resumes " in event]
    exam.equal(entries, ["r0 enters with 2 blocks", "r1 enters with 2 blocks",
                         "r2 enters with 2 blocks", "r2 resumes with 3 blocks"],
               "who entered with how much: the engine")  # fmt: skip


# ---- 13.5 ----


class QuietBug(FakeExecutor):
    def execute(self, output):
        answer = super().execute(output)
        answer.sampled_token_ids.reverse()
        return answer


def examine_quiet_bug(exam: Exam, answer: type[FakeExecutor]) -> None:
    config = SchedulerConfig(num_blocks=16, block_size=4)
    _say_alarm(jobs([7], outputs=[6]), config, answer, "a request that is alone")
    exam.num_passed += 1
    heard = ""
    try:
        trial(jobs([5, 9, 6], outputs=[7, 5, 6]), config, executor=answer(16, 4))
    except Wrong as wrong:
        heard = str(wrong)
        if "depend on the schedule" not in heard:
            raise Wrong(f"three requests together: another alarm rang: {heard}") from None
    exam.true(bool(heard), "three requests together: every token is right, nothing is planted")


def _say_alarm(work: list, config: SchedulerConfig, executor: Any, who: str) -> None:
    try:
        trial(work, config, executor=executor(config.num_blocks, config.block_size))
    except Wrong as wrong:
        raise Wrong(f"{who}: an alarm rang: {wrong}") from None


EXERCISES = [
    Question(
        "13.1",
        answer=lambda: 8 - num_blocks_for(12, 4),
        working="on entering A got 3 blocks for its 12 tokens, and none comes back",
        mistakes=[
            Mistake(
                wrong=8,
                says="that is a right engine; here A has no output yet, so free returns at once",
            ),
            Mistake(
                wrong=7,
                says="one block is written, but on entering A got blocks for its whole prompt",
            ),
            Mistake(wrong=4, says="you count 4 tokens as 4 blocks; a block holds 4 tokens"),
            Mistake(wrong=3, says="that is what is lost, and the question was what is free"),
        ],
    ),
    Exercise(
        "13.2",
        lying_entries,
        cases=[
            ([], [None, None]),
            ([(0, [1, 2]), (1, [1, 2, 3, 4])], [[1, 2], [1, 2, 3, 4]]),
            ([(0, [1, 2]), (0, [7, 8])], [[7, 8], None]),
            ([(2, [5, 6]), (0, [1, 2]), (2, [3, 4])], [[9, 9], None, [8, 8]]),
            ([(1, [1, 2])], [[1, 2], None]),
            ([(1, [1, 2, 3, 4, 5, 6])], [None, [0, 0, 3, 4, 5, 6]]),
        ],
        mistakes=[
            Mistake(
                "contents[block] != prefix", "(contents[block] or prefix) != prefix",
                says="an empty block passes, but an entry for what was never written lies too",
            ),
            Mistake(
                "contents[block] != prefix", "(contents[block] or [])[-2:] != prefix[-2:]",
                says="you compare the block's own tokens only: K and V depend on the whole prefix",
            ),
            Mistake(
                wrong=lambda entries, contents: sorted(
                    block for block, prefix in dict(entries).items() if contents[block] != prefix
                ),
                says="you keep one entry per block, but the stale one stands beside the new one",
            ),
            Mistake(
                "sorted({block for block, prefix in entries if contents[block] != prefix})",
                "[block for block, prefix in entries if contents[block] != prefix]",
                says="you name a block once for each lie: each once was asked for, lowest first",
            ),
        ],
    ),
    Exercise(
        "13.3",
        overtakers,
        cases=[[events_of(text)] for text in EVENTS],
        mistakes=[
            Mistake(
                '("resume", "abort")', '("abort",)',
                says="you never end a debt: who has resumed is owed nothing any more",
            ),
            Mistake(
                '("resume", "abort")', '("resume",)',
                says="you forget that who is aborted will not come back, and is owed nothing",
            ),
            Mistake(
                "owed.add(name)", "owed = {name}",
                says="you remember only the last one preempted, but several may be owed a place",
            ),
            Mistake(
                "            owed.discard(name)\n            if owed:", "            if owed:",
                says="you take the one who comes back for an overtaker: its own debt ends first",
            ),
            Mistake(
                "            if owed:\n    ", "            if True:\n    ",
                says="you name everybody who is admitted, though nobody may be owed a place",
            ),
        ],
    ),
    Exercise(
        "13.4",
        reserve,
        examine=examine_reserve,
        mistakes=[
            Mistake(
                "num_tokens", "num_prompt_tokens",
                says="you count the prompt only: who resumes must compute its output again as well",
            ),
            Mistake(
                "num_tokens", "num_computed_tokens",
                says="you count what is computed: on entering that is nothing, and it will be all",
            ),
            Mistake(
                "num_tokens", "max_kv_tokens",
                says="you reserve for tokens that may never come: that is chapter 3's waste",
            ),
            Mistake(
                "num_tokens", "num_tokens + request.num_output_tokens",
                says="you count the output twice: num_tokens is prompt and output already",
            ),
        ],
    ),
    Exercise(
        "13.5",
        QuietBug,
        examine=examine_quiet_bug,
        mistakes=[
            Mistake(
                "        answer.sampled_token_ids.reverse()\n", "",
                says="you hand on the right answer unchanged",
            ),
            Mistake(
                "answer.sampled_token_ids.reverse()",
                "answer.sampled_token_ids = [[1 for _ in row] for row in answer.sampled_token_ids]",
                says="your bug shows for one request already: make it depend on the others",
            ),
            Mistake(
                "answer.sampled_token_ids.reverse()", "answer.sampled_token_ids[1:] = []",
                says="you leave rows out: a missing answer is noticed at once, a wrong one is not",
            ),
            Mistake(
                "answer.sampled_token_ids.reverse()",
                "answer.sampled_token_ids[1:] = [[] for _ in answer.sampled_token_ids[1:]]",
                says="the others never get a token, so they never end and somebody notices",
            ),
        ],
    ),
]  # fmt: skip
