"""Exercises of chapter 1: the KV cache, in one piece."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from minivllm.attention import dense_attention
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.model_trial import tiny_model

# ---- 1.4 ----


def kv_bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, bytes_per_number):
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number


# ---- 1.5 ----


def cached_tokens(num_prompt, num_new):
    return num_prompt + num_new - 1


# ---- 1.6 ----


class MyCache:
    def __init__(self, num_layers, max_len, num_kv_heads, head_dim):
        self.keys = torch.zeros(num_layers, max_len, num_kv_heads, head_dim)
        self.values = torch.zeros(num_layers, max_len, num_kv_heads, head_dim)
        self.lengths = [0] * num_layers

    def append(self, layer, k, v):
        start = self.lengths[layer]
        end = start + len(k)
        self.keys[layer, start:end] = k
        self.values[layer, start:end] = v
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]


class MyCacheWithOneLength(MyCache):
    """The length moves on with each layer's append."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = super().append(layer, k, v)
        self.lengths = [self.lengths[layer]] * len(self.lengths)
        return kept


def examine_cache(exam: Exam, MyCache: Callable[..., Any]) -> None:
    ones = torch.ones(3, 2, 4)  # [T, KH, D]
    cache = MyCache(num_layers=2, max_len=8, num_kv_heads=2, head_dim=4)
    k, v = cache.append(0, ones, 2 * ones)
    exam.equal(k, ones, "the keys that append(0, k, v) gives back for 3 tokens")
    exam.equal(v, 2 * ones, "the values that append(0, k, v) gives back for 3 tokens")
    k, _ = cache.append(1, 3 * ones, 4 * ones)
    exam.equal(k, 3 * ones, "the keys of layer 1 after its first append")
    k, v = cache.append(0, 5 * ones[:1], 6 * ones[:1])
    exam.equal(k, torch.cat([ones, 5 * ones[:1]]), "the keys of layer 0 after a fourth token")
    exam.equal(v, torch.cat([2 * ones, 6 * ones[:1]]), "the values of layer 0 after a fourth token")
    prompt = [70, 107, 104, 35, 102, 100, 119]
    tokens = tokens_with_cache(MyCache, prompt, 12)
    exam.equal(tokens, tokens_without_cache(tuple(prompt), 12), "12 tokens of the tiny model")


def tokens_with_cache(MyCache: Callable[..., Any], prompt: list[int], num_new: int) -> list[int]:
    """What the tiny model generates greedily with this cache."""
    model = tiny_model()
    config, scale = model.config, model.config.head_dim**-0.5
    cache = MyCache(config.num_layers, 64, config.num_kv_heads, config.head_dim)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_attention(q, *cache.append(layer, k, v), scale)  # [T, H, D]

    token_ids, start = list(prompt), 0
    for _ in range(num_new):
        new = torch.tensor(token_ids[start:])  # [T]
        hidden = model.forward(new, torch.arange(start, len(token_ids)), attend)  # [T, E]
        start = len(token_ids)
        token_ids.append(int(model.compute_logits(hidden[-1:]).argmax()))
    return token_ids[len(prompt) :]


@lru_cache(maxsize=8)
def tokens_without_cache(prompt: tuple[int, ...], num_new: int) -> list[int]:
    """The same by the loop of chapter 0."""
    model = tiny_model()
    scale, token_ids = model.config.head_dim**-0.5, list(prompt)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_attention(q, k, v, scale)  # [T, H, D]

    for _ in range(num_new):
        ids, positions = torch.tensor(token_ids), torch.arange(len(token_ids))  # [T], [T]
        hidden = model.forward(ids, positions, attend)  # [T, E]
        token_ids.append(int(model.compute_logits(hidden[-1:]).argmax()))
    return token_ids[len(prompt) :]


# ---- 1.7 ----


def window_slots(length, window):
    first = max(length - window, 0)
    return [position % window for position in range(first, length)]


EXERCISES = [
    Question(
        "1.1",
        answer=12,
        working="the prompt's 5 tokens once, then each new token once, but not the last one",
        mistakes=[
            Mistake(wrong=13, says="the last new token is never run: nothing is asked after it"),
            Mistake(wrong=8, says="the 5 tokens of the prompt must be run once too"),
            Mistake(wrong=68, says="that is the loop without a cache"),
        ],
    ),
    Question(
        "1.2",
        answer=lambda: kv_bytes_per_token(30, 9, 3, 64, 4),
        working="2 (K and V) * 30 layers * 3 KV heads * 64 numbers * 4 bytes",
        mistakes=[
            Mistake(wrong=23040, says="you have counted K or V: there are both"),
            Mistake(wrong=138240, says="those are the 9 query heads: only the 3 KV heads are kept"),
            Mistake(wrong=11520, says="you have counted numbers: each takes 4 bytes"),
            Mistake(wrong=1536, says="that is one layer: there are 30, each with its own K and V"),
        ],
    ),
    Question(
        "1.3",
        answer=lambda: 12 * 2**30 // kv_bytes_per_token(40, 40, 40, 128, 2) // 2048,
        working="12 GiB / 819,200 bytes = 15,728 tokens; 15,728 / 2048 = 7.7, and 0.7 of a "
        "reservation is none",
        mistakes=[
            Mistake(wrong=8, says="the eighth has only 0.7 of the room that it needs"),
            Mistake(wrong=15, says="you have counted K or V: there are both"),
            Mistake(wrong=3, says="a number of OPT-13B takes 2 bytes here (16 bits), not 4"),
        ],
    ),
    Exercise(
        "1.4",
        kv_bytes_per_token,
        cases=[(1, 2, 1, 4, 2), (30, 9, 3, 64, 4), (32, 32, 8, 128, 2), (40, 40, 40, 128, 2)],
        mistakes=[
            Mistake("2 * num_layers", "num_layers", says="you count K or V: there are both"),
            Mistake(
                "* num_kv_heads", "* num_heads",
                says="you count the query heads: queries are not kept, only the KV heads are",
            ),
            Mistake("* num_layers", "", says="you count one layer: each has its own K and V"),
            Mistake("* bytes_per_number", "", says="you count numbers, not their bytes"),
        ],
    ),
    Exercise(
        "1.5",
        cached_tokens,
        cases=[(5, 8), (5, 1), (1, 1), (100, 20)],
        mistakes=[
            Mistake(
                "+ num_new - 1", "+ num_new",
                says="the last new token is never run, so it has no K and V",
            ),
            Mistake(
                "+ num_new - 1", "",
                says="you count the prompt only: new tokens that are run are kept too",
            ),
            Mistake(
                "num_prompt + num_new - 1", "num_new - 1",
                says="you count the new tokens only: the prompt's K and V are kept too",
            ),
        ],
    ),
    Exercise(
        "1.6",
        MyCache,
        examine=examine_cache,
        mistakes=[
            Mistake(
                "self.lengths[layer] = end", "self.lengths[layer] = len(k)",
                says="your length is that of the last chunk: it must grow with each one",
            ),
            Mistake(
                "return self.keys[layer, :end], self.values[layer, :end]",
                "return self.keys[layer], self.values[layer]",
                says="you give back the empty slots too: attention would look at them",
            ),
            Mistake(
                "return self.keys[layer, :end], self.values[layer, :end]", "return k, v",
                says="you give back only what came in: attention needs all that was kept so far",
            ),
            Mistake(
                wrong=MyCacheWithOneLength,
                says="you keep one length for all layers, but each layer appends the same tokens",
            ),
        ],
    ),
    Exercise(
        "1.7",
        window_slots,
        cases=[(10, 4), (3, 4), (4, 4), (5, 4), (0, 4), (7, 1)],
        mistakes=[
            Mistake(
                "[position % window for position in range(first, length)]",
                "sorted(position % window for position in range(first, length))",
                says="you give the slots in the order of memory: the oldest position comes first",
            ),
            Mistake(
                "[position % window for position in range(first, length)]",
                "list(range(first, length))",
                says="you give positions: the slot of a position is position % window",
            ),
            Mistake(
                "max(length - window, 0)", "0",
                says="you keep all positions: only the last `window` ones are still there",
            ),
            Mistake(
                "max(length - window, 0)", "length - window",
                says="a text shorter than the window has no positions below 0",
            ),
        ],
    ),
]  # fmt: skip
