"""Exercises of chapter 10: sharing."""

from __future__ import annotations

from minivllm.lab.exercise import Exercise, Mistake, Question

# ---- 10.3 ----


def tokens_found(first, second, block_size):
    found = 0
    while found + block_size <= min(len(first), len(second) - 1):
        if first[found : found + block_size] != second[found : found + block_size]:
            break
        found += block_size
    return found


# ---- 10.4 ----


def blocks_of_samples(num_prompt, num_output, n, block_size):
    shared = num_prompt // block_size
    total = -(-(num_prompt + num_output) // block_size)
    return shared + n * (total - shared)


EXERCISES = [
    Question(
        "10.1",
        answer=lambda: blocks_of_samples(10, 1, 3, 4),
        working="the two full blocks once, and a third block for each sample",
        mistakes=[
            Mistake(wrong=9, says="that is without sharing; the two full blocks are needed once"),
            Mistake(wrong=3, says="three different tokens cannot be written into one slot"),
            Mistake(wrong=6, says="the last writer need not copy: nobody else holds the old block"),
            Mistake(wrong=8, says="the last writer need not copy, and full blocks are shared"),
        ],
    ),
    Question(
        "10.2",
        answer=lambda: tokens_found([*range(9), 51, 52, 53], [*range(9), 54, 55], 4),
        working="two full blocks of 4; the third one holds the ninth token and parts of questions",
        mistakes=[
            Mistake(wrong=9, says="the ninth token shares its block with the question"),
            Mistake(wrong=11, says="the questions differ; only the instructions can be found"),
            Mistake(wrong=0, says="the first has ended, but its free blocks still hold K and V"),
            Mistake(wrong=2, says="that is the number of blocks; each has 4 tokens"),
        ],
    ),
    Exercise(
        "10.3",
        tokens_found,
        cases=[
            ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], 4), ([1, 2, 3, 4], [1, 2, 3, 4], 4),
            ([1, 2, 3, 4, 5], [1, 2, 3, 4, 9], 2), ([9, 2, 3, 4, 5], [1, 2, 3, 4, 5], 2),
            ([], [1], 4), ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9], 4),
            ([1, 2, 3], [1, 2, 3, 4, 5, 6], 1),
        ],
        mistakes=[
            Mistake(
                "len(second) - 1", "len(second)",
                says="you find the whole prompt, and nothing is left to sample from",
            ),
            Mistake(
                wrong=lambda first, second, block_size: min(
                    len(second) - 1,
                    next((i for i, pair in enumerate(zip(first, second, strict=False))
                          if pair[0] != pair[1]), min(len(first), len(second))),
                ),
                says="you count single tokens, but only whole blocks are found",
            ),
            Mistake(
                "            break\n", "            pass\n",
                says="you do not stop at the first block that differs",
            ),
            Mistake(
                wrong=lambda first, second, block_size: tokens_found(first, second, block_size)
                // block_size,
                says="you count blocks, and tokens were asked for",
            ),
        ],
    ),
    Exercise(
        "10.4",
        blocks_of_samples,
        cases=[(10, 1, 3, 4), (8, 1, 3, 4), (8, 4, 2, 4), (19, 58, 6, 16), (3, 2, 2, 4)],
        mistakes=[
            Mistake(
                "return shared + n * (total - shared)", "return n * total",
                says="you share nothing: the prompt's full blocks are needed once",
            ),
            Mistake(
                "num_prompt // block_size", "-(-num_prompt // block_size)",
                says="you share the prompt's last block, into which each sample writes",
            ),
            Mistake(
                "-(-(num_prompt + num_output) // block_size)",
                "shared + -(-num_output // block_size)",
                says="you begin each answer in a new block; it goes on in the prompt's last one",
            ),
            Mistake(
                "return shared + n * (total - shared)", "return n * (total - shared)",
                says="you forget the shared blocks themselves",
            ),
        ],
    ),
]  # fmt: skip
