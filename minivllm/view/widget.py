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

from minivllm.view.trace import Trace

if TYPE_CHECKING:
    from minivllm.view.block_map import BlockMap


class BlockMapWidget(anywidget.AnyWidget):
    """`step` is the iteration shown. Built by `BlockMap.widget()`."""

    _esm = traitlets.Unicode().tag(sync=True)
    payload = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    def __init__(self, block_map: BlockMap) -> None:
        self._block_map = block_map
        source = block_map_source()
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

    def push(self, run: int = 0) -> None:
        """Show the newest frame of a trace that goes on: only that frame travels."""
        line = self._block_map.traces[run].lines[-1]
        self.send({"run": run, "line": line})

    def __repr__(self) -> str:
        return self._block_map.text(self.step)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data:  # for a page without the kernel
            self._block_map.step = self.step
            data["text/html"] = self._block_map.html()
        return bundle


def block_map_source() -> str:
    """The renderer's module, comments included."""
    from minivllm.view.block_map import MODULE

    return MODULE.read_text(encoding="utf-8")
