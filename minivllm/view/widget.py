"""The block map where the kernel must answer: one anywidget over the same renderer.

w = BlockMap(trace).widget()
w.step = 7;  w.trace = another_trace                   # both are shown at once
jslink((slider, "value"), (w, "step"))                 # with ipywidgets, without the kernel
w.observe(lambda change: ..., names="step")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from minivllm.view.page import MODULE
from minivllm.view.trace import Trace

if TYPE_CHECKING:
    from minivllm.view.block_map import BlockMap


MOST_FRESH = 32  # lines of a live trace sent again and again before the whole is


class BlockMapWidget(anywidget.AnyWidget):
    """`step` is the iteration shown. Built by `BlockMap.widget()`."""

    _esm = traitlets.Unicode().tag(sync=True)
    payload = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    fresh = traitlets.Dict().tag(sync=True)  # what a live trace has beyond the payload

    def __init__(self, block_map: BlockMap) -> None:
        self._block_map = block_map
        self._num_sent = len(block_map.traces[0])
        source = MODULE.read_text(encoding="utf-8")
        super().__init__(_esm=source, payload=block_map.payload(), step=block_map.step)

    @property
    def trace(self) -> Trace:
        """The (first) run shown; setting it redraws and keeps the step where it can."""
        return self._block_map.traces[0]

    @trace.setter
    def trace(self, trace: Trace) -> None:
        self._block_map.traces = (trace, *self._block_map.traces[1:])
        self.step = min(self.step, len(trace) - 1)
        self.payload = self._block_map.payload()

    def push(self) -> None:
        """Show what the trace has got since. A page that opens late misses nothing: lines are sent
        until the payload has them."""
        lines = self.trace.lines
        if len(lines) - self._num_sent > MOST_FRESH:
            self._num_sent = len(lines)
            self.payload = self._block_map.payload() | {"live": True}
        self.fresh = {"start": self._num_sent, "lines": lines[self._num_sent :]}

    def __repr__(self) -> str:
        return self._block_map.text(self.step)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data:  # for a page without the kernel
            self._block_map.step = self.step
            data["text/html"] = self._block_map.html()
        return bundle
