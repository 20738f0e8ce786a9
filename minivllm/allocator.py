"""The pool of KV blocks: which are free, and how many holders each of the others has.

Invariant: a block is in the free list exactly when its `ref_cnt` is 0, and free + used =
num_blocks. The pool knows nothing of requests, tokens or hashes; every operation is O(1) per block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    """`num_blocks` blocks of one size, handed out by id and counted (block = page).

    The free list is a queue: the block that has been free the longest is taken first, so what a
    freed block holds stays readable as long as possible (the prefix cache lives on that). An
    OrderedDict serves as the queue since `touch` must take a block out of its middle in O(1).

    >>> pool = BlockPool(4)
    >>> a, b = pool.get_new_blocks(2)
    >>> pool.touch([a])                        # a second holder
    >>> pool.free_blocks([a, b])
    >>> pool.ref_cnt, pool.free_block_ids      # a is still held once
    ([1, 0, 0, 0], [2, 3, 1])
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        self.ref_cnt = [0] * num_blocks
        self.num_shared_blocks = 0  # blocks with ref_cnt >= 2
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        return len(self.ref_cnt)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def num_available_blocks(self) -> int:
        """Most blocks that can be had at once: here all the free ones, wherever they lie."""
        return len(self._free)

    @property
    def free_block_ids(self) -> list[int]:
        """The free blocks, the next to be taken first. O(num_blocks): for views, not for a step."""
        return list(self._free)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take blocks out of the free list, all or none. Raises ValueError if too few are free."""
        if num_blocks > len(self._free):
            raise ValueError(f"{num_blocks} blocks wanted, {len(self._free)} free")
        block_ids = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one holder to each block; a free one leaves the free list."""
        for block_id in block_ids:
            count = self.ref_cnt[block_id]
            if count == 0:
                del self._free[block_id]
            elif count == 1:
                self.num_shared_blocks += 1
            self.ref_cnt[block_id] = count + 1

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        """Take one holder away from each block; a block without a holder is free.

        Blocks enter the free list in the order given. Raises ValueError for a block that is free.
        """
        for block_id in block_ids:
            count = self.ref_cnt[block_id]
            if count == 0:
                raise ValueError(f"block {block_id} is freed, but it is free already")
            if count == 1:
                self._free[block_id] = None
            elif count == 2:
                self.num_shared_blocks -= 1
            self.ref_cnt[block_id] = count - 1

    def check_integrity(self, holders: Iterable[int]) -> None:
        """Raise RuntimeError unless the counts equal `holders`: each block id once per holder."""
        expected = [0] * self.num_blocks
        for block_id in holders:
            expected[block_id] += 1
        for block_id, (count, held) in enumerate(zip(self.ref_cnt, expected, strict=True)):
            if count != held:
                raise RuntimeError(f"block {block_id} has ref_cnt {count}, but {held} holders")
            if (count == 0) != (block_id in self._free):
                where = "in the free list" if count else "not in the free list"
                raise RuntimeError(f"block {block_id} has ref_cnt {count}, but is {where}")
        num_shared = sum(count >= 2 for count in expected)
        if self.num_shared_blocks != num_shared:
            raise RuntimeError(f"num_shared_blocks is {self.num_shared_blocks}, not {num_shared}")
