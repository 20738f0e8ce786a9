"""Exercises of chapter 12: the Triton kernel.

Triton is imported only where its interpreter has been asked for: whoever works on another chapter
needs none.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from minivllm.lab.exam import Exam, Wrong
from minivllm.lab.exercise import Exercise, Mistake, Question

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    import triton
    import triton.language as tl

# ---- 12.2 ----


def busy_programs(seq_lens, num_kv_heads, split_size):
    return num_kv_heads * sum(-(-n // split_size) for n in seq_lens)


# ---- 12.3 ----


def attend(q, k, v, scale, tile):
    peak, total, acc = -math.inf, 0.0, torch.zeros_like(q)
    for start in range(0, len(k), tile):
        score = k[start : start + tile] @ q * scale
        new_peak = max(peak, score.max().item())
        weight, shrink = torch.exp(score - new_peak), math.exp(peak - new_peak)
        total = total * shrink + weight.sum().item()
        acc = acc * shrink + weight @ v[start : start + tile]
        peak = new_peak
    return acc / total


def examine_attend(exam: Exam, answer: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [(4, 4, 0.5), (6, 4, 0.5), (12, 4, 0.5), (3, 8, 0.5), (40, 8, 200.0)]
    for length, tile, scale in sizes:
        q = torch.randn(8, generator=generator)  # [D]
        k, v = torch.randn(2, length, 8, generator=generator)  # each [S, D]
        right = (k @ q * scale).softmax(0) @ v  # [D]
        what = f"{length} positions in tiles of {tile}, scale {scale}"
        _close(exam, answer(q.clone(), k.clone(), v.clone(), scale, tile), right, what)


def _close(exam: Exam, got: Any, right: torch.Tensor, what: str) -> None:
    exam.true(isinstance(got, torch.Tensor), f"{what}: {got!r:.40} is no tensor")
    exam.equal(list(got.shape), list(right.shape), f"{what}: the shape")
    off = (got - right).abs().max().item()
    exam.true(off < 1e-4, f"{what}: off by {off:.3g}")


# ---- 12.4 ----


def merge(results, logs):
    weight = torch.exp(logs - logs.max())
    return (weight[:, None] * results).sum(0) / weight.sum()


def examine_merge(exam: Exam, answer: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_pieces, add in [(1, 0.0), (3, 0.0), (4, 3.0), (3, 300.0), (2, -300.0)]:
        results = torch.randn(num_pieces, 8, generator=generator)  # [P, D]
        logs = 2 * torch.randn(num_pieces, generator=generator) + add  # [P]
        right = logs.softmax(0) @ results  # [D]
        what = f"{num_pieces} pieces whose logs are near {add:g}"
        _close(exam, answer(results.clone(), logs.clone()), right, what)


# ---- 12.5 ----


def gather_kernel(cache, table, out, n, BS: tl.constexpr, TILE: tl.constexpr):
    position = tl.program_id(0) * TILE + tl.arange(0, TILE)
    held = position < n
    block = tl.load(table + position // BS, mask=held, other=0)
    number = tl.load(cache + block * BS + position % BS, mask=held)
    tl.store(out + position, number, mask=held)


def examine_gather_kernel(exam: Exam, answer: Any) -> None:
    try:
        answer(*[None] * 6)  # a stub says so; a kernel cannot run like this
    except NotImplementedError:
        raise
    except Exception:
        pass
    if not INTERPRETED:
        exam.evidence.append(answer)  # like no other answer: no mistake can be named
        raise Wrong("set TRITON_INTERPRET=1 before anything is imported: see the first cell")
    kernel = triton.jit(answer) if inspect.isfunction(answer) else answer
    # Room behind everything, so that a kernel without a mask does no harm.
    cache = torch.arange(512.0)
    for num_tokens, block_size, tile in [(4, 4, 4), (8, 4, 4), (7, 4, 4), (11, 4, 8), (10, 3, 4)]:
        table = torch.full((64,), 9, dtype=torch.int32)
        table[:4] = torch.tensor([6, 2, 7, 1])
        out = torch.full((64,), -1.0)
        kernel[(-(-num_tokens // tile),)](cache, table, out, num_tokens, block_size, tile)
        what = f"{num_tokens} numbers in blocks of {block_size}, tiles of {tile}"
        right = [float(table[i // block_size] * block_size + i % block_size)
                 for i in range(num_tokens)]  # fmt: skip
        exam.equal(out[:num_tokens].tolist(), right, f"{what}: the numbers gathered")
        behind = int((out[num_tokens:] != -1).sum())
        exam.true(behind == 0, f"{what}: {behind} places behind the end were written")


EXERCISES = [
    Question(
        "12.1",
        answer=lambda: 4 // 2,
        working="the query heads of one KV head each read its rows: G = 4 // 2",
        mistakes=[
            Mistake(wrong=1, says="the two query heads are in two programs, and each reads"),
            Mistake(wrong=4, says="a query head reads only the rows of its own KV head"),
            Mistake(wrong=8, says="heads do not multiply: each row belongs to one KV head"),
        ],
    ),
    Exercise(
        "12.2",
        busy_programs,
        cases=[
            ([8192], 8, 256), ([8192] * 4, 8, 8192), ([19, 1, 8], 2, 8), ([256, 257], 1, 256),
            ([5], 3, 256),
        ],
        mistakes=[
            Mistake(
                "sum(-(-n // split_size) for n in seq_lens)",
                "len(seq_lens) * -(-max(seq_lens) // split_size)",
                says="you count what is launched, but the pieces behind a short context are empty",
            ),
            Mistake(
                "-(-n // split_size)", "n // split_size",
                says="you round down: the last piece may be short, and has work too",
            ),
            Mistake(
                "num_kv_heads * sum(", "sum(",
                says="you forget the KV heads: each has programs of its own",
            ),
            Mistake(
                "sum(-(-n // split_size) for n in seq_lens)", "-(-sum(seq_lens) // split_size)",
                says="you put all contexts end to end, but a piece belongs to one request",
            ),
        ],
    ),
    Exercise(
        "12.3",
        attend,
        examine=examine_attend,
        mistakes=[
            Mistake(
                "total * shrink +", "total +",
                says="when the peak rises, the sum so far must shrink as well",
            ),
            Mistake(
                "acc * shrink +", "acc +",
                says="when the peak rises, what acc has added up so far must shrink as well",
            ),
            Mistake(
                "max(peak, score.max().item())", "0.0",
                says="without a peak exp overflows: subtract the largest score so far",
            ),
            Mistake(
                "range(0, len(k), tile)", "range(0, len(k) - tile + 1, tile)",
                says="you drop the last tile when it is short",
            ),
            Mistake(
                "max(peak, score.max().item())", "score.max().item()",
                says="the peak is the largest of all tiles so far, not of this tile alone",
            ),
        ],
    ),
    Exercise(
        "12.4",
        merge,
        examine=examine_merge,
        mistakes=[
            Mistake(
                "torch.exp(logs - logs.max())", "torch.ones_like(logs)",
                says="you take the plain mean: a piece counts as much as its softmax sum",
            ),
            Mistake(
                "logs - logs.max()", "logs",
                says="exp of a large log is infinite: subtract the largest log first",
            ),
            Mistake(
                "torch.exp(logs - logs.max())", "logs",
                says="you weigh by the logarithm of the sum, not by the sum",
            ),
            Mistake(
                " / weight.sum()", "",
                says="the weights must add up to 1: divide by their sum",
            ),
        ],
    ),
    Exercise(
        "12.5",
        gather_kernel,
        examine=examine_gather_kernel,
        mistakes=[
            Mistake(
                "number, mask=held", "number",
                says="your store has no mask: it writes behind the end of the request",
            ),
            Mistake(
                "tl.program_id(0) * TILE + tl.arange(0, TILE)", "tl.arange(0, TILE)",
                says="every program takes the first tile: begin at program_id * TILE",
            ),
            Mistake(
                "block * BS", "block",
                says="a block's number is not its first slot: multiply it by the block size",
            ),
            Mistake(
                "table + position // BS", "table + position // TILE",
                says="blocks and tiles are different: the table has an entry for each BS positions",
            ),
            Mistake(
                "cache + block * BS + position % BS", "cache + position",
                says="you read the cache in order, as if the blocks lay side by side",
            ),
        ],
    ),
]  # fmt: skip
