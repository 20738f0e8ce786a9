"""Anyscale (June 2023): throughput against the spread of the output lengths.

1000 prompts of exactly 512 tokens at once; outputs exponential with mean 128, draws above a cap
drawn again. A small cap makes all lengths nearly equal, and static batching nearly ties.
"""

from __future__ import annotations

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock
from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.experiments.memory import NUM_SLOTS
from minivllm.lab.lengths import exponential_redrawn
from minivllm.lab.simulation import simulate

BATCH_SIZES = {32: 16, 128: 12, 512: 8, 1536: 4}  # of static batching, by cap
VLLM = {32: 6121, 128: 3592, 512: 2029, 1536: 1898}  # tokens a second
STATIC_AT_1536 = 81
NAMES = ("static", "orca-max", "vllm")
IDEAL = (
    "a roofline is faster than the software of 2023 at both ends: about 2 times for vLLM, and more "
    "for a naive static loop, whose Python and padding it does not know"
)


def run(case: str, options: Options) -> Result:
    """Prompt and output tokens a second, as the blog counts them."""
    cap, name = case.split("/")
    jobs = exponential_redrawn(options.number(1000, 64), int(cap))
    size = 1 if SYSTEMS[name].contiguous else 16
    num_slots = NUM_SLOTS
    max_model_len = 512 + int(cap)
    if name == "static":
        num_slots = BATCH_SIZES[int(cap)] * max_model_len
    config = SchedulerConfig(
        num_blocks=num_slots // size, block_size=size, max_num_seqs=256,
        max_num_batched_tokens=2560, max_model_len=max_model_len,
    )  # fmt: skip
    done = simulate(SYSTEMS[name], config, jobs, Clock(A100_40GB, OPT_13B))
    num_tokens = sum(job.num_tokens for job in jobs)
    return {"tokens_per_second": num_tokens / done.seconds, "steps": done.num_steps}


def read(results: Results) -> list[Finding]:
    rate = {case: result["tokens_per_second"] for case, result in results.items()}
    findings = []
    for cap, theirs in VLLM.items():
        if f"{cap}/vllm" in rate:
            what = f"vLLM, outputs up to {cap}"
            why = IDEAL if cap == 32 else ""
            findings.append(Finding(what, rate[f"{cap}/vllm"], MODELLED, theirs, "tok/s", why))
    if "1536/static" in rate:
        what = "static, outputs up to 1536"
        findings.append(Finding(what, rate["1536/static"], MODELLED, STATIC_AT_1536, "tok/s"))
    for name, theirs in (("vllm", 23), ("orca-max", 8)):
        if {f"1536/{name}", "1536/static"} <= set(rate):
            ratio = rate[f"1536/{name}"] / rate["1536/static"]
            what = f"{name} over static, outputs up to 1536"
            why = "their static is naive PyTorch; over an optimized static (FasterTransformer) the "
            why += f"blog has {theirs / 4:.3g} x"
            findings.append(Finding(what, ratio, MODELLED, theirs, "x", why))
    for cap in BATCH_SIZES:
        if {f"{cap}/vllm", f"{cap}/static"} <= set(rate):
            ratio = rate[f"{cap}/vllm"] / rate[f"{cap}/static"]
            findings.append(Finding(f"vllm over static, outputs up to {cap}", ratio, MODELLED,
                                    unit="x"))  # fmt: skip
    return findings


ANYSCALE = Experiment(
    "anyscale",
    "Anyscale's throughput against output-length variance",
    "OPT-13B on an A100-40GB; prompts of 512 tokens, all at once; static batches of 16, 12, 8, 4",
    [f"{cap}/{name}" for cap in BATCH_SIZES for name in NAMES],
    run,
    read,
)
