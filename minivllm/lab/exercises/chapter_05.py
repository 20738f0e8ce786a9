"""Exercises of chapter 5: the page table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial
from minivllm.page_table import num_blocks_for
from minivllm.request import Request
from minivllm.scheduler import Scheduler

# ---- 5.3 ----


def slot(block_ids, position, block_size):
    num_slots = len(block_ids) * block_size
    if not 0 <= position < num_slots:
        raise ValueError(f"position {position} is outside a table of {num_slots} slots")
    return block_ids[position // block_size] * block_size + position % block_size


# ---- 5.4 ----


def position_of(block_ids, slot, block_size):
    block_id, offset = divmod(slot, block_size)
    if block_id not in block_ids:
        return None
    return block_ids.index(block_id) * block_size + offset


# ---- 5.5 ----


def gather(cache, block_ids, num_tokens):
    return cache[block_ids].flatten(0, 1)[:num_tokens]  # [num_tokens, KH, D]


CACHE = torch.arange(6 * 2 * 2 * 3.0).reshape(6, 2, 2, 3)  # [N, BS, KH, D]

# ---- 5.6 ----


def allocate_slots(pool, block_ids, num_stored, num_new, block_size):
    num_missing = num_blocks_for(num_stored + num_new, block_size) - len(block_ids)
    if num_missing > pool.num_free_blocks:
        return None
    new_block_ids = pool.get_new_blocks(max(num_missing, 0))
    block_ids += new_block_ids
    return new_block_ids


def one_at_each_edge(
    pool: Any, block_ids: list[int], num_stored: int, num_new: int, block_size: int
) -> list[int] | None:
    """The usual test by the remainder: wrong for more than one token, and for blocks of 1."""
    if (num_stored + num_new) % block_size != 1:
        return []
    if pool.num_free_blocks < 1:
        return None
    block_ids += pool.get_new_blocks(1)
    return block_ids[-1:]


def scheduler_with(allocate: Callable[..., Any]) -> type[Scheduler]:
    """A scheduler that asks the learner's function for the slots of running requests."""

    class WithYourTable(Scheduler):
        def __init__(self, config: SchedulerConfig, **parts: Any) -> None:
            super().__init__(config, **parts)
            self.kv.allocate_slots = self.allocate_slots

        def allocate_slots(self, request: Request, num_new: int) -> list[int] | None:
            block_ids, num_stored = request.block_table.block_ids, request.num_computed_tokens
            return allocate(self.kv.pool, block_ids, num_stored, num_new, self.config.block_size)

    return WithYourTable


def examine_allocate_slots(exam: Exam, allocate_slots: Callable[..., Any]) -> None:
    pool = BlockPool(8)
    for num_stored, num_new, new in [(0, 1, [0]), (1, 2, []), (3, 1, []), (4, 1, [1]),
                                     (5, 2, []), (7, 6, [2, 3])]:  # fmt: skip
        table = list(range(new[0])) if new else list(range(pool.num_blocks - pool.num_free_blocks))
        what = f"{num_new} tokens after {num_stored} in blocks {table} of 4"
        exam.equal(allocate_slots(pool, table, num_stored, num_new, 4), new, f"{what}: it")
        num_held = num_blocks_for(num_stored + num_new, 4)
        exam.equal(table, list(range(num_held)), f"{what}: afterwards the table")
    table = [0, 1, 2, 3]
    exam.equal(
        allocate_slots(pool, table, 16, 20, 4) is None, True,
        "'5 blocks are lacking, 4 are free, so it gives None'",
    )  # fmt: skip
    exam.equal(table, [0, 1, 2, 3], "there was no room; afterwards the table")
    exam.equal(pool.num_free_blocks, 4, "there was no room; afterwards num_free_blocks")
    for block_size, num_blocks in ((4, 6), (3, 7), (1, 20)):
        config = SchedulerConfig(num_blocks=num_blocks, block_size=block_size, watermark_blocks=0)
        work = jobs([6, 4, 1, 5], outputs=[8, 9, 7, 4])
        trial(work, config, scheduler=scheduler_with(allocate_slots))
        exam.num_passed += 1


EXERCISES = [
    Question(
        "5.1",
        answer=lambda: slot([5, 2, 7], 6, 4),
        working="6 // 4 = 1, so block_ids[1] = 2, which begins at slot 8; 6 % 4 = 2, so slot 10",
        mistakes=[
            Mistake(wrong=6, says="that is its position; the table says where it really lies"),
            Mistake(
                wrong=26,
                says="you start counting at block 5 and go straight on, but the second block is 2",
            ),
            Mistake(
                wrong=30,
                says="you look into block 7: position 6 is in the second block, number 1 from 0",
            ),
            Mistake(
                wrong=9,
                says="you are one short: position 6 is the third place of its block, offset 2",
            ),
        ],
    ),
    Question(
        "5.2",
        answer=lambda: num_blocks_for(5 + 4 - 1, 4),
        working="5 + 4 - 1 = 8 slots, for the last token is never fed back: exactly 2 blocks",
        mistakes=[
            Mistake(
                wrong=3,
                says="you count 9 tokens, but K and V of the last generated one are never needed",
            ),
            Mistake(
                wrong=4,
                says="you count a block for the prompt's rest and new ones for the output; a "
                "half-full block is filled up first",
            ),
            Mistake(wrong=1, says="that is not even room for the prompt's 5 tokens"),
            Mistake(wrong=8, says="that is the number of slots; four of them are a block"),
        ],
    ),
    Exercise(
        "5.3",
        slot,
        cases=[
            ([5, 2, 7], 0, 4), ([5, 2, 7], 3, 4), ([5, 2, 7], 4, 4), ([5, 2, 7], 6, 4),
            ([5, 2, 7], 11, 4), ([5, 2, 7], 12, 4), ([5, 2, 7], -1, 4), ([], 0, 4), ([3, 1], 1, 1),
        ],
        mistakes=[
            Mistake(
                "if not 0 <= position < num_slots", "if False",
                says="you guard nothing: -1 counts from the end, and beyond it is an IndexError",
            ),
            Mistake(
                "if not 0 <= position < num_slots", "if position >= num_slots",
                says="you let a negative position in, and Python counts it from the table's end",
            ),
            Mistake(
                "if not 0 <= position < num_slots", "if not 0 <= position <= num_slots",
                says="you let in the first position behind the table; the last is num_slots - 1",
            ),
            Mistake(
                "block_ids[position // block_size] * block_size + position % block_size",
                "block_ids[position % block_size] * block_size + position // block_size",
                says="you have swapped quotient and remainder: the quotient chooses the block",
            ),
            Mistake(
                "block_ids[position // block_size] * block_size + position % block_size",
                "block_ids[position // block_size] + position % block_size",
                says="you add to the block's number: block b begins at slot b * block_size",
            ),
        ],
    ),
    Exercise(
        "5.4",
        position_of,
        cases=[
            ([5, 2, 7], 10, 4), ([5, 2, 7], 20, 4), ([5, 2, 7], 31, 4), ([5, 2, 7], 8, 4),
            ([5, 2, 7], 0, 4), ([5, 2, 7], 4, 4), ([0], 3, 4), ([], 3, 4), ([2, 0], 0, 1),
        ],
        mistakes=[
            Mistake(
                "block_ids.index(block_id) * block_size + offset", "block_ids.index(block_id)",
                says="you give the number of the request's block; the place in it is missing",
            ),
            Mistake(
                "if block_id not in block_ids:\n        return None\n    ", "",
                says="you fail for a slot of somebody else's block; None was asked for",
            ),
            Mistake(
                "block_ids.index(block_id) * block_size", "block_id * block_size",
                says="you come back to the slot itself: ask the table which of its blocks it is",
            ),
            Mistake(
                "return None", "return -1",
                says="you give -1 for 'not mine', but None was asked for: -1 is also an index",
            ),
        ],
    ),
    Exercise(
        "5.5",
        gather,
        cases=[
            (CACHE, [4, 1, 5], 5), (CACHE, [4, 1], 4), (CACHE, [2, 0, 3], 2), (CACHE, [0, 1], 4),
        ],
        mistakes=[
            Mistake(
                "[:num_tokens]", "",
                says="you return whole blocks: the rows after the last token are somebody else's",
            ),
            Mistake(
                "cache[block_ids].flatten(0, 1)", "cache.flatten(0, 1)",
                says="you read the first slots of the memory and never look into the table",
            ),
            Mistake(
                "cache[block_ids]", "cache[sorted(block_ids)]",
                says="you sort the blocks, but the table's order is the order of the tokens",
            ),
            Mistake(
                "cache[block_ids].flatten(0, 1)[:num_tokens]",
                "cache[block_ids][:num_tokens].flatten(0, 1)",
                says="you cut before you flatten, so you count blocks where tokens were meant",
            ),
        ],
    ),
    Exercise(
        "5.6",
        allocate_slots,
        examine=examine_allocate_slots,
        mistakes=[
            Mistake(
                wrong=one_at_each_edge,
                says="you test the remainder, which is never 1 for blocks of 1, and you take one "
                "block where several may be due: compare the blocks needed with the blocks held",
            ),
            Mistake(
                "block_ids += new_block_ids", "block_ids = block_ids + new_block_ids",
                says="the request's own list must grow (use += or extend), and it does not",
            ),
            Mistake(
                "num_blocks_for(num_stored + num_new, block_size)",
                "num_blocks_for(num_stored, block_size)",
                says="you count the stored tokens only, so the new ones at the edge have no slot",
            ),
            Mistake(
                "num_blocks_for(num_stored + num_new, block_size) - len(block_ids)",
                "num_blocks_for(num_new, block_size)",
                says="you take fresh blocks for new tokens, though the last block has room left",
            ),
            Mistake(
                "    if num_missing > pool.num_free_blocks:\n        return None\n", "",
                says="you let the pool refuse: ask how many are free first, and return None",
            ),
        ],
    ),
]  # fmt: skip
