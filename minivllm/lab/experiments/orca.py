"""Orca (OSDI 2022): iteration-level against request-level batching, by latency and rate.

The rate at which the median normalized latency reaches a target is found by halving an interval.
"""

from __future__ import annotations

from dataclasses import replace

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab.arrivals import poisson
from minivllm.lab.clock import A100_40GB, GPT_3, Clock, num_kv_slots
from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.jobs import Job, arriving
from minivllm.lab.lengths import orca_mix, uniform
from minivllm.lab.simulation import simulate

NUM_GPUS = 16
DEVICE = replace(
    A100_40GB,
    name="16 x A100-40GB, as if one",
    bandwidth=NUM_GPUS * A100_40GB.bandwidth,
    flops=NUM_GPUS * A100_40GB.flops,
)
MAX_LEN = 640  # 512 + 128
NUM_SLOTS = num_kv_slots(GPT_3, NUM_GPUS * 36e9 - GPT_3.weight_bytes)
BATCH_SIZE = 32
SLOWDOWN = 2.0  # the target: this many times the latency of an idle server
WHY = (
    "only the shape can be reproduced: theirs runs a pipeline over 16 GPUs, which request-level "
    "batching leaves idle between micro-batches, and this device has no such bubbles"
)


def latency_at(rate: float, name: str, jobs: list[Job]) -> float:
    """Median normalized latency, in seconds a token, of Poisson arrivals at `rate`."""
    size = 1 if SYSTEMS[name].contiguous else 16
    config = SchedulerConfig(
        num_blocks=NUM_SLOTS // size, block_size=size, max_num_seqs=BATCH_SIZE,
        max_num_batched_tokens=2048, max_model_len=MAX_LEN,
    )  # fmt: skip
    coming = arriving(jobs, poisson(rate, len(jobs)))
    done = simulate(SYSTEMS[name], config, coming, Clock(DEVICE, GPT_3))
    return done.summary()["normalized_latency"]["p50"]


def run(case: str, options: Options) -> Result:
    """The highest rate within the target, and the curve that was walked on the way."""
    lengths, name = case.split("/")
    num_jobs = options.number(400, 80)
    jobs = orca_mix(num_jobs) if lengths == "mixed" else uniform(num_jobs, (272, 272), (64, 64))
    target = SLOWDOWN * latency_at(0.001, name, jobs[:50])
    low, high = 0.05, 60.0
    curve = []
    for _ in range(9):
        rate = (low * high) ** 0.5
        latency = latency_at(rate, name, jobs)
        curve.append((rate, latency))
        low, high = (rate, high) if latency <= target else (low, rate)
    return {"rate": low, "target": target, "curve": sorted(curve)}


def read(results: Results) -> list[Finding]:
    rate = {case: result["rate"] for case, result in results.items()}
    findings = [
        Finding(f"requests a second, {case.replace('/', ', ')}", value, MODELLED, unit="req/s")
        for case, value in rate.items()
    ]
    for lengths, theirs in (("mixed", 36.9), ("equal", None)):
        if {f"{lengths}/orca-max", f"{lengths}/static"} <= set(rate):
            ratio = rate[f"{lengths}/orca-max"] / rate[f"{lengths}/static"]
            why = WHY if theirs else "the gap shrinks as lengths become equal, as they found"
            what = f"iteration-level over request-level, {lengths} lengths"
            findings.append(Finding(what, ratio, MODELLED, theirs, "x", why))
    return findings


ORCA = Experiment(
    "orca",
    "Orca: iteration-level against request-level batching",
    f"GPT-3 175B on 16 A100 as if one device, prompts 32..512, outputs 1..128, Poisson; batches of "
    f"{BATCH_SIZE}; rate at {SLOWDOWN:g} times the idle server's median normalized latency",
    [f"{lengths}/{name}" for lengths in ("mixed", "equal") for name in ("static", "orca-max")],
    run,
    read,
)
