"""How the pool was used over the iterations: every block counted once, every slot once.

used = shared + filled by one + reserved (empty)        free = cached + empty
"""

from __future__ import annotations

from typing import NamedTuple

from minivllm.view.frame import Frame
from minivllm.view.trace import Trace


class Occupancy(NamedTuple):
    """The blocks of one frame by kind (the first five add up to the pool), and the slots in use."""

    num_shared: int  # held by two or more
    num_filled: int  # held by one, with at least one token
    num_reserved: int  # held, no token yet
    num_cached: int  # free, but the prefix cache can still find it
    num_empty: int  # free
    num_slots_used: int  # slots of blocks in use
    num_slots_wasted: int  # of those, without a token, or with one of a request that has ended

    @property
    def num_used(self) -> int:
        return self.num_shared + self.num_filled + self.num_reserved


def occupancy(frame: Frame, block_size: int) -> Occupancy:
    """Count one frame's blocks and slots.

    A slot of a row that has ended is wasted, for nobody will read it: only static batching has
    such.
    """
    shared = filled = reserved = cached = empty = stored = 0
    for cell in frame.blocks:
        if cell.ref_cnt == 0:
            cached += cell.cached
            empty += not cell.cached
            continue
        shared += cell.ref_cnt > 1
        filled += cell.ref_cnt == 1 and cell.fill > 0
        reserved += cell.ref_cnt == 1 and cell.fill == 0
        if cell.request >= 0 and frame.requests[cell.request].status != "finished":
            stored += cell.fill
    slots = (shared + filled + reserved) * block_size
    return Occupancy(shared, filled, reserved, cached, empty, slots, slots - stored)


def occupancy_of(trace: Trace) -> list[Occupancy]:
    """One record per frame."""
    return [occupancy(frame, trace.block_size) for frame in trace]


def preemptions_of(trace: Trace) -> list[int]:
    """The frames in which somebody was preempted, in order."""
    return [index for index, frame in enumerate(trace)
            if any(event.kind == "preempt" for event in frame.events)]  # fmt: skip
