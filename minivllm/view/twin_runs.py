"""One small workload run by both ways of batching, on the torch-free twin: for figures and tests.

Both are the real engines; only the model is replaced. The tokens are the same either way, and so is
the KV memory: static batching gives it out as rows, continuous batching as blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor, extend_digest
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.view.recorder import record
from minivllm.view.trace import Trace


class Job(NamedTuple):
    """What one user asks for."""

    name: str
    prompt_token_ids: list[int]
    max_tokens: int


class TwinRows(FakeExecutor):
    """The twin of the model for static batching: a row's token follows from all its tokens."""

    def __init__(self) -> None:
        super().__init__(num_blocks=1, block_size=1)

    def execute(self, rows: list[Request]) -> list[int]:
        """A token for each row, ended or not; the tokens of those that have ended are dropped."""
        return [self._sample(request, self._digest(request))[0] for request in rows]

    def _digest(self, request: Request) -> int:
        digest = 0
        for token_id in request.token_ids:
            digest = extend_digest(digest, token_id)
        return digest


def jobs_of(prompts: Sequence[int], outputs: Sequence[int], seed: int = 0) -> list[Job]:
    """Jobs with random prompts of the given lengths, named r0, r1, ..."""
    rng = random.Random(seed)
    return [
        Job(f"r{i}", [rng.randrange(1000) for _ in range(length)], most)
        for i, (length, most) in enumerate(zip(prompts, outputs, strict=True))
    ]


def run_continuous(
    jobs: Sequence[Job], config: SchedulerConfig, title: str = "", arrivals: Sequence[int] = ()
) -> Trace:
    """Jobs through the engine, recorded. arrivals: the iterations before each comes (0 for all)."""
    executor = FakeExecutor(
        config.num_blocks, config.block_size, num_host_blocks=config.num_host_blocks
    )
    engine = Engine(Scheduler(config), executor)
    return _run(engine, jobs, title or "Continuous batching", config.block_size, arrivals)


def run_static(
    jobs: Sequence[Job], batch_size: int, max_model_len: int, block_size: int, title: str = ""
) -> Trace:
    """All jobs at once through static batching, recorded."""
    engine = StaticBatchingEngine(TwinRows(), batch_size, max_model_len)
    return _run(engine, jobs, title or "Static batching", block_size)


def _run(
    engine: Engine | StaticBatchingEngine,
    jobs: Sequence[Job],
    title: str,
    size: int,
    arrivals: Sequence[int] = (),
) -> Trace:
    trace = record(engine, title=title, block_size=size)
    coming = list(zip(jobs, arrivals or [0] * len(jobs), strict=True))
    while coming or engine.has_unfinished_requests:
        now = len(trace) - 1
        for job, _ in (pair for pair in coming if pair[1] <= now):
            params = SamplingParams(temperature=0, max_tokens=job.max_tokens)
            engine.add_request(job.name, job.prompt_token_ids, params)
        coming = [pair for pair in coming if pair[1] > now]
        engine.step()
    return trace
