"""Exercises of chapter 9, the second half: a bet at the door, and a scheduler."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.trial import jobs, trial
from minivllm.request import Request
from minivllm.scheduler import Scheduler

# ---- 9.6 ----


def bet(request):
    most = request.num_prompt_tokens + request.max_tokens - 1
    return min(request.num_tokens + 8, most)


def entries(reserve: Callable[[Request], int]) -> list[str]:
    """With how many blocks everybody enters, and comes back, in a pool of 9 blocks of 4."""
    config = SchedulerConfig(num_blocks=9, block_size=4, watermark_blocks=0)
    run = trial(jobs([5, 6, 5, 3], outputs=[20, 24, 4, 14]), config, reserve=reserve)
    return [text for text in run.events if " enters " in text or " resumes " in text]


def examine_bet(exam: Exam, reserve: Callable[[Request], int]) -> None:
    entered, expected = entries(reserve), entries(bet)
    for index, words in enumerate(expected):
        exam.equal(entered[index : index + 1], [words], "four requests in 9 blocks:")
    exam.equal(len(entered), len(expected), "the number of times that somebody enters or resumes")


# ---- 9.7 ----


class MyScheduler(Scheduler):
    def schedule_running(self, output):
        budget = self.config.max_num_batched_tokens
        for request in list(self.running):
            if request not in self.running:
                continue  # it had to go for one that stands before it
            num_new = min(request.num_tokens - request.num_computed_tokens, budget)
            while num_new > 0 and self.kv.allocate_slots(request, num_new) is None:
                if self._preempt_request(self.running[-1]) is request:
                    num_new = 0
            if num_new > 0:
                output.add(request, num_new)
                budget -= num_new
        return budget


def examine_scheduler(exam: Exam, scheduler: type[Scheduler]) -> None:
    many = jobs([5, 6, 6, 2, 9, 3], outputs=[12, 9, 8, 6, 10, 14])
    three = jobs([6, 7, 5], outputs=[12, 9, 8])  # here the youngest needs a block itself
    for work, num_blocks, budget in ((many, 64, 64), (many, 8, 64), (three, 8, 64), (many, 9, 7)):
        config = SchedulerConfig(
            num_blocks=num_blocks, block_size=4, max_num_batched_tokens=budget, watermark_blocks=0
        )
        theirs, ours = trial(work, config), trial(work, config, scheduler=scheduler)
        for index, (frame, expected) in enumerate(zip(ours.trace, theirs.trace, strict=False)):
            what = f"{num_blocks} blocks, (request, tokens) of iteration {index}:"
            exam.equal(list(frame.scheduled), list(expected.scheduled), what)
        exam.equal(ours.num_steps, theirs.num_steps, f"{num_blocks} blocks: the iterations")


EXERCISES = [
    Exercise(
        "9.6",
        bet,
        examine=examine_bet,
        mistakes=[
            Mistake(
                "request.num_tokens + 8", "request.num_prompt_tokens + 8",
                says="you forget what it has generated: after a preemption that is run again, too",
            ),
            Mistake(
                "min(request.num_tokens + 8, most)", "request.num_tokens + 8",
                says="you ask for slots that a short answer will never fill",
            ),
            Mistake(
                "request.max_tokens - 1", "request.max_tokens",
                says="you count a slot for the last token, which is never fed back",
            ),
            Mistake(
                "min(request.num_tokens + 8, most)", "most",
                says="you reserve the longest answer: that is the careful door, not a bet",
            ),
            Mistake(
                "min(request.num_tokens + 8, most)", "request.num_tokens",
                says="you reserve what is there now, and nothing for the 8 that you bet on",
            ),
        ],
    ),
    Exercise(
        "9.7",
        MyScheduler,
        examine=examine_scheduler,
        mistakes=[
            Mistake(
                "self._preempt_request(self.running[-1])", "self._preempt_request(self.running[0])",
                says="you preempt the oldest; the youngest stands at the end of running",
            ),
            Mistake(
                "while num_new > 0 and self", "if num_new > 0 and self",
                says="you preempt and do not try again, so no block has been given to anybody",
            ),
            Mistake(
                "self._preempt_request(self.running[-1])", "self._preempt_request(request)",
                says="you send away the one who needs a block, even if it is the oldest",
            ),
            Mistake(
                "num_new = 0\n", "break\n",
                says="you schedule a request that has just been preempted itself",
            ),
            Mistake(
                "            if request not in self.running:\n                continue", "",
                says="you go on with a request that had to leave for one before it",
            ),
        ],
    ),
]  # fmt: skip
