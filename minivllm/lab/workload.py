"""What the engines are given to do: seeded lists of prompts and output lengths.

Token ids are drawn from the vocabulary; outputs have a fixed length (end of text is ignored), so
every engine does exactly the same work.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minivllm.sampling_params import is_int


@dataclass(frozen=True)
class WorkItem:
    """One request: its prompt, and how many tokens it generates."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once, and what the engines may use for them.

    batch_size: requests at once, also the rows of a static batch. row_slots: KV slots that static
    batching reserves for a row; batch_size * row_slots is the KV memory of every engine.
    max_num_seqs: requests at once of an engine that is bound by memory only.
    """

    name: str
    items: list[WorkItem]
    batch_size: int = 16
    row_slots: int = 544
    max_num_seqs: int = 16

    @property
    def num_tokens(self) -> int:
        """Tokens to generate in all."""
        return sum(item.max_tokens for item in self.items)


def built_in(name: str, vocab_size: int, seed: int = 0) -> Workload:
    """One of the benchmark's workloads. Raises ValueError for another name.

    w1: 64 requests, prompts uniform 32..128, outputs 80 % uniform 8..32 and 20 % uniform 128..256.
    w2: the same with all outputs 64. w3: 32 requests with a common prefix of 256 tokens and 16 of
    their own, 32 outputs. w4: 256 requests, prompts 32..128, outputs 7/8 uniform 8..24 and 1/8
    uniform 300..400; up to 64 at once where the KV memory of 16 rows of 544 slots allows it.

    >>> [built_in(name, 49152).num_tokens for name in ("w2", "w3")]
    [4096, 1024]
    """
    makers: dict[str, Callable[[random.Random, int], Workload]] = {
        "w1": _w1, "w2": _w2, "w3": _w3, "w4": _w4,
    }  # fmt: skip
    if name not in makers:
        raise ValueError(f"workload {name!r} is neither a file nor one of {', '.join(makers)}")
    return makers[name](random.Random(f"{name}/{seed}"), vocab_size)


def _prompt(rng: random.Random, length: int, vocab_size: int) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(length)]


def _uniform_prompts(rng: random.Random, outputs: list[int], vocab_size: int) -> list[WorkItem]:
    return [WorkItem(_prompt(rng, rng.randint(32, 128), vocab_size), n) for n in outputs]


def _w1(rng: random.Random, vocab_size: int) -> Workload:
    outputs = [rng.randint(8, 32) for _ in range(51)] + [rng.randint(128, 256) for _ in range(13)]
    rng.shuffle(outputs)
    return Workload("w1", _uniform_prompts(rng, outputs, vocab_size))


def _w2(rng: random.Random, vocab_size: int) -> Workload:
    return Workload("w2", _uniform_prompts(rng, [64] * 64, vocab_size))


def _w3(rng: random.Random, vocab_size: int) -> Workload:
    prefix = _prompt(rng, 256, vocab_size)
    items = [WorkItem(prefix + _prompt(rng, 16, vocab_size), 32) for _ in range(32)]
    return Workload("w3", items)


def _w4(rng: random.Random, vocab_size: int) -> Workload:
    outputs = [rng.randint(8, 24) for _ in range(224)] + [rng.randint(300, 400) for _ in range(32)]
    rng.shuffle(outputs)
    return Workload("w4", _uniform_prompts(rng, outputs, vocab_size), max_num_seqs=64)


def load(path: str | Path, vocab_size: int, seed: int = 0) -> Workload:
    """A workload file: a JSON list of {"prompt_token_ids": [...] or "prompt_len": n, "max_tokens":
    m}.

    Raises ValueError that names the entry which is wrong.
    """
    path = Path(path)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"workload file {path} cannot be read: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"workload file {path} must hold a list of requests, at least one")
    rng = random.Random(f"{path.name}/{seed}")
    items = [_item(row, index, rng, vocab_size) for index, row in enumerate(rows)]
    longest = max(len(item.prompt_token_ids) for item in items)
    return Workload(path.stem, items, row_slots=longest + max(item.max_tokens for item in items))


def _item(row: object, index: int, rng: random.Random, vocab_size: int) -> WorkItem:
    where = f"request {index} of the workload"
    if not isinstance(row, dict):
        raise ValueError(f"{where} is {row!r}, not an object")
    token_ids, length, most = (row.get(k) for k in ("prompt_token_ids", "prompt_len", "max_tokens"))
    if not is_int(most) or most < 1:
        raise ValueError(f"{where}: max_tokens must be an integer >= 1, got {most!r}")
    if token_ids is None:
        if not is_int(length) or length < 1:
            raise ValueError(f"{where}: prompt_len must be an integer >= 1, got {length!r}")
        return WorkItem(_prompt(rng, length, vocab_size), most)
    good = isinstance(token_ids, list) and token_ids and all(is_int(t) for t in token_ids)
    if not good or not all(0 <= token < vocab_size for token in token_ids):
        raise ValueError(f"{where}: prompt_token_ids must be ids from 0 to {vocab_size - 1}")
    return WorkItem(token_ids, most)
