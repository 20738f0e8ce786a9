"""The rules that a step must keep, whoever wrote the scheduler that made it."""

from __future__ import annotations

from minivllm.scheduler import Scheduler
from minivllm.step_records import SchedulerOutput


def check_schedule(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """Raise RuntimeError with the first rule that a scheduled step breaks."""
    if not isinstance(output, SchedulerOutput):
        raise RuntimeError(f"schedule() must return a SchedulerOutput, not {output!r:.40}")
    config, counts = scheduler.config, output.num_scheduled_tokens
    if len(counts) != len(output.requests):
        raise RuntimeError(f"{len(output.requests)} requests, but {len(counts)} token counts")
    for request, count in zip(output.requests, counts, strict=True):
        lacking = request.num_tokens - request.num_computed_tokens
        if request not in scheduler.running:
            raise RuntimeError(f"{request.name} is scheduled, but does not stand in running")
        if output.requests.count(request) > 1:
            raise RuntimeError(f"{request.name} is scheduled twice in one step")
        if not 1 <= count <= lacking:
            raise RuntimeError(f"{request.name} is given {count} tokens, it lacks {lacking}")
        room = request.block_table.num_slots
        if request.num_computed_tokens + count > room:
            raise RuntimeError(
                f"{request.name} is given {count} tokens after {request.num_computed_tokens}, its "
                f"blocks have room for {room}"
            )
    if sum(counts) > config.max_num_batched_tokens:
        raise RuntimeError(
            f"{sum(counts)} tokens in one step, the budget is {config.max_num_batched_tokens}"
        )
