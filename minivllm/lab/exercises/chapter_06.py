"""Exercises of chapter 6: paged attention."""

from __future__ import annotations

import math

import torch

from minivllm.attention import AttentionMetadata
from minivllm.lab.exercise import Exercise, Mistake, Question

# ---- 6.3 ----


def query_positions(query_lens, seq_lens):
    return [
        position
        for num_queries, seq_len in zip(query_lens, seq_lens, strict=True)
        for position in range(seq_len - num_queries, seq_len)
    ]


# ---- 6.4 ----


def merge(a, b):
    import math

    largest = max(a[0], b[0])
    shrink_a, shrink_b = math.exp(a[0] - largest), math.exp(b[0] - largest)
    return largest, a[1] * shrink_a + b[1] * shrink_b, a[2] * shrink_a + b[2] * shrink_b


def part_of(scores: list[float], values: list[float]) -> tuple[float, float, float]:
    """largest, total and out of some positions."""
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    return largest, sum(weights), sum(w * v for w, v in zip(weights, values, strict=True))


HALVES = [
    (part_of([1.0, 3.0, 0.5], [2.0, -1.0, 4.0]), part_of([0.0, 2.0], [1.0, 5.0])),
    (part_of([0.0, 2.0], [1.0, 5.0]), part_of([1.0, 3.0, 0.5], [2.0, -1.0, 4.0])),
    (part_of([2.0], [3.0]), part_of([2.0], [5.0])),
    (part_of([900.0, 901.0], [1.0, 2.0]), part_of([903.0], [3.0])),
]

# ---- 6.5 ----


def decode_attention(q, k_cache, v_cache, block_ids, seq_len, scale):
    group = q.shape[0] // k_cache.shape[2]
    k = k_cache[block_ids].flatten(0, 1)[:seq_len]  # [S, KH, D]
    v = v_cache[block_ids].flatten(0, 1)[:seq_len]  # [S, KH, D]
    scores = torch.einsum("hd,shd->hs", q, k.repeat_interleave(group, dim=1)) * scale  # [H, S]
    weights = scores.softmax(dim=-1)  # [H, S]
    return torch.einsum("hs,shd->hd", weights, v.repeat_interleave(group, dim=1))  # [H, D]


def decode_case(heads: int, kv_heads: int, block_ids: list[int], seq_len: int) -> tuple:
    """Arguments of decode_attention with blocks of 4."""
    generator = torch.Generator().manual_seed(seq_len)
    caches = torch.randn(2, 8, 4, kv_heads, 8, generator=generator)  # [2, N, BS, KH, D]
    q = torch.randn(heads, 8, generator=generator)  # [H, D]
    return q, *caches, block_ids, seq_len, 0.5


EXERCISES = [
    Question(
        "6.1",
        answer=lambda: 7 // (9 // 3),
        working="three query heads to each KV head: 7 // 3 = 2",
        mistakes=[
            Mistake(
                wrong=1,
                says="that is 7 % 3, which deals the heads out in turn; neighbours share a KV head",
            ),
            Mistake(wrong=7, says="there are only 3 KV heads, numbered 0 to 2"),
            Mistake(wrong=3, says="KV heads are numbered from 0, so the third one is 2"),
        ],
    ),
    Question(
        "6.2",
        answer=lambda: AttentionMetadata.build(
            [1, 3, 2], [6, 3, 7], [[5, 2], [0], [7, 1]], 4
        ).query_start_loc.tolist(),
        working="A's query is token 0, B's are 1, 2, 3, C's are 4, 5, and the end is 6",
        mistakes=[
            Mistake(wrong=[0, 6, 9, 16], says="you add up the lengths, but queries stand here"),
            Mistake(
                wrong=[1, 4, 6],
                says="those are the ends of the requests; the list begins with 0 as well",
            ),
            Mistake(
                wrong=[0, 1, 4],
                says="those are the beginnings; the end of the last request is missing",
            ),
            Mistake(wrong=[1, 3, 2], says="those are the numbers of queries; add them up"),
        ],
    ),
    Exercise(
        "6.3",
        query_positions,
        cases=[([1, 3, 2], [6, 3, 7]), ([1], [1]), ([4], [4]), ([1, 1], [9, 2]), ([], [])],
        mistakes=[
            Mistake(
                "range(seq_len - num_queries, seq_len)", "range(num_queries)",
                says="you number each request's queries from 0, but tokens stand before them",
            ),
            Mistake(
                "range(seq_len - num_queries, seq_len)", "range(seq_len, seq_len + num_queries)",
                says="you put the queries behind the length, but seq_lens includes this step",
            ),
            Mistake(
                "range(seq_len - num_queries, seq_len)", "range(seq_len)",
                says="you give a position to every token, but only the queries run in this step",
            ),
        ],
    ),
    Exercise(
        "6.4",
        merge,
        cases=HALVES,
        mistakes=[
            Mistake(
                "math.exp(a[0] - largest), math.exp(b[0] - largest)", "1.0, 1.0",
                says="you add what was lowered by different amounts: shrink both to one largest",
            ),
            Mistake(
                "math.exp(a[0] - largest), math.exp(b[0] - largest)",
                "math.exp(largest - a[0]), math.exp(largest - b[0])",
                says="your factor grows where it should shrink: it is exp(own largest - largest)",
            ),
            Mistake(
                "a[2] * shrink_a + b[2] * shrink_b", "a[2] + b[2]",
                says="you shrink the totals and forget to shrink what has been summed in out",
            ),
            Mistake(
                "largest = max(a[0], b[0])", "largest = 0",
                says="you lower by nothing, so exp overflows as soon as scores are large",
            ),
        ],
    ),
    Exercise(
        "6.5",
        decode_attention,
        cases=[
            decode_case(1, 1, [5, 2], 8), decode_case(2, 2, [5, 2, 7], 10),
            decode_case(6, 3, [1], 4), decode_case(4, 1, [6, 0], 5), decode_case(9, 3, [3, 4], 7),
        ],
        mistakes=[
            Mistake(
                wrong=lambda q, k_cache, v_cache, block_ids, seq_len, scale: decode_attention(
                    q, k_cache, v_cache, block_ids, len(block_ids) * k_cache.shape[1], scale
                ),
                says="you attend to whole blocks: cut at seq_len, the rest is somebody else's",
            ),
            Mistake(
                wrong=lambda q, k_cache, v_cache, block_ids, seq_len, scale: decode_attention(
                    q, *(c.repeat(1, 1, len(q) // c.shape[2], 1) for c in (k_cache, v_cache)),
                    block_ids, seq_len, scale,
                ),
                says="you pair head h with KV head h % KH: neighbours share one, so it is h // G",
            ),
            Mistake(
                " * scale", "",
                says="you forget the scale: without it the softmax is too sharp",
            ),
            Mistake(
                "scores.softmax(dim=-1)", "scores.softmax(dim=0)",
                says="your softmax runs over the heads: each head's weights must sum to 1",
            ),
        ],
    ),
]  # fmt: skip
