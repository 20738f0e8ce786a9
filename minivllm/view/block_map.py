"""The block map as a notebook shows it, as a page of its own, and as text.

    BlockMap(trace)                              # last line of a cell: a map with slider and keys
    BlockMap(trace, timeline=True, curve=True)   # with the timeline and the occupancy curve below
    BlockMap(trace).save("map.html")             # one page that needs nothing else
    print(BlockMap(trace).text(7))

One renderer, block_map.js, draws in all of them. The HTML holds the text map first and the trace as
JSON; the module then puts the interactive map in its place, so where scripts are not run the text
remains. Invariant: nothing in it is random, and nothing of a trace can become markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minivllm.view.text_map import clean, map_text
from minivllm.view.timeline import timeline_text
from minivllm.view.trace import Trace

if TYPE_CHECKING:
    from minivllm.view.widget import BlockMapWidget

MODULE = Path(__file__).with_name("block_map.js")
# Several maps may share a page, and ids would differ from run to run: a host is found by its class.
MOUNT_ALL = """
for (const host of document.querySelectorAll(".mv-host:not([data-mounted])")) {
  mount(host, JSON.parse(host.querySelector('script[type="application/json"]').textContent));
}
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 16px; background: Canvas; color: CanvasText; }}
main {{ max-width: 1280px; margin: 0 auto; }}
h1 {{ font: 600 20px/1.4 system-ui, sans-serif; margin: 0 0 12px; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


class BlockMap:
    """One run, or two under one clock, ready to be shown.

    step: the iteration to open at (the busiest of the first run). columns: blocks in a row of the
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
        self.step = traces[0].busiest if step is None else self._checked(step)

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
        traces = [trace.header | {"frames": trace.lines} for trace in self.traces]
        return {"traces": traces, "parts": self.parts, "columns": self.columns, "step": self.step}

    def html(self, titles: bool = True) -> str:
        """The map for a page: text, data and the module that turns them into the live map.

        titles: say over each run what it is, where the page around does not.
        """
        # No "<" in the data, or a request named </script> would end it.
        payload = self.payload() | {"titles": titles}
        data = json.dumps(payload, separators=(",", ":")).replace("<", "\\u003c")
        return (
            f'<div class="mv-host"><pre>{escape(self.text())}</pre>'
            f'<script type="application/json">{data}</script></div>\n'
            f'<script type="module">\n{module_source()}{MOUNT_ALL}</script>'
        )

    def save(self, path: str | Path, title: str | None = None) -> None:
        """Write a page of its own that works from a file, without a network."""
        titles = [trace.title for trace in self.traces if trace.title]
        heading = title or " and ".join(titles) or "Block map"
        body = self.html(titles=len(self.traces) > 1 or heading not in titles)
        page = PAGE.format(title=escape(clean(heading, 100)), body=body)
        Path(path).write_text(page, encoding="utf-8")

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


def module_source() -> str:
    """block_map.js without its comment lines and indentation: it is stored with every map."""
    lines = (line.strip() for line in MODULE.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"
