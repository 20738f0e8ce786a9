"""vLLM's Figures 18 and 19: which block size, and whether to recompute or to swap.

Large blocks lose their empty ends; small ones cost the attention kernel (which a roofline does not
know) and make swapping many small copies (which it does).
"""

from __future__ import annotations

from minivllm.baselines.systems import SYSTEMS
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock
from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.experiments.memory import config_of
from minivllm.lab.kv_split import KVMeter
from minivllm.lab.lengths import alpaca_like, sharegpt_like
from minivllm.lab.simulation import simulate

SIZES = (1, 8, 16, 32, 64, 128, 256)
WORKLOADS = ("sharegpt", "alpaca")
LOST_TOKENS = 256  # of one preempted request
GOOD = {"sharegpt": range(16, 129), "alpaca": range(16, 33)}  # sizes that the paper calls good


def run(case: str, options: Options) -> Result:
    workload, number = case.split("/")
    block_size = int(number)
    clock = Clock(A100_40GB, OPT_13B)
    if workload == "swap":
        num_blocks = -(-LOST_TOKENS // block_size)
        one_way = clock.swap_seconds(num_blocks * block_size, num_blocks)
        recompute = clock.recompute_seconds(LOST_TOKENS)
        return {"swap_ms": 2000 * one_way, "recompute_ms": 1000 * recompute}
    if workload == "sharegpt":
        jobs = sharegpt_like(options.number(600, 100))
    else:
        jobs = alpaca_like(options.number(2500, 600))
    meter = KVMeter(every=5, skip=len(jobs) // 12)
    done = simulate(SYSTEMS["vllm"], config_of("vllm", block_size), jobs, clock, meter)
    return {
        "share_of_used": meter.split.share_of_used,
        "running": meter.split.mean_running,
        "throughput": done.summary()["throughput"],
    }


def read(results: Results) -> list[Finding]:
    findings = []
    for workload in WORKLOADS:
        rows = {size: results.get(f"{workload}/{size}") for size in SIZES}
        best = max((row["throughput"] for row in rows.values() if row), default=0.0)
        for size, row in rows.items():
            if row is None:
                continue
            good = GOOD[workload]
            why = f"the paper: {'good' if size in good else 'worse'} at this size" * (size >= 16)
            if size == 1:
                why = "the paper's kernel is slower on small blocks, which a roofline does not know"
            what = f"throughput at block size {size}, {workload}"
            share = 100 * row["throughput"] / best
            findings.append(Finding(what, share, MODELLED, None, "% of the best", why))
            what = f"token states in the memory in use at {size}, {workload}"
            findings.append(Finding(what, row["share_of_used"], MODELLED, None, "%"))
    for size in SIZES:
        if row := results.get(f"swap/{size}"):
            ratio = row["swap_ms"] / row["recompute_ms"]
            why = {1: "the paper: poor at small blocks", 16: "the paper: equal from 16 to 64"}
            what = f"swapping over recomputing {LOST_TOKENS} tokens at {size}"
            findings.append(Finding(what, ratio, MODELLED, None, "x", why.get(size, "")))
    return findings


BLOCKS = Experiment(
    "blocks",
    "vLLM's Figures 18 and 19: block size, and recompute against swap",
    "OPT-13B on an A100-40GB, a line that never ends; swapping copies K and V of each block and "
    "layer on its own, 10 us a copy and 25 GB/s, out and in again",
    [f"{workload}/{size}" for workload in (*WORKLOADS, "swap") for size in SIZES],
    run,
    read,
)
