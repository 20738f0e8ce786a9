"""The block map in letters: for a terminal, a page without scripts, a screen reader, and nbval.

    iteration 12 of 19: 7 of 16 blocks in use, 1 shared, 24 of 28 slots filled
       0  A█& A▆+ B█& B_  ··  c█  ··  ··

The letter of the holder and how full the block is, in eighths (_ is reserved, still empty);
& shared, + new in this iteration, - held by a request that has ended; a small letter is free but
still cached. Names are cleaned of whatever could move the cursor or reverse the line.
"""

from __future__ import annotations

import unicodedata

from minivllm.view.frame import Frame, RequestRow, label
from minivllm.view.occupancy import occupancy
from minivllm.view.trace import Trace

LEVELS = "_▁▂▃▄▅▆▇█"
MOST_NAME, MOST_REASON, MOST_WAITING, MOST_FINISHED = 24, 120, 8, 12


def clean(text: str, most: int = MOST_NAME) -> str:
    """Printable text of at most `most` characters; what cannot be printed is spelled out.

    >>> clean("bell" + chr(7)), clean("x" * 30, 5)
    ('bell\\\\x07', 'xxxx…')
    """
    shown = []
    for character in text[:most]:
        hidden = unicodedata.category(character)[0] in "CZ" and character not in " \u200d"
        shown.append(character.encode("unicode_escape").decode() if hidden else character)
    short = "".join(shown)
    return short if len(text) <= most and len(short) <= most else short[: most - 1] + "…"


def columns_for(num_blocks: int) -> int:
    """Blocks in a row of the map: a round number that keeps the map wider than high."""
    return 8 if num_blocks <= 32 else 16 if num_blocks <= 160 else 32


def map_text(trace: Trace, index: int, columns: int | None = None) -> str:
    """One frame in letters: the blocks, the requests, and why. Deterministic."""
    frame = trace[index]
    before = trace[index - 1] if index else Frame.empty(trace.num_blocks)
    parts = [_headline(trace, frame, index), *_grid(trace, before, frame, columns)]
    parts += _requests(frame)
    parts += [f"- {clean(event.name)} {clean(event.reason, MOST_REASON)}" for event in frame.events]
    return "\n".join(parts)


def counts_text(trace: Trace, frame: Frame) -> str:
    """The numbers of one frame, in half a sentence."""
    now = occupancy(frame, trace.block_size)
    shared = f", {now.num_shared} shared" if now.num_shared else ""
    cached = f", {now.num_cached} free but cached" if now.num_cached else ""
    filled = now.num_slots_used - now.num_slots_wasted
    return (
        f"{now.num_used} of {trace.num_blocks} blocks in use{shared}{cached}, "
        f"{filled} of {now.num_slots_used} slots filled, {frame.num_output_tokens} tokens generated"
    )


def _headline(trace: Trace, frame: Frame, index: int) -> str:
    title = f"{clean(trace.title, 60)}\n" if trace.title else ""
    return f"{title}iteration {index} of {len(trace) - 1}: {counts_text(trace, frame)}"


def _grid(trace: Trace, before: Frame, frame: Frame, columns: int | None) -> list[str]:
    columns = columns or min(columns_for(trace.num_blocks), 16)
    owned = before.owners()
    new = {b for b, owners in frame.owners().items() if set(owners) - set(owned.get(b, ()))}
    cells = [_cell(trace, frame, b, b in new) for b in range(len(frame.blocks))]
    width = max(map(len, cells), default=0)
    rows = []
    for start in range(0, len(cells), columns):
        row = " ".join(cell.ljust(width) for cell in cells[start : start + columns])
        rows.append(f"{start:>5}  {row}".rstrip())
    return rows


def _cell(trace: Trace, frame: Frame, block_id: int, is_new: bool) -> str:
    cell = frame.blocks[block_id]
    level = LEVELS[-(-8 * cell.fill // trace.block_size)]
    if cell.ref_cnt == 0:
        return label(cell.request).lower() + level if cell.cached and cell.request >= 0 else "··"
    has_ended = frame.requests[cell.request].status == "finished"
    mark = "&" if cell.ref_cnt > 1 else "+" if is_new else "-" if has_ended else ""
    return label(cell.request) + level + mark


def _requests(frame: Frame) -> list[str]:
    lines = []
    ran = dict(frame.scheduled)
    for number in (*frame.running, *frame.waiting[:MOST_WAITING]):
        row = frame.requests[number]
        tokens = f"{row.num_computed_tokens}/{row.num_tokens} tokens computed"
        now = f", ran {ran[number]}" if number in ran else ""
        lines.append(f"{_who(number, row)}: {tokens}{now}{_tables(row)}")
    if len(frame.waiting) > MOST_WAITING:
        lines.append(f"and {len(frame.waiting) - MOST_WAITING} more wait")
    ended = [n for n, row in enumerate(frame.requests)
             if row.status == "finished" and n not in frame.running]  # fmt: skip
    if ended:
        more = f" and {len(ended) - MOST_FINISHED} more" if len(ended) > MOST_FINISHED else ""
        lines.append("finished: " + " ".join(map(label, ended[:MOST_FINISHED])) + more)
    return lines


def _who(number: int, row: RequestRow) -> str:
    return f"{label(number)} {clean(row.name)} {row.status}"


def _tables(row: RequestRow) -> str:
    tables = f", blocks {list(row.block_ids)}" if row.block_ids else ""
    return tables + (f", host blocks {list(row.host_block_ids)}" if row.host_block_ids else "")
