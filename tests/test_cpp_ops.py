"""The C++ kernels against their definitions in torch, and what happens where none can be built."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_attention import HEADS, Batch, ragged_mix
from tiny import greedy

from minivllm import cpp_build, cpp_ops, ops
from minivllm.attention import AttentionMetadata
from minivllm.executor import ModelExecutor
from minivllm.kv_cache import KVCache
from minivllm.llm import LLM
from minivllm.model import LlamaModel, ModelConfig
from minivllm.weights import load_weights, random_weights

needs_cpp = pytest.mark.skipif(cpp_build.why_not() is not None, reason="no C++ kernels here")
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
ROWS = [1, 2, 16, 17, 40]  # more than 16 are shared out among threads
SMALL = ModelConfig(97, 64, 160, 2, 6, 2, 32, 256, tie_word_embeddings=True)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# --- the small operators --------------------------------------------------------------------------


@needs_cpp
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_small_operators_equal_their_definitions(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    x, weight = (3 * torch.randn(rows, 96)).to(dtype), torch.randn(96).to(dtype)
    close(cpp_ops.rms_norm(x, weight, 1e-5), ops.rms_norm(x, weight, 1e-5))
    close(cpp_ops.silu_and_mul(x), ops.silu_and_mul(x))
    qkv = torch.randn(rows, 5, 32).to(dtype)
    qk = qkv[:, :4]  # the rows lie apart, as in the fused matrix
    angles = 7 * torch.randn(rows, 1, 16)
    cos, sin = angles.cos(), angles.sin()
    cos = torch.cat([cos, cos], -1).to(dtype)
    sin = torch.cat([-sin, sin], -1).to(dtype)
    close(cpp_ops.apply_rope(qk, cos, sin), ops.apply_rope(qk, cos, sin))


@needs_cpp
def test_heads_that_lie_apart_are_normed_by_torch() -> None:
    """Qwen3's norm of each head has no weight of its own here, and no dense rows."""
    x = torch.randn(3, 5, 32)[:, :4]
    assert torch.equal(cpp_ops.rms_norm(x, None, 1e-6), ops.rms_norm(x, None, 1e-6))


@needs_cpp
@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_at_the_ends_of_the_number_line(dtype: torch.dtype) -> None:
    """Its exponential is only asked for powers below 0, so nothing overflows; NaN stays NaN."""
    ends = [0.0, -0.0, 1e-30, 5, -5, 30, -30, 88, -88, 89, -89, 1e4, -1e4, 3e38, -1e30, math.nan]
    gate = torch.tensor([ends]).to(dtype)  # [1, 16]
    gate_up = torch.cat([gate, torch.ones(1, 16, dtype=dtype)], 1)  # [1, 32]
    ours, theirs = cpp_ops.silu_and_mul(gate_up), ops.silu_and_mul(gate_up)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-6, equal_nan=True)


@needs_cpp
def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    """To the nearest, ties to even; what is too large becomes infinite, and NaN stays NaN."""
    numbers = [1.0, 1 + 2**-7, -1.0, 3.38e38, -3.38e38, 1e-39, math.inf, 0.0, 5 / 3, -1e-3]
    first = torch.tensor([*numbers, 7, 9, 11, math.nan, 1e9, -0.0]).bfloat16()  # [16]
    for share in (2**-8, 2**-8 + 2**-15, -(2**-9), 3 * 2**-9):
        # Half, a little more, a quarter, three quarters of the last bit of 1.0: x + share * x.
        x = torch.cat([first, first])[None, None]  # [1, 1, 32]
        cos, sin = torch.ones_like(x), torch.full_like(x, share)
        expected = (x.float() + sin.float() * x.float()).bfloat16()
        ours = cpp_ops.apply_rope(x, cos, sin)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


# --- the cache and attention ----------------------------------------------------------------------


@needs_cpp
@pytest.mark.parametrize("dtype", DTYPES)
def test_write_equals_the_cache_s_own(dtype: torch.dtype) -> None:
    """Strided k and v, slots in any order, and a slot of -1, which stores nothing anywhere."""
    torch.manual_seed(0)
    caches = [KVCache(2, 3, 4, 2, 16, dtype) for _ in range(2)]
    qkv = torch.randn(5, 6, 16).to(dtype)
    k, v = qkv[:, 2:4], qkv[:, 4:6]  # [5, 2, 16]
    slots = torch.tensor([7, 0, -1, 11, 4])
    cpp_ops.write_kv(caches[0], 1, slots, k, v)
    caches[1].write(1, slots, k, v)
    assert torch.equal(caches[0].key, caches[1].key)
    assert torch.equal(caches[0].value, caches[1].value)
    assert caches[0].key.count_nonzero() == 4 * 2 * 16


@needs_cpp
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 48])
@pytest.mark.parametrize("heads", [*HEADS, (40, 2)])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
def test_attention_equals_dense(head_dim: int, heads: tuple[int, int], block_size: int) -> None:
    """Unused slots are NaN. 20 query heads to a KV head do not fit one tile of 16 rows."""
    Batch(ragged_mix(block_size), block_size, heads, head_dim).check(cpp_ops.paged_attention)


@needs_cpp
@pytest.mark.parametrize("heads", HEADS)
def test_attention_equals_dense_in_bfloat16(heads: tuple[int, int]) -> None:
    Batch(ragged_mix(8), 8, heads, 64, torch.bfloat16).check(cpp_ops.paged_attention)


@needs_cpp
def test_a_long_chunk_in_bfloat16_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """There SDPA has the matrix unit; the decodes of the step go along."""
    batch = Batch([(1, 30), (201, 240), (3, 9)], 16, (9, 3), 64, torch.bfloat16)
    batch.check(cpp_ops.paged_attention)
    seen = []
    monkeypatch.setattr(
        cpp_ops.attention, "paged_attention", lambda q, *rest: seen.append(len(q)) or q
    )
    batch.paged(attend=cpp_ops.paged_attention)
    batch.paged([0, 2], cpp_ops.paged_attention)
    assert seen == [205]


@needs_cpp
@pytest.mark.parametrize("seed", range(20))
def test_attention_of_random_ragged_batches(seed: int) -> None:
    rng = random.Random(seed)
    lens = []
    for _ in range(rng.randint(1, 12)):
        length = rng.choice([rng.randint(1, 8), rng.randint(1, 90), rng.randint(200, 900)])
        lens.append((min(length, rng.choice([1, 1, 2, length, rng.randint(1, length)])), length))
    batch = Batch(lens, rng.randint(1, 20), rng.choice(HEADS), rng.choice([16, 48]))
    batch.check(cpp_ops.paged_attention)


@needs_cpp
def test_attention_does_not_depend_on_neighbours_or_chunks_to_the_last_bit() -> None:
    """The law by construction: each row adds up alone, in the order of its positions."""
    batch = Batch([(1, 30), (21, 21), (1, 700), (12, 40), (1, 3), (1, 650)], 4, (9, 3), 64)
    together = batch.paged(attend=cpp_ops.paged_attention).split(batch.query_lens)
    for r, expected in enumerate(together):
        assert torch.equal(batch.paged([r], cpp_ops.paged_attention), expected)
    key, value = batch.cache.key[1], batch.cache.value[1]
    for cut in range(1, 21):
        for start, end in ((0, cut), (cut, 21)):
            step = AttentionMetadata.build([end - start], [end], [batch.block_tables[1]], 4)
            part = cpp_ops.paged_attention(batch.q[1][start:end], key, value, step, batch.scale)
            assert torch.equal(part, together[1][start:end])


@needs_cpp
def test_attention_of_large_scores_stays_finite() -> None:
    """Scores from -3,000 to 3,000: the online softmax subtracts the largest so far."""
    batch = Batch([(1, 40), (7, 33)], 4, (4, 2), 32)
    batch.q = [1000 * q for q in batch.q]
    batch.check(cpp_ops.paged_attention)


@needs_cpp
def test_a_cache_that_the_kernel_cannot_read_is_refused() -> None:
    batch = Batch([(1, 5)], 4, (4, 2), 32)
    key, value = batch.cache.key[1], batch.cache.value[1]
    wrong = [(key.double(), value), (key, value.transpose(0, 1).contiguous().transpose(0, 1))]
    for k, v in wrong:
        with pytest.raises(ValueError, match="reads a contiguous cache of torch.float32, got"):
            cpp_ops.paged_attention(batch.q[0], k, v, batch.metadata(), batch.scale)


# --- the whole model ------------------------------------------------------------------------------


@needs_cpp
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_model_gives_the_same_hidden_states(qk_norm: bool) -> None:
    config = ModelConfig(**{**vars(SMALL), "qk_norm": qk_norm, "qkv_bias": not qk_norm})
    weights = random_weights(config, torch.float32, "cpu", 0)
    hidden = {}
    for kernels in ("torch", "cpp"):
        model = LlamaModel(config, weights, kernels=kernels)
        assert model.kernels == kernels
        hidden[kernels] = model.forward(
            torch.arange(40), torch.arange(40), lambda layer, q, k, v: q + k[:, :1] - v[:, 1:]
        )
    torch.testing.assert_close(hidden["cpp"], hidden["torch"], rtol=1e-4, atol=1e-4)


@needs_cpp
@pytest.mark.model
def test_smollm2_says_the_same_by_both_kernels() -> None:
    """32 greedy tokens of four prompts, together and through a pool that forces preemption."""
    prompts = ["The capital of France is", "def fib(n):", "1 2 3 4", "Once upon a time, " * 8]
    answers = {}
    for kernels in ("torch", "cpp"):
        llm = LLM(num_blocks=24, block_size=4, max_num_batched_tokens=16, watermark_blocks=0)
        llm.model = LlamaModel(*load_weights("smollm2"), kernels=kernels)
        llm.engine.executor = ModelExecutor(llm.model, 24, 4, attention_backend=kernels)
        outputs = llm.generate(prompts, greedy(32, ignore_eos=True), use_tqdm=False)
        answers[kernels] = [output.outputs[0].token_ids for output in outputs]
        assert llm.engine.scheduler.stats.num_preemptions > 0
    assert answers["cpp"] == answers["torch"]


# --- building -------------------------------------------------------------------------------------


def in_a_new_process(code: str, **environment: str) -> str:
    """What the code prints, with another environment; the library is loaded once a process."""
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return run.stdout.strip()


WHY_NOT = "from minivllm import cpp_build; print(cpp_build.why_not())"
WITHOUT = """
from minivllm.llm import LLM
llm = LLM("tiny", num_blocks=8)
print(llm.model.kernels, llm.engine.executor.attention_backend)
print(llm.generate("hello", use_tqdm=False)[0].finished)
"""


def test_without_a_compiler_everything_runs_in_torch(tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}
    assert "no C++ compiler was found (looked for g++" in in_a_new_process(WHY_NOT, **empty)
    assert in_a_new_process(WITHOUT, **empty) == "torch torch\nTrue"


def test_the_switch_turns_the_kernels_off() -> None:
    assert in_a_new_process(WHY_NOT, MINIVLLM_CPP="0") == "MINIVLLM_CPP=0 is set"


def test_a_compiler_that_fails_is_quoted_in_one_line(tmp_path: Path) -> None:
    compiler = tmp_path / "broken"
    script = "#!/bin/sh\n[ $1 = --version ] && exit 0\necho 'In a\nerror: b\nc' >&2; exit 1\n"
    compiler.write_text(script)
    compiler.chmod(0o755)
    found = in_a_new_process(WHY_NOT, CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path))
    assert found == f"{compiler} failed: error: b"
    missing = in_a_new_process(WHY_NOT, CXX=str(tmp_path / "none"), XDG_CACHE_HOME=str(tmp_path))
    assert "could not be built" in missing and "none" in missing
    taken = tmp_path / "file"
    taken.touch()
    found = in_a_new_process(WHY_NOT, XDG_CACHE_HOME=str(taken))
    assert "could not be built" in found or "no C++ compiler" in found


@needs_cpp
def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    """A second process finds it, by a name that does not depend on the process."""
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    assert in_a_new_process(WHY_NOT, **home) == "None"
    (library,) = (tmp_path / "minivllm").iterdir()
    made = library.stat().st_mtime_ns
    assert in_a_new_process(WHY_NOT, **home) == "None"
    assert [library] == list((tmp_path / "minivllm").iterdir())
    assert library.stat().st_mtime_ns == made
