"""The KV budget: bytes per block as the tensors have them, and memory that is really free."""

import pytest
import torch

from minivllm.kv_budget import CUDA_SHARE, DEFAULT_CPU_BYTES, GIB, num_blocks_within
from minivllm.kv_cache import KVCache
from minivllm.llm import LLM

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(30, 16, 3, 64), (3, 4, 2, 16), (1, 1, 1, 1)])
def test_d48_bytes_per_block_are_the_tensors_own(sizes: tuple[int, ...], dtype: torch.dtype):
    """2 x layers x block size x KV heads x head_dim x bytes of the dtype: KV heads, for counting
    the query heads (9 instead of 3) would find room for a third of the blocks."""
    layers, block_size, kv_heads, head_dim = sizes
    cache = KVCache(layers, 5, block_size, kv_heads, head_dim, dtype)
    per_block = KVCache.bytes_per_block(layers, block_size, kv_heads, head_dim, dtype)
    assert per_block == 2 * layers * block_size * kv_heads * head_dim * dtype.itemsize
    assert cache.nbytes == cache.key.nbytes + cache.value.nbytes == 5 * per_block


def test_d48_what_another_process_uses_is_not_ours():
    """A card of 80 GiB, 30 of them another program's: of the 50 that are free we take 0.9, once.
    Taking 0.9 of the whole card would run out of memory; charging the other's 30 GiB to ourselves
    a second time gave a tenth of the blocks."""
    per_block, total, others = 1 << 20, 80 * GIB, 30 * GIB
    free = total - others
    assert num_blocks_within(per_block, None, CUDA, free) == int(free * CUDA_SHARE) // per_block
    assert num_blocks_within(per_block, 50 * GIB, CUDA, free) == 50 * 1024
    with pytest.raises(ValueError, match="takes 60.00 GiB, but 50.00 GiB are free"):
        num_blocks_within(per_block, 60 * GIB, CUDA, free)


def test_a_cpu_takes_one_gib_unless_told():
    assert num_blocks_within(1 << 20, None, CPU, 64 * GIB) == DEFAULT_CPU_BYTES >> 20
    assert num_blocks_within(1 << 20, None, CPU, None) == DEFAULT_CPU_BYTES >> 20
    with pytest.raises(ValueError, match="takes 1.00 GiB, but 0.50 GiB are free"):
        num_blocks_within(1 << 20, None, CPU, GIB // 2)


def test_blocks_are_whole():
    assert [num_blocks_within(100, budget, CPU, None) for budget in (100, 199, 200)] == [1, 1, 2]
    with pytest.raises(ValueError, match="is 99 bytes; one block takes 100"):
        num_blocks_within(100, 99, CPU, None)


@pytest.mark.parametrize("budget", [1e6, "1GB", True])
def test_a_budget_is_a_number_of_bytes(budget: object):
    with pytest.raises(ValueError, match="must be a number of bytes"):
        num_blocks_within(100, budget, CPU, None)


def test_d48_an_llm_has_the_blocks_its_memory_pays_for():
    """The pool and the tensors agree: 100 blocks of 12,288 bytes, and 12,287 bytes left over."""
    llm = LLM("tiny", kv_cache_memory=101 * 12_288 - 1)
    assert llm.engine.scheduler.kv.pool.num_blocks == llm.engine.executor.cache.num_blocks == 100
    assert llm.engine.executor.cache.nbytes == 100 * 12_288
