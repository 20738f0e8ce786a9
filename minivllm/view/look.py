"""What there is to see of an engine after a step, still in the engine's own objects.

The continuous engine says it all itself. Static batching has no pool and gives no reasons: its rows
are contiguous, so a row is shown as a run of blocks, held from the first step of a batch to the
last, and the reasons are read off from what happened to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.engine import Engine
from minivllm.page_table import num_blocks_for
from minivllm.prefix_cache import CachedBlock
from minivllm.request import Request
from minivllm.step_records import BlockOp, Event, SchedulerOutput, counted


def nothing_cached(block_id: int) -> None:
    """The words of an engine without a prefix cache."""
    return None


@dataclass
class Look:
    """What there is to see of an engine after one step.

    holders: each request of the batch with its block table, in batch order. ref_cnt, cached: the
    pool's and the prefix cache's own words (cached: block id -> what it holds, or None). padding:
    slots in front of a request's first token.
    """

    step: int
    holders: list[tuple[Request, Sequence[int]]]
    waiting: list[Request]
    ref_cnt: Sequence[int]
    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    cached: Callable[[int], CachedBlock | None] = nothing_cached
    events: Sequence[Event] = ()
    ops: Sequence[BlockOp] = ()
    padding: dict[Request, int] = field(default_factory=dict)


class LookAt(Protocol):
    """Reads one engine; `sizes` are block_size, num_blocks and num_host_blocks of its pools."""

    sizes: tuple[int, int, int]

    def __call__(self, output: Any) -> Look: ...


class LookAtEngine:
    """The continuous engine: everything is there to be read."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = engine.scheduler
        config = self.scheduler.config
        self.sizes = (config.block_size, config.num_blocks, config.num_host_blocks)

    def __call__(self, output: SchedulerOutput | None) -> Look:
        scheduler, cache = self.scheduler, self.scheduler.kv.prefix_cache
        look = Look(
            step=scheduler.step,
            holders=[(request, request.block_table.block_ids) for request in scheduler.running],
            waiting=list(scheduler.waiting),
            ref_cnt=scheduler.kv.pool.ref_cnt,
            cached=nothing_cached if cache is None else cache.entry,
        )
        if output is not None:
            look.scheduled = list(zip(output.requests, output.num_scheduled_tokens, strict=True))
            look.events, look.ops = output.events, output.block_ops
        return look


class LookAtStatic:
    """Static batching: row i owns the i-th run of blocks until its whole batch has ended."""

    def __init__(self, engine: StaticBatchingEngine, block_size: int) -> None:
        self.engine = engine
        self.blocks_of_row = num_blocks_for(engine.max_model_len, block_size)
        self.sizes = (block_size, engine.batch_size * self.blocks_of_row, 0)
        self.events: list[Event] = []
        self._batch: list[Request] = []
        self._ended: set[Request] = set()
        self._waiting: set[Request] = set()
        self._padding: dict[Request, int] = {}

    def __call__(self, output: object = None) -> Look:
        rows, self.events = self.engine.rows, []
        for request in self.engine.waiting:
            if request not in self._waiting:
                prompt = counted(request.num_prompt_tokens, "token")
                self._say("add", request, f"joins the line: {prompt}")
        self._waiting = set(self.engine.waiting)
        begins = rows is not self._batch
        if begins:
            self._begin(rows)
        useful = [request for request in rows if request not in self._ended]
        for request in useful:
            if request.is_finished:
                self._ended.add(request)
                self._say("finish", request, f"ends ({request.finish_reason}), but keeps its row")
        num_live = sum(not request.is_finished for request in rows)
        if self.engine.waiting and num_live:
            why = f"waits: the batch ends with its slowest, {num_live} of {len(rows)} rows still go"
            self._say("wait", self.engine.waiting[0], why)
        width = self.blocks_of_row
        return Look(
            step=self.engine.num_steps,
            holders=[(row, range(i * width, (i + 1) * width)) for i, row in enumerate(rows)],
            waiting=list(self.engine.waiting),
            ref_cnt=[1] * (len(rows) * width) + [0] * (self.sizes[1] - len(rows) * width),
            scheduled=[(row, row.num_prompt_tokens if begins else 1) for row in useful],
            events=self.events,
            padding=self._padding,
        )

    def _begin(self, rows: list[Request]) -> None:
        """A new batch: all rows enter at once, padded on the left to the longest prompt."""
        self._batch = rows
        self._ended.clear()
        longest = max((request.num_prompt_tokens for request in rows), default=0)
        self._padding = {request: longest - request.num_prompt_tokens for request in rows}
        for index, request in enumerate(rows):
            reserved = f"row {index}: all its {self.engine.max_model_len} columns are reserved"
            self._say("admit", request, f"enters {reserved}")

    def _say(self, kind: str, request: Request, reason: str) -> None:
        self.events.append(Event(self.engine.num_steps, kind, request.name, reason))


def look_for(engine: Any, block_size: int) -> LookAt:
    """The way to read an engine. Raises ValueError for what is no engine known here."""
    if isinstance(engine, Engine):
        return LookAtEngine(engine)
    if isinstance(engine, StaticBatchingEngine):
        return LookAtStatic(engine, block_size)
    raise ValueError(f"a {type(engine).__name__} cannot be recorded: give a look_at for it")
