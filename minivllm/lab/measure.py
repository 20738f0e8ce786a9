"""Run a workload through an engine and take the time of every token.

All requests arrive at once, at second 0; what the times mean is defined in metrics.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from minivllm.lab.metrics import RequestTimes, spread
from minivllm.lab.workload import Workload
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import EngineOutput


class SteppingEngine(Protocol):
    """What Engine and StaticBatchingEngine have in common."""

    @property
    def has_unfinished_requests(self) -> bool: ...

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None: ...

    def step(self) -> list[EngineOutput]: ...


@dataclass
class Run:
    """One run of a workload. token_times: a list per request, in seconds since all arrived.

    num_steps is None for an engine that does not tell; token_ids: a list per request.
    """

    seconds: float
    num_steps: int | None
    token_times: list[list[float]]
    facts: dict[str, Any] = field(default_factory=dict)  # what only this engine can tell
    token_ids: list[list[int]] | None = None
    peak_memory_bytes: int | None = None  # of the engine's process while the run went on

    @property
    def num_tokens(self) -> int:
        return sum(len(times) for times in self.token_times)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    def summary(self) -> dict[str, Any]:
        """All figures of the run, times in seconds."""
        requests = [RequestTimes(0.0, times) for times in self.token_times if times]
        return {
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            "steps": self.num_steps,
            "generated_tokens": self.num_tokens,
            "ttft": spread(request.ttft for request in requests),
            "tpot": spread(r.tpot for r in requests if r.tpot is not None),
            "peak_memory_bytes": self.peak_memory_bytes,
            **self.facts,
        }


def run_workload(
    engine: SteppingEngine, workload: Workload, on_step: Callable[[int], None] | None = None
) -> Run:
    """Give the engine all requests at once and step it until the last has ended.

    `on_step` is told how many tokens each step brought.
    """
    for index, item in enumerate(workload.items):
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=item.max_tokens)
        engine.add_request(str(index), item.prompt_token_ids, params)
    token_times: list[list[float]] = [[] for _ in workload.items]
    token_ids: list[list[int]] = [[] for _ in workload.items]
    num_steps = 0
    start = time.perf_counter()
    while engine.has_unfinished_requests:
        outputs = engine.step()
        now = time.perf_counter() - start
        num_steps += 1
        for output in outputs:
            token_times[int(output.request_id)] += [now] * len(output.new_token_ids)
            token_ids[int(output.request_id)] += output.new_token_ids
        if on_step is not None:
            on_step(sum(len(output.new_token_ids) for output in outputs))
    return Run(time.perf_counter() - start, num_steps, token_times, token_ids=token_ids)
