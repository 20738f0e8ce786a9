"""Exercises of chapter 14: from here to vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question

# ---- 14.2 ----


def heads_of(gpu, num_gpus, num_heads, num_kv_heads):
    if num_heads % num_gpus:
        raise ValueError(f"{num_heads} heads cannot be dealt out evenly to {num_gpus} GPUs")
    num_mine = num_heads // num_gpus
    mine = list(range(gpu * num_mine, (gpu + 1) * num_mine))
    group = num_heads // num_kv_heads
    return mine, sorted({head // group for head in mine})


# ---- 14.3 ----


def quantize_rows(weight):
    largest = weight.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (weight / scale).round().to(torch.int8), scale


def examine_quantize_rows(exam: Exam, answer: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 32) * torch.tensor([1.0, 0.01, 30.0, 1.0, 0.2, 1.0])[:, None]  # [6, 32]
    weight[3] = 0
    before = weight.clone()
    stored, scale = answer(weight)
    exam.true(torch.equal(weight, before), "the weight itself was changed")
    exam.equal(stored.dtype, torch.int8, "the dtype of what is stored")
    exam.equal(list(scale.shape), [6, 1], "the shape of the scale")
    exam.true(not scale.isnan().any() and not (stored[3] * scale[3]).any(),
              "the row of zeros does not stay zeros")  # fmt: skip
    largest = stored.to(torch.int32).abs().amax(1)  # [6]
    exam.equal(largest[[0, 1, 2, 4, 5]].tolist(), [127] * 5, "the largest of each other row")
    off = ((stored * scale - weight).abs() / scale).amax().item()
    exam.true(off <= 0.501, f"one number is off by {off:.2f} scales, more than half of one")


# ---- 14.4 ----


def accept(draft, target):
    num_right = 0
    while num_right < len(draft) and draft[num_right] == target[num_right]:
        num_right += 1
    return target[: num_right + 1]


EXERCISES = [
    Question(
        "14.1",
        answer=lambda: -(-70 * 2 // 80),
        working="70 billion weights of 2 bytes are 140 GB, and one GPU has 80",
        mistakes=[
            Mistake(wrong=1, says="you count a weight as one byte; in bfloat16 it has two"),
            Mistake(wrong=1.75, says="that is 140 / 80; you can only buy whole ones: round up"),
            Mistake(wrong=4, says="that would be 4 bytes a weight, float32"),
            Mistake(wrong=8, says="a machine often has 8, but the weights alone need fewer"),
        ],
    ),
    Exercise(
        "14.2",
        heads_of,
        cases=[
            (0, 1, 9, 3), (0, 4, 32, 8), (3, 4, 32, 8), (1, 8, 32, 8), (5, 16, 32, 8),
            (15, 16, 32, 8), (2, 3, 9, 3), (0, 2, 9, 3), (1, 2, 12, 3),
        ],
        mistakes=[
            Mistake(
                "sorted({head // group for head in mine})",
                "list(range(num_kv_heads))[gpu * (n := num_kv_heads // num_gpus) : (gpu + 1) * n]",
                says="you deal out KV heads too: with more GPUs than KV heads, some get none",
            ),
            Mistake(
                "list(range(gpu * num_mine, (gpu + 1) * num_mine))",
                "list(range(gpu, num_heads, num_gpus))",
                says="you deal heads like cards: then a GPU's heads use nearly all KV heads",
            ),
            Mistake(
                "head // group for", "head % num_kv_heads for",
                says="neighbouring query heads share a KV head: divide by the group, no remainder",
            ),
            Mistake(
                "if num_heads % num_gpus:", "if num_kv_heads % num_gpus:",
                says="only the query heads must divide evenly; a KV head may be kept twice",
            ),
        ],
    ),
    Exercise(
        "14.3",
        quantize_rows,
        examine=examine_quantize_rows,
        mistakes=[
            Mistake(
                "weight.abs().amax(1, keepdim=True)",
                "weight.abs().amax().expand(len(weight), 1)",
                says="you take one scale for all rows: a row of small numbers is rounded away",
            ),
            Mistake(
                ".round()", "",
                says="you cut off instead of rounding, and are off by up to a whole scale",
            ),
            Mistake(
                "torch.where(largest > 0, largest / 127, torch.ones_like(largest))",
                "largest / 127",
                says="you divide a row of zeros by its scale of zero",
            ),
            Mistake(
                "largest / 127", "largest / 128",
                says="int8 ends at 127: 128 wraps around to -128, the largest with a wrong sign",
            ),
            Mistake(
                "weight.abs()", "weight",
                says="you look for the largest number, but a large negative one counts as well",
            ),
        ],
    ),
    Exercise(
        "14.4",
        accept,
        cases=[
            ([5, 6, 7, 8], [5, 6, 9, 1, 2]), ([5, 6, 7, 8], [5, 6, 7, 8, 3]),
            ([5, 6, 7, 8], [4, 6, 7, 8, 3]), ([], [7]), ([5, 6, 7], [5, 9, 7, 2]),
        ],
        mistakes=[
            Mistake(
                "num_right + 1]", "num_right]",
                says="you leave out the big model's own token, which every step has earned",
            ),
            Mistake(
                "target[: num_right + 1]", "draft[: num_right + 1]",
                says="you put out the wrong guess itself, not what the big model takes there",
            ),
            Mistake(
                wrong=lambda draft, target: [
                    t for t, d in zip(target, [*draft, None], strict=True) if d in (t, None)
                ],
                says="you keep right guesses after a wrong one, but they continue another text",
            ),
            Mistake(
                "target[: num_right + 1]",
                "target[: num_right + (num_right < len(draft))]",
                says="when every guess is right the big model has one more token for you",
            ),
        ],
    ),
]  # fmt: skip
