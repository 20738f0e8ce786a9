"""A learner's block pool behind the interface that the engine uses, watched from outside.

It keeps its own count of who holds what, so a block that is handed out twice, or kept when it was
given back, is named at the call that did it. Free blocks are taken at the pool's own word and
compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class CheckedPool:
    """The pool `inner` of `num_blocks` blocks. Raises RuntimeError with the rule that it breaks."""

    def __init__(self, inner: Any, num_blocks: int) -> None:
        self.inner = inner
        self.ref_cnt = [0] * num_blocks
        self._check_count("a fresh pool")

    @property
    def num_blocks(self) -> int:
        return len(self.ref_cnt)

    @property
    def num_free_blocks(self) -> int:
        return self.inner.num_free_blocks

    @property
    def num_available_blocks(self) -> int:
        return self.inner.num_free_blocks

    @property
    def num_shared_blocks(self) -> int:
        return sum(count > 1 for count in self.ref_cnt)

    @property
    def free_block_ids(self) -> list[int]:
        return [block_id for block_id, count in enumerate(self.ref_cnt) if count == 0]

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        block_ids = list(self.inner.get_new_blocks(num_blocks))
        if len(block_ids) != num_blocks:
            raise RuntimeError(f"get_new_blocks({num_blocks}) gave {len(block_ids)} blocks")
        for block_id in block_ids:
            if block_id not in range(self.num_blocks):
                raise RuntimeError(f"get_new_blocks({num_blocks}) gave {block_id!r}: no such block")
            if self.ref_cnt[block_id]:
                raise RuntimeError(f"block {block_id} is handed out, but somebody still holds it")
            self.ref_cnt[block_id] = 1
        self._check_count(f"get_new_blocks({num_blocks})")
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        if not block_ids:
            return
        self.inner.touch(block_ids)
        for block_id in block_ids:
            self.ref_cnt[block_id] += 1
        self._check_count(f"touch({block_ids})")

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        self.inner.free_blocks(block_ids)
        for block_id in block_ids:
            self.ref_cnt[block_id] -= 1
        self._check_count(f"free_blocks({block_ids})")

    def check_integrity(self, holders: Iterable[int]) -> None:
        """Raise RuntimeError unless the counts equal `holders`: each block id once per holder."""
        expected = [0] * self.num_blocks
        for block_id in holders:
            expected[block_id] += 1
        for block_id, (count, held) in enumerate(zip(self.ref_cnt, expected, strict=True)):
            if count != held:
                raise RuntimeError(f"block {block_id} has {count} holders, {held} tables name it")
        self._check_count("the pool")

    def _check_count(self, what: str) -> None:
        num_free = self.ref_cnt.count(0)
        if self.inner.num_free_blocks != num_free:
            raise RuntimeError(
                f"after {what}: num_free_blocks is {self.inner.num_free_blocks}, but {num_free} "
                f"blocks are held by nobody"
            )
