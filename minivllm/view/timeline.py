"""Requests as rows, iterations as columns: what each request did in each iteration.

    A  PPdddddd          P  runs (a part of) its prompt       .  waits
    B  .P.xxPddd         d  decodes: one token                x  preempted, will compute again
    C  ...Pd----         -  ended, but keeps its row          s  preempted, swapped to the host

Invariant: a request has one letter in each iteration from the first in which it is seen until it
has gone.
"""

from __future__ import annotations

from typing import NamedTuple

from minivllm.view.frame import Frame, RequestRow, label
from minivllm.view.trace import Trace

LETTERS = {
    "waiting": ".", "prefill": "P", "decode": "d", "stalled": ",", "preempted": "x", "swapped": "s",
    "idle": "-", "gone": " ",
}  # fmt: skip


class Segment(NamedTuple):
    """One kind of activity of one request, in iterations first .. last. Each prefill chunk is a
    segment of its own; tokens: how many it ran in all."""

    kind: str
    first: int
    last: int
    tokens: int


def activity(row: RequestRow, num_scheduled: int) -> str:
    """What a request did in one iteration, as a key of LETTERS.

    More than one token, or one of the prompt, is prefill; so is what a preempted request computes
    again.
    """
    if num_scheduled:
        in_prompt = row.num_computed_tokens <= row.num_prompt_tokens
        return "prefill" if num_scheduled > 1 or in_prompt else "decode"
    if row.status == "finished":
        return "idle" if row.block_ids else "gone"
    if row.status == "preempted":
        return "swapped" if row.host_block_ids else "preempted"
    return "stalled" if row.status == "running" else "waiting"


def activities(frame: Frame) -> list[tuple[str, int]]:
    """(activity, tokens it ran) of each request of a frame, by number."""
    scheduled = dict(frame.scheduled)
    return [
        (activity(row, scheduled.get(number, 0)), scheduled.get(number, 0))
        for number, row in enumerate(frame.requests)
    ]


def segments_of(trace: Trace) -> list[list[Segment]]:
    """The segments of each request, in order; the time after it has gone is left out."""
    rows: list[list[Segment]] = []
    for index, frame in enumerate(trace):
        for number, (kind, tokens) in enumerate(activities(frame)):
            if number == len(rows):
                rows.append([])
            row = rows[number]
            last = row[-1] if row else None
            if kind == "gone":
                continue
            if last and last.kind == kind != "prefill" and last.last == index - 1:
                row[-1] = last._replace(last=index, tokens=last.tokens + tokens)
            else:
                row.append(Segment(kind, index, index, tokens))
    return rows


def timeline_text(trace: Trace, width: int = 100) -> str:
    """The timeline in letters, `width` iterations to a band. Deterministic: what nbval compares."""
    rows = segments_of(trace)
    names = [label(number) for number in range(len(rows))]
    margin = max(map(len, names), default=1)
    lines = []
    for start in range(0, len(trace), width):
        end = min(start + width, len(trace))
        lines.append(f"iterations {start} to {end - 1} of {len(trace) - 1}")
        for name, row in zip(names, rows, strict=True):
            letters = "".join(_letters(row, start, end)).rstrip()
            if letters:
                lines.append(f"{name:>{margin}}  {letters}")
    used = {segment.kind for row in rows for segment in row}
    lines.append("; ".join(f"{letter} {kind}" for kind, letter in LETTERS.items() if kind in used))
    return "\n".join(lines)


def _letters(row: list[Segment], start: int, end: int) -> list[str]:
    letters = [" "] * (end - start)
    for kind, first, last, _ in row:
        for index in range(max(first, start), min(last + 1, end)):
            letters[index - start] = LETTERS[kind]
    return letters
