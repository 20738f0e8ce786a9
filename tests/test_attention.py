"""Paged attention against the dense oracle, over every shape that ever broke somebody's kernel.

Slots that hold no token are NaN throughout, so reading one shows, even with weight 0.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minivllm.attention import (
    AttentionMetadata,
    dense_attention,
    group_by_length,
    paged_attention,
    paged_attention_reference,
)
from minivllm.kv_cache import KVCache

HEADS = [(9, 3), (8, 2), (4, 4), (6, 1)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


class Batch:
    """Requests of the given (query length, KV length), their KV in blocks in random order."""

    def __init__(
        self,
        lens: list[tuple[int, int]],
        block_size: int,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(0)
        num_heads, num_kv_heads = heads
        counts = [-(-length // block_size) for _, length in lens]
        free = random.Random(0).sample(range(sum(counts) + 2), sum(counts))  # 2 stay unused
        self.block_size, self.scale = block_size, head_dim**-0.5
        self.query_lens, self.seq_lens = [n for n, _ in lens], [length for _, length in lens]
        self.block_tables = [[free.pop() for _ in range(count)] for count in counts]
        self.cache = KVCache(2, sum(counts) + 2, block_size, num_kv_heads, head_dim, dtype)
        self.cache.key.fill_(math.nan)
        self.cache.value.fill_(math.nan)
        self.q = [torch.randn(n, num_heads, head_dim).to(dtype) for n, _ in lens]
        self.k = [torch.randn(length, num_kv_heads, head_dim).to(dtype) for _, length in lens]
        self.v = [torch.randn(length, num_kv_heads, head_dim).to(dtype) for _, length in lens]
        everything = AttentionMetadata.build(
            self.seq_lens, self.seq_lens, self.block_tables, block_size
        )
        self.cache.write(1, everything.slot_mapping, torch.cat(self.k), torch.cat(self.v))

    def metadata(self, rows: list[int] | None = None) -> AttentionMetadata:
        """The step that runs `rows` in that order; all by default."""
        rows = list(range(len(self.q))) if rows is None else rows
        return AttentionMetadata.build(
            [self.query_lens[r] for r in rows],
            [self.seq_lens[r] for r in rows],
            [self.block_tables[r] for r in rows],
            self.block_size,
        )

    def paged(
        self, rows: list[int] | None = None, attend: Callable[..., torch.Tensor] = paged_attention
    ) -> torch.Tensor:
        q = torch.cat(self.q if rows is None else [self.q[r] for r in rows])
        key, value = self.cache.key[1], self.cache.value[1]
        return attend(q, key, value, self.metadata(rows), self.scale)

    def dense(self) -> list[torch.Tensor]:
        """The oracle for each request, which never sees the blocks."""
        triples = zip(self.q, self.k, self.v, strict=True)
        return [dense_attention(q, k, v, self.scale) for q, k, v in triples]

    def check(self, attend: Callable[..., torch.Tensor] = paged_attention) -> None:
        out, tolerance = self.paged(attend=attend), TOLERANCE[self.q[0].dtype]
        torch.testing.assert_close(out, torch.cat(self.dense()), rtol=0, atol=tolerance)


def ragged_mix(block_size: int) -> list[tuple[int, int]]:
    """Decodes, prefills and later chunks in turn, with lengths at and around block edges."""
    edges = sorted({1, block_size - 1, block_size, block_size + 1, 2 * block_size} - {0})
    edges.append(2 * block_size + 1)
    mix = []
    for length in edges:
        mix += [(1, length), (length, length), (max(1, length // 2), length)]
    return mix


def test_oracle_by_hand() -> None:
    """Two positions, head_dim 1: the second query sees scores 0 and log 3, so weights 1/4, 3/4."""
    q = torch.tensor([[[5.0]], [[1.0]]])  # [2, 1, 1]
    k = torch.tensor([[[0.0]], [[math.log(3)]]])
    v = torch.tensor([[[10.0]], [[20.0]]])
    assert dense_attention(q, k, v, 1.0).flatten().tolist() == pytest.approx([10.0, 17.5])
    assert dense_attention(q[1:], k, v, 1.0).flatten().tolist() == pytest.approx([17.5])


@pytest.mark.parametrize("heads", HEADS)
def test_oracle_equals_torch(heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    q, (k, v) = torch.randn(13, heads[0], 24), torch.randn(2, 13, heads[1], 24)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(dense_attention(q, k, v, 24**-0.5), expected.transpose(0, 1))


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 48])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
def test_paged_equals_dense(head_dim: int, heads: tuple[int, int], block_size: int) -> None:
    Batch(ragged_mix(block_size), block_size, heads, head_dim).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", HEADS)
def test_paged_equals_dense_in_half_precision(heads: tuple[int, int], dtype: torch.dtype) -> None:
    Batch(ragged_mix(8), 8, heads, 64, dtype).check()


def test_reference_equals_dense() -> None:
    batch = Batch(ragged_mix(3), 3)
    key, value = batch.cache.key[1], batch.cache.value[1]
    q = torch.cat(batch.q)
    reference = paged_attention_reference(q, key, value, batch.metadata(), batch.scale)
    torch.testing.assert_close(reference, torch.cat(batch.dense()))


@pytest.mark.parametrize("seed", range(20))
def test_random_ragged_batches(seed: int) -> None:
    rng = random.Random(seed)
    lens = []
    for _ in range(rng.randint(1, 12)):
        length = rng.choice([rng.randint(1, 8), rng.randint(1, 90), rng.randint(200, 900)])
        lens.append((rng.choice([1, 1, 2, length, rng.randint(1, length)]), length))
    lens = [(min(n, length), length) for n, length in lens]
    Batch(lens, rng.randint(1, 20), rng.choice(HEADS), rng.choice([16, 40])).check()


def test_neighbours_and_order_do_not_matter() -> None:
    batch = Batch([(1, 30), (5, 9), (1, 700), (12, 12), (1, 3), (1, 650)], block_size=4)
    together = batch.paged().split(batch.query_lens)
    order = [4, 2, 3, 0, 5, 1]
    reordered = batch.paged(order).split([batch.query_lens[r] for r in order])
    for r, dense in enumerate(batch.dense()):
        for out in (together[r], reordered[order.index(r)], batch.paged([r])):
            torch.testing.assert_close(out, dense, rtol=0, atol=1e-6)


def test_chunks_equal_one_prefill() -> None:
    """Each cut of a prompt of 21 into two chunks, the second with the first in the cache."""
    whole = Batch([(21, 21)], block_size=4)
    expected = whole.dense()[0]
    key, value = whole.cache.key[1], whole.cache.value[1]
    for cut in range(1, 21):
        parts = []
        for start, end in ((0, cut), (cut, 21)):
            step = AttentionMetadata.build([end - start], [end], whole.block_tables, 4)
            parts.append(paged_attention(whole.q[0][start:end], key, value, step, whole.scale))
        torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-6)


def test_chunks_that_leave_one_or_two_queries_over() -> None:
    """Blocks of 32 queries and one or two more, which are filled up before they are attended."""
    Batch([(33, 40), (1, 6), (34, 34), (65, 70), (2, 9)], block_size=4, heads=(3, 3)).check()


def test_metadata_by_hand() -> None:
    """A decode at position 5 (block 2, place 1) and a chunk of positions 3, 4 (blocks 6 and 0)."""
    step = AttentionMetadata.build([1, 2], [6, 5], [[7, 2], [6, 0, 4]], block_size=4)
    assert step.query_start_loc.tolist() == [0, 1, 3]
    assert step.seq_lens.tolist() == [6, 5]
    assert step.slot_mapping.tolist() == [2 * 4 + 1, 6 * 4 + 3, 0 * 4 + 0]
    assert step.block_tables.tolist() == [[7, 2, -1], [6, 0, 4]]
    dtypes = [t.dtype for t in (step.query_start_loc, step.seq_lens, step.block_tables)]
    assert dtypes == [torch.int32] * 3 and step.slot_mapping.dtype == torch.int64


def test_plan_is_made_once_a_step() -> None:
    batch = Batch([(1, 9), (4, 6), (1, 3)], block_size=4)
    step = batch.metadata()
    plan = step.plan(batch.cache.key[0])
    assert step.plan(batch.cache.key[1]) is plan
    assert [part.is_chunk for part in plan] == [False, True]


def test_very_different_lengths_are_gathered_apart() -> None:
    assert group_by_length([0, 1, 2], [100, 120, 90]) == [[0, 1, 2]]
    assert group_by_length([0, 1, 3], [90, 3000, 7, 80]) == [[1], [0, 3]]
    assert group_by_length([], [5]) == []
    Batch([(1, 20), (1, 3000), (2, 5), (1, 30), (1, 2500)], block_size=16).check()


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 48])
def test_d31_position_beyond_the_table_is_refused(block_size: int) -> None:
    """D31: a column one past the table's width read the next request's row of the table.

    Its token was then stored in a block of the neighbour. Here it is refused before anything runs.
    """
    tables = [[0, 1], [2, 3]]
    AttentionMetadata.build([1, 1], [2 * block_size] * 2, tables, block_size)  # the last that fits
    with pytest.raises(ValueError, match=f"row 0 .* {2 * block_size + 1} KV positions"):
        AttentionMetadata.build([1, 1], [2 * block_size + 1, 1], tables, block_size)
    with pytest.raises(ValueError, match=r"row 1 .* \[2, -1\]"):
        AttentionMetadata.build([1, 1], [1, 1], [[0, 1], [2, -1]], block_size)


def test_d40_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """D40: block id times stride overflowed 32 bits, and attention read other memory in silence.

    Two blocks lie 2^31 + 64 elements apart in a sparse file that takes a few pages of disk.
    """
    stride = 2**31 + 64
    size = stride + 1024
    file = tmp_path / "pool"
    with file.open("wb") as f:
        f.truncate(2 * size)
    pool = torch.from_file(str(file), shared=True, size=size, dtype=torch.float16)
    far = pool.as_strided((2, 4, 2, 16), (stride, 32, 16, 1))  # [N, BS, KH, D]
    batch = Batch([(1, 8), (3, 4), (1, 5)], 4, (4, 2), 16, torch.float16)
    near = batch.cache.key[1, :2].nan_to_num(), batch.cache.value[1, :2].nan_to_num()
    step = AttentionMetadata.build([1, 3], [8, 4], [[1, 0], [1]], 4)
    q = torch.cat(batch.q[:2])
    far.copy_(near[0])
    torch.testing.assert_close(
        paged_attention(q, far, near[1], step, 0.25), paged_attention(q, *near, step, 0.25)
    )


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128])
def test_d41_sizes_that_are_no_power_of_two(head_dim: int, num_kv_heads: int) -> None:
    """D41: kernels read only the first 64 of 128 dims, or could not be built for 3 heads of 64."""
    for block_size in (3, 16):
        heads = (2 * num_kv_heads, num_kv_heads)
        Batch([(1, 2 * block_size + 1), (3, 50), (1, 1)], block_size, heads, head_dim).check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_d42_no_nan_from_a_row_with_nothing_to_attend(dtype: torch.dtype) -> None:
    """D42: a padding row attended nothing, its softmax gave NaN, and two added masks gave -inf.

    Here there are no padding rows, an empty one is refused, and a request of one token in a batch
    with a long one, all but one of whose gathered positions are masked, stays finite.
    """
    batch = Batch([(1, 300), (1, 1), (1, 2), (2, 2)], 16, (4, 2), 64, dtype)
    assert batch.paged().isfinite().all()
    batch.check()
    for query_len, seq_len in ((0, 0), (0, 5), (6, 5)):
        with pytest.raises(ValueError, match=f"row 1 .* {query_len} queries for {seq_len} KV"):
            AttentionMetadata.build([1, query_len], [1, seq_len], [[0], [1]], 16)


@pytest.mark.parametrize("lens", [[(5, 5), (6, 6)], [(1, 5), (1, 6)], [(6, 6), (1, 5)]])
def test_d43_second_request_in_the_batch(lens: list[tuple[int, int]]) -> None:
    """D43: offsets were padded without regard to the page size, so the second request was wrong.

    With 5 and 6 tokens and blocks of 4; a test of one request cannot see it.
    """
    Batch(lens, block_size=4).check()


def test_d45_cache_views_that_are_not_contiguous() -> None:
    """D45: a cache passed as a transposed or sliced view was read as if it were contiguous."""
    batch = Batch([(1, 9), (6, 6), (2, 7)], 4, (6, 3), 16)
    key, value = batch.cache.key[1], batch.cache.value[1]  # [N, BS, KH, D]
    q, expected = torch.cat(batch.q), torch.cat(batch.dense())
    views = {
        "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "more heads": lambda x: torch.cat([x, x], 2)[:, :, :3],
        "longer blocks": lambda x: torch.cat([x, x], 1)[:, :4],
        "wider heads": lambda x: torch.cat([x, x], 3)[..., :16],
        "every second block": lambda x: x.repeat_interleave(2, 0)[::2],
    }
    for name, view in views.items():
        k, v = view(key), view(value)
        assert not k.is_contiguous(), name
        out = paged_attention(q, k, v, batch.metadata(), batch.scale)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6, msg=name)


def test_strided_queries() -> None:
    """The model's q is a slice of a fused q, k."""
    batch = Batch([(1, 9), (6, 6), (1, 7)], 4)
    q = torch.cat(batch.q)
    fused = torch.cat([q, torch.full_like(q, math.nan)], 1)[:, : q.shape[1]]
    key, value = batch.cache.key[1], batch.cache.value[1]
    out = paged_attention(fused, key, value, batch.metadata(), batch.scale)
    torch.testing.assert_close(out, torch.cat(batch.dense()), rtol=0, atol=1e-6)
