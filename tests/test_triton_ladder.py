"""The ladder of decode kernels: each rung is right, and moves just the bytes that were counted."""

import pytest
import torch
from test_triton_attention import TOLERANCE, Step, bfloat16_as_numbers, poisoned_memory
from triton.runtime.interpreter import InterpreterBuilder

from minivllm.triton_ladder import Card, Shape, expected_seconds, run_rung, traffic

__all__ = ["bfloat16_as_numbers", "poisoned_memory"]  # fixtures that run by themselves
RUNGS = ["naive", "tiled", "packed", "split"]


def run(rung: str, step: Step, split_size: int = 8) -> torch.Tensor:
    cache = step.cache.key[0].contiguous(), step.cache.value[0].contiguous()
    return run_rung(rung, torch.cat(step.q), *cache, step.metadata, step.scale, split_size)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(
    "heads, head_dim, dtype",
    [((4, 2), 16, torch.float32), ((3, 1), 80, torch.float16), ((2, 2), 24, torch.bfloat16)],
)
def test_each_rung_equals_float64(
    rung: str, heads: tuple[int, int], head_dim: int, dtype: torch.dtype
):
    step = Step([(1, 19), (1, 1), (1, 8)], 4, heads, head_dim, dtype)
    out = run(rung, step)
    torch.testing.assert_close(out.double(), step.exact(), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("rung", RUNGS)
def test_the_bytes_counted_line_by_line_are_those_that_move(
    rung: str, monkeypatch: pytest.MonkeyPatch
):
    """The interpreter counts what the kernels really load and store; masked places do not count."""
    moved = {"read": 0, "write": 0}
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counting_load(self, pointers, mask, *rest):
        size = pointers.get_element_ty().primitive_bitwidth // 8
        moved["read"] += int(mask.data.sum()) * size
        return load(self, pointers, mask, *rest)

    def counting_store(self, pointers, value, mask, *rest):
        size = pointers.get_element_ty().primitive_bitwidth // 8
        moved["write"] += int(mask.data.sum()) * size
        return store(self, pointers, value, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counting_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counting_store)
    seq_lens = (21, 3, 8)
    step = Step([(1, n) for n in seq_lens], 4, (6, 2), 24, torch.float16)
    run(rung, step)
    lines = traffic(rung, Shape(seq_lens, 6, 2, 24, 2, split_size=8))
    counted = {kind: sum(n for line, n in lines.items() if line.startswith(kind)) for kind in moved}
    assert moved == counted


def test_what_each_rung_is_for():
    """Modelled, on the default card: each step up helps where its fault hurt, and says how much."""
    llama = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "itemsize": 2}
    many, alone = Shape((8192,) * 64, **llama), Shape((8192,), **llama)
    seconds = {rung: expected_seconds(rung, alone, Card()) for rung in RUNGS}
    assert seconds["naive"] > 10 * seconds["tiled"]  # 8192 waits become 256
    bytes_of = {rung: sum(traffic(rung, many).values()) for rung in RUNGS}
    assert bytes_of["naive"] == bytes_of["tiled"] > 3.9 * bytes_of["packed"]  # G = 4
    assert seconds["packed"] > 4 * seconds["split"]  # 8 programs become 256
    assert bytes_of["packed"] < bytes_of["split"] < 1.05 * bytes_of["packed"]


def test_what_the_ladder_refuses():
    step = Step([(1, 5)], 4)
    with pytest.raises(ValueError, match="rung must be naive, tiled, packed or split, got 'flash'"):
        run("flash", step)
    key = step.cache.key[0].transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="contiguous q and caches only"):
        run_rung("naive", torch.cat(step.q), key, key, step.metadata, step.scale)
