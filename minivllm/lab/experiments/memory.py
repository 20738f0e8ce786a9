"""vLLM's Figures 2 and 13: where the KV memory goes, and how many requests it lets run together.

Both are counts of a busy server, so they need no clock that is right, only a line that never ends:
all requests come at once, and moments are counted while somebody waits.
"""

from __future__ import annotations

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab.arrivals import poisson
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock, num_kv_slots
from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.jobs import Job, arriving
from minivllm.lab.kv_split import KVMeter
from minivllm.lab.lengths import alpaca_like, sharegpt_like
from minivllm.lab.simulation import simulate

NUM_SLOTS = num_kv_slots(OPT_13B, 12 * 2**30)  # 15,728: the paper's 12 GB
NAMES = ("orca-max", "orca-pow2", "orca-oracle", "vllm")
PARTS = ("token_states", "reservation", "internal", "external")
FIGURE_2 = {
    "orca-max": (20.4, 13.3, 57.3, 8.9),
    "orca-pow2": (26.8, 17.9, 13.6, 41.6),
    "orca-oracle": (38.2, 25.2, 0.0, 36.6),
    "vllm": (96.3, None, None, None),
}
FIGURE_13 = {
    "sharegpt": dict(zip(NAMES, (7.00, 9.81, 13.62, 30.42), strict=True)),
    "alpaca": dict(zip(NAMES, (7.00, 43.24, 72.75, 132.44), strict=True)),
}
AT_30_PER_SECOND = "alpaca/vllm/30 per second"
PIECES = (
    "the piece that a request needs jumps at each power of two, so this depends on the shape of "
    "the lengths, of which only the means are published"
)
NOT_FULL = (
    "the paper's 30 requests a second do not fill vLLM's memory, and a full line does; how many "
    "run below saturation is rate times latency, and a roofline's latency is shorter than theirs"
)


def config_of(name: str, block_size: int = 16) -> SchedulerConfig:
    """The paper's memory and limits; contiguous systems count single slots."""
    size = 1 if SYSTEMS[name].contiguous else block_size
    return SchedulerConfig(
        num_blocks=NUM_SLOTS // size, block_size=size, max_num_seqs=256,
        max_num_batched_tokens=2560, max_model_len=2048,
    )  # fmt: skip


def jobs_of(workload: str, options: Options) -> list[Job]:
    """The workload's jobs, all at once: enough for the line not to end early."""
    if workload == "sharegpt":
        return sharegpt_like(options.number(1200, 150))
    return alpaca_like(options.number(5000, 900))


def run(case: str, options: Options) -> Result:
    """One system on one workload, its memory looked at in every tenth step."""
    workload, name, *rate = case.split("/")
    jobs = jobs_of(workload, options)
    meter = KVMeter(every=10, skip=len(jobs) // 12)
    if rate:
        jobs = arriving(jobs, poisson(30.0, len(jobs)))
    done = simulate(SYSTEMS[name], config_of(name), jobs, Clock(A100_40GB, OPT_13B), meter)
    if rate:
        return {"running": done.num_request_steps / done.num_steps}
    split = meter.split
    return {
        "shares": split.shares,
        "share_of_used": split.share_of_used,
        "running": split.mean_running,
        "preemptions": done.engine.scheduler.stats.num_preemptions,
    }


def read(results: Results) -> list[Finding]:
    findings = []
    for name in NAMES:
        if result := results.get(f"sharegpt/{name}"):
            for part, theirs in zip(PARTS, FIGURE_2[name], strict=True):
                what = f"Figure 2, {name}, {part.replace('_', ' ')}"
                why = PIECES if (name, part) == ("orca-pow2", "external") else ""
                share = result["shares"][part]
                findings.append(Finding(what, share, MODELLED, theirs, "% of KV", why))
    for workload in ("sharegpt", "alpaca"):
        if result := results.get(f"{workload}/vllm"):
            why = "blocks of 16 lose 8 slots a request, and these have about 60" * (
                workload == "alpaca"
            )
            what = f"token states in the memory in use, {workload}"
            findings.append(Finding(what, result["share_of_used"], MODELLED, None, "%", why))
    for workload, row in FIGURE_13.items():
        for name, theirs in row.items():
            if result := results.get(f"{workload}/{name}"):
                why = NOT_FULL if (workload, name) == ("alpaca", "vllm") else ""
                what = f"Figure 13, {workload}, {name}"
                findings.append(
                    Finding(what, result["running"], MODELLED, theirs, "requests", why)
                )
    if result := results.get(AT_30_PER_SECOND):
        theirs = FIGURE_13["alpaca"]["vllm"]
        what = "Figure 13, alpaca, vllm, at 30 requests a second"
        why = "by Little's law theirs took 4.4 s a request, 75 ms a token: 4 times the roofline"
        findings.append(Finding(what, result["running"], MODELLED, theirs, "requests", why))
    return findings


MEMORY = Experiment(
    "memory",
    "vLLM's Figures 2 and 13: where the KV memory goes, and how many requests run together",
    f"OPT-13B, {NUM_SLOTS:,} KV slots (12 GB on an A100-40GB), a line that never ends, lengths "
    "log-normal with the published means of ShareGPT and Alpaca, blocks of 16",
    [f"{workload}/{name}" for workload in FIGURE_13 for name in NAMES] + [AT_30_PER_SECOND],
    run,
    read,
)
