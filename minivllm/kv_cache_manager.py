"""Which blocks a request gets: the scheduler decides who runs, this decides where its KV lies.

It owns the block pool, the host pool and the prefix cache, and writes each move of a block into
`block_ops`. Invariant: nobody writes into a block that somebody else holds: a shared block that
must be written is copied first (copy-on-write). Each operation is all or nothing, and O(1) per
block touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.page_table import num_blocks_for
from minivllm.prefix_cache import PrefixCache
from minivllm.request import Request
from minivllm.step_records import BlockOp

NEVER = sys.maxsize


class InitialNeed(NamedTuple):
    """What a waiting request needs to enter."""

    cached_block_ids: list[int]  # the blocks of its prefix that the cache has
    num_blocks: int  # that leave the free list: new ones, and cached ones that nobody holds


class KVCacheManager:
    """Block tables of all live requests over one pool (vLLM: KVCacheManager)."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool | None = None) -> None:
        self.block_size = config.block_size
        self.pool = pool or BlockPool(config.num_blocks)
        swaps = config.preemption_mode == "swap" and config.num_host_blocks > 0
        self.host_pool = BlockPool(config.num_host_blocks) if swaps else None
        self.prefix_cache = PrefixCache(self.block_size) if config.enable_prefix_caching else None
        self.block_ops: list[BlockOp] = []  # since the last take_block_ops
        self.evicted: list[int] = []  # cached blocks taken for new tokens since take_evicted

    # --- entering -------------------------------------------------------------------------------

    def initial_need(self, request: Request, num_tokens: int) -> InitialNeed:
        """What it takes to admit `request` with room for `num_tokens` tokens. Changes nothing."""
        total = num_blocks_for(num_tokens, self.block_size)
        cached = [] if request.host_block_ids else self._find_cached_blocks(request)
        num_held = sum(self.pool.ref_cnt[block_id] > 0 for block_id in cached)
        return InitialNeed(cached, total - num_held)

    def allocate_initial(self, request: Request, num_tokens: int, need: InitialNeed) -> None:
        """Carry out an admission that `initial_need` has found possible."""
        table, total = request.block_table, num_blocks_for(num_tokens, self.block_size)
        self.pool.touch(need.cached_block_ids)
        table.block_ids += need.cached_block_ids
        table.block_ids += self._get_new_blocks(total - len(need.cached_block_ids))
        if request.host_block_ids:
            self._swap_in(request)
        else:
            request.num_computed_tokens = len(need.cached_block_ids) * self.block_size
            request.num_published = len(need.cached_block_ids)

    def _find_cached_blocks(self, request: Request) -> list[int]:
        """Published blocks of its prefix, without its last token: that one must be computed."""
        if self.prefix_cache is None:
            return []
        keys = self._extend_hashes(request)[: (request.num_tokens - 1) // self.block_size]
        return self.prefix_cache.find(request.token_ids, keys)

    # --- running --------------------------------------------------------------------------------

    def allocate_slots(self, request: Request, num_new_tokens: int) -> list[int] | None:
        """Give the next `num_new_tokens` tokens slots that only this request holds.

        Returns the new block ids (most often none), or None when the pool has no room; then nothing
        has changed.
        """
        block_ids, block_size = request.block_table.block_ids, self.block_size
        start = request.num_computed_tokens
        end = start + num_new_tokens
        is_shared = self.pool.num_shared_blocks > 0 and self._is_shared(block_ids, start)
        if end <= len(block_ids) * block_size and not is_shared:
            return []
        num_missing = max(num_blocks_for(end, block_size) - len(block_ids), 0)
        num_new = num_missing + is_shared  # one more for the copy
        if num_new > self.pool.num_available_blocks:
            return None
        new_block_ids = self._get_new_blocks(num_new)
        if is_shared:
            self._copy_on_write(request, start // block_size, new_block_ids[0])
        block_ids += new_block_ids[1:] if is_shared else new_block_ids
        return new_block_ids

    def _is_shared(self, block_ids: list[int], start: int) -> bool:
        """Whether somebody else holds a block that tokens from `start` on are written into: of
        those only the partly filled one can be shared, see fork().
        """
        first, offset = divmod(start, self.block_size)
        return offset > 0 and self.pool.ref_cnt[block_ids[first]] > 1

    def _copy_on_write(self, request: Request, index: int, new_block_id: int) -> None:
        """Have logical block `index` copied, and hold the copy instead of the shared block."""
        block_ids = request.block_table.block_ids
        self.block_ops.append(BlockOp("copy", block_ids[index], new_block_id))
        self.pool.free_blocks([block_ids[index]])
        block_ids[index] = new_block_id

    def fork(self, parent: Request, child: Request) -> None:
        """Share the parent's written blocks with the child; takes no block, so it cannot fail.

        What a preempted parent has in host memory is not shared: the child computes its own.
        """
        if not parent.block_table.block_ids:
            child.num_computed_tokens = 0
            return
        num_written = num_blocks_for(parent.num_computed_tokens, self.block_size)
        child.block_table.block_ids = parent.block_table.block_ids[:num_written]
        self.pool.touch(child.block_table.block_ids)

    def publish_full_blocks(self, request: Request) -> None:
        """Make all blocks that are full now findable: after the step that wrote them has run."""
        if self.prefix_cache is None:
            return
        num_full = request.num_computed_tokens // self.block_size
        if request.num_published >= num_full:
            return
        keys = self._extend_hashes(request)
        for index in range(request.num_published, num_full):
            start = index * self.block_size
            tokens = request.token_ids[start : start + self.block_size]
            block_id = request.block_table.block_ids[index]
            if not self.prefix_cache.publish(keys, index, tokens, block_id):
                request.num_published = NEVER  # a collision: this chain ends here
                return
        request.num_published = num_full

    # --- leaving --------------------------------------------------------------------------------

    def free(self, request: Request) -> None:
        """Give everything back. The tail goes first, so that a prefix stays cached the longest."""
        self.pool.free_blocks(reversed(request.block_table.block_ids))
        request.block_table.block_ids = []
        request.num_published = 0
        if request.host_block_ids:
            self.host_pool.free_blocks(request.host_block_ids)
            request.host_block_ids = []

    def lose(self, request: Request) -> int:
        """Give everything back, to be computed again. Returns 0: no block is moved."""
        self.free(request)
        request.num_lost_tokens = max(request.num_lost_tokens, request.num_computed_tokens)
        request.num_computed_tokens = 0
        return 0

    def preempt(self, request: Request) -> int:
        """Free its blocks. Its KV moves to host memory, if that is wanted and has room for all of
        it; else it is to be computed again. Returns the number of blocks moved.
        """
        num_written = num_blocks_for(request.num_computed_tokens, self.block_size)
        if self.host_pool is None or num_written > self.host_pool.num_free_blocks:
            return self.lose(request)
        host_block_ids = self.host_pool.get_new_blocks(num_written)
        written = request.block_table.block_ids[:num_written]
        for src, dst in zip(written, host_block_ids, strict=True):
            self.block_ops.append(BlockOp("swap_out", src, dst))
        self.free(request)
        request.host_block_ids = host_block_ids
        return num_written

    def _swap_in(self, request: Request) -> None:
        # The table may be longer: it has room for the tokens that come next.
        for src, dst in zip(request.host_block_ids, request.block_table.block_ids, strict=False):
            self.block_ops.append(BlockOp("swap_in", src, dst))
        self.host_pool.free_blocks(request.host_block_ids)
        request.host_block_ids = []

    # --- for all of these -----------------------------------------------------------------------

    def take_block_ops(self) -> list[BlockOp]:
        """The moves decided since the last call, in their order."""
        ops, self.block_ops = self.block_ops, []
        return ops

    def take_evicted(self) -> list[int]:
        """The cached blocks taken for new tokens since the last call."""
        evicted, self.evicted = self.evicted, []
        return evicted

    def _get_new_blocks(self, num_blocks: int) -> list[int]:
        block_ids = self.pool.get_new_blocks(num_blocks)
        if self.prefix_cache is not None:
            self.evicted += self.prefix_cache.forget(block_ids)
        return block_ids

    def _extend_hashes(self, request: Request) -> list[bytes]:
        request.block_hashes = self.prefix_cache.block_hashes(
            request.token_ids, request.block_hashes, request.cache_salt
        )
        return request.block_hashes

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise RuntimeError unless pools, tables and cache agree and what is shared is written."""
        requests = list(requests)
        self.pool.check_integrity(b for r in requests for b in r.block_table.block_ids)
        if self.host_pool is not None:
            self.host_pool.check_integrity(b for r in requests for b in r.host_block_ids)
        if self.prefix_cache is not None:
            self.prefix_cache.check_integrity(self.pool.num_blocks)
        for request in requests:
            num_written = num_blocks_for(request.num_computed_tokens, self.block_size)
            for block_id in request.block_table.block_ids[num_written:]:
                if self.pool.ref_cnt[block_id] > 1:
                    raise RuntimeError(f"{request} shares block {block_id}, not written yet")
