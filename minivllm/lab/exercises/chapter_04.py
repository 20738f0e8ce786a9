"""Exercises of chapter 4: the block allocator."""

from __future__ import annotations

from typing import Any

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial

# ---- 4.2 ----


def four_after_b() -> list[int]:
    """What D gets: A took 2 blocks, B 3, C 1, and B has given its own back."""
    pool = BlockPool(8)
    _, b, _ = (pool.get_new_blocks(n) for n in (2, 3, 1))
    pool.free_blocks(b)
    return pool.get_new_blocks(4)


# ---- 4.3 ----


def blocks_needed(num_tokens, block_size):
    return -(-num_tokens // block_size)


# ---- 4.4 ----


def wasted_slots(lengths, block_size):
    return sum(-length % block_size for length in lengths)


# ---- 4.5 ----


def leaked_blocks(ref_cnt, tables):
    holders = [0] * len(ref_cnt)
    for table in tables:
        for block_id in table:
            holders[block_id] += 1
    return [block_id for block_id, count in enumerate(ref_cnt) if count > holders[block_id]]


# ---- 4.6 ----


class LowestFirstPool:
    def __init__(self, num_blocks):
        self.ref_cnt = [0] * num_blocks

    @property
    def num_free_blocks(self):
        return self.ref_cnt.count(0)

    def get_new_blocks(self, num_blocks):
        free = [block_id for block_id, count in enumerate(self.ref_cnt) if count == 0]
        if num_blocks > len(free):
            raise ValueError(f"{num_blocks} blocks wanted, {len(free)} free")
        for block_id in free[:num_blocks]:
            self.ref_cnt[block_id] = 1
        return free[:num_blocks]

    def touch(self, block_ids):
        for block_id in block_ids:
            self.ref_cnt[block_id] += 1

    def free_blocks(self, block_ids):
        for block_id in block_ids:
            if self.ref_cnt[block_id] == 0:
                raise ValueError(f"block {block_id} is freed, but it is free already")
            self.ref_cnt[block_id] -= 1


def examine_lowest_first_pool(exam: Exam, pool_class: Any) -> None:
    pool = pool_class(8)
    exam.equal(pool.num_free_blocks, 8, "num_free_blocks of a fresh pool of 8")
    exam.equal(pool.get_new_blocks(3), [0, 1, 2], "get_new_blocks(3) of a fresh pool of 8")
    exam.equal(pool.num_free_blocks, 5, "num_free_blocks after get_new_blocks(3)")
    pool.free_blocks([1])
    exam.equal(pool.get_new_blocks(2), [1, 3], "get_new_blocks(2) while 1, 3, 4, ... are free")
    exam.refuses(lambda: pool.get_new_blocks(5), "get_new_blocks(5) while 4 blocks are free")
    exam.equal(pool.num_free_blocks, 4, "num_free_blocks after get_new_blocks(5) was refused")
    pool.touch([0])
    pool.free_blocks([0])
    exam.equal(pool.num_free_blocks, 4, "num_free_blocks when one of two holders of 0 has gone")
    pool.free_blocks([0])
    exam.equal(pool.num_free_blocks, 5, "num_free_blocks when both holders of block 0 have gone")
    exam.refuses(lambda: pool.free_blocks([0]), "freeing block 0, which nobody holds")
    exam.equal(pool.get_new_blocks(1), [0], "get_new_blocks(1) while block 0 is free")

    work = jobs([6, 9, 1, 5, 5], outputs=[3, 4, 4, 6, 5])
    config = SchedulerConfig(num_blocks=8, block_size=4, watermark_blocks=0)
    run = trial(work, config, pool=pool_class)
    exam.equal(run.num_steps, 8, "the number of iterations of the engine")
    trial(jobs([3] * 7, outputs=[9] * 7), config, pool=pool_class)


EXERCISES = [
    Question(
        "4.1",
        answer=lambda: sum(blocks_needed(length, 4) for length in (6, 10, 1)),
        working="2 + 3 + 1: each request rounds up on its own",
        mistakes=[
            Mistake(
                wrong=5,
                says="you put all 17 tokens together, but a block belongs to one request",
            ),
            Mistake(wrong=3, says="you count full blocks only: a half-full block is a block too"),
            Mistake(wrong=17, says="that is the number of tokens; four of them go into a block"),
            Mistake(wrong=8, says="that is all the memory has; these requests need fewer"),
        ],
    ),
    Question(
        "4.2",
        answer=four_after_b,
        working="the queue was 6, 7, then B's 2, 3, 4 joined its end; D takes the first four",
        mistakes=[
            Mistake(
                wrong=[2, 3, 4, 6],
                says="you take the lowest numbers, but the queue's front is what was free first",
            ),
            Mistake(
                wrong=[4, 3, 2, 7],
                says="you take what came back last, as from a stack; this is a queue",
            ),
            Mistake(
                wrong=[2, 3, 4, 5],
                says="you want them side by side, but they need not be, and C holds block 5",
            ),
        ],
    ),
    Exercise(
        "4.3",
        blocks_needed,
        cases=[(0, 4), (1, 4), (3, 4), (4, 4), (5, 4), (8, 4), (17, 16), (7, 1)],
        mistakes=[
            Mistake(
                "-(-num_tokens // block_size)", "num_tokens // block_size",
                says="you round down: a block that is partly filled is a block too",
            ),
            Mistake(
                "-(-num_tokens // block_size)", "num_tokens // block_size + 1",
                says="you always add one, but a block that is exactly full needs no other",
            ),
            Mistake(
                "-(-num_tokens // block_size)", "num_tokens / block_size",
                says="you give a fraction: blocks are handed out whole",
            ),
            Mistake(
                "-(-num_tokens // block_size)", "max(1, -(-num_tokens // block_size))",
                says="you give a block to a request without tokens: 0 tokens need 0 blocks",
            ),
        ],
    ),
    Exercise(
        "4.4",
        wasted_slots,
        cases=[([6, 10, 1], 4), ([4, 8], 4), ([5], 4), ([0, 3], 4), ([7, 9], 1), ([], 16)],
        mistakes=[
            Mistake(
                wrong=lambda lengths, block_size: -sum(lengths) % block_size,
                says="you let the requests share their last blocks: round up each by itself",
            ),
            Mistake(
                "-length % block_size", "length % block_size",
                says="you count the slots that are filled in the last block, not the empty ones",
            ),
            Mistake(
                "-length % block_size", "block_size - length % block_size",
                says="you count a whole empty block where the last one is exactly full",
            ),
        ],
    ),
    Exercise(
        "4.5",
        leaked_blocks,
        cases=[
            ([1, 1, 1, 0], [[0, 1], [2]]),
            ([1, 1, 1, 0], [[2]]),
            ([2, 2, 1, 1], [[0, 1, 2], [0, 1, 3]]),
            ([2, 1, 0, 1], [[0, 3]]),
            ([1, 1, 0, 0], [[0, 1], [0]]),
            ([3, 0], []),
        ],
        mistakes=[
            Mistake(
                wrong=lambda ref_cnt, tables: [
                    b for b, n in enumerate(ref_cnt) if n and b not in sum(tables, [])
                ],
                says="you only find blocks in no table, but one holder of several may be lost",
            ),
            Mistake(
                "count > holders[block_id]", "count != holders[block_id]",
                says="you also report blocks with too low a count: those are not lost, but shared "
                "without `touch`",
            ),
            Mistake(
                "count > holders[block_id]", "count > 1",
                says="you report shared blocks: a count of 2 is right where two tables hold it",
            ),
            Mistake(
                "holders[block_id] += 1", "holders[block_id] = 1",
                says="you note that a block is held, but not by how many",
            ),
        ],
    ),
    Exercise(
        "4.6",
        LowestFirstPool,
        examine=examine_lowest_first_pool,
        mistakes=[
            Mistake(
                wrong=BlockPool,
                says="you hand out blocks in the order in which they came back, not the lowest",
            ),
            Mistake(
                "self.ref_cnt[block_id] -= 1", "self.ref_cnt[block_id] = 0",
                says="you free a block when its first holder goes; the others still read it",
            ),
            Mistake(
                'if self.ref_cnt[block_id] == 0:\n                raise ValueError(f"block '
                '{block_id} is freed, but it is free already")',
                "if self.ref_cnt[block_id] == 0:\n                continue",
                says="you pass over a double free in silence, and its cause stays hidden",
            ),
            Mistake(
                'if num_blocks > len(free):\n            raise ValueError(f"{num_blocks} blocks '
                'wanted, {len(free)} free")',
                "",
                says="you give fewer blocks than asked for instead of refusing",
            ),
            Mistake(
                "self.ref_cnt[block_id] = 1", "pass",
                says="you hand blocks out and do not note that they are held now",
            ),
        ],
    ),
]  # fmt: skip
