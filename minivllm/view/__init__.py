"""Recording runs and showing them: every block at every iteration, and why.

from minivllm.view import record, BlockMap

trace = record(engine)  # then let it run
BlockMap(trace)
"""

from minivllm.view.block_map import BlockMap, compare, occupancy_curve, timeline
from minivllm.view.frame import Frame
from minivllm.view.live import watch
from minivllm.view.recorder import Recorder, record
from minivllm.view.trace import Trace

__all__ = [
    "BlockMap", "Frame", "Recorder", "Trace",
    "compare", "occupancy_curve", "record", "timeline", "watch",
]  # fmt: skip
