"""Exercises of chapter 8, the second half: a policy and a scheduler."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.trial import jobs, trial
from minivllm.request import Request
from minivllm.scheduler import Scheduler

# ---- 8.6 ----


def fair_policy(request):
    return request.arrival + request.num_prompt_tokens / 8


def order_of(policy: Callable[[Request], float], prompts: list[int]) -> list[str]:
    """In which order these requests enter, one at a time."""
    config = SchedulerConfig(num_blocks=24, block_size=4, max_num_seqs=1)
    run = trial(jobs(prompts, outputs=[2] * len(prompts)), config, policy=policy)
    return [event.split()[0] for event in run.events if " enters" in event]


def examine_policy(exam: Exam, policy: Callable[[Request], float]) -> None:
    for prompts, expected in [
        ([2] + [1] * 10, [f"r{i}" for i in range(11)]),
        ([4, 40], ["r0", "r1"]),
        ([40, 4], ["r1", "r0"]),
        ([4, 40, 4, 4, 4, 4, 4, 4], ["r0", "r2", "r3", "r4", "r5", "r1", "r6", "r7"]),
        ([17, 1, 9], ["r1", "r0", "r2"]),
    ]:
        got = order_of(policy, prompts)
        exam.equal(got, expected, f"the order in which prompts of {prompts} tokens enter")


# ---- 8.7 ----


class MyScheduler(Scheduler):
    def schedule_running(self, output):
        budget = self.config.max_num_batched_tokens
        for request in self.running:
            num_lacking = request.num_tokens - request.num_computed_tokens
            num_new = min(num_lacking, self.config.max_chunk, budget)
            if num_new > 0:
                self.kv.allocate_slots(request, num_new)
                output.add(request, num_new)
                budget -= num_new
        return budget


def examine_scheduler(exam: Exam, scheduler: type[Scheduler]) -> None:
    work = jobs([30, 6, 40, 3, 25], outputs=[5, 12, 4, 9, 3])
    config = SchedulerConfig(
        num_blocks=40, block_size=4, max_num_batched_tokens=16, long_prefill_token_threshold=9
    )
    theirs = trial(work, config)
    ours = trial(work, config, scheduler=scheduler)
    for index, (frame, expected) in enumerate(zip(ours.trace, theirs.trace, strict=False)):
        what = f"the tokens (request, number) scheduled in iteration {index}"
        exam.equal(list(frame.scheduled), list(expected.scheduled), what)
    exam.equal(ours.num_steps, theirs.num_steps, "the number of iterations")
    # A short job, the last to come, goes in front of three that decode, and takes the whole budget.
    crowd = SchedulerConfig(num_blocks=80, block_size=4, max_num_batched_tokens=4, policy="sjf")
    work = jobs([3, 3, 3, 8], outputs=[60, 60, 60, 2])
    trial(work, crowd, scheduler=scheduler, arrivals=[0, 0, 0, 5])


EXERCISES = [
    Exercise(
        "8.6",
        fair_policy,
        examine=examine_policy,
        mistakes=[
            Mistake(
                "request.arrival + request.num_prompt_tokens / 8", "request.num_prompt_tokens",
                says="you look at the length only: whoever is long waits for ever",
            ),
            Mistake(
                "request.arrival + request.num_prompt_tokens / 8", "request.arrival",
                says="you look at the arrival only: that is first come, first served",
            ),
            Mistake(
                "arrival + request", "arrival - request",
                says="you let long prompts go first: a smaller number stands further in front",
            ),
            Mistake(
                "num_prompt_tokens / 8", "num_prompt_tokens * 8",
                says="you let one token weigh 8 places; 8 tokens are to weigh one place",
            ),
        ],
    ),
    Exercise(
        "8.7",
        MyScheduler,
        examine=examine_scheduler,
        mistakes=[
            Mistake(
                "self.kv.allocate_slots(request, num_new)", "pass",
                says="you schedule tokens without slots for them: call allocate_slots before",
            ),
            Mistake(
                "budget -= num_new", "pass",
                says="you never take anything off the budget",
            ),
            Mistake(
                "min(num_lacking, self.config.max_chunk, budget)", "min(num_lacking, budget)",
                says="you let one request have more than max_chunk tokens of an iteration",
            ),
            Mistake(
                "return budget", "return 0",
                says="you leave nothing for newcomers, so nobody ever enters",
            ),
            Mistake(
                "num_lacking = request.num_tokens - request.num_computed_tokens",
                "num_lacking = 1",
                says="you give each request one token, as if all of them were decoding",
            ),
            Mistake(
                "if num_new > 0", "if num_new >= 0",
                says="you schedule requests with 0 tokens when the budget is spent",
            ),
        ],
    ),
]  # fmt: skip
