"""The times of gpu_check.py: kernels over shapes, beside others, the ladder, other tile sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu_run import Batch, Run
from torch import Tensor

from minivllm.attention import paged_attention
from minivllm.executor import attention_functions


def measure_copy(run: Run) -> None:
    """Bytes a second, read and written, of a plain copy of a large tensor."""
    source = torch.ones(run.sizes.copy_bytes, dtype=torch.uint8, device=run.device)
    target = torch.empty_like(source)
    seconds = run.seconds(lambda i: target.copy_(source))
    run.report["copy_bytes_per_second"] = seconds and 2 * len(source) / seconds
    print("copy", run.report["copy_bytes_per_second"], flush=True)


def needed_bytes(lens: list[tuple[int, int]], heads: tuple[int, int, int]) -> int:
    """Bytes that attention in bfloat16 cannot avoid: K and V once, q and the result."""
    H, KH, D = heads
    return sum((2 * length * KH + 2 * n * H) * D * 2 for n, length in lens)


def time_decode(run: Run) -> None:
    """Decode over batch and context, beside the torch backend."""
    _, attend = attention_functions("triton")
    heads = run.sizes.heads
    for batch_size, context in run.sizes.decode:
        lens = [(1, context)] * batch_size
        nbytes = needed_bytes(lens, heads)
        if run.late(120):
            run.add("decode", requests=batch_size, context=context, skipped=True)
            continue
        layers = 1 if run.dry else max(1, min(8, (1 << 30) // nbytes))  # more than the L2 holds
        batch = Batch(run, lens, 16, heads, run.half, layers)
        row = run.rate(nbytes, run.seconds(lambda i, b=batch: b.attend(attend, i)))
        plain = run.seconds(lambda i, b=batch: b.attend(paged_attention, i))
        run.add("decode", requests=batch_size, context=context, bytes=nbytes, **row,
                torch_backend_seconds=plain)  # fmt: skip
        if (batch_size, context) == (64, 8192):
            share = row["share_of_copy"]
            run.report["goal"] = {"share_of_copy": 0.8, "found": share, "met": share >= 0.8}
        del batch


def time_others(run: Run) -> None:
    """Decode by others, at a few shapes."""
    for batch_size, context in run.sizes.beside_others:
        if run.late(50):
            run.add("others", requests=batch_size, context=context, skipped=True)
            continue
        lens = [(1, context)] * batch_size
        batch = Batch(run, lens, 16, run.sizes.heads, run.half)
        compare_others(run, batch, batch_size, context)


def compare_others(run: Run, batch: Batch, batch_size: int, context: int) -> None:
    """SDPA on K and V that were gathered beforehand, for nothing; flex_attention on pages."""
    _, attend = attention_functions("triton")
    KH = run.sizes.heads[1]
    slots = torch.arange(context, device=run.device)  # [S]
    blocks = batch.step.block_tables[:, slots // 16].long()  # [R, S]
    k, v = (x[blocks, slots % 16].transpose(1, 2).contiguous() for x in batch.layer(0))
    q = batch.q.unflatten(1, (KH, -1))  # [R, KH, G, D]: heads of a KV head as query positions
    mine = batch.attend(attend)  # [R, H, D]
    row: dict[str, object] = {"requests": batch_size, "context": context}
    sdpa = F.scaled_dot_product_attention(q, k, v).flatten(1, 2)  # [R, H, D]
    row["sdpa_difference"] = (sdpa - mine).abs().max().item()
    row["sdpa_seconds"] = run.seconds(lambda i: F.scaled_dot_product_attention(q, k, v))
    try:
        flex = paged_flex(run, k, v, batch.q)
        row["flex_difference"] = (flex() - mine).abs().max().item()
        row["flex_seconds"] = run.seconds(lambda i: flex())
    except Exception as error:  # an experimental part of torch; what it cannot do is a result too
        row["flex_error"] = f"{type(error).__name__}: {error}"[:300]
    worst = max(row["sdpa_difference"], row.get("flex_difference", 0.0))
    run.add("others", **row)
    run.check(f"others agree, {batch_size} x {context}", worst < 5e-2, difference=worst)


def paged_flex(run: Run, k: Tensor, v: Tensor, q: Tensor) -> Callable[[], Tensor]:
    """torch's flex_attention over its own paged cache of blocks of 128: k, v [R, KH, S, D]."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch_size, KH, context, D = k.shape
    page = 128
    pages = batch_size * -(-context // page)
    paged = PagedAttention(pages, page, batch_size, device=str(run.device))
    rows = torch.arange(batch_size, device=run.device)  # [R]
    for r in range(batch_size):
        paged.reserve(rows[r], torch.tensor(context, device=run.device))
    k_pool, v_pool = torch.zeros(2, 1, KH, pages * page, D, dtype=k.dtype, device=run.device)
    positions = torch.arange(context, device=run.device).expand(batch_size, -1)  # [R, S]
    paged.assign(rows, positions, k, v, k_pool, v_pool)
    logical = create_block_mask(
        lambda b, h, q_index, kv_index: kv_index < context, batch_size, None, 1, context,
        device=str(run.device), BLOCK_SIZE=(128, page),
    )  # fmt: skip
    mask, score = paged.convert_logical_block_mask(logical), paged.get_score_mod(None)
    attention = flex_attention if run.dry else torch.compile(flex_attention, dynamic=False)
    query = q[:, :, None]  # [R, H, 1, D]
    return lambda: attention(
        query, k_pool, v_pool, score_mod=score, block_mask=mask, enable_gqa=True
    )[:, :, 0]


def time_ragged(run: Run) -> None:
    """Prompts, and a chunk among decodes, beside the torch backend."""
    _, attend = attention_functions("triton")
    heads = run.sizes.heads
    for lens in run.sizes.ragged:
        batch = Batch(run, list(lens), 16, heads, run.half)
        pairs = sum(n * length - n * (n - 1) // 2 for n, length in lens)  # query sees key
        flops = 4 * pairs * heads[0] * heads[2]
        seconds = run.seconds(lambda i, b=batch: b.attend(attend, i))
        row = run.rate(needed_bytes(list(lens), heads), seconds)
        run.add("ragged", requests=len(lens), tokens=len(batch.q), flops=flops, **row,
                flops_per_second=seconds and flops / seconds,
                torch_backend_seconds=run.seconds(lambda i, b=batch: b.attend(paged_attention, i)),
                )  # fmt: skip
        del batch


def time_ladder(run: Run) -> None:
    """The rungs of triton_ladder.py: what the model expected, then what the card says."""
    from minivllm.triton_ladder import Card, Shape, expected_seconds, run_rung

    H, KH, D = run.sizes.heads
    for batch_size, context in ((2, 12),) if run.dry else ((1, 8192), (64, 2048)):
        if run.late(20):
            continue
        batch = Batch(run, [(1, context)] * batch_size, 16, (H, KH, D), run.half)
        k, v = (x.contiguous() for x in batch.layer(0))
        shape = Shape((context,) * batch_size, H, KH, D, 2)
        for rung in ("naive", "tiled", "packed", "split"):
            def call(i: int, rung: str = rung, b: Batch = batch, k: Tensor = k, v: Tensor = v):
                return run_rung(rung, b.q, k, v, b.step, b.scale)

            seconds = run.seconds(call)
            run.add("ladder", rung=rung, requests=batch_size, context=context,
                    expected_seconds_modelled=expected_seconds(rung, shape, Card()),
                    seconds=seconds)  # fmt: skip


def time_choices(run: Run) -> None:
    """Other tile sizes and pipeline depths than triton_attention.py's, at the goal's shape."""
    from minivllm import triton_attention

    batch_size, context = run.sizes.beside_others[-1]
    batch = Batch(run, [(1, context)] * batch_size, 16, run.sizes.heads, run.half)
    nbytes = needed_bytes([(1, context)] * batch_size, run.sizes.heads)
    kept = triton_attention.TILE_BYTES, triton_attention.NUM_STAGES
    for tile_bytes in run.sizes.tile_bytes:
        for stages in (2, 3, 5):
            if run.late(5):
                continue
            triton_attention.TILE_BYTES, triton_attention.NUM_STAGES = tile_bytes, stages
            seconds = run.seconds(lambda i: batch.attend(triton_attention.decode_attention))
            run.add("choices", tile_bytes=tile_bytes, stages=stages, **run.rate(nbytes, seconds))
    triton_attention.TILE_BYTES, triton_attention.NUM_STAGES = kept
