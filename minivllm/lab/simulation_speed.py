"""How fast the laboratory runs: 100,000 simulated requests of the Azure conversation's lengths.

vLLM's settings, Poisson arrivals near what a modelled A100-40GB with Llama-3-8B sustains; every
decision is the real scheduler's. `python -m minivllm.lab.simulation_speed [REQUESTS]`
"""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab.arrivals import poisson
from minivllm.lab.clock import A100_40GB, LLAMA_3_8B, Clock, num_kv_slots
from minivllm.lab.jobs import arriving
from minivllm.lab.lengths import trace_shaped
from minivllm.lab.simulation import simulate

REQUESTS, RATE = 100_000, 10.0
KV_BYTES = 20 * 2**30


def main(num_requests: int = REQUESTS) -> dict[str, float]:
    """Simulate, print and return requests and steps per second of CPU time."""
    jobs = arriving(trace_shaped(num_requests, "azure_conversation"), poisson(RATE, num_requests))
    config = SchedulerConfig(
        num_blocks=num_kv_slots(LLAMA_3_8B, KV_BYTES, 16) // 16, max_num_seqs=256,
        max_num_batched_tokens=2048, max_model_len=16384,
    )  # fmt: skip
    clock = Clock(A100_40GB, LLAMA_3_8B)
    with tqdm(total=num_requests, unit="request", leave=False) as bar:
        begin = time.process_time()
        run = simulate(SYSTEMS["vllm"], config, jobs, clock, on_ended=bar.update)
        seconds = time.process_time() - begin
    figures = {
        "seconds": seconds,
        "requests_per_second": num_requests / seconds,
        "steps_per_second": run.num_steps / seconds,
        "us_per_request_step": 1e6 * seconds / run.num_request_steps,
        "mean_batch": run.num_request_steps / run.num_steps,
        "modelled_seconds": run.seconds,
    }
    for name, value in figures.items():
        print(f"{name:<22} {value:,.1f}")
    return figures


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
