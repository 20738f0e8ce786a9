"""Static batching, the old way: N requests start together, and the batch ends with its slowest.

A request that has ended keeps its row: the row is computed in every further step, its K and V stay
in their contiguous place of maximal length, and nobody waiting may enter until all rows are done.
This is the real thing, as in Hugging Face's `generate`; the tokens are the same as the engine's.

    step        1   2   3   4   5   6        . is a row that is computed for nothing
    row 0       p   d   d   d   d   d
    row 1       p   d   .   .   .   .        7 of 18 row-steps are wasted here
    row 2       p   d   d   .   .   .
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from minivllm.admission import check_token_ids
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import EngineOutput


class LockstepExecutor(Protocol):
    """Runs all rows of a batch one step further, those that have ended too."""

    vocab_size: int

    def execute(self, rows: list[Request]) -> list[int]: ...


class StaticBatchingEngine:
    """The interface of Engine (add_request, step, abort), with batches that never change.

    Observers are called after each step with the engine alone: there is no scheduler's output.
    batch_size: rows of a batch. max_model_len: columns of a row, reserved for the whole batch; left
    padding puts all prompts' ends into one column, so the longest prompt and the longest output of
    a batch must fit into it together.
    """

    def __init__(
        self,
        executor: LockstepExecutor,
        batch_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        self.executor = executor
        self.batch_size = batch_size
        self.max_model_len = max_model_len
        self.eos_token_ids = tuple(eos_token_ids)
        self.seed = seed
        self.waiting: deque[Request] = deque()
        self.rows: list[Request] = []  # the running batch, ended requests included
        self.num_arrivals = 0
        self.num_steps = 0
        self.num_row_steps = 0
        self.num_useful_row_steps = 0
        self.observers: list[Callable[[StaticBatchingEngine], None]] = []

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
    ) -> None:
        """Put a request in line. Raises ValueError when it does not fit into a row, or n > 1."""
        params = params or SamplingParams()
        seed = self.seed + self.num_arrivals
        request = Request(  # its block is the whole row
            request_id, prompt_token_ids, params, self.max_model_len, self.eos_token_ids, seed=seed
        )
        room = self.max_model_len - request.num_prompt_tokens
        if room < 1 or params.n > 1:
            raise ValueError(
                f"request {request_id!r}: {request.num_prompt_tokens} prompt tokens, n = {params.n}"
                f"; a row holds {self.max_model_len} tokens of one sample"
            )
        check_token_ids(request, self.executor.vocab_size)
        living = [r for r in (*self.waiting, *self.rows) if not r.is_finished]
        if any(other.request_id == request_id for other in living):
            raise ValueError(f"request {request_id!r}: this id is in use")
        request.max_tokens = min(request.max_tokens or room, room)
        request.arrival = self.num_arrivals
        self.num_arrivals += 1
        self.waiting.append(request)

    def step(self) -> list[EngineOutput]:
        """Run every row one step further; a new batch forms only when all rows have ended."""
        if all(request.is_finished for request in self.rows):
            self.rows = self._next_batch()  # only now is the KV of the last batch given back
        if not self.rows:
            return []
        results = []
        new_token_ids = self.executor.execute(self.rows)
        self.num_steps += 1
        for request, token_id in zip(self.rows, new_token_ids, strict=True):
            self.num_row_steps += 1
            request.num_computed_tokens = request.num_tokens
            if not request.is_finished:
                self.num_useful_row_steps += 1
                request.append_token(token_id)
                has_ended = request.finish_reason is not None
                if has_ended:
                    request.status = RequestStatus.FINISHED
                results.append(EngineOutput(request, [token_id], request_ended=has_ended))
        for observer in self.observers:
            observer(self)
        return results

    def _next_batch(self) -> list[Request]:
        """The next in line whose longest prompt and longest output fit into a row together."""
        rows: list[Request] = []
        most_prompt = most_output = 0
        while self.waiting and len(rows) < self.batch_size:
            request = self.waiting[0]
            most_prompt = max(most_prompt, request.num_prompt_tokens)
            most_output = max(most_output, request.max_tokens)
            if rows and most_prompt + most_output > self.max_model_len:
                break
            request.status = RequestStatus.RUNNING
            rows.append(self.waiting.popleft())
        return rows

    def abort(self, request_id: str) -> list[EngineOutput]:
        """End a request; one that runs keeps its row all the same."""
        for request in (*self.waiting, *self.rows):
            if request.request_id == request_id and not request.is_finished:
                if request in self.waiting:
                    self.waiting.remove(request)
                request.status, request.finish_reason = RequestStatus.FINISHED, "abort"
                return [EngineOutput(request, [], request_ended=True)]
        return []

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or any(not request.is_finished for request in self.rows))
