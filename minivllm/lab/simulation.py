"""Runs of an engine in modelled time: real scheduling, no model, a clock that says how long.

The scheduler, its queues and its blocks are the real ones; only the tokens are not computed. A run
is deterministic, and a laptop runs an A100's hour in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.baselines.systems import System, make_engine
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.lab.clock import Clock, StepWork
from minivllm.lab.jobs import Job
from minivllm.lab.metrics import RequestTimes, summary
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import ModelOutput, SchedulerOutput

TOKEN = 0  # what every request is made of


class CountingExecutor:
    """Answers each complete request with a token and looks at nothing; knows the time.

    clock: None counts one second a step.
    """

    vocab_size = 1

    def __init__(self, clock: Clock | None, block_size: int) -> None:
        self.clock, self.block_size = clock, block_size
        self.now = 0.0
        self._one_token = [TOKEN]

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        """A token for whoever's prompt is complete with this step."""
        if self.clock is None:
            self.now += 1.0
        else:
            self.now += self.clock.seconds(StepWork.of_step(output, self.block_size))
        one_token = self._one_token
        chunks = zip(output.requests, output.num_scheduled_tokens, strict=True)
        return ModelOutput([
            [] if num_new < len(request.token_ids) - request.num_computed_tokens
            else [TOKEN] * request.num_seats if request.num_seats > 1
            else one_token
            for request, num_new in chunks
        ])  # fmt: skip


class CountingRows:
    """The same for static batching: every row, padded, one column a step."""

    vocab_size = 1

    def __init__(self, clock: Clock | None) -> None:
        self.clock = clock
        self.now = 0.0
        self.rows: list[Request] = []
        self.num_columns = 0

    def execute(self, rows: list[Request]) -> list[int]:
        num_new = 1
        if rows is not self.rows:
            self.rows, self.num_columns = rows, 0
            num_new = max(request.num_tokens for request in rows)
        work = StepWork.of_rows(rows, self.num_columns, num_new)
        self.num_columns += num_new
        self.now += 1.0 if self.clock is None else self.clock.seconds(work)
        return [TOKEN] * len(rows)


@dataclass(frozen=True)
class Simulated:
    """Executors (baselines/systems.py) for modelled time."""

    clock: Clock | None

    def paged(self, config: SchedulerConfig) -> CountingExecutor:
        return CountingExecutor(self.clock, config.block_size)

    def lockstep(self, batch_size: int, max_model_len: int) -> CountingRows:
        return CountingRows(self.clock)


@dataclass
class Simulation:
    """What a run brought: the times of every request, and how long the line was.

    queue: (seconds, requests waiting) after each step in which that number changed.
    """

    engine: Engine | StaticBatchingEngine
    requests: list[RequestTimes] = field(default_factory=list)
    queue: list[tuple[float, int]] = field(default_factory=list)
    num_steps: int = 0
    num_request_steps: int = 0

    @property
    def seconds(self) -> float:
        """Modelled time from 0 to the end of the last step."""
        return self.engine.executor.now

    def summary(self) -> dict[str, object]:
        return summary(self.requests, self.seconds)


def simulate(
    system: System,
    config: SchedulerConfig,
    jobs: Iterable[Job],
    clock: Clock | None,
    observer: Callable[..., None] | None = None,
    on_ended: Callable[[int], None] | None = None,
) -> Simulation:
    """Give `jobs`, in the order of their arrivals, to a system; returns when the last has ended.

    A job that the system refuses counts as failed. `observer` is called by the engine after each
    step, `on_ended` with the number of requests that a step has ended.
    """
    declared: dict[str, int] = {}
    engine = make_engine(
        system, config, Simulated(clock), lambda r: declared.get(r.request_id, r.max_tokens)
    )
    if observer is not None:
        engine.observers.append(observer)
    run = Simulation(engine)
    coming = iter(jobs)
    job = next(coming, None)
    while job is not None or engine.has_unfinished_requests:
        if not engine.has_unfinished_requests:
            engine.executor.now = max(engine.executor.now, job.arrival)
        while job is not None and job.arrival <= engine.executor.now:
            _submit(run, job, declared)
            job = next(coming, None)
        _step(run, on_ended)
    return run


def _submit(run: Simulation, job: Job, declared: dict[str, int]) -> None:
    times = RequestTimes(job.arrival)
    request_id = str(len(run.requests))
    run.requests.append(times)
    if job.max_new_tokens is not None:
        declared[request_id] = job.max_new_tokens
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=job.output_len)
    try:
        run.engine.add_request(request_id, [TOKEN] * job.prompt_len, params)
    except ValueError:
        times.failed = True


def _step(run: Simulation, on_ended: Callable[[int], None] | None) -> None:
    engine, requests, num_ended = run.engine, run.requests, 0
    outputs = engine.step()
    now = engine.executor.now
    for output in outputs:
        requests[int(output.request_id)].token_times.append(now)
        if output.finish_reason is not None:
            num_ended += 1
    run.num_steps += 1
    run.num_request_steps += len(outputs)
    is_static = isinstance(engine, StaticBatchingEngine)
    num_waiting = len(engine.waiting if is_static else engine.scheduler.waiting)
    if not run.queue or run.queue[-1][1] != num_waiting:
        run.queue.append((now, num_waiting))
    if on_ended is not None and num_ended:
        on_ended(num_ended)
