"""A learner's part in the full engine: the run is watched, and the first rule it breaks is named.

    def examine(exam, MyPool):
        run = trial(jobs([6, 9, 5], outputs=[8, 8, 8]), SchedulerConfig(8, 4), pool=MyPool)
        exam.equal(run.num_steps, 12, "the number of iterations")

The rules are the design's: blocks are counted right, a slot holds what the request wrote there, a
step keeps its limits, everybody gets to the end, nothing is held then, and the tokens of a request
are those it gets alone. A broken one is a Wrong with the block map of that iteration as its
picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minivllm.admission import known_tokens
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor
from minivllm.lab.checked_pool import CheckedPool
from minivllm.lab.exam import Wrong
from minivllm.lab.step_rules import check_schedule
from minivllm.request import Request
from minivllm.request_queue import RequestQueue
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.view.block_map import BlockMap
from minivllm.view.recorder import Recorder
from minivllm.view.trace import Trace
from minivllm.view.twin_runs import Job, jobs_of

MOST_LINES = 14  # of a picture


@dataclass
class TrialRun:
    """A run that has kept every rule."""

    engine: Engine
    trace: Trace
    tokens: dict[str, list[int]]  # of each request

    @property
    def num_steps(self) -> int:
        return len(self.trace) - 1

    @property
    def events(self) -> list[str]:
        """Every decision of the scheduler, as sentences."""
        return [str(event) for frame in self.trace for event in frame.events]


def jobs(prompts: Sequence[int], outputs: Sequence[int], seed: int = 0) -> list[Job]:
    """Requests r0, r1, ... with random prompts of these lengths; outputs: their max_tokens."""
    return jobs_of(prompts, outputs, seed)


def trial(
    work: Sequence[Job],
    config: SchedulerConfig,
    *,
    scheduler: type[Scheduler] = Scheduler,
    pool: Callable[[int], Any] | None = None,
    policy: Callable[[Request], float] | None = None,
    reserve: Callable[[Request], int] = known_tokens,
    executor: Any = None,
    arrivals: Sequence[int] | None = None,
    temperature: float = 0,
    most_steps: int = 400,
) -> TrialRun:
    """Run `work` on an engine with the given parts; raises Wrong at the first broken rule.

    pool(num_blocks) needs only get_new_blocks(n), free_blocks(block_ids), num_free_blocks and,
    where blocks are shared, touch(block_ids). executor: FakeExecutor unless given. arrivals: the
    number of iterations before each request comes (0 for all).
    """
    options: dict[str, Any] = {"reserve": reserve}
    if pool is not None:
        options["pool"] = CheckedPool(pool(config.num_blocks), config.num_blocks)
    parts = scheduler(config, **options)
    if policy is not None:
        parts.waiting = RequestQueue(policy)
    engine = Engine(parts, executor or fake_executor(config))
    watched = _Watched(engine, Recorder(engine).trace)
    arrivals = arrivals or [0] * len(work)
    while engine.has_unfinished_requests or watched.step <= max(arrivals, default=0):
        for job, arrival in zip(work, arrivals, strict=True):
            if arrival == watched.step:
                params = _params(job, temperature)
                watched.guard(engine.add_request, job.name, job.prompt_token_ids, params)
        watched.take_step(most_steps)
    watched.check_end(work, config, temperature)
    return TrialRun(engine, watched.trace, watched.tokens)


def fake_executor(config: SchedulerConfig) -> FakeExecutor:
    """The twin that notices every wrong slot, for an engine of this config."""
    return FakeExecutor(
        config.num_blocks, config.block_size, num_host_blocks=config.num_host_blocks
    )


def _params(job: Job, temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=0, max_tokens=job.max_tokens)


def solo_tokens(job: Job, temperature: float = 0) -> list[int]:
    """What a request gets in a roomy engine of its own, made of the package's parts only."""
    config = SchedulerConfig(num_blocks=256, block_size=16, max_model_len=4096)
    engine = Engine(Scheduler(config), fake_executor(config))
    engine.add_request(job.name, job.prompt_token_ids, _params(job, temperature))
    tokens: list[int] = []
    while engine.has_unfinished_requests:
        tokens += [token for output in engine.step() for token in output.new_token_ids]
    return tokens


class _Watched:
    """Steps an engine, its rules checked in each step."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        self.engine, self.trace = engine, trace
        self.step = 0
        self.tokens: dict[str, list[int]] = {}

    def guard(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; whatever is raised becomes a Wrong with iteration and picture."""
        try:
            return call(*arguments)
        except (NotImplementedError, Wrong):
            raise
        except Exception as error:
            words = str(error) if isinstance(error, RuntimeError | ValueError) else repr(error)
            raise self.broken(words) from error

    def broken(self, words: str) -> Wrong:
        try:
            if self.step:
                self.engine.observers[0](self.engine, None)  # the moment it broke
            lines = BlockMap(self.trace, step=len(self.trace) - 1).text().splitlines()
        except Exception:  # a state so broken that it cannot be drawn
            lines = []
        return Wrong(f"iteration {self.step}: {words}", "\n".join(lines[:MOST_LINES]))

    def take_step(self, most_steps: int) -> None:
        """One step of the engine, taken apart: what breaks is found before the next part hides
        it."""
        self.step += 1
        scheduler = self.engine.scheduler
        output = self.guard(scheduler.schedule)
        self.guard(check_schedule, scheduler, output)
        answer = self.guard(self.engine.executor.execute, output)
        results = self.guard(scheduler.update_from_output, output, answer)
        for result in results:
            self.tokens.setdefault(result.request_id, []).extend(result.new_token_ids)
        self.guard(self.engine.observers[0], self.engine, output)
        self.guard(scheduler.check_integrity)
        if self.step >= most_steps and self.engine.has_unfinished_requests:
            names = ", ".join(self.engine.scheduler.requests)
            raise self.broken(f"no end in sight, {names} still unfinished")

    def check_end(self, work: Sequence[Job], config: SchedulerConfig, temperature: float) -> None:
        """Nothing is held, and each request has the tokens that it gets alone."""
        num_free = self.engine.scheduler.kv.pool.num_free_blocks
        if num_free != config.num_blocks:
            lost = config.num_blocks - num_free
            raise self.broken(f"all requests have ended, but {lost} blocks are not free")
        for job in work if isinstance(self.engine.executor, FakeExecutor) else ():
            alone, here = solo_tokens(job, temperature), self.tokens.get(job.name, [])
            if alone != here:
                at = next((i for i, pair in enumerate(zip(alone, here, strict=False))
                           if pair[0] != pair[1]), min(len(alone), len(here)))  # fmt: skip
                raise self.broken(
                    f"the tokens of {job.name} depend on the schedule: output token {at} is not "
                    f"what it gets alone"
                )
