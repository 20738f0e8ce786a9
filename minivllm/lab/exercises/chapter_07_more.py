"""Exercises of chapter 7, the second half: reserving, and the static rival."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.exercises.chapter_07 import OUTPUTS
from minivllm.lab.trial import jobs, trial
from minivllm.scheduler import Scheduler

# ---- 7.5 ----


def reserve_all(request):
    return request.num_prompt_tokens + request.max_tokens - 1


def examine_reserve_all(exam: Exam, reserve_all: Callable[..., int]) -> None:
    config = SchedulerConfig(num_blocks=8, block_size=4, watermark_blocks=0)
    for prompts, outputs in (([6, 5, 3, 8], [9, 4, 6, 3]), ([4] * 7, OUTPUTS)):
        work = jobs(prompts, outputs)
        run = trial(work, config, reserve=reserve_all)
        num_preempted = run.engine.scheduler.stats.num_preemptions
        exam.equal(num_preempted, 0, f"prompts {prompts}, outputs {outputs}: preemptions")
        at_entry = {}
        for frame in run.trace:
            for row in frame.requests:
                if row.block_ids:
                    at_entry.setdefault(row.name, len(row.block_ids))
        expected = {job.name: -(-(len(job.prompt_token_ids) + job.max_tokens - 1) // 4)
                    for job in work}  # fmt: skip
        what = f"prompts {prompts}, outputs {outputs}: the blocks at the entry"
        exam.equal(at_entry, expected, what)


# ---- 7.6 ----


class StaticScheduler(Scheduler):
    def schedule_waiting(self, output, budget):
        if not self.running:
            super().schedule_waiting(output, budget)


def examine_static_scheduler(exam: Exam, scheduler: type[Scheduler]) -> None:
    config = SchedulerConfig(num_blocks=16, block_size=4, max_num_seqs=2)
    run = trial(jobs([4] * 7, OUTPUTS), config, scheduler=scheduler)
    exam.equal(run.num_steps, 27, "2 places: the number of iterations")
    config = SchedulerConfig(num_blocks=16, block_size=4, max_num_seqs=3)
    run = trial(jobs([4] * 7, OUTPUTS), config, scheduler=scheduler)
    exam.equal(run.num_steps, 23, "3 places: the number of iterations")


EXERCISES = [
    Exercise(
        "7.5",
        reserve_all,
        examine=examine_reserve_all,
        mistakes=[
            Mistake(
                " + request.max_tokens - 1", "",
                says="you reserve for the prompt only, so somebody runs out of blocks later",
            ),
            Mistake(
                " - 1", "",
                says="you reserve a slot for the last token too, and it is never fed back",
            ),
            Mistake(
                "request.num_prompt_tokens + request.max_tokens - 1", "request.max_tokens",
                says="you forget the prompt: its tokens need slots as well",
            ),
            Mistake(
                "request.num_prompt_tokens + request.max_tokens - 1",
                "-(-(request.num_prompt_tokens + request.max_tokens - 1) // 4)",
                says="you give blocks, but tokens are asked for; the engine does the division",
            ),
        ],
    ),
    Exercise(
        "7.6",
        StaticScheduler,
        examine=examine_static_scheduler,
        mistakes=[
            Mistake(
                "if not self.running", "if True",
                says="you let them join whenever there is a place: that is continuous batching",
            ),
            Mistake(
                "if not self.running", "if self.running",
                says="you let nobody begin: with nobody running, nobody ever enters",
            ),
            Mistake(
                "if not self.running",
                "if not self.running and len(self.waiting) >= self.config.max_num_seqs",
                says="you wait until a batch is full, but the last one may never be",
            ),
        ],
    ),
]  # fmt: skip
