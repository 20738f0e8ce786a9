"""Where the KV memory goes, in the four parts of the vLLM paper's Figure 2.

    token states    slots that hold the K and V of a token of a living request
    reservation     slots that a request holds empty and will fill before it ends
    internal        slots that a request holds and will never use: its output is shorter, or its
                    last block is not full
    external        all other slots: too small a piece for anybody, lost to rounding, or free

What a request will use is known here as it is nowhere else: the laboratory has set its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.engine import Engine
from minivllm.request import Request


@dataclass
class KVSplit:
    """Slots by part, summed over the moments that were looked at."""

    token_states: int = 0
    reservation: int = 0
    internal: int = 0
    external: int = 0
    num_moments: int = 0
    num_running: int = 0  # requests, summed over the moments

    def add_moment(self, num_slots: int, holdings: Iterable[tuple[int, int, int]]) -> None:
        """Add one moment of a memory of `num_slots`: (held, stored, needed at most) a request."""
        rest = num_slots
        for held, stored, needed in holdings:
            rest -= held
            self.token_states += stored
            self.reservation += max(min(needed, held) - stored, 0)
            self.internal += held - max(min(needed, held), stored)
            self.num_running += 1
        self.external += rest
        self.num_moments += 1

    @property
    def shares(self) -> dict[str, float]:
        """Percent of all slots."""
        total = self.token_states + self.reservation + self.internal + self.external
        parts = ("token_states", "reservation", "internal", "external")
        return {name: 100 * getattr(self, name) / total for name in parts}

    @property
    def share_of_used(self) -> float:
        """Token states in percent of the slots that requests hold."""
        used = self.token_states + self.reservation + self.internal
        return 100 * self.token_states / used

    @property
    def mean_running(self) -> float:
        """Requests batched, on average over the moments."""
        return self.num_running / self.num_moments


class KVMeter:
    """An observer of an engine: looks at its memory once in `every` steps, while anybody waits.

    So the split is that of a busy server: neither the first steps, in which it fills, nor the end,
    when nobody is left to come, are counted. It looks after the step: whoever has ended in it is
    gone. skip: requests that must have ended before.
    """

    def __init__(self, every: int = 1, skip: int = 0) -> None:
        self.split = KVSplit()
        self.every, self.skip = every, skip
        self.num_steps = 0

    def __call__(self, engine: Engine | StaticBatchingEngine, *_: object) -> None:
        self.num_steps += 1
        if self.num_steps % self.every:
            return
        if isinstance(engine, StaticBatchingEngine):
            if engine.waiting and engine.num_arrivals - len(engine.waiting) > self.skip:
                num_slots = engine.batch_size * engine.max_model_len
                self.split.add_moment(num_slots, map(holding_of_row(engine), engine.rows))
            return
        scheduler = engine.scheduler
        if len(scheduler.waiting) and scheduler.num_arrivals - len(scheduler.requests) >= self.skip:
            config = scheduler.config
            num_slots = config.num_blocks * config.block_size
            self.split.add_moment(num_slots, map(holding_of, scheduler.running))


def holding_of(request: Request) -> tuple[int, int, int]:
    """(slots held, tokens stored, slots it will need at most) of a running request."""
    table = request.block_table
    return table.num_slots, request.num_computed_tokens, request.max_kv_tokens


def holding_of_row(engine: StaticBatchingEngine):
    """The same for a row of a static batch; one that has ended stores nothing of use."""

    def holding(request: Request) -> tuple[int, int, int]:
        if request.is_finished:
            return engine.max_model_len, 0, 0
        return engine.max_model_len, request.num_computed_tokens, request.max_kv_tokens

    return holding
