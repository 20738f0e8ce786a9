"""Open loop: requests come at their own pace; how long until each of the systems answers.

Below its knee a system answers in about the time of a prefill; above it the line grows for as long
as requests come, and with it the wait.
"""

from __future__ import annotations

from dataclasses import replace

from minivllm.baselines.systems import SYSTEMS
from minivllm.lab.arrivals import poisson
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock
from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.experiments.memory import config_of
from minivllm.lab.jobs import Job, arriving
from minivllm.lab.lengths import MAX_LEN, sharegpt_like
from minivllm.lab.metrics import goodput, within
from minivllm.lab.simulation import simulate

RATES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
ASKED = 1024  # max_new_tokens of every user who does not need more
TARGET = within(ttft=2.0, tpot=0.1)
KNEE = 5.0  # seconds of median time to first token


def jobs_at(rate: float, options: Options) -> list[Job]:
    """Chats, Poisson arrivals; users ask for 1024 tokens, or for more where more will come."""
    jobs = [
        replace(job, max_new_tokens=min(max(ASKED, job.output_len), MAX_LEN - job.prompt_len))
        for job in sharegpt_like(options.number(400, 60))
    ]
    return arriving(jobs, poisson(rate, len(jobs)))


def run(case: str, options: Options) -> Result:
    name, rate = case.split("/")
    jobs = jobs_at(float(rate), options)
    done = simulate(SYSTEMS[name], config_of(name), jobs, Clock(A100_40GB, OPT_13B))
    summary = done.summary()
    last = jobs[-1].arrival
    thin = max(len(done.queue) // 300, 1)
    return {
        "ttft": summary["ttft"],
        "tpot": summary["tpot"],
        "normalized_latency": summary["normalized_latency"],
        "in_time": goodput(done.requests, len(done.requests), TARGET),
        "waiting_at_the_last_arrival": [n for t, n in done.queue if t <= last][-1],
        "queue": done.queue[::thin],
    }


def read(results: Results) -> list[Finding]:
    findings = []
    for name in SYSTEMS:
        rows = [(rate, results.get(f"{name}/{rate}")) for rate in RATES]
        held = [rate for rate, row in rows if row and row["ttft"]["p50"] <= KNEE]
        if any(row for _, row in rows):
            what = f"highest rate with a median TTFT of {KNEE:g} s, {name}"
            findings.append(Finding(what, max(held, default=0.0), MODELLED, unit="req/s"))
    for name in SYSTEMS:
        if row := results.get(f"{name}/2.0"):
            what = f"TTFT p50 at 2 requests a second, {name}"
            findings.append(Finding(what, row["ttft"]["p50"], MODELLED, unit="s"))
    return findings


ONLINE = Experiment(
    "online",
    "Online: time to first token against request rate",
    f"OPT-13B on an A100-40GB, ShareGPT-like, Poisson arrivals; users ask for {ASKED} tokens",
    [f"{name}/{rate}" for name in SYSTEMS for rate in RATES],
    run,
    read,
)
