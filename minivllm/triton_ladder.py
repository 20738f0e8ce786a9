"""Four rungs from the naive decode kernel to the one in triton_attention.py; each has its bytes
counted line by line, and its time expected before anybody measures.

    rung     program                      K and V are read      what is still wrong
    naive    one query head               once for each of H    one position at a time: it waits
    tiled    one query head, by tiles     once for each of H    G times the bytes that are needed
    packed   the G heads of a KV head     once                  few long contexts: an idle GPU
    split    the same, of part of it      once                  (a second launch, some scratch)

A GPU has two ways to be slow here. It moves too many bytes: time = bytes / bandwidth. Or it waits:
a program asks for some numbers, gets them most of a microsecond later, and only then asks for the
next. `expected_seconds` is the longer of the two; *modelled*, from a card's data sheet and a guess
of the latency. tools/gpu_check.py puts measured times beside it. The model knows no caches: G heads
that read the same K and V at the same time find some of it in L2, so "tiled" may do better.

These two kernels are short, not general: caches [N, BS, KH, D] must be contiguous.
Legend: R requests, S positions of all requests together, H / KH query / KV heads, G = H // KH,
D head_dim, BS block_size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2

from minivllm.attention import AttentionMetadata
from minivllm.triton_attention import decode_attention

TILE = 32  # positions


@triton.jit
def _naive_kernel(
    q, k_cache, v_cache, out, seq_lens, block_tables, table_stride, scale,
    KH: tl.constexpr, G: tl.constexpr, BS: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
):  # fmt: skip
    """Rung 1. One program: one query head of one request, position after position.

        k   [ x x x x ]   one row of D numbers, a score, a step of the softmax, the next row
    """
    head, request = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, D_PADDED)  # [D_PADDED]
    row = (request * tl.num_programs(0) + head) * D  # of q and out
    query = tl.load(q + row + dim, mask=dim < D, other=0.0).to(tl.float32)  # [D_PADDED]
    seq_len = tl.load(seq_lens + request)
    peak, total = float("-inf"), 0.0
    acc = tl.zeros([D_PADDED], tl.float32)  # [D_PADDED]
    for position in range(0, seq_len):
        block = tl.load(block_tables + request * table_stride + position // BS).to(tl.int64)
        slot = block * BS + position % BS
        offset = (slot * KH + head // G) * D + dim  # [D_PADDED]
        k = tl.load(k_cache + offset, mask=dim < D, other=0.0).to(tl.float32)
        v = tl.load(v_cache + offset, mask=dim < D, other=0.0).to(tl.float32)
        score = tl.sum(query * k, 0) * scale
        new_peak = tl.maximum(peak, score)
        weight, shrink = tl.exp(score - new_peak), tl.exp(peak - new_peak)
        total = total * shrink + weight
        acc = acc * shrink + weight * v
        peak = new_peak
    tl.store(out + row + dim, acc / total, mask=dim < D)


@triton.jit
def _tiled_kernel(
    q, k_cache, v_cache, out, seq_lens, block_tables, table_stride, scale,
    KH: tl.constexpr, G: tl.constexpr, BS: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Rung 2. As before, but TILE rows are asked for at once, so there are TILE times fewer waits.

        k   [ x x x x ]
            [ x x x x ]   TILE rows, wherever their blocks lie; TILE scores, one step of the softmax
            [ x x x x ]
    """
    head, request = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, D_PADDED)[None, :]  # [1, D_PADDED]
    row = (request * tl.num_programs(0) + head) * D  # of q and out
    query = tl.load(q + row + dim, mask=dim < D, other=0.0).to(tl.float32)  # [1, D_PADDED]
    seq_len = tl.load(seq_lens + request)
    peak, total = float("-inf"), 0.0
    acc = tl.zeros([D_PADDED], tl.float32)  # [D_PADDED]
    for start in range(0, seq_len, TILE):
        position = start + tl.arange(0, TILE)  # [TILE]
        held = position < seq_len
        entry = block_tables + request * table_stride + position // BS
        slot = tl.load(entry, mask=held, other=0).to(tl.int64) * BS + position % BS  # [TILE]
        offset = ((slot * KH + head // G) * D)[:, None] + dim  # [TILE, D_PADDED]
        real = held[:, None] & (dim < D)
        k = tl.load(k_cache + offset, mask=real, other=0.0).to(tl.float32)
        v = tl.load(v_cache + offset, mask=real, other=0.0).to(tl.float32)
        score = tl.where(held, tl.sum(query * k, 1) * scale, float("-inf"))  # [TILE]
        new_peak = tl.maximum(peak, tl.max(score, 0))
        weight, shrink = tl.exp(score - new_peak), tl.exp(peak - new_peak)  # [TILE], a number
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(weight[:, None] * v, 0)
        peak = new_peak
    tl.store(out + row + dim, (acc / total)[None, :], mask=dim < D)


def _launch(
    kernel: Callable, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionMetadata,
    scale: float, *tile: int,
) -> Tensor:  # fmt: skip
    """One program for each of H query heads of R requests: q [R, H, D] -> [R, H, D]."""
    (num_requests, num_heads, head_dim), (_, block_size, num_kv_heads, _) = q.shape, k_cache.shape
    if not (q.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("the first two rungs of the ladder take contiguous q and caches only")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)  # [R, H, D]
    kernel[(num_heads, num_requests)](
        q, k_cache, v_cache, out, step.seq_lens, step.block_tables, step.block_tables.stride(0),
        scale, num_kv_heads, num_heads // num_kv_heads, block_size, head_dim,
        next_power_of_2(head_dim), *tile,
    )  # fmt: skip
    return out


def run_rung(
    rung: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, step: AttentionMetadata, scale: float,
    split_size: int = 256,
) -> Tensor:  # fmt: skip
    """Decode attention by a rung: q [R, H, D], caches [N, BS, KH, D] -> [R, H, D]."""
    if rung == "naive":
        return _launch(_naive_kernel, q, k_cache, v_cache, step, scale)
    if rung == "tiled":
        return _launch(_tiled_kernel, q, k_cache, v_cache, step, scale, TILE)
    if rung == "packed":  # one split: all of the context
        split_size = step.block_tables.shape[1] * k_cache.shape[1]
    elif rung != "split":
        raise ValueError(f"rung must be naive, tiled, packed or split, got {rung!r}")
    return decode_attention(q, k_cache, v_cache, step, scale, split_size)


# --- what each rung costs -------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A decode step: the KV lengths of its requests, and a layer's attention."""

    seq_lens: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int  # bytes of a number: 2 in float16 and bfloat16
    split_size: int = 256


def traffic(rung: str, s: Shape) -> dict[str, int]:
    """Bytes that each line of a rung's kernels moves, in all programs together.

    >>> llama = Shape((8192,) * 64, num_heads=32, num_kv_heads=8, head_dim=128, itemsize=2)
    >>> [round(sum(traffic(rung, llama).values()) / 1e9, 2) for rung in ("naive", "packed")]
    [8.66, 2.17]
    """
    R, S, H, D = len(s.seq_lens), sum(s.seq_lens), s.num_heads, s.head_dim
    by_head = rung in ("naive", "tiled")
    heads = H if by_head else s.num_kv_heads  # how often K and V are read
    num_splits = cdiv(max(s.seq_lens), s.split_size) if rung == "split" else 1
    parts = sum(cdiv(n, s.split_size) for n in s.seq_lens) if rung == "split" else R
    lines = {
        "read q": (R if by_head else parts) * H * D * s.itemsize,
        "read seq_lens": R * heads * num_splits * 4,
        "read block_tables": S * heads * 4,
        "read k": S * heads * D * s.itemsize,
        "read v": S * heads * D * s.itemsize,
        "write out": R * H * D * s.itemsize,
    }
    if not by_head:
        lines["write partial_log"] = parts * H * 4
    if rung == "split":
        lines["write partial"] = parts * H * D * 4
        lines["read seq_lens to merge"] = R * H * 4
        lines["read partial, partial_log to merge"] = parts * H * (D + 1) * 4
    return lines


@dataclass(frozen=True)
class Card:
    """What the model knows of a GPU: by default an H200's data sheet and guesses about waiting."""

    bandwidth: float = 4.8e12  # bytes a second
    num_sms: int = 132
    programs_per_sm: int = 4  # that run at the same time; by registers and shared memory
    latency: float = 0.8e-6  # seconds from asking for a tile to having worked on it; a guess
    launch: float = 3e-6  # seconds; a guess


def expected_seconds(rung: str, s: Shape, card: Card) -> float:
    """Modelled time of a rung: bytes over bandwidth, or waits, whichever is longer, and launches.

    A program waits once for each tile; programs beyond those that run at the same time queue up.
    """
    moving = sum(traffic(rung, s).values()) / card.bandwidth
    heads = s.num_heads if rung in ("naive", "tiled") else s.num_kv_heads
    span = s.split_size if rung == "split" else max(s.seq_lens)  # positions of a program
    # Positions of a tile; triton_attention.py takes 64 of 128 dims of 2 bytes.
    step = {"naive": 1, "tiled": TILE}.get(rung, 64)
    programs = heads * sum(cdiv(n, span) for n in s.seq_lens)
    waves = cdiv(programs, card.num_sms * card.programs_per_sm)
    waiting = waves * cdiv(span, step) * card.latency
    return max(moving, waiting) + card.launch * (2 if rung == "split" else 1)
