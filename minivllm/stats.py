"""Counts of what the scheduler has done so far, and a measure of the pool as it stands now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minivllm.kv_cache_manager import KVCacheManager
    from minivllm.request import Request


@dataclass
class SchedulerStats:
    """Counts since the engine began. Cached tokens are those of first admissions only: what a
    preempted request finds of its own earlier work is no hit.
    """

    num_finished: int = 0  # samples, also those that were aborted
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_swapped_blocks: int = 0  # moved out to host memory
    num_copied_blocks: int = 0
    num_prompt_tokens: int = 0  # of requests that have entered
    num_cached_tokens: int = 0

    def count_admission(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        self.num_prompt_tokens += num_prompt_tokens
        self.num_cached_tokens += num_cached_tokens

    def count_preemption(self, num_swapped_blocks: int) -> None:
        self.num_preemptions += 1
        self.num_swapped_blocks += num_swapped_blocks

    def count_recompute(self, request: Request, num_new_tokens: int) -> None:
        """Of the tokens just run, not counted as computed yet, count those a preemption had lost.

        For a request whose num_computed_tokens is below its num_lost_tokens.
        """
        num_left = request.num_lost_tokens - request.num_computed_tokens
        self.num_recomputed_tokens += min(num_left, num_new_tokens)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in the prefix cache."""
        return self.num_cached_tokens / max(self.num_prompt_tokens, 1)


@dataclass(frozen=True)
class KVUsage:
    """The pool at one moment: used + free = all blocks, but for what a buddy pool rounds up.

    Reserved blocks are used ones that hold no token yet; shared ones have at least two holders;
    cached ones are findable by prefix, used or free.
    """

    num_used_blocks: int
    num_free_blocks: int
    num_reserved_blocks: int
    num_shared_blocks: int
    num_cached_blocks: int
    num_stored_tokens: int  # a shared token counts once
    num_wasted_slots: int  # slots of used blocks that hold no token: internal fragmentation

    @classmethod
    def of(cls, kv: KVCacheManager, running: Iterable[Request]) -> KVUsage:
        """Measure the pool. O(blocks in use)."""
        fill: dict[int, int] = {}
        for request in running:
            num_left = request.num_computed_tokens
            for block_id in request.block_table.block_ids:
                fill[block_id] = max(fill.get(block_id, 0), min(num_left, kv.block_size))
                num_left = max(num_left - kv.block_size, 0)
        num_stored = sum(fill.values())
        return cls(
            num_used_blocks=len(fill),
            num_free_blocks=kv.pool.num_free_blocks,
            num_reserved_blocks=sum(tokens == 0 for tokens in fill.values()),
            num_shared_blocks=kv.pool.num_shared_blocks,
            num_cached_blocks=len(kv.prefix_cache) if kv.prefix_cache is not None else 0,
            num_stored_tokens=num_stored,
            num_wasted_slots=len(fill) * kv.block_size - num_stored,
        )
