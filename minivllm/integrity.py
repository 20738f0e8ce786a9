"""The rules that hold after each step, checked one by one; the first broken one is named.

A block's ref_cnt is the number of tables that hold it, and it is free exactly when that is 0; each
live request is in exactly one queue; a running request's table has room for the tokens computed,
and for no more than is known or reserved; no block is shared before it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.page_table import num_blocks_for
from minivllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from minivllm.scheduler import Scheduler


def check_integrity(scheduler: Scheduler) -> None:
    """Raise RuntimeError with the first rule that is broken. O(pool + live tokens / block_size)."""
    live = [request for group in scheduler.requests.values() for request in group.samples]
    _check_queues(scheduler, live)
    for request in live:
        _check_table(scheduler, request)
    scheduler.kv.check_integrity(live)


def _check_queues(scheduler: Scheduler, live: list[Request]) -> None:
    queued = list(scheduler.running) + list(scheduler.waiting)
    if len(queued) != len(live) or set(queued) != set(live):
        raise RuntimeError(f"{len(live)} live requests, but {len(queued)} places in the queues")
    num_running = len(scheduler.running)
    for place, request in enumerate(queued):
        runs = place < num_running
        if runs != (request.status is RequestStatus.RUNNING) or request.is_finished:
            raise RuntimeError(f"{request} stands in the wrong queue")
    seats, most = sum(r.num_seats for r in scheduler.running), scheduler.config.max_num_seqs
    if seats > most:
        raise RuntimeError(f"{seats} seats are taken, more than max_num_seqs ({most})")


def _check_table(scheduler: Scheduler, request: Request) -> None:
    block_size, num_computed = scheduler.config.block_size, request.num_computed_tokens
    if not 0 <= num_computed <= request.num_tokens:
        raise RuntimeError(f"{request}: computed tokens out of range")
    num_blocks = request.block_table.num_blocks
    if request.status is RequestStatus.RUNNING:
        needed = num_blocks_for(num_computed, block_size)
        most = num_blocks_for(max(request.num_tokens, scheduler.reserve(request)), block_size)
        if not needed <= num_blocks <= most:
            raise RuntimeError(f"{request} holds {num_blocks} blocks, not {needed} to {most}")
    elif num_blocks:
        raise RuntimeError(f"{request} does not run, yet holds {num_blocks} blocks")
    elif len(request.host_block_ids) != num_blocks_for(num_computed, block_size):
        raise RuntimeError(f"{request} has {len(request.host_block_ids)} host blocks")
