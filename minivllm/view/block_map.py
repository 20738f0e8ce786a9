"""The block map as a notebook shows it, as a page of its own, and as text.

    BlockMap(trace)                              # last line of a cell: a map with slider and keys
    BlockMap(trace, timeline=True, curve=True)   # with the timeline and the occupancy curve below
    BlockMap(trace).save("map.html")             # one page that needs nothing else
    print(BlockMap(trace).text(7))

The text is deterministic, and what nbval compares. How the HTML is made is page.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minivllm.view.page import map_html, page_html
from minivllm.view.text_map import clean, map_text
from minivllm.view.timeline import timeline_text
from minivllm.view.trace import Trace

if TYPE_CHECKING:
    from minivllm.view.widget import BlockMapWidget


class BlockMap:
    """One run, or two under one clock, ready to be shown.

    step: the iteration to open at (the busiest of the last run). columns: blocks in a row of the
    map. timeline, curve: show these below the map; map=False leaves the map out. Raises ValueError
    for no trace, an empty one, or a step outside.
    """

    def __init__(
        self,
        *traces: Trace,
        step: int | None = None,
        columns: int | None = None,
        map: bool = True,
        timeline: bool = False,
        curve: bool = False,
    ) -> None:
        if not traces or any(len(trace) == 0 for trace in traces):
            raise ValueError("a block map needs at least one trace, and no empty one")
        wanted = {"map": map, "timeline": timeline, "curve": curve}
        self.traces = traces
        self.parts = [part for part, is_wanted in wanted.items() if is_wanted]
        self.columns = columns
        self.step = traces[-1].busiest if step is None else self._checked(step)

    def _checked(self, step: int) -> int:
        length = max(map_len(self.traces), 1)
        if not 0 <= step < length:
            raise ValueError(f"step {step} is outside the {length} frames of the trace")
        return step

    def text(self, step: int | None = None) -> str:
        """The same in letters, the map at iteration `step`. Deterministic."""
        step = self.step if step is None else self._checked(step)
        texts = []
        for trace in self.traces:
            if "map" in self.parts:
                texts.append(map_text(trace, min(step, len(trace) - 1), self.columns))
            if "timeline" in self.parts:
                texts.append(timeline_text(trace))
            if self.parts == ["curve"]:
                texts.append(map_text(trace, min(step, len(trace) - 1), self.columns))
        return "\n\n".join(texts)

    def payload(self) -> dict[str, Any]:
        """What block_map.js needs to draw, as JSON values."""
        traces = [trace.header | {"frames": list(trace.lines)} for trace in self.traces]
        return {"traces": traces, "parts": self.parts, "columns": self.columns, "step": self.step}

    def html(self, titles: bool = True) -> str:
        """The map for a page: text, data and the module that turns them into the live map.

        titles: say over each run what it is, where the page around does not.
        """
        return map_html(self.text(), self.payload() | {"titles": titles})

    def save(self, path: str | Path, title: str | None = None) -> None:
        """Write a page of its own that works from a file, without a network."""
        titles = [trace.title for trace in self.traces if trace.title]
        heading = title or " and ".join(titles) or "Block map"
        body = self.html(titles=len(self.traces) > 1 or heading not in titles)
        Path(path).write_text(page_html(clean(heading, 100), body), encoding="utf-8")

    def widget(self) -> BlockMapWidget:
        """The map linked with the kernel: `step` and `trace` can be read and set from Python."""
        from minivllm.view.widget import BlockMapWidget  # anywidget only where it is asked for

        return BlockMapWidget(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def __repr__(self) -> str:
        return self.text()


def compare(trace_a: Trace, trace_b: Trace, **options: Any) -> BlockMap:
    """Two runs side by side under one slider: one iteration here is one iteration there."""
    return BlockMap(trace_a, trace_b, **options)


def timeline(*traces: Trace, **options: Any) -> BlockMap:
    """The timeline, with the map that follows a click on it."""
    return BlockMap(*traces, **{"timeline": True} | options)


def occupancy_curve(*traces: Trace, **options: Any) -> BlockMap:
    """The blocks in use over the iterations, with the map that follows a click on them."""
    return BlockMap(*traces, **{"curve": True} | options)


def map_len(traces: Sequence[Trace]) -> int:
    """Frames of the longest of the traces: the length of their common clock."""
    return max(len(trace) for trace in traces)
