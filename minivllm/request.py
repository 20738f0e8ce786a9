"""One request's life: its tokens, how many of them have KV, and where they lie.

`num_computed_tokens` chases `num_tokens` (prompt + output). That one difference is all the
scheduler needs: prefill, chunked prefill, decode and resuming after a preemption are the same
thing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from minivllm.page_table import BlockTable
from minivllm.sampling_params import SamplingParams, is_int


class RequestStatus(Enum):
    """Where a request is: WAITING -> RUNNING <-> PREEMPTED, and at last FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """A prompt, what has been generated for it, and its block table (nano-vllm: Sequence).

    With `n > 1` samples the first one runs the prompt; the others are forked from it. A sample is
    named by its request's id and its own index. Raises ValueError for an empty prompt or one with
    non-integers, and for a priority or cache_salt of the wrong type.

    >>> request = Request("r", [5, 6, 7], SamplingParams(max_tokens=2), block_size=4)
    >>> request.append_token(8)
    >>> request.num_tokens, request.num_output_tokens, request.output_token_ids
    (4, 1, [8])
    """

    __slots__ = (
        "request_id", "sample_index", "token_ids", "num_prompt_tokens", "params", "max_tokens",
        "stop_token_ids", "eos_token_ids", "priority", "cache_salt", "seed", "arrival", "status",
        "num_computed_tokens", "num_cached_tokens", "num_lost_tokens", "num_preemptions",
        "num_seats", "finish_reason", "stop_reason", "block_table", "host_block_ids",
        "block_hashes", "num_published", "is_beam",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        block_size: int,
        eos_token_ids: Iterable[int] = (),
        priority: int = 0,
        cache_salt: str | None = None,
        seed: int = 0,
        is_beam: bool = False,
    ) -> None:
        if len(prompt_token_ids) == 0:
            raise ValueError(f"request {request_id!r}: the prompt is empty (0 tokens)")
        if not is_int(priority):
            raise ValueError(f"request {request_id!r}: priority must be an int, got {priority!r}")
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise ValueError(f"request {request_id!r}: cache_salt must be text, got {cache_salt!r}")
        self.request_id = request_id
        self.sample_index = 0
        self.token_ids = list(prompt_token_ids)
        if set(map(type, self.token_ids)) != {int}:  # rare: an int of another class, or no int
            self.token_ids = [int(token) if is_int(token) else _refuse(request_id, token)
                              for token in prompt_token_ids]  # fmt: skip
        self.num_prompt_tokens = len(self.token_ids)
        self.params = params
        self.max_tokens = params.max_tokens  # lowered at the door to what max_model_len leaves
        self.eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self.stop_token_ids = self.eos_token_ids | frozenset(params.stop_token_ids)
        self.priority = priority
        self.cache_salt = cache_salt
        self.seed = seed if params.seed is None else params.seed
        self.is_beam = is_beam  # its tokens are chosen by beam_search.py, not by the sampler
        self.arrival = -1  # place in the line, given at the door
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache when it entered
        self.num_lost_tokens = 0  # most tokens whose KV a preemption has thrown away
        self.num_preemptions = 0
        self.num_seats = params.n  # of max_num_seqs: its own, and one for each sample to be forked
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.block_table = BlockTable(block_size)
        self.host_block_ids: list[int] = []  # where its KV lies while it is swapped out
        self.block_hashes: list[bytes] = []  # prefix-cache keys of its full blocks, made when asked
        self.num_published = 0  # leading blocks that need no publishing any more

    @property
    def name(self) -> str:
        """The request's id, with the sample's index where there are several."""
        return f"{self.request_id}.{self.sample_index}" if self.params.n > 1 else self.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def max_kv_tokens(self) -> int:
        """Most KV slots it can ever need: the last token is never fed back, so P + M - 1."""
        return self.num_prompt_tokens + self.max_tokens - 1

    def next_positions(self, num_new_tokens: int) -> range:
        """The positions that the next `num_new_tokens` tokens take."""
        return range(self.num_computed_tokens, self.num_computed_tokens + num_new_tokens)

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    @property
    def suppressed_token_ids(self) -> list[int]:
        """Stop tokens that may not be drawn now, because min_tokens is not reached yet."""
        if self.num_output_tokens >= self.params.min_tokens:
            return []
        return sorted(self.stop_token_ids)

    def append_token(self, token_id: int) -> None:
        """Append an output token; the last one sets `finish_reason`."""
        self.token_ids.append(token_id)
        num_output = len(self.token_ids) - self.num_prompt_tokens
        if token_id in self.stop_token_ids and num_output > self.params.min_tokens:
            self.finish_reason = "stop"
            self.stop_reason = None if token_id in self.eos_token_ids else token_id
        elif num_output >= self.max_tokens:
            self.finish_reason = "length"

    def next_draw(self, sample_index: int | None = None) -> float | None:
        """The uniform number in [0, 1) that chooses the next token; None when the choice is greedy.

        A pure function of (seed, sample, position), not a generator with a state: no neighbour, no
        preemption and no recomputed token can shift it.
        """
        if self.params.is_greedy:
            return None
        sample_index = self.sample_index if sample_index is None else sample_index
        return random.Random(f"{self.seed}/{sample_index}/{len(self.token_ids)}").random()

    def fork(self, sample_index: int) -> Request:
        """Another sample with the same tokens so far; its table is empty until the caller shares
        the blocks (KVCacheManager.fork).
        """
        child = Request.__new__(Request)
        for field in self.__slots__:
            setattr(child, field, getattr(self, field))
        child.sample_index = sample_index
        child.token_ids = list(self.token_ids)
        child.num_seats = 1
        child.num_preemptions = 0
        child.block_table = BlockTable(self.block_table.block_size)
        child.host_block_ids = []
        child.block_hashes = list(self.block_hashes)
        return child

    def __repr__(self) -> str:
        return (
            f"Request({self.name}, {self.status.value}, "
            f"{self.num_computed_tokens} of {self.num_tokens} tokens computed, "
            f"blocks {self.block_table.block_ids})"
        )


@dataclass
class RequestGroup:
    """The live samples of one user's request (one, unless n > 1), and how many it ever had."""

    samples: list[Request]
    num_samples: int = 1

    def fork(self, parent: Request) -> Request:
        """One more sample that has the parent's tokens so far."""
        child = parent.fork(self.num_samples)
        parent.num_seats = max(parent.num_seats - 1, 1)
        self.num_samples += 1
        self.samples.append(child)
        return child


def _refuse(request_id: str, token: object) -> NoReturn:
    raise ValueError(f"request {request_id!r}: prompt_token_ids holds {token!r}, not an integer")
