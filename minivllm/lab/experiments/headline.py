"""The claim: continuous batching with paging has 5 to 10 times static batching's throughput.

Both have the same KV memory, 16 rows of the longest request. Seven of eight outputs are short and
one is long, with the same mean throughout; the longer the long ones, the larger the spread (the
coefficient of variation, CV) and the more of a static batch is spent on rows that have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab.clock import A100_40GB, H200, LLAMA_3_8B, Clock
from minivllm.lab.experiment import (
    MEASURED,
    MODELLED,
    Experiment,
    Finding,
    Options,
    Result,
    Results,
)
from minivllm.lab.jobs import Job, make_prompt
from minivllm.lab.lengths import short_and_long
from minivllm.lab.simulation import simulate

ROWS, MAX_AT_ONCE = 16, 64
DEVICES = {"A100-40GB": A100_40GB, "H200": H200}
SHORT = (294, 250, 200, 150, 100, 50)  # of a mean of 294 tokens; the long ones make up for it
SHORT_HERE = (48, 40, 32, 24, 16, 8)  # of a mean of 48, for a CPU
CPU = "this CPU"
CLAIM = "claimed: 5 to 10 x on mixed lengths"


def jobs_of(short: int, mean: int, num_jobs: int, prompt_len: int) -> list[Job]:
    """Seven short outputs for each long one: 7 * short + long = 8 * mean.

    >>> sorted({job.output_len for job in jobs_of(50, 294, 16, 8)})
    [50, 2002]
    """
    return short_and_long(num_jobs, prompt_len, short, 8 * mean - 7 * short)


def variation(jobs: Sequence[Job]) -> float:
    """Standard deviation of the output lengths over their mean."""
    mean = sum(job.output_len for job in jobs) / len(jobs)
    return (sum((job.output_len - mean) ** 2 for job in jobs) / len(jobs)) ** 0.5 / mean


def run(case: str, options: Options) -> Result:
    """Modelled: both systems on one device at one spread."""
    device, short = case.split("/")
    jobs = jobs_of(int(short), 294, options.number(512, 64) // 8 * 8, 128)
    clock = Clock(DEVICES[device], LLAMA_3_8B)
    row_slots = -(-max(job.num_tokens for job in jobs) // 16) * 16
    config = SchedulerConfig(
        num_blocks=ROWS * row_slots // 16, max_num_seqs=MAX_AT_ONCE, max_model_len=row_slots,
        max_num_batched_tokens=2048,
    )  # fmt: skip
    static, paged = (simulate(SYSTEMS[name], config, jobs, clock) for name in ("static", "vllm"))
    rates = [run.summary()["throughput"] for run in (static, paged)]
    return _result(jobs, rates, [static.num_steps, paged.num_steps])


def _result(jobs: Sequence[Job], rates: Sequence[float], steps: Sequence[int]) -> dict[str, Any]:
    return {
        "cv": variation(jobs),
        "static": rates[0],
        "continuous": rates[1],
        "ratio": rates[1] / rates[0],
        "steps": list(steps),
    }


def run_here(case: str, options: Options) -> Result:
    """Measured: both engines with the real model on this machine, each warmed up."""
    from minivllm.lab.contestants import run_minivllm, run_static
    from minivllm.lab.experiments.real_model import load_model
    from minivllm.lab.workload import WorkItem, Workload

    model = load_model(options)
    short = int(case.split("/")[1])
    jobs = jobs_of(short, 48, options.number(128, 16) // 8 * 8, 32)
    vocab_size = model.config.vocab_size
    items = [
        WorkItem(make_prompt(job, index, vocab_size), job.output_len)
        for index, job in enumerate(jobs)
    ]
    row_slots = -(-max(job.num_tokens for job in jobs) // 16) * 16
    workload = Workload("headline", items, ROWS, row_slots, MAX_AT_ONCE)
    runs = []
    for contestant in (run_static, run_minivllm):
        warm_up = Workload("warm-up", items[:4], ROWS, row_slots, MAX_AT_ONCE)
        contestant(model, warm_up, lambda num_tokens: None)
        runs.append(contestant(model, workload, lambda num_tokens: None))
    return _result(jobs, [r.tokens_per_second for r in runs], [r.num_steps for r in runs])


def read(results: Results, label: str = MODELLED) -> list[Finding]:
    findings = []
    for case, result in results.items():
        device = case.split("/")[0]
        what = f"continuous over static, {device}, CV {result['cv']:.2f}"
        why = CLAIM if result["cv"] > 2 else ""
        if result["cv"] < 0.01:
            why = "equal lengths: no row waits for another; left is memory not held before its time"
        findings.append(Finding(what, result["ratio"], label, unit="x", why=why))
    return findings


CONDITIONS = (
    f"the same KV memory ({ROWS} rows of the longest request), up to {MAX_AT_ONCE} at once where "
    "it allows; seven short outputs for one long, equal means"
)
HEADLINE = Experiment(
    "headline",
    "The headline: static against continuous batching with paging (modelled)",
    f"Llama-3-8B; {CONDITIONS} of 294 tokens; prompts of 128",
    [f"{device}/{short}" for device in DEVICES for short in SHORT],
    run,
    read,
)
HEADLINE_HERE = Experiment(
    "headline-here",
    "The headline: static against continuous batching with paging (measured)",
    f"the real model on this CPU; {CONDITIONS} of 48 tokens; prompts of 32",
    [f"{CPU}/{short}" for short in SHORT_HERE],
    run_here,
    lambda results: read(results, MEASURED),
    measures=True,
)
