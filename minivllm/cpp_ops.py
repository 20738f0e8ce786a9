"""The C++ kernels of cpp/ as functions of tensors, under the names of what they replace.

The definitions are ops.py, `F.linear`, `KVCache.write` and `attention.paged_attention`; the tests
compare each with its own. They run on a CPU, in float32 and bfloat16, on sizes that are a multiple
of what a register holds; `why_not` says where they cannot.

Legend: T tokens, E hidden_size, I intermediate_size, H / KH query / KV heads, D head_dim, N blocks,
BS block_size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from minivllm import attention, cpp_build, ops
from minivllm.cpp_build import kernel

if TYPE_CHECKING:
    from minivllm.attention import AttentionMetadata
    from minivllm.kv_cache import KVCache
    from minivllm.model import ModelConfig

DTYPES = (torch.float32, torch.bfloat16)
# What a size must be a multiple of: a register holds 16 numbers, and RoPE cuts a head in two.
MODEL_MULTIPLES = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 32}
ATTENTION_MULTIPLES = {"head_dim": 16}
MAX_HEAD_DIM = 128
# Queries of one request from which on torch's attention is the faster one in bfloat16, by trial: at
# 80 it takes 1.3 times as long as the C++ kernel, at 512 half as long.
LONG_CHUNK = 200


def why_not(
    multiples: dict[str, int], config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why such a model cannot use the kernels, in half a sentence; None where it can.

    multiples: MODEL_MULTIPLES, or ATTENTION_MULTIPLES for attention alone.
    """
    if device.type != "cpu":
        return f"the device is {device}, and the C++ kernels run on a CPU"
    if dtype not in DTYPES:
        return f"the C++ kernels know float32 and bfloat16, not {dtype}"
    for name, multiple in multiples.items():
        size = getattr(config, name)
        if size % multiple:
            return f"{name} is {size}, and the C++ kernels need a multiple of {multiple}"
    if config.head_dim > MAX_HEAD_DIM:
        return f"head_dim is {config.head_dim}, and the C++ kernels know at most {MAX_HEAD_DIM}"
    return cpp_build.why_not()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [T, E], weight [E] -> [T, E]. Qwen3's norms of heads, which lie apart, go to torch."""
    if weight is None or x.dim() != 2 or not x.is_contiguous():
        return ops.rms_norm(x, weight, eps)  # like x
    out = torch.empty_like(x)  # [T, E]
    kernel("rms_norm", x.dtype)(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I], gate before up -> silu(gate) * up [T, I]."""
    gate_up = gate_up.contiguous()  # [T, 2 I]
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, inner)  # [T, I]
    kernel("silu_and_mul", out.dtype)(gate_up.data_ptr(), out.data_ptr(), rows, inner)
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D], a slice of each row of a fused q, k, v; cos, sin [T, 1, D] -> like x."""
    x = _with_dense_rows(x)  # [T, heads, D]
    cos, sin = cos.contiguous(), sin.contiguous()  # [T, 1, D]
    rows, heads, D = x.shape
    out = x.new_empty(x.shape)  # [T, heads, D]
    kernel("apply_rope", x.dtype)(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        rows,
        x.stride(0),
        heads,
        D,
    )
    return out


def write_kv(cache: KVCache, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    """`KVCache.write`: k and v [T, KH, D] into slots `slot_mapping` [T] int64; -1 stores none."""
    _check_cache(cache.key[layer], k.dtype)
    k, v = _with_dense_rows(k), _with_dense_rows(v)  # [T, KH, D]
    kernel("write_kv", k.dtype)(
        k.data_ptr(),
        v.data_ptr(),
        cache.key[layer].data_ptr(),
        cache.value[layer].data_ptr(),
        slot_mapping.data_ptr(),
        len(k),
        k.stride(0),
        v.stride(0),
        k.shape[1] * k.shape[2],
    )


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """q [T, H, D], k_cache and v_cache [N, BS, KH, D] of q's dtype -> [T, H, D].

    A step with a long chunk goes to torch in bfloat16, where SDPA may use the CPU's matrix unit.
    Raises ValueError for a cache in another dtype, or whose blocks do not lie side by side.
    """
    if q.dtype == torch.bfloat16 and metadata.longest_chunk > LONG_CHUNK:
        return attention.paged_attention(q, k_cache, v_cache, metadata, scale)  # [T, H, D]
    _check_cache(k_cache, q.dtype)
    _check_cache(v_cache, q.dtype)
    q = _with_dense_rows(q)  # [T, H, D]
    out = q.new_empty(q.shape)  # [T, H, D]
    num_requests, most_blocks = metadata.block_tables.shape
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    kernel("paged_attention", q.dtype)(
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        out.data_ptr(),
        metadata.query_start_loc.data_ptr(),
        metadata.seq_lens.data_ptr(),
        metadata.block_tables.data_ptr(),
        q.stride(0),
        num_requests,
        most_blocks,
        block_size,
        q.shape[1],
        num_kv_heads,
        head_dim,
        scale,
    )
    return out


def _with_dense_rows(x: Tensor) -> Tensor:
    """x [T, heads, D] itself where each row is one piece of memory; else a copy."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def _check_cache(cache: Tensor, dtype: torch.dtype) -> None:
    if cache.dtype != dtype or not cache.is_contiguous():
        raise ValueError(
            f"the C++ kernel reads a contiguous cache of {dtype}, got {cache.dtype}, strides "
            f"{cache.stride()}"
        )
