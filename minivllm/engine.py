"""The engine: requests come in, each step runs some of their tokens, outputs come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from minivllm.admission import check_token_ids
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.step_records import EngineOutput, ModelOutput, SchedulerOutput


class Executor(Protocol):
    """Whatever can run a step: the model, or its torch-free twin."""

    vocab_size: int

    def execute(self, output: SchedulerOutput) -> ModelOutput: ...


class Engine:
    """One scheduler, one executor, and the loop between them.

    eos_token_ids: the model's end tokens. seed: for requests without a seed of their own. Observers
    are called after each step with (engine, scheduler_output).

    >>> from minivllm.config import SchedulerConfig
    >>> from minivllm.fake_executor import FakeExecutor
    >>> config = SchedulerConfig(num_blocks=8, block_size=4)
    >>> engine = Engine(Scheduler(config), FakeExecutor(num_blocks=8, block_size=4))
    >>> engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=2))
    >>> [output.finish_reason for output in engine.step() + engine.step()]
    [None, 'length']
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.eos_token_ids = tuple(eos_token_ids)
        self.seed = seed
        self.observers: list[Callable[[Engine, SchedulerOutput], None]] = []
        self._held: list[EngineOutput] = []  # outputs of a step with an observer that raised

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        is_beam: bool = False,
    ) -> None:
        """Put a request in line. Raises ValueError, at once and for this request only, when it is
        malformed, could never run, or bears the id of one that has not ended."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ValueError(f"request {request_id!r}: {params!r} is not a SamplingParams")
        request = Request(
            request_id,
            prompt_token_ids,
            params,
            self.scheduler.config.block_size,
            self.eos_token_ids,
            priority,
            cache_salt,
            seed=self.seed + self.scheduler.num_arrivals,
            is_beam=is_beam,
        )
        check_token_ids(request, self.executor.vocab_size)
        self.scheduler.add_request(request)

    def step(self) -> list[EngineOutput]:
        """Schedule, execute, update. With nothing to do, it is an empty step.

        If the executor breaks off (an interrupt, memory running out), the error goes on to the
        caller, and the next step takes up where the last one ended. So does an observer's error;
        the step has been done then, and the next one only returns its outputs.
        """
        if self._held:
            results, self._held = self._held, []
            return results
        scheduler_output = self.scheduler.schedule()
        try:
            model_output = self.executor.execute(scheduler_output)
        except BaseException:
            self.scheduler.lose_all()
            raise
        results = self.scheduler.update_from_output(scheduler_output, model_output)
        try:
            for observer in self.observers:
                observer(self, scheduler_output)
        except BaseException:
            self._held = results
            raise
        return results

    def abort(self, request_id: str) -> list[EngineOutput]:
        """End a request wherever it is; returns the last output of each of its live samples.

        That is one output unless n > 1, and none for an id that is unknown or has ended. What an
        observer's error has held back of the request comes with it.
        """
        held = {o.sample_index: o for o in self._held if o.request_id == request_id}
        self._held = [o for o in self._held if o.request_id != request_id]
        group = self.scheduler.requests.get(request_id)
        aborted = []
        for request in list(group.samples) if group else []:
            last = self.scheduler.finish(request, "abort")
            if before := held.pop(request.sample_index, None):
                last.new_token_ids, last.logprobs = before.new_token_ids, before.logprobs
            aborted.append(last)
        return [*held.values(), *aborted]

    def stop(self, request_id: str, sample_index: int, stop_reason: str) -> EngineOutput:
        """End one live sample whose text has met a stop string. Raises KeyError when none lives."""
        for request in self.scheduler.requests[request_id].samples:
            if request.sample_index == sample_index:
                return self.scheduler.finish(request, "stop", stop_reason)
        raise KeyError(f"request {request_id!r} has no live sample {sample_index}")

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.requests or self._held)
