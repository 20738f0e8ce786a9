"""The block-shaped KV cache: literal slots first, then the edges."""

import math

import pytest
import torch

from minivllm.kv_cache import KVCache


def make_cache(num_blocks: int = 3, dtype: torch.dtype = torch.float32) -> KVCache:
    """2 layers, blocks of 4 slots, 2 KV heads of 5 numbers, no slot written (NaN)."""
    cache = KVCache(2, num_blocks, 4, 2, 5, dtype)
    cache.key.fill_(math.nan)
    cache.value.fill_(math.nan)
    return cache


def some_kv(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    k = torch.arange(num_tokens * 10.0).view(num_tokens, 2, 5)  # [T, KH, D]
    return k, -k


def test_write_puts_each_token_in_its_slot() -> None:
    cache = make_cache()
    k, v = some_kv(3)
    cache.write(1, torch.tensor([9, 0, 7]), k, v)
    # slot 9 is place 1 of block 2, slot 0 is place 0 of block 0, slot 7 is place 3 of block 1
    for token, (block, place) in enumerate([(2, 1), (0, 0), (1, 3)]):
        assert torch.equal(cache.key[1, block, place], k[token])
        assert torch.equal(cache.value[1, block, place], v[token])
    assert cache.key[1].isnan().sum() == 9 * 10  # the other 9 of 12 slots
    assert cache.key[0].isnan().all() and cache.value[0].isnan().all()


def test_gather_returns_blocks_in_the_order_asked_for() -> None:
    cache = make_cache()
    k, v = some_kv(12)
    cache.write(0, torch.arange(12), k, v)
    gathered_k, gathered_v = cache.gather(0, torch.tensor([2, 0]))
    assert gathered_k.shape == (8, 2, 5)
    assert torch.equal(gathered_k, torch.cat([k[8:], k[:4]]))
    assert torch.equal(gathered_v, torch.cat([v[8:], v[:4]]))


def test_d31_slot_minus_one_writes_nothing() -> None:
    """D31: a position beyond the block table read the neighbour's row and wrote into its block.

    Such a token gets slot -1, and -1 must not be "the last slot" of the last block, which is what
    indexing makes of it.
    """
    cache = make_cache()
    k, v = some_kv(12)
    cache.write(0, torch.arange(12), k, v)
    k_before, v_before = cache.key.clone(), cache.value.clone()
    cache.write(0, torch.tensor([-1, 5, -1]), k[:3] + 100, v[:3] + 100)
    assert torch.equal(cache.key[0, 1, 1], k[1] + 100)
    k_before[0, 1, 1], v_before[0, 1, 1] = k[1] + 100, v[1] + 100
    assert torch.equal(cache.key[0], k_before[0]) and torch.equal(cache.value[0], v_before[0])


def test_d45_write_takes_strided_views() -> None:
    """D45: a kernel took the KV it was given for contiguous and stored other numbers.

    The model hands over slices of one fused q, k, v matrix.
    """
    cache = make_cache()
    qkv = torch.randn(3, 8, 5)  # 4 query heads, 2 + 2 KV heads
    k, v = qkv[:, 4:6], qkv[:, 6:8]
    assert not k.is_contiguous()
    cache.write(0, torch.tensor([4, 2, 11]), k, v)
    flat_k, flat_v = cache.key[0].flatten(0, 1), cache.value[0].flatten(0, 1)
    assert torch.equal(flat_k[[4, 2, 11]], k) and torch.equal(flat_v[[4, 2, 11]], v)


def test_copy_block_copies_all_layers() -> None:
    cache = make_cache()
    for layer in range(2):
        k, v = some_kv(12)
        cache.write(layer, torch.arange(12), k + layer, v - layer)
    before = cache.key.clone()
    cache.copy_block(0, 2)
    assert torch.equal(cache.key[:, 2], before[:, 0]) and torch.equal(cache.value, -cache.key)
    assert torch.equal(cache.key[:, :2], before[:, :2])


def test_copy_block_refuses_what_is_no_block() -> None:
    cache = make_cache(num_blocks=3)
    for src, dst in ((0, 3), (3, 0), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match=f"{src} to {dst}: the cache has 3 blocks"):
            cache.copy_block(src, dst)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_d48_bytes_are_counted_by_kv_heads(dtype: torch.dtype) -> None:
    """D48: a budget by query heads, or by total instead of free memory, gave the wrong block count.

    What a block is said to cost is what its tensors take.
    """
    cache = KVCache(3, 7, 16, 2, 24, dtype)
    per_block = KVCache.bytes_per_block(3, 16, 2, 24, dtype)
    assert per_block == 2 * 3 * 16 * 2 * 24 * dtype.itemsize
    assert cache.nbytes == 7 * per_block == cache.key.nbytes + cache.value.nbytes
    assert KVCache.bytes_per_block(30, 16, 3, 64, torch.float32) == 16 * 46080  # SmolLM2-135M


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1, got \(2, 0, 4, 2, 5\)"):
        make_cache(num_blocks=0)
