"""The difference between two frames as one plain JSON object, and back.

What follows from the rest is left out: a request that ran n tokens has n more of them computed, and
its new token ids lengthen it. What then still differs is written under its field's name. The module
block_map.js reads the same objects by the same rules.

    {"step": 7, "scheduled": [[0, 1], [1, 1]], "tokens": {"0": [17]}, "blocks": [[3, 2]]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minivllm.step_records import BlockOp, Event
from minivllm.view.frame import BlockCell, Frame, RequestRow

NewTokens = dict[int, list[int]]  # number of a request -> the token ids it got
STATUSES = ("waiting", "running", "preempted", "finished")
GIVEN = RequestRow._fields[:3]  # what is known of a request from the start
TABLES = ("block_ids", "host_block_ids")  # written as "block_ids+" when they only grew


def difference(old: Frame, new: Frame, new_token_ids: NewTokens) -> dict[str, Any]:
    """What must be known besides `old` to make `new`; empty parts are left out."""
    expected = _expected(old, new.scheduled, new_token_ids, new.requests[len(old.requests) :])
    requests = {}
    for number, (row, base) in enumerate(zip(new.requests, expected, strict=True)):
        if number >= len(old.requests):
            requests[str(number)] = dict(zip(GIVEN, row, strict=False)) | _row_change(base, row)
        elif row is not base and row != base:
            requests[str(number)] = _row_change(base, row)
    blocks = [
        _cell_change(block_id, was, now)
        for block_id, (was, now) in enumerate(zip(old.blocks, new.blocks, strict=True))
        if was is not now and was != now
    ]
    parts = {
        "scheduled": [list(pair) for pair in new.scheduled],
        "tokens": {str(number): ids for number, ids in new_token_ids.items() if ids},
        "requests": requests,
        "blocks": blocks,
        "events": [list(event) for event in new.events],
        "ops": [list(op) for op in new.ops],
    }
    delta = {"step": new.step} | {name: part for name, part in parts.items() if part}
    if new.running != old.running:
        delta["running"] = list(new.running)
    if new.waiting != old.waiting:
        delta["waiting"] = list(new.waiting)
    return delta


def apply(old: Frame, delta: dict[str, Any]) -> Frame:
    """The frame that follows `old`.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError for what no trace holds.
    """
    scheduled = tuple((_int(number), _int(num)) for number, num in delta.get("scheduled", ()))
    new_token_ids = {int(number): ids for number, ids in delta.get("tokens", {}).items()}
    changes = {int(number): change for number, change in delta.get("requests", {}).items()}
    fresh = [
        RequestRow(*(changes[number][field] for field in GIVEN))
        for number in range(len(old.requests), max(changes, default=-1) + 1)
    ]
    rows = _expected(old, scheduled, new_token_ids, fresh)
    for number, change in changes.items():
        _in_range(number, rows, "request")
        rows[number] = _changed_row(rows[number], change, len(old.blocks))
    blocks = list(old.blocks)
    for block_id, *values in delta.get("blocks", ()):
        _in_range(block_id, blocks, "block")
        blocks[block_id] = _changed_cell(blocks[block_id], values, len(rows))
    running, waiting = delta.get("running", old.running), delta.get("waiting", old.waiting)
    for number in (*running, *waiting):
        _in_range(number, rows, "request")
    return Frame(
        _int(delta["step"]),
        tuple(rows),
        tuple(running),
        tuple(waiting),
        scheduled,
        tuple(blocks),
        tuple(Event(*event) for event in delta.get("events", ())),
        tuple(BlockOp(*op) for op in delta.get("ops", ())),
    )


def _expected(
    old: Frame,
    scheduled: Sequence[tuple[int, int]],
    new_token_ids: NewTokens,
    fresh: Sequence[RequestRow],
) -> list[RequestRow]:
    """The requests as they stand if only the scheduled tokens and the new ones are counted."""
    rows = [*old.requests, *(RequestRow(*row[:3]) for row in fresh)]
    for number, num_new in scheduled:
        _in_range(number, rows, "request")
        row = rows[number]
        rows[number] = row._replace(num_computed_tokens=row.num_computed_tokens + num_new)
    for number, token_ids in new_token_ids.items():
        _in_range(number, rows, "request")
        row = rows[number]
        rows[number] = row._replace(num_tokens=row.num_tokens + len(token_ids))
    return rows


def _row_change(base: RequestRow, row: RequestRow) -> dict[str, Any]:
    change: dict[str, Any] = {}
    for field, was, now in zip(row._fields, base, row, strict=True):
        if was == now:
            continue
        if field in TABLES and was and now[: len(was)] == was:
            change[field + "+"] = list(now[len(was) :])
        else:
            change[field] = list(now) if field in TABLES else now
    return change


def _changed_row(row: RequestRow, change: dict[str, Any], num_blocks: int) -> RequestRow:
    values = row._asdict()
    for field, value in change.items():
        name = field.removesuffix("+")
        if name in TABLES:
            before = values[name] if field.endswith("+") else ()
            values[name] = before + tuple(map(_int, value))
        else:
            values[field] = value
    row = RequestRow(**values)
    if not isinstance(row.name, str) or row.status not in STATUSES:
        raise ValueError(f"a request named {row.name!r:.40} is {row.status!r:.40}")
    for value in (row.num_prompt_tokens, row.max_tokens, *row[4:8], row.num_padding):
        _int(value)
    for block_id in row.block_ids:
        _in_range(block_id, range(num_blocks), "block")
    return row


def _cell_change(block_id: int, old: BlockCell, new: BlockCell) -> list[int]:
    if old._replace(fill=new.fill) == new:
        return [block_id, new.fill]
    return [block_id, new.ref_cnt, new.fill, int(new.cached), new.request, new.index]


def _changed_cell(cell: BlockCell, values: list[int], num_requests: int) -> BlockCell:
    if len(values) == 1:
        return cell._replace(fill=_int(values[0]))
    ref_cnt, fill, cached, request, index = map(_int, values)
    if request != -1:
        _in_range(request, range(num_requests), "request")
    return BlockCell(ref_cnt, fill, bool(cached), request, index)


def _int(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r:.40} is no integer")
    return value


def _in_range(number: int, of: Sequence, what: str) -> None:
    if not 0 <= _int(number) < len(of):
        raise ValueError(f"{what} {number}, but there are {len(of)}")
