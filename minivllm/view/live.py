"""A map that moves while the engine runs, in a notebook.

    trace = watch(llm)                # shows the map here
    llm.generate(prompts)             # each step appears in it at once

Each step sends its own line of the trace to the page, nothing else. When nobody is left to be
served, the stored output of the cell is brought up to date, for those who open the notebook later.
"""

from __future__ import annotations

import time
from typing import Any

from minivllm.view.block_map import BlockMap
from minivllm.view.recorder import Decode, Recorder
from minivllm.view.trace import Trace


def watch(
    engine: Any,
    decode: Decode | None = None,
    title: str = "",
    delay: float = 0.0,
    timeline: bool = False,
    curve: bool = False,
) -> Trace:
    """Show an engine's blocks below this cell, live; the trace that is returned grows with it.

    delay: seconds to wait after each step, since a small engine is faster than the eye.
    """
    from IPython.display import display

    recorder = Recorder(engine, decode, title)
    block_map = BlockMap(recorder.trace, step=0, timeline=timeline, curve=curve)
    widget = block_map.widget()
    handle = display(widget, display_id=True)

    def show_step(engine: Any, output: Any = None) -> None:
        widget.push()
        if delay:
            time.sleep(delay)
        if handle is not None and not engine.has_unfinished_requests:
            widget.step = len(recorder.trace) - 1
            handle.update(widget)

    recorder.engine.observers.append(show_step)
    return recorder.trace
