"""The page table of one request: which physical block holds its logical block i.

The slot arithmetic of the whole project stands here, once:

    slot = block_ids[position // block_size] * block_size + position % block_size
"""

from __future__ import annotations


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: the division, rounded up.

    >>> [num_blocks_for(n, 4) for n in (0, 1, 3, 4, 5, 8)]
    [0, 1, 1, 1, 2, 2]
    """
    return -(-num_tokens // block_size)


class BlockTable:
    """Logical block -> physical block of one request (block = page; vLLM: block_table).

    >>> table = BlockTable(block_size=4)
    >>> table.block_ids += [7, 2]
    >>> table.slot(0), table.slot(3), table.slot(4)  # block 7 begins at slot 28, 2 at 8
    (28, 31, 8)
    >>> table.slots(2, 6)
    [30, 31, 8, 9]
    """

    __slots__ = ("block_size", "block_ids")

    def __init__(self, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1, got {block_size}")
        self.block_size = block_size
        self.block_ids: list[int] = []

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids)

    @property
    def num_slots(self) -> int:
        """Tokens the table has room for."""
        return len(self.block_ids) * self.block_size

    def slot(self, position: int) -> int:
        """The slot of one position. Raises ValueError outside the table."""
        if not 0 <= position < self.num_slots:
            raise ValueError(f"position {position} is outside a table of {self.num_slots} slots")
        block_id = self.block_ids[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def slots(self, start: int, end: int) -> list[int]:
        """The slots of positions start .. end - 1."""
        return [self.slot(position) for position in range(start, end)]

    def __repr__(self) -> str:
        return f"BlockTable({self.block_ids}, block_size={self.block_size})"
