"""The clock against the real model on this machine: modelled and measured time of a step.

The clock's four constants come from probes of their own, none from a step that is compared:

    bandwidth   one row through the matrices of all layers, and nothing else
    peak        256 rows through them
    overlap     24 rows through them: how much less than fetching and computing in turn
    launch      a step of a model with as many layers, so narrow that only the calls cost

Then steps of 1 to 64 decoding requests, and prefills, are timed and compared with the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch

from minivllm.config import SchedulerConfig
from minivllm.device import choose_attention_backend
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.lab.clock import Clock, Device, ModelShape, StepWork
from minivllm.lab.experiment import MEASURED, Experiment, Finding, Options, Result, Results
from minivllm.lab.experiments.real_model import load_model
from minivllm.lab.jobs import Job, make_prompt
from minivllm.model import LlamaModel, ModelConfig
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
PREFILLS = (64, 256, 512)
CONTEXT = 128  # tokens of each request that decodes
WANTED = 25  # percent: the largest difference accepted
SOME_ROWS, MANY_ROWS = 24, 256  # about as long to compute as to fetch; computing only
REPEATS = 6


def shape_of(config: ModelConfig, itemsize: int) -> ModelShape:
    """The clock's view of a model's sizes."""
    return ModelShape(
        "this model", config.num_layers, config.hidden_size, config.intermediate_size,
        config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size, itemsize,
    )  # fmt: skip


def fastest(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of the fastest of some runs after a warm-up: what the machine can do when nobody
    disturbs it."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


@torch.inference_mode()
def probe_matrices(model: LlamaModel) -> tuple[float, float, float]:
    """(bytes a second, FLOPs a second, overlap) of the matrices of the model's layers."""
    config = model.config
    attention = config.num_heads * config.head_dim

    def seconds(rows: int) -> float:
        sizes = (config.hidden_size, attention, config.hidden_size, config.intermediate_size)
        xs = [torch.randn(rows, n, dtype=model.dtype, device=model.device) for n in sizes]

        def all_layers() -> None:
            for layer in model.layers:
                for linear, x in zip(
                    (layer.qkv, layer.o, layer.gate_up, layer.down), xs, strict=True
                ):
                    linear(x)  # [rows, out]

        return fastest(all_layers)

    num_weights = shape_of(config, model.dtype.itemsize).layer_params
    fetch, compute = seconds(1), seconds(MANY_ROWS) / MANY_ROWS * SOME_ROWS
    hidden = (fetch + compute - seconds(SOME_ROWS)) / min(fetch, compute)
    flops = 2 * num_weights * SOME_ROWS / compute
    return num_weights * model.dtype.itemsize / fetch, flops, min(max(hidden, 0.0), 1.0)


def probe_launch(model: LlamaModel) -> float:
    """Seconds of one operator, from a step of the same model made as narrow as it goes."""
    narrow = replace(
        model.config, hidden_size=64, intermediate_size=64, num_heads=2, num_kv_heads=1,
        head_dim=32, vocab_size=64,
    )  # fmt: skip
    weights = random_weights(narrow, model.dtype)
    tiny = LlamaModel(narrow, weights, model.dtype, model.device, model.kernels)
    shape = shape_of(narrow, model.dtype.itemsize)
    return time_decode(tiny, 2, 16) / shape.operators / shape.num_layers


def random_weights(config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Weights for a model of these sizes, named as a checkpoint names them."""
    hidden, head = config.hidden_size, config.head_dim
    sizes = {"model.norm.weight": (hidden,)}
    sizes["model.embed_tokens.weight"] = (config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        sizes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            sizes[f"{layer}.{norm}.weight"] = (hidden,)
        for name, heads in (("q", config.num_heads), ("k", config.num_kv_heads),
                            ("v", config.num_kv_heads)):  # fmt: skip
            sizes[f"{layer}.self_attn.{name}_proj.weight"] = (heads * head, hidden)
        sizes[f"{layer}.self_attn.o_proj.weight"] = (hidden, config.num_heads * head)
        for name in ("gate", "up"):
            sizes[f"{layer}.mlp.{name}_proj.weight"] = (config.intermediate_size, hidden)
        sizes[f"{layer}.mlp.down_proj.weight"] = (hidden, config.intermediate_size)
    return {name: torch.randn(size, dtype=dtype) / 8 for name, size in sizes.items()}


def make_engine(model: LlamaModel, num_requests: int, length: int, num_steps: int) -> Engine:
    """An engine in which `num_requests` prompts of `length` tokens stand in line."""
    blocks_each = -(-(length + num_steps + 2) // 16)
    config = SchedulerConfig(
        num_blocks=num_requests * blocks_each, max_num_seqs=num_requests, watermark_blocks=0,
        max_num_batched_tokens=num_requests * length, max_model_len=length + num_steps + 2,
    )  # fmt: skip
    engine = Engine(Scheduler(config), ModelExecutor(model, config.num_blocks, config.block_size))
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_steps + 2)
    for index in range(num_requests):
        prompt = make_prompt(Job(length, 1), index, model.config.vocab_size)
        engine.add_request(str(index), prompt, params)
    return engine


def time_decode(model: LlamaModel, num_requests: int, context: int) -> float:
    """Seconds of a step in which `num_requests` requests decode at about `context` tokens."""
    engine = make_engine(model, num_requests, context, 2 * REPEATS)
    engine.step()  # all prompts
    return fastest(engine.step, 2 * REPEATS - 1)


def time_prefill(model: LlamaModel, length: int) -> float:
    """Seconds of a step that runs one prompt of `length` tokens."""
    times = []
    for _ in range(4):
        engine = make_engine(model, 1, length, 1)
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return min(times[1:])


@lru_cache(maxsize=1)
def calibrate(model: LlamaModel) -> Device:
    """This machine as the clock sees it, from the four probes."""
    bandwidth, flops, overlap = probe_matrices(model)
    backend = choose_attention_backend("auto", model.config, model.dtype, model.device)
    return Device(
        f"this {model.device.type.upper()}", bandwidth, flops, probe_launch(model),
        overlap=overlap, kv_passes=3 if backend == "torch" else 1,
    )  # fmt: skip


def run(case: str, options: Options) -> Result:
    """One step, measured and modelled, in milliseconds."""
    kind, size = case.split("/")
    model = load_model(options)
    device = calibrate(model)
    clock = Clock(device, shape_of(model.config, model.dtype.itemsize))
    if kind == "decode":
        measured = time_decode(model, int(size), CONTEXT)
        context = CONTEXT + REPEATS
        work = StepWork(int(size), int(size), int(size) * context, int(size) * context)
    else:
        measured = time_prefill(model, int(size))
        work = StepWork(int(size), 1, int(size), int(size) * (int(size) + 1) // 2)
    return {
        "measured_ms": 1000 * measured,
        "modelled_ms": 1000 * clock.seconds(work),
        "parts_ms": {name: 1000 * seconds for name, seconds in clock.parts(work).items()},
        "bandwidth_GB_per_s": device.bandwidth / 1e9,
        "peak_GFLOP_per_s": device.flops / 1e9,
        "launch_us": 1e6 * device.launch,
        "overlap": device.overlap,
    }


def read(results: Results) -> list[Finding]:
    """Modelled over measured; more than 25 % off is said."""
    findings = []
    for case, result in results.items():
        off = 100 * (result["modelled_ms"] / result["measured_ms"] - 1)
        why = f"more than {WANTED} % off" if abs(off) > WANTED else ""
        what = f"{case}: measured {result['measured_ms']:.1f} ms, modelled off by"
        findings.append(Finding(what, off, MEASURED, unit="%", why=why))
    differences = [
        abs(result["modelled_ms"] / result["measured_ms"] - 1)
        for case, result in results.items()
        if case.startswith("decode")
    ]
    if differences:
        what = "median difference over the batch sizes"
        findings.append(Finding(what, 100 * statistics.median(differences), MEASURED, unit="%"))
    return findings


CALIBRATION = Experiment(
    "calibration",
    "The clock against the real model on this machine",
    f"decode steps of 1 to 64 requests at about {CONTEXT} tokens, and prefills; the fastest of "
    f"{2 * REPEATS - 1} steps; the clock's constants from four probes, no step among them",
    [f"decode/{size}" for size in BATCH_SIZES] + [f"prefill/{size}" for size in PREFILLS],
    run,
    read,
    measures=True,
)
