"""Paged attention as GPU kernels: the operation of attention.py, written in Triton.

Triton in four sentences. A kernel is a function that runs many times at once, each time as one
*program* that asks for its number (`tl.program_id`). A program does not loop over numbers: it loads
a tile of them (`tl.arange` makes the offsets, a mask leaves some out), computes with whole tiles,
and stores one. The sides of a tile are powers of two, so what does not fill it is masked. Names in
CAPITALS are known when the kernel is compiled, all others when it is launched.

A layer of a step is two launches, or three:

    write_kv             K and V of the step's tokens into their slots
    decode_attention     every request has one query: one program a request, KV head and split of
                         the context; a second launch merges the splits (flash-decoding)
    ragged_attention     prefill chunks and decodes in any order, all in one launch

All strides are honoured, offsets are 64-bit where a block id is multiplied, and no table entry
beyond a request's last block is read. float32, float16, bfloat16; head_dim up to 256; any block
size. triton_ladder.py climbs to the decode kernel from the naive one. Left out: a sliding window,
a quantized cache, CUDA graphs, splits in a ragged step.

Legend: T tokens, R requests, N blocks, BS block_size, MB most blocks of a request, H / KH query /
KV heads, G = H // KH, D head_dim. X_PADDED is X rounded up to a power of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv, next_power_of_2

from minivllm.attention import AttentionMetadata
from minivllm.kv_cache import KVCache

LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * LOG2_E), and a GPU has an instruction for exp2
MAX_HEAD_DIM = 256
MIN_SIDE = 16  # the smallest side of a tile that the matrix units take
MAX_TILE = 128  # positions
TILE_BYTES = 16384  # of K, and as much of V, that one program fetches at once
NUM_STAGES = 3  # look up the blocks of a tile | fetch its K and V | compute: three tiles in flight
RAGGED_ROWS = 64  # queries x query heads of a KV head in one program; float32 has registers for 16
MIN_SPLIT = 256  # positions: below that, a program's start costs more than its work
MAX_SPLITS = 64
PROGRAMS_PER_SM = 8  # so many hide the start of one behind the work of the others


# --- K and V of this step into the cache ----------------------------------------------------------


@triton.jit
def _write_kernel(
    k, k_strides, v, v_strides, k_cache, k_cache_strides, v_cache, v_cache_strides, slot_mapping,
    BS: tl.constexpr, KH: tl.constexpr, D: tl.constexpr,
    KH_PADDED: tl.constexpr, D_PADDED: tl.constexpr):  # fmt: skip
    """One program moves one token: its K and V, [KH, D] each. The tile of 3 heads of 80 dims:

           dim 0 .. 79   .. 127
    head 0  x x x x x x  . . .      x  moved
    head 1  x x x x x x  . . .      .  masked: neither read nor written
    head 2  x x x x x x  . . .
    (pad)   . . . . . .  . . .
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:  # -1 writes nothing
        block, place = slot // BS, slot % BS
        head, dim = tl.arange(0, KH_PADDED)[:, None], tl.arange(0, D_PADDED)[None, :]
        real = (head < KH) & (dim < D)  # [KH_PADDED, D_PADDED]
        key = tl.load(k + _at(k_strides, token, head, dim), mask=real)
        tl.store(k_cache + _in_cache(k_cache_strides, block, place, head, dim), key, mask=real)
        value = tl.load(v + _at(v_strides, token, head, dim), mask=real)
        tl.store(v_cache + _in_cache(v_cache_strides, block, place, head, dim), value, mask=real)


@triton.jit
def _at(strides, token, head, dim):
    """Offset of an element of q, k or v, [T, heads, D]."""
    return token * strides[0] + head * strides[1] + dim * strides[2]


@triton.jit
def _in_cache(strides, block, place, head, dim):
    """Offset of an element of a cache, [N, BS, KH, D]; `block` has 64 bits, for its product with
    the stride passes 2^31 in a pool of a few GB."""
    return block * strides[0] + place * strides[1] + head * strides[2] + dim * strides[3]


def write_kv(cache: KVCache, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    """The same as `KVCache.write`: k and v [T, KH, D] into slots `slot_mapping` [T] of a layer."""
    k_cache, v_cache = cache.key[layer], cache.value[layer]  # [N, BS, KH, D]
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    if k.shape != v.shape or k.shape != (len(slot_mapping), num_kv_heads, head_dim):
        shapes = ", ".join(str(list(x.shape)) for x in (k, v, slot_mapping, k_cache))
        raise ValueError(f"k, v, slots and cache must fit, got {shapes}")
    _write_kernel[(len(k),)](
        k, k.stride(), v, v.stride(), k_cache, k_cache.stride(), v_cache, v_cache.stride(),
        slot_mapping, block_size, num_kv_heads, head_dim,
        next_power_of_2(num_kv_heads), next_power_of_2(head_dim), num_warps=1)  # fmt: skip


# --- the loop that both attention kernels share ---------------------------------------------------


@triton.jit
def _attend(
    q, query_position, first, end, scale, kv_head, k_cache, k_strides, v_cache, v_strides, table,
    BS: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Attention of a tile of queries over the positions first .. end - 1 of one KV head.

    q [ROWS, D_PADDED]; row i sees the positions up to query_position[i], which is below `end`.
    Returns the result [ROWS, D_PADDED] and the log2 of each row's softmax sum, [ROWS]. K and V
    pass by in tiles of TILE positions, wherever their blocks lie (BS 4, TILE 8, end 11):

        position    0  1  2  3 | 4  5  6  7 | 8  9 10  .        .  masked: not held, not read
        table           7            2            5
        slot       28 29 30 31 | 8  9 10 11 |20 21 22  .
                   |--------- tile 0 -------|--- tile 1 ---

    The online softmax keeps, of all tiles so far and for each row: the largest score `peak`, the
    sum of exp2(score - peak), and `acc`, the sum of exp2(score - peak) * v. A tile that holds a
    larger score raises the peak, and what was added up before shrinks by exp2(old - new).
    """
    dim = tl.arange(0, q.shape[1])[None, :]  # [1, D_PADDED]
    peak = tl.full([q.shape[0]], float("-inf"), tl.float32)  # [ROWS]
    total, acc = tl.zeros_like(peak), tl.zeros(q.shape, tl.float32)  # [ROWS], [ROWS, D_PADDED]
    for start in range(first, end, TILE):
        position = start + tl.arange(0, TILE)  # [TILE]
        held = position < end
        block = tl.load(table + position // BS, mask=held, other=0).to(tl.int64)[:, None]
        place = (position % BS)[:, None]  # [TILE, 1]
        real = held[:, None] & (dim < D)  # [TILE, D_PADDED]
        k = tl.load(k_cache + _in_cache(k_strides, block, place, kv_head, dim), real, other=0.0)
        v = tl.load(v_cache + _in_cache(v_strides, block, place, kv_head, dim), real, other=0.0)

        # "ieee": float32 is multiplied in full, not rounded to 10 bits of mantissa first.
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [ROWS, TILE]
        score = tl.where(position[None, :] <= query_position[:, None], score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))  # [ROWS]
        weight = tl.exp2(score - new_peak[:, None])  # [ROWS, TILE]
        shrink = tl.exp2(peak - new_peak)  # [ROWS]; 0 in the first tile
        total = total * shrink + tl.sum(weight, 1)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        peak = new_peak
    return acc / total[:, None], peak + tl.log2(total)


# --- decode: one query a request ------------------------------------------------------------------


@triton.jit(do_not_specialize=["table_stride", "split_size"])
def _decode_kernel(
    q, q_strides, k_cache, k_strides, v_cache, v_strides, partial, partial_log, seq_lens,
    block_tables, table_stride, split_size, scale, G: tl.constexpr, ROWS: tl.constexpr,
    BS: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """One program: the G query heads of one KV head of one request, over one split of its context.

    K and V are read once for all G heads. With 2 splits and seq_lens 9 and 4, split_size 5:

        request 0   0 1 2 3 4 | 5 6 7 8      two programs for each KV head
        request 1   0 1 2 3   |              one; the other has nothing to do and ends
    """
    kv_head, request, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    first = split * split_size
    end = tl.minimum(first + split_size, tl.load(seq_lens + request))
    if first >= end:
        return

    row = tl.arange(0, ROWS)  # query heads of this KV head; those from G on are padding
    head, dim = (kv_head * G + row)[:, None], tl.arange(0, D_PADDED)[None, :]
    real = (row < G)[:, None] & (dim < D)  # [ROWS, D_PADDED]
    queries = tl.load(q + _at(q_strides, request, head, dim), mask=real, other=0.0)
    result, log = _attend(
        queries, tl.zeros_like(row) + (end - 1), first, end, scale, kv_head, k_cache, k_strides,
        v_cache, v_strides, block_tables + request * table_stride, BS, D, TILE)  # fmt: skip
    # partial [R, H, splits, D] and partial_log [R, H, splits] are contiguous.
    part = (request * tl.num_programs(0) * G + head) * tl.num_programs(2) + split  # [ROWS, 1]
    tl.store(partial + part * D + dim, result, mask=real)
    tl.store(partial_log + part, log[:, None], mask=(row < G)[:, None])


@triton.jit(do_not_specialize=["split_size", "num_splits"])
def _merge_kernel(
    partial, partial_log, out, seq_lens, split_size, num_splits,
    SPLITS_PADDED: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr):  # fmt: skip
    """One program: the splits of one query head of one request become its output.

    A split's result is an average; it weighs as much as its softmax sum: exp2 of its log.
    """
    head, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    split, dim = tl.arange(0, SPLITS_PADDED), tl.arange(0, D_PADDED)
    live = split * split_size < tl.load(seq_lens + request)  # the others were never stored
    row = request * tl.num_programs(0) + head
    part = row * num_splits + split  # [SPLITS_PADDED]
    log = tl.load(partial_log + part, mask=live, other=float("-inf"))
    weight = tl.exp2(log - tl.max(log, 0))  # [SPLITS_PADDED]
    real = live[:, None] & (dim < D)[None, :]  # [SPLITS_PADDED, D_PADDED]
    results = tl.load(partial + part[:, None] * D + dim[None, :], mask=real, other=0.0)
    merged = tl.sum(results * weight[:, None], 0) / tl.sum(weight, 0)  # [D_PADDED]
    tl.store(out + row * D + dim, merged, mask=dim < D)


def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float,
    split_size: int | None = None) -> Tensor:  # fmt: skip
    """Attention of one query a request: q [R, H, D], caches [N, BS, KH, D] -> [R, H, D].

    split_size: the positions that one program takes, by default so many that all fill the GPU.
    """
    (num_requests, num_heads, head_dim), num_kv_heads = q.shape, k_cache.shape[2]
    sizes, group = _tile_sizes(q, k_cache, v_cache), num_heads // num_kv_heads
    tables, seq_lens = metadata.block_tables, metadata.seq_lens
    longest = tables.shape[1] * k_cache.shape[1]  # no wait for seq_lens to come from the GPU
    split_size = split_size or _choose_split_size(num_requests * num_kv_heads, longest, q.device)
    num_splits = cdiv(longest, split_size)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)  # [R, H, D]
    partial_log = torch.empty(num_requests, num_heads, num_splits, device=q.device)
    # [R, H, splits, D]; the result of a single split is the answer.
    partial = torch.empty(*partial_log.shape, head_dim, device=q.device) if num_splits > 1 else out
    _decode_kernel[(num_kv_heads, num_requests, num_splits)](
        q, q.stride(), k_cache, k_cache.stride(), v_cache, v_cache.stride(), partial, partial_log,
        seq_lens, tables, tables.stride(0), split_size, scale * LOG2_E,
        group, max(MIN_SIDE, next_power_of_2(group)), **sizes,
        num_warps=4 if q.itemsize == 2 else 8, num_stages=NUM_STAGES,
    )  # fmt: skip
    if num_splits > 1:
        _merge_kernel[(num_heads, num_requests)](
            partial, partial_log, out, seq_lens, split_size, num_splits,
            next_power_of_2(num_splits), head_dim, sizes["D_PADDED"],
        )  # fmt: skip
    return out


def _choose_split_size(num_programs: int, longest: int, device: torch.device) -> int:
    """Positions of a split, such that each multiprocessor gets enough programs."""
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    num_sms = gpu.multi_processor_count if gpu else 1
    num_splits = min(MAX_SPLITS, cdiv(PROGRAMS_PER_SM * num_sms, num_programs))
    return cdiv(longest, num_splits * MIN_SPLIT) * MIN_SPLIT


# --- ragged: chunks and decodes together ----------------------------------------------------------


@triton.jit
def _request_of_tile(tile, query_start_loc, num_requests, QUERIES: tl.constexpr):
    """Which request a tile belongs to: tiles of QUERIES queries are dealt out without a list.

    Request r's first tile is start[r] // QUERIES + r: never too few, and at most one too many,
    which ends at once. With QUERIES 4 and chunks of 6, 1 and 4 queries (start 0, 6, 7, 11):

        tile       0     1     2     3
        request    0     0     1     2           first tiles 0, 6 // 4 + 1 = 2, 7 // 4 + 2 = 3
        queries   0-3   4-5    6    7-10

    So the request is the last whose first tile is not beyond this one: count those, less 1.
    """
    found = -1
    for base in range(0, num_requests, 128):
        request = base + tl.arange(0, 128)  # [128]
        # Beyond the last request: a start so late that no tile has begun there.
        start = tl.load(query_start_loc + request, mask=request < num_requests, other=1 << 30)
        found += tl.sum((start // QUERIES + request <= tile).to(tl.int32), 0)
    return found


@triton.jit(do_not_specialize=["table_stride", "num_requests"])
def _ragged_kernel(
    q, q_strides, k_cache, k_strides, v_cache, v_strides, out, query_start_loc, seq_lens,
    block_tables, table_stride, num_requests, scale, G: tl.constexpr, ROWS: tl.constexpr,
    BS: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """One program: some queries of one request, times the G query heads of one KV head.

    A chunk of 3 queries that ends at position 6 (seq_len 7), G 2, tiles of 4 positions:

        row   query  head   position   0 1 2 3 | 4 5 6 .
         0      0      0        4      x x x x | x . . .     x  attended
         1      0      1        4      x x x x | x . . .     .  masked: later than the query,
         2      1      0        5      x x x x | x x . .        or not held
         ..                                                  rows without a query are padding
         5      2      1        6      x x x x | x x x .
    """
    QUERIES: tl.constexpr = ROWS // G
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    request = _request_of_tile(tile, query_start_loc, num_requests, QUERIES).to(tl.int64)
    begin = tl.load(query_start_loc + request)
    num_queries = tl.load(query_start_loc + request + 1) - begin
    first_query = (tile - begin // QUERIES - request.to(tl.int32)) * QUERIES
    if first_query >= num_queries:
        return
    computed = tl.load(seq_lens + request) - num_queries  # positions before the chunk
    end = computed + tl.minimum(first_query + QUERIES, num_queries)  # the last query sees these

    row = tl.arange(0, ROWS)
    query = first_query + row // G  # [ROWS], counted within the chunk
    token = (begin + query).to(tl.int64)[:, None]  # [ROWS, 1]
    head, dim = (kv_head * G + row % G)[:, None], tl.arange(0, D_PADDED)[None, :]
    real = ((query < num_queries) & (row < QUERIES * G))[:, None] & (dim < D)  # [ROWS, D_PADDED]
    queries = tl.load(q + _at(q_strides, token, head, dim), mask=real, other=0.0)
    result, _ = _attend(
        queries, tl.minimum(computed + query, end - 1), 0, end, scale, kv_head, k_cache, k_strides,
        v_cache, v_strides, block_tables + request * table_stride, BS, D, TILE)  # fmt: skip
    row_of_out = token * tl.num_programs(0) * G + head  # out [T, H, D] is contiguous
    tl.store(out + row_of_out * D + dim, result, mask=real)


def ragged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """Attention of chunks and decodes in any order: q [T, H, D], caches [N, BS, KH, D] -> like q.

    A chunk's own K and V are in the cache already, and each of its queries sees none beyond itself.
    """
    sizes, group = _tile_sizes(q, k_cache, v_cache), q.shape[1] // k_cache.shape[2]
    tables, num_requests = metadata.block_tables, len(metadata.seq_lens)
    rows = max(RAGGED_ROWS if q.itemsize == 2 else MIN_SIDE, next_power_of_2(group))
    num_tiles = len(q) // (rows // group) + num_requests  # see _request_of_tile
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)  # [T, H, D]
    _ragged_kernel[(k_cache.shape[2], num_tiles)](
        q, q.stride(), k_cache, k_cache.stride(), v_cache, v_cache.stride(), out,
        metadata.query_start_loc, metadata.seq_lens, tables, tables.stride(0), num_requests,
        scale * LOG2_E, group, rows, **sizes, num_warps=8, num_stages=NUM_STAGES,
    )  # fmt: skip
    return out


# --- the face: what attention.py and kv_cache.py offer --------------------------------------------


def _tile_sizes(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> dict[str, int]:
    """The sizes both kernels are compiled for. Raises ValueError for what they cannot run."""
    (num_heads, head_dim), num_kv_heads = q.shape[1:], k_cache.shape[2]
    fits = k_cache.shape == v_cache.shape and k_cache.shape[3] == head_dim <= MAX_HEAD_DIM
    if not (fits and num_heads % num_kv_heads == 0 and q.dtype == k_cache.dtype == v_cache.dtype):
        found = ", ".join(f"{list(x.shape)} {x.dtype}" for x in (q, k_cache, v_cache))
        raise ValueError(f"q and caches must fit, head_dim at most {MAX_HEAD_DIM}, got {found}")
    padded = max(MIN_SIDE, next_power_of_2(head_dim))
    tile = min(MAX_TILE, max(MIN_SIDE, TILE_BYTES // (padded * q.itemsize)))
    return {"BS": k_cache.shape[1], "D": head_dim, "D_PADDED": padded, "TILE": tile}


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """The same as `minivllm.attention.paged_attention`, on the GPU."""
    if len(q) == len(metadata.seq_lens):  # T == R: every request has one query
        return decode_attention(q, k_cache, v_cache, metadata, scale)
    return ragged_attention(q, k_cache, v_cache, metadata, scale)
