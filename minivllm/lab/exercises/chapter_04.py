"""Exercises of chapter 4: the block allocator."""

from __future__ import annotations

from minivllm.allocator import BlockPool
from minivllm.lab.exercise import Exercise, Mistake, Question

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
]  # fmt: skip
