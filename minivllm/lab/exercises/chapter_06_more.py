"""Exercises of chapter 6, the second half: attention block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minivllm.attention import AttentionMetadata, paged_attention_reference
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.model_trial import bytes_jobs, model_trial
from minivllm.page_table import num_blocks_for

# ---- 6.6 ----


def block_by_block(q, k_cache, v_cache, metadata, scale):
    starts, size = metadata.query_start_loc.tolist(), k_cache.shape[1]
    group = q.shape[1] // k_cache.shape[2]
    out = torch.zeros_like(q)  # [T, H, D]
    for r, seq_len in enumerate(metadata.seq_lens.tolist()):
        for t in range(starts[r], starts[r + 1]):
            seen = seq_len - (starts[r + 1] - t) + 1  # its position + 1
            largest = torch.full_like(q[t, :, :1], -torch.inf)  # [H, 1]
            total = torch.zeros_like(largest)  # [H, 1]
            for index in range(num_blocks_for(seen, size)):
                block_id = metadata.block_tables[r, index]
                n = min(size, seen - index * size)
                k = k_cache[block_id, :n].repeat_interleave(group, dim=1)  # [n, H, D]
                v = v_cache[block_id, :n].repeat_interleave(group, dim=1)  # [n, H, D]
                scores = torch.einsum("hd,nhd->hn", q[t], k) * scale  # [H, n]
                new_largest = torch.maximum(largest, scores.amax(1, keepdim=True))  # [H, 1]
                shrink = torch.exp(largest - new_largest)  # [H, 1]
                weights = torch.exp(scores - new_largest)  # [H, n]
                total = total * shrink + weights.sum(1, keepdim=True)  # [H, 1]
                out[t] = out[t] * shrink + torch.einsum("hn,nhd->hd", weights, v)  # [H, D]
                largest = new_largest
            out[t] /= total
    return out


def examine_block_by_block(exam: Exam, attention: Callable[..., Any]) -> None:
    batches = {
        "one decode of 6 tokens": ([1], [6], [[5, 2]], 1),
        "one decode of 6 tokens, 4 query heads on 2 KV heads": ([1], [6], [[5, 2]], 2),
        "a prompt of 5 tokens": ([5], [5], [[3, 0]], 1),
        "decode, prompt and chunk in one batch": ([1, 3, 2], [6, 3, 7], [[5, 2], [0], [7, 1]], 2),
    }
    for what, (query_lens, seq_lens, tables, kv_heads) in batches.items():
        generator = torch.Generator().manual_seed(0)
        caches = torch.randn(2, 8, 4, kv_heads, 8, generator=generator)  # [2, N, BS, KH, D]
        heads = 4 if kv_heads == 2 else 1
        q = torch.randn(sum(query_lens), heads, 8, generator=generator)  # [T, H, D]
        metadata = AttentionMetadata.build(query_lens, seq_lens, tables, 4)
        expected = paged_attention_reference(q, *caches, metadata, 0.5)
        exam.equal(attention(q, *caches, metadata, 0.5), expected, f"{what}: the result")
    work = bytes_jobs(["The cat", "sat on the", "mat"], outputs=[6, 5, 7])
    config = SchedulerConfig(num_blocks=16, block_size=4, max_num_batched_tokens=8)
    model_trial(work, config, attention=attention)
    exam.num_passed += 1


EXERCISES = [
    Exercise(
        "6.6",
        block_by_block,
        examine=examine_block_by_block,
        mistakes=[
            Mistake(
                "seen = seq_len - (starts[r + 1] - t) + 1", "seen = seq_len",
                says="you let every query of a chunk see the whole request: it must not look ahead",
            ),
            Mistake(
                "n = min(size, seen - index * size)", "n = size",
                says="you read the last block to its end, where others' old numbers lie",
            ),
            Mistake(
                "out[t] * shrink + torch", "out[t] + torch",
                says="you shrink the total and forget to shrink what has been summed in out",
            ),
            Mistake(
                "k_cache[block_id, :n].repeat_interleave(group, dim=1)",
                "k_cache[block_id, :n].repeat(1, group, 1)",
                says="you pair head h with KV head h % KH: neighbours share one, so it is h // G",
            ),
            Mistake(
                "seen = seq_len - (starts[r + 1] - t) + 1", "seen = t - starts[r] + 1",
                says="you number the queries from 0: a request's queries are its last tokens",
            ),
        ],
    ),
]  # fmt: skip
