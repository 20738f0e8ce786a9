"""What the parts of gpu_check.py share: the amounts, the report and its clock, a random step."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minivllm.attention import AttentionMetadata
from minivllm.executor import attention_functions
from minivllm.kv_cache import KVCache
from minivllm.model import ModelConfig

TINY = ModelConfig(259, 64, 128, 3, 4, 2, 16, 1024)
SMOLLM2 = ModelConfig(49152, 576, 1536, 30, 9, 3, 64, 2048, tie_word_embeddings=True)
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_heads": 32, "num_kv_heads": 8,
            "head_dim": 128, "max_position_embeddings": 8192}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much is run; `dry` fits the interpreter."""

    copy_bytes: int = 2 << 30
    heads: tuple[int, int, int] = (32, 8, 128)  # H, KH, D of the kernels that are timed
    decode: tuple[tuple[int, int], ...] = (
        *((batch, context) for context in (512, 2048, 8192) for batch in (1, 8, 64, 256)),
        *((1, 32768), (8, 32768)),
    )  # requests, context
    # Rows of (queries, KV length): prompts, a late chunk among decodes, one long prompt.
    ragged: tuple[tuple[tuple[int, int], ...], ...] = (
        ((1024, 1024),) * 4,
        ((512, 8192), *((1, 2048),) * 63),
        ((8192, 8192),),
    )
    beside_others: tuple[tuple[int, int], ...] = ((8, 2048), (64, 8192))
    engine_models: tuple[tuple[str, ModelConfig], ...] = (
        ("tiny", TINY),
        ("smollm2-shaped", SMOLLM2),
        ("8b-shaped, 2 layers", ModelConfig(4096, num_layers=2, **LLAMA_8B)),
    )
    stack: ModelConfig = ModelConfig(128256, num_layers=32, **LLAMA_8B)
    stack_batches: tuple[int, ...] = (256, 128, 64, 32, 8, 1)
    stack_context: int = 1024
    tile_bytes: tuple[int, ...] = (8192, 16384, 32768)


DRY = Sizes(
    copy_bytes=1 << 16, heads=(4, 2, 16), decode=((2, 40), (1, 20)), ragged=(((5, 9), (1, 20)),),
    beside_others=((2, 40),), engine_models=(("tiny", TINY),), stack=TINY, stack_batches=(2, 1),
    stack_context=9, tile_bytes=(8192,),
)  # fmt: skip


@dataclass
class Run:
    """The report as it grows, and the clock."""

    device: torch.device
    dry: bool
    sizes: Sizes
    deadline: float
    report: dict = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def late(self, needed: float) -> bool:
        """Whether fewer than `needed` seconds are left; then a part is skipped, and said so."""
        return time.monotonic() + needed > self.deadline

    @property
    def half(self) -> torch.dtype:
        """What is timed; the interpreter cannot multiply bfloat16."""
        return torch.float16 if self.dry else torch.bfloat16

    def seconds(self, call: Callable[[int], object], most: int = 100) -> float | None:
        """Median of 5 times of call(i), i = 0, 1, ..; by the GPU's clock, after a warm-up."""
        if self.dry:
            call(0)
            return None
        for i in range(3):
            call(i)
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(0)
        torch.cuda.synchronize()
        calls = max(3, min(most, int(0.05 / (time.perf_counter() - start))))
        times = []
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for i in range(calls):
                call(i)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / calls / 1000)
        return statistics.median(times)

    def rate(self, nbytes: float, seconds: float | None) -> dict:
        """Seconds, bytes a second, and that as a share of the measured copy."""
        if seconds is None:
            return {"seconds": None, "bytes_per_second": None, "share_of_copy": None}
        rate = nbytes / seconds
        share = rate / self.report["copy_bytes_per_second"]
        return {"seconds": seconds, "bytes_per_second": rate, "share_of_copy": share}

    def check(self, name: str, ok: bool, **numbers: object) -> None:
        print(f"{'ok    ' if ok else 'FAILED'} {name} {numbers}", flush=True)
        self.report.setdefault("checks", []).append({"name": name, "ok": ok, **numbers})
        if not ok:
            self.failures.append(name)

    def add(self, part: str, **row: object) -> None:
        print(part, row, flush=True)
        self.report.setdefault(part, []).append(row)


class Batch:
    """A ragged step on random K and V in blocks in random order; unwritten slots are NaN.

    compare: whether `plain` is a second cache, written by torch.
    """

    def __init__(
        self, run: Run, lens: list[tuple[int, int]], block_size: int, heads: tuple[int, int, int],
        dtype: torch.dtype, num_layers: int = 1, compare: bool = False,
    ) -> None:  # fmt: skip
        H, KH, D = heads
        counts = [-(-length // block_size) for _, length in lens]
        order = random.Random(0).sample(range(sum(counts)), sum(counts))
        tables = [[order.pop() for _ in range(count)] for count in counts]
        queries, totals = [n for n, _ in lens], [length for _, length in lens]
        self.step = AttentionMetadata.build(queries, totals, tables, block_size, run.device)
        everything = AttentionMetadata.build(totals, totals, tables, block_size, run.device)
        sizes = (num_layers, sum(counts), block_size, KH, D, dtype)
        self.cache = KVCache(*sizes, run.device)
        self.plain = KVCache(*sizes, run.device) if compare else self.cache
        write, _ = attention_functions("triton")
        for cache in (self.cache, self.plain):
            cache.key.fill_(math.nan)
            cache.value.fill_(math.nan)
        for layer in range(num_layers):
            k, v = torch.randn(2, sum(totals), KH, D, dtype=dtype, device=run.device)
            write(self.cache, layer, everything.slot_mapping, k, v)
            if compare:
                self.plain.write(layer, everything.slot_mapping, k, v)
        self.q = torch.randn(sum(queries), H, D, dtype=dtype, device=run.device)
        self.scale, self.num_layers = D**-0.5, num_layers

    def layer(self, i: int) -> tuple[Tensor, Tensor]:
        return self.cache.key[i % self.num_layers], self.cache.value[i % self.num_layers]

    def attend(self, attention: Callable, i: int = 0) -> Tensor:
        return attention(self.q, *self.layer(i), self.step, self.scale)
