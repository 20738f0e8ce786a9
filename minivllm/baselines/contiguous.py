"""Contiguous KV, the way before paging: a buddy allocator, and how much Orca reserves from it.

A request gets one piece of memory when it enters and keeps it to its end, so whatever it may come
to need must be reserved at once. A buddy allocator hands out pieces whose sizes are powers of two:
a larger piece is split in halves until it fits, and two free halves of one piece (buddies) merge
again. That makes three kinds of waste, which paging avoids: slots reserved for later, slots
reserved in vain, and slots that nobody can have since no free piece is large enough.

    16 slots        [              16              ]
    take 3 -> 4     [   4   ][   4   ][      8      ]      3 used, 1 lost to rounding
    take 5 -> 8     [   4   ][   4   ][      8      ]      4 free, but not for a piece of 5
"""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.request import Request


class BuddyAllocator:
    """`num_slots` slots, handed out in pieces of 1, 2, 4, ... slots, each aligned to its size.

    A number of slots that is no power of two is cut into pieces that are, the largest first.
    Invariant: pieces in use, and free ones, tile the memory without gap or overlap, and no two
    free pieces are buddies.

    >>> memory = BuddyAllocator(16)
    >>> memory.take(3), memory.take(5)
    ((0, 4), (8, 8))
    >>> memory.largest_free, memory.num_free
    (4, 4)
    >>> memory.give_back(0)
    >>> memory.give_back(8)
    >>> memory.largest_free
    16
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be >= 1, got {num_slots}")
        self.num_slots = num_slots
        self.num_free = num_slots
        self.taken: dict[int, int] = {}  # start -> size of each piece in use
        self._free: dict[int, dict[int, None]] = {}  # size -> starts of the free pieces
        start = 0
        for bit in reversed(range(num_slots.bit_length())):
            size = 1 << bit
            self._free[size] = {}
            if num_slots & size:
                self._free[size][start] = None
                start += size

    @property
    def largest_free(self) -> int:
        """Slots of the largest free piece: the most that `take` can give now. O(log num_slots)."""
        return next((size for size, starts in self._free.items() if starts), 0)

    def take(self, num_slots: int) -> tuple[int, int] | None:
        """A piece of at least `num_slots` slots as (start, size); None when there is none.

        It comes from the smallest free piece that suffices, halved while the half suffices.
        """
        if num_slots < 1:
            raise ValueError(f"num_slots must be >= 1, got {num_slots}")
        wanted = next_power_of_two(num_slots)
        size = wanted
        while not self._free.get(size):
            size *= 2
            if size > self.num_slots:
                return None
        start = next(iter(self._free[size]))
        del self._free[size][start]
        while size > wanted:
            size //= 2
            self._free[size][start + size] = None
        self.taken[start] = size
        self.num_free -= size
        return start, size

    def give_back(self, start: int) -> None:
        """Free a piece; while its buddy is free, too, merge the two.

        Raises ValueError for a start where no piece in use begins.
        """
        if start not in self.taken:
            raise ValueError(f"no piece in use begins at slot {start}")
        size = self.taken.pop(start)
        self.num_free += size
        while (buddy := start ^ size) in self._free[size]:
            del self._free[size][buddy]
            start, size = min(start, buddy), 2 * size
        self._free[size][start] = None

    @property
    def free_pieces(self) -> list[tuple[int, int]]:
        """All free pieces as (start, size), in the order of memory. For views, not for a step."""
        return sorted((start, size) for size, starts in self._free.items() for start in starts)


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`.

    >>> [next_power_of_two(n) for n in (1, 2, 3, 25, 32)]
    [1, 2, 4, 32, 32]
    """
    return 1 << (number - 1).bit_length()


class BuddyPool:
    """A BlockPool whose every grant is contiguous: the ids of one `get_new_blocks` are consecutive.

    So a request's block table counts up from its first block, and the same scheduler, executor and
    model run on contiguous memory as on pages. What is rounded up stays out of the table, lost to
    everybody. Blocks are never shared.
    """

    def __init__(self, num_blocks: int) -> None:
        self.memory = BuddyAllocator(num_blocks)
        self.ref_cnt = [0] * num_blocks
        self.num_shared_blocks = 0

    @property
    def num_blocks(self) -> int:
        return len(self.ref_cnt)

    @property
    def num_free_blocks(self) -> int:
        """Blocks outside all pieces in use."""
        return self.memory.num_free

    @property
    def num_available_blocks(self) -> int:
        """Most blocks that can be had at once: those of the largest free piece."""
        return self.memory.largest_free

    @property
    def free_block_ids(self) -> list[int]:
        pieces = self.memory.free_pieces
        return [block_id for start, size in pieces for block_id in range(start, start + size)]

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take consecutive blocks. Raises ValueError when no free piece is large enough."""
        if num_blocks == 0:
            return []
        piece = self.memory.take(num_blocks)
        if piece is None:
            largest = self.memory.largest_free
            raise ValueError(f"{num_blocks} blocks wanted, the largest free piece has {largest}")
        block_ids = list(range(piece[0], piece[0] + num_blocks))
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Raises ValueError for any block: contiguous memory has one owner."""
        for block_id in block_ids:
            raise ValueError(f"block {block_id} cannot be shared: its memory is contiguous")

    def free_blocks(self, block_ids: Iterable[int]) -> None:
        """Give blocks back; a piece is free again when its first block comes."""
        for block_id in block_ids:
            if self.ref_cnt[block_id] != 1:
                raise ValueError(f"block {block_id} is freed, but it is free already")
            self.ref_cnt[block_id] = 0
            if block_id in self.memory.taken:
                self.memory.give_back(block_id)

    def check_integrity(self, holders: Iterable[int]) -> None:
        """Raise RuntimeError unless each held block has one holder and lies in a piece in use."""
        held = sorted(holders)
        if held != [block_id for block_id, count in enumerate(self.ref_cnt) if count]:
            raise RuntimeError(f"{len(held)} blocks are held, {sum(self.ref_cnt)} are counted")
        pieces = self.memory.taken.items()
        inside = {block_id for start, size in pieces for block_id in range(start, start + size)}
        if not inside.issuperset(held):
            raise RuntimeError(f"blocks {sorted(set(held) - inside)} are held, but in no piece")


# --- how much Orca reserves: tokens for which a request gets its piece --------------------------
# In a simulation max_tokens is the true length of the output.


def reserve_true_length(request: Request) -> int:
    """Oracle: exactly prompt and output, as if the output's length were known. A bound."""
    return request.max_kv_tokens


def reserve_next_power_of_two(request: Request) -> int:
    """Pow2: the output's length is known within a factor of two; for 25 tokens 32 are reserved."""
    return request.num_prompt_tokens + next_power_of_two(request.max_tokens) - 1
