"""The records that travel through one step: schedule -> execute -> update.

They decide nothing. A request's chunk of this step is token_ids[num_computed_tokens :][:n], its
slots are in its block table, and `block_ops` are carried out before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from minivllm.request import Request, RequestStatus


class BlockOp(NamedTuple):
    """Move one block's K and V (all layers), before the step writes anything.

    copy: device src -> device dst; swap_out: device src -> host dst; swap_in: host src -> device
    dst. The operations of a step are carried out in the order given: a later one may read what an
    earlier one wrote, and may overwrite what an earlier one has read.
    """

    kind: Literal["copy", "swap_out", "swap_in"]
    src: int
    dst: int


class Event(NamedTuple):
    """One decision of the scheduler, with its reason in a sentence.

    kind: add, admit, resume, wait, chunk, preempt, copy, fork, evict, finish or abort.
    """

    step: int
    kind: str
    name: str  # of the request, or "block 7"
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


def counted(number: int, noun: str) -> str:
    """A number of things, for an event's sentence.

    >>> counted(1, "block"), counted(3, "block")
    ('1 block', '3 blocks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(slots=True)
class SchedulerOutput:
    """What to run in this step: requests in batch order, and how many tokens of each.

    `events` go on growing in `update_from_output`; after it they are all that this step decided.
    """

    step: int
    requests: list[Request] = field(default_factory=list)
    num_scheduled_tokens: list[int] = field(default_factory=list)
    block_ops: list[BlockOp] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add(self, request: Request, num_new: int) -> None:
        self.requests.append(request)
        self.num_scheduled_tokens.append(num_new)

    def live_chunks(self) -> list[tuple[int, Request, int]]:
        """(index, request, number of its tokens) of those that still run.

        The others were aborted or preempted after schedule(): their blocks are no longer theirs.
        """
        running = RequestStatus.RUNNING  # looked up once: this is the hottest loop of a step
        chunks = zip(self.requests, self.num_scheduled_tokens, strict=True)
        return [
            (index, request, num_new)
            for index, (request, num_new) in enumerate(chunks)
            if request.status is running
        ]

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens)


@dataclass(slots=True)
class ModelOutput:
    """What the executor answers, aligned with `SchedulerOutput.requests` (vLLM: ModelRunnerOutput).

    sampled_token_ids[i] is empty while request i's prompt is not complete, else one token, or one
    for each sample when the request forks. logprobs[i], where asked for, is a dict token id -> log
    probability for each of them. errors: index -> what went wrong for that request alone.
    """

    sampled_token_ids: list[list[int]]
    logprobs: dict[int, list[dict[int, float]]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, init=False)
class EngineOutput:
    """What one sample of one request got from one step; the sample's last has a finish_reason.

    finish_reason: "stop", "length", "abort" or "error". stop_reason: the token id or string that
    stopped it, None for the model's own end token; the message for an error.
    """

    request_id: str
    sample_index: int
    new_token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: list[dict[int, float]] | None
    num_cached_tokens: int
    request_ended: bool  # no other sample of the request is left

    def __init__(
        self,
        request: Request,
        new_token_ids: list[int],
        logprobs: list[dict[int, float]] | None = None,
        request_ended: bool = False,
    ) -> None:
        """What `request` got, with its state as it is now."""
        self.request_id = request.request_id
        self.sample_index = request.sample_index
        self.new_token_ids = new_token_ids
        self.finish_reason = request.finish_reason
        self.stop_reason = request.stop_reason
        self.logprobs = logprobs
        self.num_cached_tokens = request.num_cached_tokens
        self.request_ended = request_ended
