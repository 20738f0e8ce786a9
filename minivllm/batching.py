"""Who shares a step: the rule that forms the batch.

A rule is a function (scheduler, output) that fills the step's output with the scheduler's two
moves, `schedule_running` and `schedule_waiting`. This is vLLM's, the default; TGI's stands in
baselines/prefill_first.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from minivllm.step_records import SchedulerOutput

if TYPE_CHECKING:
    from minivllm.scheduler import Scheduler

FormBatch = Callable[["Scheduler", SchedulerOutput], None]


def mix(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Running requests first, then whoever may enter: prefills and decodes share the step.

    Nobody enters in a step that has preempted somebody: there is no block to spare.
    """
    budget = scheduler.schedule_running(output)
    if budget is not None and scheduler.waiting:
        scheduler.schedule_waiting(output, budget)
