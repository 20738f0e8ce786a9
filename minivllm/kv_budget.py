"""How many KV blocks a memory budget pays for.

What counts is the memory that is free now, never the size of the card: other programs may hold a
share of that.
"""

from __future__ import annotations

import torch

from minivllm.sampling_params import is_int

GIB = 1 << 30
DEFAULT_CPU_BYTES = GIB
CUDA_SHARE = 0.9  # of what is free once the weights are loaded; the rest is for the step's tensors


def num_blocks_within(
    bytes_per_block: int, kv_cache_memory: int | None, device: torch.device, available: int | None
) -> int:
    """Blocks of `bytes_per_block` bytes that fit into `kv_cache_memory` bytes.

    Without a budget (None) it is 1 GiB on a CPU, and 0.9 of the `available` bytes on a GPU. Raises
    ValueError for a budget below one block or above what is available.

    >>> num_blocks_within(737_280, 64 << 20, torch.device("cpu"), available=8 << 30)
    91
    """
    budget = kv_cache_memory
    if budget is not None and not is_int(budget):
        raise ValueError(f"kv_cache_memory must be a number of bytes, got {budget!r}")
    if budget is None:
        on_gpu = device.type == "cuda" and available is not None
        budget = int(available * CUDA_SHARE) if on_gpu else DEFAULT_CPU_BYTES
    if available is not None and budget > available:
        raise ValueError(
            f"the KV cache takes {budget / GIB:.2f} GiB, but {available / GIB:.2f} GiB are free"
        )
    if budget < bytes_per_block:
        raise ValueError(f"kv_cache_memory is {budget} bytes; one block takes {bytes_per_block}")
    return budget // bytes_per_block
