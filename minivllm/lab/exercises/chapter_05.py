"""Exercises of chapter 5: the page table."""

from __future__ import annotations

import torch

from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.page_table import num_blocks_for

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
]  # fmt: skip
