"""Exercises of chapter 9, the second half: a careful reservation and a scheduler."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.trial import jobs, trial
from minivllm.request import Request
from minivllm.scheduler import Scheduler

# ---- 9.6 ----


def careful(request):
    return request.num_prompt_tokens + request.max_tokens - 1


def examine_careful(exam: Exam, reserve: Callable[[Request], int]) -> None:
    config = SchedulerConfig(num_blocks=8, block_size=4, watermark_blocks=0)
    run = trial(jobs([5, 6, 6], outputs=[12, 9, 8]), config, reserve=reserve)
    num_preemptions = run.engine.scheduler.stats.num_preemptions
    exam.equal(num_preemptions, 0, "preemptions with prompts 5, 6, 6 in 8 blocks:")
    run = trial(jobs([9, 24, 25], outputs=[8, 9, 8]), config, reserve=reserve)
    exam.equal(run.num_steps, 25, "iterations of three requests, of which two fill the pool:")


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
        careful,
        examine=examine_careful,
        mistakes=[
            Mistake(
                "request.num_prompt_tokens + request.max_tokens - 1", "request.num_prompt_tokens",
                says="you reserve the prompt only: then the answer grows into others' blocks",
            ),
            Mistake(
                "request.max_tokens - 1", "request.max_tokens",
                says="you reserve a slot for the last token, which is never fed back",
            ),
            Mistake(
                "request.num_prompt_tokens + request.max_tokens - 1", "request.max_tokens",
                says="you reserve the answer only, and there is no room for the prompt",
            ),
            Mistake(
                wrong=lambda request: 2048,
                says="you reserve the longest text there may be, as before paging",
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
