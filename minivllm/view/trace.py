"""A recorded run: the frames of all iterations, kept as their differences.

    trace = record(engine)            # recorder.py; then let the engine run
    trace[3]                          # the frame after iteration 3, a fresh snapshot
    trace.save("run.jsonl"); Trace.load("run.jsonl")

The file is plain JSON lines: first what holds for the whole run, then one line per iteration
(delta.py). Invariant: replaying the lines gives the recorded frames exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minivllm.view.delta import NewTokens, apply, difference
from minivllm.view.frame import Frame

FORMAT, VERSION = "minivllm trace", 1
COUNTS = ("block_size", "num_blocks", "num_host_blocks")


class Trace:
    """The frames of one run; grows by `append`. Frame 0 is the state when the recording began.

    token_ids[i]: all tokens of request i. texts: token id -> text, of those with a known text.

    >>> trace = Trace(block_size=4, num_blocks=2)
    >>> trace.append(Frame.empty(2))
    >>> len(trace), trace[0].step
    (1, 0)
    """

    def __init__(
        self, block_size: int, num_blocks: int, num_host_blocks: int = 0, title: str = ""
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.title = title
        self.token_ids: list[list[int]] = []
        self.texts: dict[int, str] = {}
        self.lines: list[dict[str, Any]] = []  # one for each frame
        self._last = Frame.empty(num_blocks)

    def append(
        self,
        frame: Frame,
        new_token_ids: NewTokens | None = None,
        texts: dict[int, str] | None = None,
    ) -> None:
        """Record one more frame. new_token_ids: what each request (by its number) got since the
        last one, its prompt at first. Raises ValueError when they do not add up to `num_tokens`."""
        new_token_ids = new_token_ids or {}
        for number, row in enumerate(frame.requests):
            known = len(self.token_ids[number]) if number < len(self.token_ids) else 0
            num_tokens = known + len(new_token_ids.get(number, ()))
            if num_tokens != row.num_tokens:
                raise ValueError(
                    f"request {row.name!r:.40} has {row.num_tokens} tokens, {num_tokens} recorded"
                )
        line = difference(self._last, frame, new_token_ids)
        if texts:
            line["texts"] = {str(token_id): text for token_id, text in texts.items()}
        self._take(line, frame)

    def _take(self, line: dict[str, Any], frame: Frame) -> None:
        self.lines.append(line)
        self._last = frame
        self.token_ids += [[] for _ in frame.requests[len(self.token_ids) :]]
        for number, token_ids in line.get("tokens", {}).items():
            self.token_ids[int(number)] += token_ids
        for token_id, text in line.get("texts", {}).items():
            self.texts[int(token_id)] = text

    # --- reading --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Frame]:
        """The frames in order, each made anew."""
        frame = Frame.empty(self.num_blocks)
        for line in self.lines:
            frame = apply(frame, line)
            yield frame

    def __getitem__(self, index: int) -> Frame:
        """The frame after iteration `index` (negative: from the end). O(index)."""
        wanted = range(len(self))[index]
        for position, frame in enumerate(self):
            if position == wanted:
                return frame
        raise IndexError(index)

    @property
    def busiest(self) -> int:
        """The first iteration with the most blocks in use: the one that shows the most."""
        used = [sum(cell.ref_cnt > 0 for cell in frame.blocks) for frame in self]
        return used.index(max(used)) if used else 0

    def block_token_ids(self, frame: Frame, block_id: int) -> list[int]:
        """The tokens whose K and V lie in a block, in order; empty for one that holds nothing."""
        cell = frame.blocks[block_id]
        if cell.request < 0:
            return []
        padding = frame.requests[cell.request].num_padding
        start = max(cell.index * self.block_size - padding, 0)
        return self.token_ids[cell.request][start : start + cell.fill]

    def text_of(self, token_id: int) -> str:
        """A token's text; its id in angle brackets where none was recorded."""
        return self.texts.get(token_id, f"<{token_id}>")

    # --- files ----------------------------------------------------------------------------------

    @property
    def header(self) -> dict[str, Any]:
        """What holds for the whole run: the first line of a file."""
        counts = {name: getattr(self, name) for name in COUNTS}
        header = {"format": FORMAT, "version": VERSION, "title": self.title}
        return header | counts | {"num_frames": len(self)}

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON lines."""
        lines = [json.dumps(line, separators=(",", ":")) for line in [self.header, *self.lines]]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace, replaying it once. Raises ValueError, with the line, for a file that is no
        trace, is damaged, was cut, or is of a newer version."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a trace: it is no text ({error})") from None
        trace, num_frames = cls._from_header(path, lines[0] if lines else "")
        for number, text in enumerate(lines[1:], start=2):
            try:
                line = json.loads(text)
                trace._take(line, apply(trace._last, line))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise ValueError(f"{path} is damaged in line {number}: {what:.200}") from None
        if len(trace) != num_frames:
            raise ValueError(f"{path} is cut: {len(trace)} of {num_frames} iterations are there")
        return trace

    @classmethod
    def _from_header(cls, path: str | Path, text: str) -> tuple[Trace, int]:
        try:
            header = json.loads(text)
            is_trace = header["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            is_trace = False
        if not is_trace:
            raise ValueError(f"{path} is not a trace: its first line does not say {FORMAT!r}")
        if header.get("version") != VERSION:
            raise ValueError(
                f"{path} is a trace of version {header.get('version')!r}; this minivllm reads "
                f"version {VERSION}"
            )
        counts = [header.get(name) for name in COUNTS]
        if not all(isinstance(value, int) and value >= 0 for value in counts):
            raise ValueError(f"{path} is damaged in line 1: {', '.join(COUNTS)} are {counts}")
        return cls(*counts, title=str(header.get("title", ""))), header.get("num_frames")
