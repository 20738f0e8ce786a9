"""What only a GPU can tell about triton_attention.py: is it right there, and how near to the limit?

    python tools/gpu_check.py --out figures/gpu_check.json      on a GPU; made to end in 4 minutes
    python tools/gpu_check.py --dry-run                         no GPU: Triton's interpreter

It needs torch (2.11 or later), triton (3.6 or later) and this repository; it downloads nothing. As
long as there is no figures/gpu_check.json, no GPU has run it, and nothing is known of its speed.

1. checks   each kernel, then whole engines, against the CPU
2. times    decode and ragged kernels beside SDPA and flex_attention; "share" is the bytes that must
            move over time, as a part of what a plain copy reaches on the same card; a time is that
            of a call from Python, so short calls show the cost of the launch
3. steps    of an engine that decodes, Triton beside torch attention
4. one JSON, written after each part; the exit status is 1 when a check failed

A dry run goes through all of it with tiny sizes, to test this script: it checks, but knows no time
and writes none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_times
from gpu_run import DRY, Batch, Run, Sizes

from minivllm.attention import AttentionMetadata, paged_attention_reference
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor, attention_functions
from minivllm.kv_cache import KVCache
from minivllm.model import LlamaModel, ModelConfig
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


# --- 1. checks ------------------------------------------------------------------------------------


def check_kernels(run: Run) -> None:
    """Write, decode and ragged kernels on awkward shapes; all results poisoned beforehand."""
    _, attend = attention_functions("triton")
    fp32, fp16, bf16 = TOLERANCE
    cases = [((4, 2, 16), 3, (fp32,)), ((8, 1, 80), 48, (fp16,))]
    if not run.dry:
        cases += [
            ((9, 3, 64), 16, (fp32, bf16)), ((32, 8, 128), 16, (fp32, fp16, bf16)),
            ((8, 4, 256), 16, (fp32, bf16)), ((6, 3, 96), 8, (bf16,)), ((4, 4, 24), 1, (bf16,)),
        ]  # fmt: skip
    longest = 20 if run.dry else 3000
    for heads, block_size, dtypes in cases:
        for dtype in dtypes:
            ragged = [(1, longest), (7, 7), (3, block_size + 1), (1, 1), (40, longest // 2 + 40)]
            for kind, lens in (("decode", [(1, n) for _, n in ragged]), ("ragged", ragged)):
                batch = Batch(run, lens, block_size, heads, dtype, compare=True)
                same = all(
                    torch.equal(a.nan_to_num(), b.nan_to_num())
                    for a, b in ((batch.cache.key, batch.plain.key),
                                 (batch.cache.value, batch.plain.value))
                )  # fmt: skip
                torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty gives NaN
                out = batch.attend(attend).float().cpu()
                torch.use_deterministic_algorithms(False)
                step = AttentionMetadata(*(getattr(batch.step, name).cpu() for name in (
                    "query_start_loc", "seq_lens", "slot_mapping", "block_tables")))  # fmt: skip
                k, v = (x.float().cpu() for x in batch.layer(0))
                exact = paged_attention_reference(batch.q.float().cpu(), k, v, step, batch.scale)
                error = (out - exact).abs().nan_to_num(nan=math.inf).max().item()
                name = f"{kind} {heads} blocks of {block_size} {dtype}"
                run.check(name, same and error <= TOLERANCE[dtype], write_equal=same, error=error)


def random_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Weights of a model of this config, made on `device`."""
    H, KH, D, E = config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size
    I, V = config.intermediate_size, config.vocab_size  # noqa: E741
    layer = {
        "self_attn.q_proj": (H * D, E), "self_attn.k_proj": (KH * D, E),
        "self_attn.v_proj": (KH * D, E), "self_attn.o_proj": (E, H * D), "mlp.gate_proj": (I, E),
        "mlp.up_proj": (I, E), "mlp.down_proj": (E, I),
    }  # fmt: skip
    shapes = {"model.embed_tokens": (V, E), "lm_head": (V, E)}
    for i in range(config.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    torch.manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        weight = torch.empty(shape, dtype=dtype, device=device)
        weights[f"{name}.weight"] = weight.normal_(0, shape[1] ** -0.5)
    norms = ["input_layernorm", "post_attention_layernorm"]
    names = [f"model.layers.{i}.{norm}" for i in range(config.num_layers) for norm in norms]
    for name in [*names, "model.norm"]:
        weights[f"{name}.weight"] = torch.ones(E, dtype=dtype, device=device)
    return weights


def decode_logits(model: LlamaModel, backend: str, run: Run) -> list[tuple[list[int], Tensor]]:
    """A few requests through an engine, greedily: for each step the tokens drawn and the logits."""
    config = SchedulerConfig(
        num_blocks=64, block_size=4, max_num_batched_tokens=24, max_model_len=64,
        long_prefill_token_threshold=10, watermark_blocks=0,
    )  # fmt: skip
    executor = ModelExecutor(model, 64, 4, attention_backend=backend)
    engine = Engine(Scheduler(config), executor, ())
    steps: list[tuple[list[int], Tensor]] = []
    inner = model.compute_logits

    def spy(hidden: Tensor) -> Tensor:
        logits = inner(hidden)  # [n, V]
        steps.append((logits.argmax(-1).tolist(), logits.float().cpu()))
        return logits

    model.compute_logits = spy
    for i, length in enumerate([3, 15] if run.dry else [3, 40, 17, 9]):
        prompt = [(7 * i + 3 * j) % model.config.vocab_size for j in range(length)]
        params = SamplingParams(temperature=0, max_tokens=2 if run.dry else 12)
        engine.add_request(str(i), prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    del model.compute_logits
    return steps


def check_engines(run: Run) -> None:
    """A whole engine on the kernels against one on the CPU: the same tokens, like logits."""
    for name, config in run.sizes.engine_models:
        weights = random_weights(config, torch.float32, "cpu")
        exact = decode_logits(LlamaModel(config, weights), "torch", run)
        for dtype in [torch.float32] if run.dry else [torch.float32, torch.bfloat16]:
            steps = decode_logits(LlamaModel(config, weights, dtype, run.device), "triton", run)
            error, equal = 0.0, 0
            for (tokens, logits), (exact_tokens, exact_logits) in zip(steps, exact, strict=True):
                difference = (logits - exact_logits).abs().max() / exact_logits.std()
                error = max(error, difference.item())
                if tokens != exact_tokens:  # from here on the two read different texts
                    break
                equal += 1
            limit, whole = (1e-3, True) if dtype == torch.float32 else (0.2, False)
            ok = error < limit and (equal == len(exact) or not whole)
            run.check(f"engine {name} {dtype}", ok, error_in_deviations=error, equal_steps=equal,
                      steps=len(exact))  # fmt: skip


# --- 3. steps of an engine ------------------------------------------------------------------------


def time_steps(run: Run) -> None:
    """Decode steps of a stack of 8B's shape: requests leave, and both backends share each batch."""
    sizes, config = run.sizes, run.sizes.stack
    dtype = torch.float32 if run.dry else torch.bfloat16
    model = LlamaModel(config, random_weights(config, dtype, run.device), dtype, run.device)
    weight_bytes = dtype.itemsize * sum(
        math.prod(shape) for shape in (
            (config.vocab_size, config.hidden_size),
            (config.num_layers, config.hidden_size + 3 * config.intermediate_size,
             config.hidden_size),
            (config.num_layers, config.num_heads + 2 * config.num_kv_heads, config.head_dim,
             config.hidden_size),
        )
    )  # fmt: skip
    most, longest = sizes.stack_batches[0], sizes.stack_context + 512
    limits = SchedulerConfig(
        num_blocks=most * -(-longest // 16) + 8, block_size=16, max_num_seqs=most,
        max_num_batched_tokens=64 if run.dry else 8192, max_model_len=longest,
    )  # fmt: skip
    executor = ModelExecutor(model, limits.num_blocks, 16, attention_backend="triton")
    engine = Engine(Scheduler(limits), executor, ())
    rng, params = random.Random(0), SamplingParams(temperature=0, max_tokens=500)
    for i in range(most):
        prompt = [rng.randrange(config.vocab_size) for _ in range(sizes.stack_context)]
        engine.add_request(str(i), prompt, params)
    running = engine.scheduler.running
    while len(running) < most or any(r.num_tokens - r.num_computed_tokens > 1 for r in running):
        engine.step()
    for batch_size in sizes.stack_batches:
        for i in range(batch_size, most):
            engine.abort(str(i))
        if run.late(8):
            run.add("steps", requests=batch_size, skipped=True)
            continue
        shape = (config.num_layers, 1, config.num_kv_heads, config.head_dim)
        kv = KVCache.bytes_per_block(*shape, dtype)
        nbytes = weight_bytes + kv * sum(r.num_tokens for r in running)
        for backend in ("triton", "torch"):
            executor._write, executor._attend = attention_functions(backend)
            seconds = run.seconds(lambda i: engine.step(), most=6)  # 34 steps; 500 are to be had
            run.add("steps", requests=batch_size, backend=backend, bytes=nbytes,
                    tokens_per_second=seconds and batch_size / seconds,
                    **run.rate(nbytes, seconds))  # fmt: skip


PARTS = [
    check_kernels, check_engines, gpu_times.measure_copy, gpu_times.time_decode,
    gpu_times.time_ragged, time_steps, gpu_times.time_others, gpu_times.time_ladder,
    gpu_times.time_choices,
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Check and time the Triton kernels on a GPU.")
    parser.add_argument("--out", type=Path, help="where the JSON goes; without, it is printed")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: tiny sizes, no times")
    parser.add_argument("--budget", type=float, default=230, help="seconds; the rest is left out")
    args = parser.parse_args()
    if args.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
    elif not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; --dry-run needs none")
    import triton

    start = time.monotonic()
    device = torch.device("cpu" if args.dry_run else "cuda")
    run = Run(device, args.dry_run, DRY if args.dry_run else Sizes(), start + args.budget)
    run.report |= {
        "device": "no GPU: dry run" if args.dry_run else torch.cuda.get_device_name(),
        "torch": torch.__version__, "triton": triton.__version__, "dry_run": args.dry_run,
    }  # fmt: skip
    torch.manual_seed(0)
    torch.utils.deterministic.fill_uninitialized_memory = True
    for part in PARTS:
        print(f"== {part.__name__}, {time.monotonic() - start:.0f} s", flush=True)
        with torch.inference_mode():
            part(run)
        run.report["wall_seconds"] = None if args.dry_run else time.monotonic() - start
        text = json.dumps(run.report, indent=1) + "\n"
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(text)
        if not args.dry_run:
            torch.cuda.empty_cache()
    if not args.out:
        print(text)
    print(f"{len(run.failures)} checks failed", *run.failures, sep="\n  ")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
