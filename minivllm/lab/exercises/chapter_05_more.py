"""Exercises of chapter 5, the second half: a request's table grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.trial import jobs, trial
from minivllm.page_table import num_blocks_for
from minivllm.request import Request
from minivllm.scheduler import Scheduler

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
