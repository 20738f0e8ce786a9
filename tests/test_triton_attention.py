"""The Triton kernels, run by Triton's interpreter on the CPU, against attention in float64.

Whatever may not be read is poison: slots that hold no token are NaN, the table's padding names a
block of them, and fresh memory (outputs and scratch) is NaN before the kernels run.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from helpers import drain
from tiny import tiny_model
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from minivllm import triton_attention
from minivllm.attention import AttentionMetadata
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.kv_cache import KVCache
from minivllm.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.triton_attention import (
    decode_attention,
    paged_attention,
    ragged_attention,
    write_kv,
)

HEADS = [(9, 3), (8, 2), (4, 4), (6, 1)]
HEAD_DIMS = [16, 64, 80, 96, 128]
BLOCK_SIZES = [1, 3, 8, 16, 48]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# Head_dim and block size in all pairs; each meets each of the heads, and each dtype.
GRID = [
    (D, HEADS[(i + j) % 4], BS, DTYPES[(i + 2 * j) % 3])
    for i, D in enumerate(HEAD_DIMS)
    for j, BS in enumerate(BLOCK_SIZES)
]


@pytest.fixture(autouse=True)
def bfloat16_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as 16 bits, and its tl.dot multiplies those as integers: here
    they are made floats first."""
    inner = InterpreterBuilder.create_dot

    def create_dot(self, a, b, *rest):
        if a.dtype.scalar == tl.bfloat16:
            a, b = self.cast_impl(a, tl.float32), self.cast_impl(b, tl.float32)
        return inner(self, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN: a result that no program stored shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float):
    """The oracle in float64: q [T, H, D] are the last T of the positions of k and v [S, KH, D]."""
    group = q.shape[1] // k.shape[1]
    k = k.double().repeat_interleave(group, 1)  # [S, H, D]
    v = v.double().repeat_interleave(group, 1)  # [S, H, D]
    scores = torch.einsum("thd,shd->hts", q.double(), k) * scale  # [H, T, S]
    hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1 + len(k) - len(q))  # [T, S]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)  # [H, T, S]
    return torch.einsum("hts,shd->thd", weights, v)  # [T, H, D]


class Step:
    """Requests of the given (query length, KV length) on random numbers, their K and V in blocks.

    stretch: how large the scores get.
    """

    def __init__(
        self,
        lens: list[tuple[int, int]],
        block_size: int,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
        stretch: float = 1.0,
    ) -> None:
        name = f"{lens}{block_size}{heads}{head_dim}{dtype}"
        generator = torch.Generator().manual_seed(sum(map(ord, name)))  # fresh numbers in each test

        def draw(n: int, num_heads: int) -> torch.Tensor:
            return torch.randn(n, num_heads, head_dim, generator=generator).to(dtype)

        counts = [-(-length // block_size) for _, length in lens]
        num_blocks = sum(counts) + 2
        free = random.Random(name).sample(range(num_blocks), num_blocks)
        tables = [[free.pop() for _ in range(count)] for count in counts]
        self.scale, self.block_size = head_dim**-0.5, block_size
        self.query_lens, self.seq_lens = [n for n, _ in lens], [length for _, length in lens]
        self.metadata = AttentionMetadata.build(
            self.query_lens, self.seq_lens, tables, block_size
        )
        self.metadata.block_tables[self.metadata.block_tables < 0] = free.pop()  # a block of NaN
        self.q = [draw(n, heads[0]) * stretch for n, _ in lens]
        self.k = [draw(length, heads[1]) for _, length in lens]
        self.v = [draw(length, heads[1]) for _, length in lens]
        self.cache = KVCache(1, num_blocks, block_size, heads[1], head_dim, dtype)
        self.cache.key.fill_(math.nan)
        self.cache.value.fill_(math.nan)
        everything = AttentionMetadata.build(self.seq_lens, self.seq_lens, tables, block_size)
        self.cache.write(0, everything.slot_mapping, torch.cat(self.k), torch.cat(self.v))

    def exact(self) -> torch.Tensor:
        triples = zip(self.q, self.k, self.v, strict=True)
        return torch.cat([exact_attention(q, k, v, self.scale) for q, k, v in triples])

    def run(self, split_size: int | None = None, ragged: bool = False) -> torch.Tensor:
        """The step as `paged_attention` runs it, or by the kernel that the test asks for."""
        arguments = torch.cat(self.q), self.cache.key[0], self.cache.value[0], self.metadata
        if split_size is not None:
            return decode_attention(*arguments, self.scale, split_size)
        attend = ragged_attention if ragged else paged_attention
        return attend(*arguments, self.scale)

    def check(self, split_size: int | None = None, ragged: bool = False) -> None:
        out = self.run(split_size, ragged)
        assert out.dtype == self.q[0].dtype
        tolerance = TOLERANCE[out.dtype]
        torch.testing.assert_close(out.double(), self.exact(), rtol=0, atol=tolerance)


def ids(case: tuple) -> str:
    return "-".join(str(x).removeprefix("torch.") for x in case)


def test_these_tests_run_the_interpreter():
    """Set too late, TRITON_INTERPRET would leave compiled kernels, which a CPU cannot run."""
    assert isinstance(triton_attention._decode_kernel, InterpretedFunction)


# --- the grid of test_attention.py ----------------------------------------------------------------


@pytest.mark.parametrize("case", GRID, ids=ids)
def test_decode_equals_float64(case: tuple):
    """Three lengths around a block's edge, in one split and in splits of one block."""
    head_dim, heads, block_size, dtype = case
    lens = [(1, 2 * block_size + 1), (1, max(1, block_size - 1)), (1, block_size)]
    step = Step(lens, block_size, heads, head_dim, dtype)
    step.check()
    if block_size > 1:
        step.check(split_size=block_size)


@pytest.mark.parametrize("case", GRID, ids=ids)
def test_ragged_equals_float64(case: tuple):
    """Decodes, a whole prompt and later chunks in turn, with lengths around a block's edge."""
    head_dim, heads, block_size, dtype = case
    edge = min(block_size, 9)
    lens = [(1, block_size + 1), (edge, edge), (max(1, block_size // 8), 2 * block_size), (2, 2)]
    Step(lens, block_size, heads, head_dim, dtype).check(ragged=True)


@pytest.mark.parametrize("split_size", [3, 4, 16, 64])
def test_any_split_of_the_context(split_size: int):
    """Some requests end in their first split: their later ones are never stored, nor read."""
    Step([(1, 37), (1, 1), (1, 8)], 4, (2, 1), 16).check(split_size)


def test_contexts_of_many_tiles():
    """128 dims of float32 make tiles of 32 positions: 11 of them, the last one not full."""
    Step([(1, 331), (1, 64)], 16, (4, 1), 128).check()
    Step([(2, 331), (1, 65), (40, 70)], 16, (2, 1), 128).check()


@pytest.mark.parametrize("stretch", [0.0, 40.0])
def test_scores_that_are_all_alike_or_far_apart(stretch: float):
    """A peak that rises from tile to tile by more than exp can hold must not overflow."""
    step = Step([(1, 150)], 16, (2, 1), 128, torch.float32, stretch)
    step.check()
    step.check(split_size=48)
    step.check(ragged=True)


def test_chunks_equal_one_prefill():
    """A prompt of 21 cut at each of some places, the second part with the first in the cache."""
    whole = Step([(21, 21)], 4)
    expected = whole.exact()
    key, value, tables = whole.cache.key[0], whole.cache.value[0], whole.metadata.block_tables
    for cut in (1, 4, 11, 20):
        parts = []
        for start, end in ((0, cut), (cut, 21)):
            step = AttentionMetadata.build([end - start], [end], tables.tolist(), 4)
            parts.append(ragged_attention(whole.q[0][start:end], key, value, step, whole.scale))
        torch.testing.assert_close(torch.cat(parts).double(), expected, rtol=0, atol=1e-5)


def test_queries_that_are_a_slice():
    """The model's q is a slice of a fused q and k."""
    for lens in ([(1, 9), (1, 7)], [(2, 9), (1, 7)]):
        step = Step(lens, 4)
        q = torch.cat(step.q)
        fused = torch.cat([q, torch.full_like(q, math.nan)], 1)[:, : q.shape[1]]
        cache = step.cache.key[0], step.cache.value[0]
        out = paged_attention(fused, *cache, step.metadata, step.scale)
        torch.testing.assert_close(out.double(), step.exact(), rtol=0, atol=1e-5)


@triton.jit
def _find_kernel(query_start_loc, num_requests, out, QUERIES: tl.constexpr):
    tile = tl.program_id(0)
    found = triton_attention._request_of_tile(tile, query_start_loc, num_requests, QUERIES)
    tl.store(out + tile, found)


@pytest.mark.parametrize("num_queries", [3, 16])
def test_tiles_are_dealt_out_without_a_list(num_queries: int):
    """150 requests, more than are counted at once: each query is in exactly one tile."""
    rng = random.Random(num_queries)
    lens = [rng.choice([1, 1, 1, 2, num_queries, rng.randint(1, 9)]) for _ in range(150)]
    starts = [sum(lens[:r]) for r in range(151)]
    num_tiles = starts[-1] // num_queries + 150
    found = torch.full((num_tiles,), -9, dtype=torch.int32)
    _find_kernel[(num_tiles,)](torch.tensor(starts, dtype=torch.int32), 150, found, num_queries)
    covered = []
    for tile, r in enumerate(found.tolist()):
        first = (tile - starts[r] // num_queries - r) * num_queries
        covered += [starts[r] + i for i in range(first, min(first + num_queries, lens[r]))]
    assert covered == list(range(starts[-1]))


# --- the write kernel -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "num_kv_heads, head_dim, block_size", [(3, 64, 16), (1, 80, 3), (2, 16, 1), (4, 96, 8)]
)
def test_write_equals_the_caches_own(
    num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
):
    """k and v are slices of a fused q, k, v; no slot but the given ones changes."""
    expected = KVCache(2, 6, block_size, num_kv_heads, head_dim, dtype)
    cache = KVCache(2, 6, block_size, num_kv_heads, head_dim, dtype)
    slots = torch.tensor(random.Random(0).sample(range(6 * block_size), 5))  # [T]
    qkv = torch.randn(5, 3 * num_kv_heads, head_dim).to(dtype)  # [T, 3 KH, D]
    _, k, v = qkv.split(num_kv_heads, 1)
    expected.write(1, slots, k, v)
    write_kv(cache, 1, slots, k, v)
    assert torch.equal(cache.key, expected.key) and torch.equal(cache.value, expected.value)


def test_what_does_not_fit_is_refused():
    cache = KVCache(1, 4, 4, 2, 16)
    k = torch.zeros(3, 2, 16)
    with pytest.raises(ValueError, match=r"must fit, got \[3, 2, 16\], \[3, 2, 16\], \[2\]"):
        write_kv(cache, 0, torch.tensor([0, 1]), k, k)
    step = AttentionMetadata.build([1], [1], [[0]], 4)
    for shape, dtype in [((1, 3, 16), None), ((1, 4, 24), None), ((1, 4, 16), torch.float16)]:
        with pytest.raises(ValueError, match="q and caches must fit, head_dim at most 256, got"):
            q = torch.zeros(shape, dtype=dtype)
            paged_attention(q, cache.key[0], cache.value[0], step, 1.0)
    wide = torch.zeros(4, 4, 1, 260)
    with pytest.raises(ValueError, match=r"got \[1, 1, 260\] torch.float32"):
        paged_attention(torch.zeros(1, 1, 260), wide, wide, step, 1.0)


# --- public bugs, made impossible -----------------------------------------------------------------


def test_d31_slot_minus_one_writes_nothing():
    """D31: a padding slot of -1 was taken for the last slot, or for a neighbour's."""
    pools = torch.zeros(2, 5, 4, 2, 16)  # the caches are blocks 1 to 3: what lies around is ours
    k, v = torch.randn(2, 3, 2, 16)
    cache = SimpleNamespace(key=[pools[0, 1:4]], value=[pools[1, 1:4]])
    write_kv(cache, 0, torch.tensor([-1, 6, -1]), k, v)
    for pool, x in zip(pools, (k, v), strict=True):
        assert torch.equal(pool[2, 2], x[1])
        pool[2, 2] = 0
        assert pool.eq(0).all()


@pytest.mark.parametrize("far_is_key", [True, False])
@pytest.mark.parametrize("stride, last", [(2**30 + 64, 2), (2**31 + 64, 1)])
def test_d40_offsets_beyond_32_bits(tmp_path: Path, stride: int, last: int, far_is_key: bool):
    """D40: block id times stride overflowed 32 bits, and attention read other memory in silence.

    Blocks lie far apart in a sparse file that takes a few pages of disk: once the stride itself
    needs more than 32 bits, once only its product with block id 2 does.
    """
    size = last * stride + 1024
    with (tmp_path / "pool").open("wb") as file:
        file.truncate(2 * size)
    pool = torch.from_file(str(tmp_path / "pool"), shared=True, size=size, dtype=torch.float16)
    far = pool.as_strided((last + 1, 4, 2, 16), (stride, 32, 16, 1))  # [N, BS, KH, D]
    near = torch.zeros(last + 1, 4, 2, 16, dtype=torch.float16)
    key, value = (far, near) if far_is_key else (near, far)
    k, v = torch.randn(2, 8, 2, 16).half()
    slots = torch.cat([torch.arange(4) + 4 * last, torch.arange(4)])  # the table is [last, 0]
    write_kv(SimpleNamespace(key=[key], value=[value]), 0, slots, k, v)
    assert torch.equal(far[last], (k if far_is_key else v)[:4])
    for num_queries in (1, 3):
        q = torch.randn(num_queries, 4, 16).half()
        step = AttentionMetadata.build([num_queries], [7], [[last, 0]], 4)
        out = paged_attention(q, key, value, step, 0.25)
        expected = exact_attention(q, k[:7], v[:7], 0.25)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128])
def test_d41_sizes_that_are_no_power_of_two(head_dim: int, num_kv_heads: int):
    """D41: kernels read only the first 64 of 128 dims, or could not be built for 3 heads of 64."""
    block_size = {1: 3, 2: 48, 3: 16}[num_kv_heads]
    heads = (2 * num_kv_heads, num_kv_heads)
    Step([(1, block_size + 1)], block_size, heads, head_dim).check()
    Step([(3, block_size + 4)], block_size, heads, head_dim, torch.float16).check()
    cache = KVCache(1, 2, block_size, num_kv_heads, head_dim)
    k, v = torch.randn(2, 1, num_kv_heads, head_dim)
    write_kv(cache, 0, torch.tensor([block_size]), k, v)
    assert torch.equal(cache.key[0, 1, 0], k[0]) and torch.equal(cache.value[0, 1, 0], v[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d42_no_nan_from_a_row_with_nothing_to_attend(dtype: torch.dtype):
    """D42: a padding row attended nothing, and its softmax gave NaN.

    Here tiles have padding rows and columns nearly everywhere: 16 or 64 rows for 2 heads of one
    query, 64 and more positions for a context of 1.
    """
    Step([(1, 150), (1, 1), (1, 2)], 16, (4, 2), 64, dtype).check()
    Step([(1, 150), (1, 1), (2, 2)], 16, (4, 2), 64, dtype).check()


@pytest.mark.parametrize("lens", [[(5, 5), (6, 6)], [(1, 5), (1, 6)], [(6, 6), (1, 5)]])
def test_d43_second_request_in_the_batch(lens: list[tuple[int, int]]):
    """D43: offsets were padded without regard to the page size, so the second request was wrong."""
    Step(lens, block_size=4).check()


def test_d45_cache_views_that_are_not_contiguous():
    """D45: a cache passed as a transposed or sliced view was read as if it were contiguous."""
    views = {
        "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "dims first": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        "more heads": lambda x: torch.cat([x, x], 2)[:, :, :3],
        "longer blocks": lambda x: torch.cat([x, x], 1)[:, :4],
        "every second block": lambda x: x.repeat_interleave(2, 0)[::2],
    }
    decode, mixed = Step([(1, 9), (1, 6)], 4, (6, 3)), Step([(1, 9), (3, 6)], 4, (6, 3))
    for name, view in views.items():
        for step in (decode, mixed):
            key, value = view(step.cache.key[0]), step.cache.value[0]  # their strides differ
            assert not key.is_contiguous(), name
            out = paged_attention(torch.cat(step.q), key, value, step.metadata, step.scale)
            torch.testing.assert_close(out.double(), step.exact(), rtol=0, atol=1e-5, msg=name)
        key, value = view(torch.zeros(4, 4, 3, 16)), torch.zeros(4, 4, 3, 16)
        k, v = torch.randn(2, 2, 3, 16)
        write_kv(SimpleNamespace(key=[key], value=[value]), 0, torch.tensor([13, 6]), k, v)
        assert torch.equal(key[[3, 1], [1, 2]], k) and torch.equal(value[[3, 1], [1, 2]], v), name


# --- the whole engine -----------------------------------------------------------------------------


def run_engine(backend: str) -> tuple[dict[str, list[int]], int]:
    """Three requests through 8 blocks of 4: chunks and decodes in one step, and a preemption."""
    config = SchedulerConfig(
        num_blocks=8, block_size=4, max_num_batched_tokens=10, max_model_len=32,
        long_prefill_token_threshold=6, watermark_blocks=0, enable_prefix_caching=True,
    )  # fmt: skip
    executor = ModelExecutor(tiny_model(), 8, 4, attention_backend=backend)
    assert executor.attention_backend == backend
    engine = Engine(Scheduler(config), executor, ())
    for name, prompt in {"a": [5, 6, 7], "b": list(range(40, 53)), "c": [9] * 9}.items():
        engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=5))
    return drain(engine), engine.scheduler.stats.num_preemptions


def test_the_engine_gives_the_same_tokens_as_with_torch(monkeypatch: pytest.MonkeyPatch):
    """Both kernels take part: in some steps all requests decode, others have a chunk among them."""
    used = []
    for name in ("decode_attention", "ragged_attention"):
        inner = getattr(triton_attention, name)
        monkeypatch.setattr(
            triton_attention, name, lambda *a, f=inner, n=name: (used.append(n), f(*a))[1]
        )
    tokens, num_preemptions = run_engine("torch")
    assert num_preemptions > 0 and {len(t) for t in tokens.values()} == {5}
    assert run_engine("triton") == (tokens, num_preemptions)
    assert set(used) == {"decode_attention", "ragged_attention"}


def test_llm_hands_the_backend_on():
    llm = LLM("tiny", num_blocks=16, block_size=4, attention_backend="triton")
    params = SamplingParams(temperature=0, max_tokens=2)
    tokens = llm.generate("Hi", params, use_tqdm=False)[0].outputs[0].token_ids
    plain = LLM("tiny", num_blocks=16, block_size=4, attention_backend="torch")
    assert (llm.engine.executor.attention_backend, plain.engine.executor.attention_backend) == (
        "triton", "torch",
    )  # fmt: skip
    assert tokens == plain.generate("Hi", params, use_tqdm=False)[0].outputs[0].token_ids
