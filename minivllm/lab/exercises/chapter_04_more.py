"""Exercises of chapter 4, the second half: a pool of the learner's own."""

from __future__ import annotations

from typing import Any

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.trial import jobs, trial

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
