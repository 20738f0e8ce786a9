"""Watches an engine step by step and writes down what it sees; without it the engine pays nothing.

    trace = record(engine)                       # or: with Recorder(engine) as recorder: ...
    trace = record(engine, decode=lambda token_id: tokenizer.decode([token_id]))

What a recorder reads of an engine is a `Look` (look.py): who holds which blocks, who waits, what
the pool says. Whatever can give one can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minivllm.prefix_cache import CachedBlock
from minivllm.request import Request
from minivllm.step_records import SchedulerOutput
from minivllm.view.frame import FREE, BlockCell, Frame, RequestRow
from minivllm.view.look import Look, LookAt, look_for
from minivllm.view.trace import Trace

Decode = Callable[[int], str]


class Recorder:
    """An observer that appends one frame per step to `trace`; as a context it stops at the end.

    engine: an Engine, an LLM, or a StaticBatchingEngine. decode: token id -> text, to show what is
    in a block (an LLM brings its own). block_size: into blocks of how many slots the rows of static
    batching are cut for the eye. look_at: another way to read an engine.
    """

    def __init__(
        self,
        engine: Any,
        decode: Decode | None = None,
        title: str = "",
        block_size: int = 16,
        look_at: LookAt | None = None,
    ) -> None:
        if decode is None and hasattr(engine, "tokenizer"):
            decode = text_of_token(engine.tokenizer)
        self.engine = getattr(engine, "engine", engine)
        self._look_at = look_at or look_for(self.engine, block_size)
        self.trace = Trace(*self._look_at.sizes, title=title)
        self._decode = decode
        self._numbers: dict[Request, int] = {}  # of those that may still change
        self._rows: list[RequestRow] = []
        self._cells: list[BlockCell] = [FREE] * self.trace.num_blocks
        self._entries: dict[int, CachedBlock | None] = {}  # what the cache said of each block
        self(self.engine)
        self.engine.observers.append(self)

    def __call__(self, engine: Any, output: Any = None) -> None:
        """Record the engine as it stands now; `output` is what its last step decided."""
        frame, new_token_ids = self._frame_of(self._look_at(output))
        self.trace.append(frame, new_token_ids, self._new_texts(new_token_ids))

    def stop(self) -> None:
        """Observe no further; the trace stays. Who ended after the last step (by a stop string, or
        aborted) is seen to have ended."""
        if self not in self.engine.observers:
            return
        self.engine.observers.remove(self)
        scheduler = getattr(self.engine, "scheduler", None)
        if scheduler is not None and scheduler.events:
            self(self.engine, SchedulerOutput(scheduler.step, events=scheduler.events))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # --- from the engine's objects to a frame ---------------------------------------------------

    def _frame_of(self, look: Look) -> tuple[Frame, dict[int, list[int]]]:
        """A snapshot of the look, with the token ids that each request has got since the last."""
        table_of = dict(look.holders)
        seen = [*table_of, *look.waiting, *(request for request, _ in look.scheduled)]
        for request in sorted(set(seen) - set(self._numbers), key=arrival):
            self._numbers[request] = len(self._rows)
            self._rows.append(RequestRow(request.name, request.num_prompt_tokens, 0))
        numbers = dict(self._numbers)
        new_token_ids = {}
        for request, number in numbers.items():
            known = self._rows[number]
            if known.num_tokens and known.status == request.status.value == "waiting":
                continue  # nothing happens to those in line, who may be many
            if request.num_tokens > known.num_tokens:
                new_token_ids[number] = request.token_ids[known.num_tokens :]
            table = table_of.get(request, ())
            self._rows[number] = _row(request, table, look.padding.get(request, 0))
            if request.is_finished and request not in table_of:
                del self._numbers[request]
        self._update_cells(look, numbers)
        frame = Frame(
            look.step,
            tuple(self._rows),
            tuple(numbers[request] for request in table_of),
            tuple(numbers[request] for request in look.waiting),
            tuple((numbers[request], num_new) for request, num_new in look.scheduled),
            tuple(self._cells),
            tuple(look.events),
            tuple(look.ops),
        )
        return frame, new_token_ids

    def _update_cells(self, look: Look, numbers: dict[Request, int]) -> None:
        """Blocks in use, from their holders' tables; of the others, what the cache still knows."""
        in_use: dict[int, tuple] = {}
        for request, block_ids in look.holders:
            number, start = numbers[request], look.padding.get(request, 0)
            fills = _fills(start, start + request.num_computed_tokens, self.trace.block_size)
            for index, block_id in enumerate(block_ids):
                fill = fills[index] if index < len(fills) else 0
                if block_id not in in_use or fill > in_use[block_id][0]:
                    first = in_use.get(block_id, (0, number, index))
                    in_use[block_id] = (fill, *first[1:])
        for block_id, old in enumerate(self._cells):
            entry, ref_cnt = look.cached(block_id), look.ref_cnt[block_id]
            if block_id in in_use:
                fill, number, index = in_use[block_id]
                new = (ref_cnt, fill, entry is not None, number, index)
            elif entry is None:
                new = BlockCell(ref_cnt)
            elif entry is self._entries.get(block_id):
                new = (ref_cnt, old.fill, True, *old[3:])
            else:
                new = (
                    ref_cnt,
                    len(entry.token_ids),
                    True,
                    *self._find_holder(look, entry, numbers),
                )
            self._entries[block_id] = entry
            if new != old:
                self._cells[block_id] = BlockCell(*new)

    def _find_holder(
        self, look: Look, entry: CachedBlock, numbers: dict[Request, int]
    ) -> tuple[int, int]:
        """Whose a free block was that got cached in this very step: of somebody who ran and ended.
        What the cache says it holds decides."""
        size, tokens = self.trace.block_size, list(entry.token_ids)
        for request, _ in look.scheduled:
            for index in range(request.num_tokens // size):
                if request.token_ids[index * size : (index + 1) * size] == tokens:
                    return numbers[request], index
        return -1, -1

    def _new_texts(self, new_token_ids: dict[int, list[int]]) -> dict[int, str]:
        if self._decode is None:
            return {}
        seen = {token_id for ids in new_token_ids.values() for token_id in ids}
        new = sorted(seen - self.trace.texts.keys())
        return {token_id: self._decode(token_id) for token_id in new}


def record(engine: Any, decode: Decode | None = None, title: str = "", **options: Any) -> Trace:
    """Observe an engine from now on; the trace that is returned grows with each of its steps."""
    return Recorder(engine, decode, title, **options).trace


def text_of_token(tokenizer: Any) -> Decode:
    """A function token id -> text; special tokens are spelled out."""
    return lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False)


def arrival(request: Request) -> tuple[int, int]:
    """Where a request stands among all that ever came: the order of the letters."""
    return request.arrival, request.sample_index


def _fills(start: int, end: int, block_size: int) -> list[int]:
    """Tokens in each block of a table whose slots start .. end - 1 are taken.

    >>> _fills(0, 10, 4), _fills(3, 10, 4)
    ([4, 4, 2], [1, 4, 2])
    """
    if end <= start:
        return []
    fills = [block_size] * -(-end // block_size)
    fills[-1] -= -end % block_size
    for index in range(start // block_size):
        fills[index] = 0
    fills[start // block_size] -= start % block_size
    return fills


def _row(request: Request, block_ids: Sequence[int], num_padding: int) -> RequestRow:
    return RequestRow(
        request.name,
        request.num_prompt_tokens,
        request.max_tokens or 0,
        request.status.value,
        request.num_tokens,
        request.num_computed_tokens,
        request.num_cached_tokens,
        request.num_preemptions,
        tuple(block_ids),
        tuple(request.host_block_ids),
        request.finish_reason,
        num_padding,
    )
