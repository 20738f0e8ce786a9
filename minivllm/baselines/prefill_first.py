"""TGI's way to form a batch: new prompts get a step of their own, and the others wait for it.

    step        1   2   3   4   5   6
    request 0   P   d   d   .   d   d        P prefill, d decode, . a decode that pauses
    request 1               P   d   d
"""

from __future__ import annotations

from minivllm.scheduler import Scheduler
from minivllm.step_records import SchedulerOutput


class PrefillFirst:
    """TGI's rule: a step either prefills newcomers, while all decodes pause, or decodes.

    Newcomers are let in when at least `waiting_served_ratio` of them wait for each running request
    (so always when nobody runs), or after `max_waiting_tokens` steps of decoding.
    """

    def __init__(self, waiting_served_ratio: float = 1.2, max_waiting_tokens: int = 20) -> None:
        self.waiting_served_ratio = waiting_served_ratio
        self.max_waiting_tokens = max_waiting_tokens
        self.num_decode_steps = 0  # since the last prefill

    def __call__(self, scheduler: Scheduler, output: SchedulerOutput) -> None:
        if self._lets_in(len(scheduler.waiting), len(scheduler.running)):
            scheduler.schedule_waiting(output, scheduler.config.max_num_batched_tokens)
        if output.requests:
            self.num_decode_steps = 0
        else:
            self.num_decode_steps += 1
            scheduler.schedule_running(output)

    def _lets_in(self, num_waiting: int, num_running: int) -> bool:
        enough = num_waiting >= self.waiting_served_ratio * num_running
        return enough or self.num_decode_steps >= self.max_waiting_tokens
