"""How near a decode step comes to the machine's limits, and where its time goes.

    python -m minivllm bench --steps --json speed.json

The limits are measured in the same run: the fastest reader of memory and the fastest product of
matrices that we know of, whichever kernels they come from. The roof of a step is then the larger of
its bytes over that bandwidth and its FLOPs over that peak, as if the two overlapped perfectly and
nothing else had to be done (lab/clock.py counts both).
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minivllm.attention import AttentionMetadata
from minivllm.device import choose_device, choose_dtype
from minivllm.engine import Engine
from minivllm.lab.clock import Clock, Device, StepWork
from minivllm.lab.experiments.calibration import fastest, make_engine, shape_of
from minivllm.lab.facts import facts
from minivllm.linear import Plain, make_linear
from minivllm.model import LlamaModel
from minivllm.weights import load_weights

BATCH_SIZES = (1, 8, 16, 32, 64)
CONTEXT = 128  # tokens of each request when the steps begin
NUM_STEPS = 24
BREAKDOWN_AT = 16  # requests in the step that is taken apart
BIG = 400 << 20  # bytes of the matrix the limits are measured with: more than a cache holds
PARTS = ("matrices", "attention", "norms and the like", "sampling", "bookkeeping", "the rest")


def measure_limits(dtype: torch.dtype, kernels: str) -> tuple[float, float]:
    """(bytes a second, FLOPs a second): the best of several ways on this machine's threads."""
    inputs = 1024
    weight = torch.randn(BIG // inputs // dtype.itemsize, inputs).to(dtype)  # [out, in]
    readers: list[Callable[[], object]] = [weight.sum]
    products = []
    for linear in (Plain(weight, None), make_linear(weight), make_linear(weight, None, kernels)):
        one, many = (torch.randn(rows, inputs).to(dtype) for rows in (1, 384))  # [rows, in]
        readers.append(lambda linear=linear, one=one: linear(one))
        products.append(lambda linear=linear, many=many: linear(many))
    with torch.inference_mode():
        bandwidth = weight.nbytes / min(map(fastest, readers))
        flops = 2 * 384 * weight.numel() / min(fastest(product, 3) for product in products)
    return bandwidth, flops


def time_steps(engine: Engine) -> list[float]:
    """Seconds of each of some decode steps; the prompts have run, and the first is a warm-up."""
    engine.step()
    times = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return times[1:]


def bench_steps(args: Namespace) -> dict[str, Any]:
    """`python -m minivllm bench --steps`: measure, print two tables, write the JSON."""
    device = choose_device(args.device)
    if device.type != "cpu":
        raise ValueError(f"--steps measures a CPU; the device is {device} (--device cpu)")
    result = facts() | measure_steps(args.model, choose_dtype(args.dtype, device))
    print_steps(result)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return result


def measure_steps(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """The limits, the steps by batch size, and the step taken apart, of the model of this name."""
    start = time.perf_counter()
    config, weights = load_weights(name, dtype, "cpu")
    model = LlamaModel(config, weights, dtype)
    load_seconds = time.perf_counter() - start
    del weights
    bandwidth, flops = measure_limits(dtype, model.kernels)
    clock = Clock(Device("here", bandwidth, flops, 0.0), shape_of(config, dtype.itemsize))
    rows = []
    for size in tqdm(BATCH_SIZES, desc="batch sizes", leave=False):
        engine = make_engine(model, size, CONTEXT, NUM_STEPS)
        seconds = statistics.median(time_steps(engine))
        length = CONTEXT + NUM_STEPS // 2
        roof = ideal_seconds(clock, StepWork(size, size, size * length, size * length))
        rows.append(
            {
                "batch": size,
                "milliseconds": 1000 * seconds,
                "tokens_per_second": size / seconds,
                "roof_tokens_per_second": size / roof,
                "share_of_roof": roof / seconds,
            }
        )
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "kernels": model.kernels,
        "attention": engine.executor.attention_backend,
        "bandwidth_GB_per_s": bandwidth / 1e9,
        "peak_GFLOP_per_s": flops / 1e9,
        "load_seconds": load_seconds,
        "steps": rows,
        "breakdown": take_apart(model),
    }


def ideal_seconds(clock: Clock, work: StepWork) -> float:
    """All bytes of the step at full bandwidth or all its FLOPs at the peak, whichever is longer."""
    fetch = Clock(Device("", clock.device.bandwidth, float("inf"), 0.0), clock.model)
    compute = Clock(Device("", float("inf"), clock.device.flops, 0.0), clock.model)
    return max(fetch.seconds(work), compute.seconds(work))


class Stopwatch:
    """Seconds spent in each part; a timed call inside another counts for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._inner = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time added to `part`."""

        @wraps(function, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[part] += spent - self._inner.pop()
                self._inner[-1] += spent

        return run


class TimedOps:
    """The model's small operators, timed."""

    def __init__(self, ops: Any, watch: Stopwatch) -> None:
        for name in ("rms_norm", "apply_rope", "silu_and_mul"):
            setattr(self, name, watch.timed("norms and the like", getattr(ops, name)))


@contextmanager
def watched(engine: Engine, watch: Stopwatch) -> Iterator[None]:
    """The engine with a stopwatch on every part, until the end of the block."""
    executor, scheduler = engine.executor, engine.scheduler
    model = executor.model
    places = [(model, "head", "matrices"), (executor, "_sample", "sampling")]
    for layer in model.layers:
        places += [(layer, name, "matrices") for name in ("qkv", "o", "gate_up", "down")]
    places += [(executor, name, "attention") for name in ("_write", "_attend")]
    places += [(scheduler, name, "bookkeeping") for name in ("schedule", "update_from_output")]
    places += [(AttentionMetadata, "build", "bookkeeping")]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    before.append((model, "ops", model.ops))
    try:
        for owner, name, part in places:
            function = watch.timed(part, getattr(owner, name))
            setattr(owner, name, staticmethod(function) if isinstance(owner, type) else function)
        model.ops = TimedOps(model.ops, watch)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, staticmethod(value) if isinstance(owner, type) else value)


def take_apart(model: LlamaModel) -> dict[str, float]:
    """Milliseconds of a decode step of `BREAKDOWN_AT` requests by part, means over the steps.

    "the rest" is Python between the parts, the residual additions and the embedding.
    """
    engine = make_engine(model, BREAKDOWN_AT, CONTEXT, NUM_STEPS + 1)
    engine.step()  # all prompts
    engine.step()
    watch = Stopwatch()
    with watched(engine, watch):
        step = watch.timed("the rest", engine.step)
        for _ in range(NUM_STEPS):
            step()
    return {part: 1000 * seconds / NUM_STEPS for part, seconds in watch.seconds.items()}


def print_steps(result: dict[str, Any]) -> None:
    """The two tables, and the limits above them."""
    print(
        f"{result['dtype']}, {result['kernels']} kernels, {result['attention']} attention; limits "
        f"here: {result['bandwidth_GB_per_s']:.1f} GB/s, {result['peak_GFLOP_per_s']:.0f} GFLOP/s; "
        f"loaded in {result['load_seconds']:.1f} s"
    )
    print(("{:>8}" + "{:>12}" * 4).format("batch", "ms a step", "tok/s", "roof tok/s", "share"))
    for row in result["steps"]:
        print(
            f"{row['batch']:>8}{row['milliseconds']:>12.1f}{row['tokens_per_second']:>12.0f}"
            f"{row['roof_tokens_per_second']:>12.0f}{row['share_of_roof']:>12.0%}"
        )
    total = sum(result["breakdown"].values())
    print(f"a decode step of {BREAKDOWN_AT} requests, {total:.1f} ms with the stopwatch on:")
    for part, milliseconds in result["breakdown"].items():
        print(f"{part:>20}{milliseconds:>9.2f} ms{milliseconds / total:>8.1%}")
