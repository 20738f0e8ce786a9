"""One iteration as it stood when it was over: every request, every block, and what was decided.

A frame is made of tuples all the way down, so nothing that happens later can change it. It knows
nothing of engines (recorder.py looks at those) nor of files (trace.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minivllm.step_records import BlockOp, Event


class RequestRow(NamedTuple):
    """One request at one moment. Its place in `Frame.requests` is its number in the whole trace.

    status: waiting, running, preempted or finished. A request that ended but still holds blocks
    sits in a static batch.
    """

    name: str
    num_prompt_tokens: int
    max_tokens: int
    status: str = "waiting"
    num_tokens: int = 0  # known so far: prompt and output
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    block_ids: tuple[int, ...] = ()
    host_block_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    num_padding: int = 0  # slots in front of its first token (static batching pads on the left)

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens


class BlockCell(NamedTuple):
    """One block at one moment. ref_cnt 0: free. cached: the prefix cache can find it.

    request, index: the first holder (in batch order) and which of its blocks this is; for a free
    block that is cached, who held it last; else -1.
    """

    ref_cnt: int = 0
    fill: int = 0  # slots that hold a token
    cached: bool = False
    request: int = -1
    index: int = -1


FREE = BlockCell()


@dataclass(frozen=True)
class Frame:
    """What a reader can see of one iteration: the state after it, and the decisions in it.

    requests: all seen so far. running: in batch order; waiting: in line order, preempted ones
    included (numbers of requests). scheduled: (request, tokens it ran), in batch order. ops: the
    moves of blocks, before anything was written.
    """

    step: int
    requests: tuple[RequestRow, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    scheduled: tuple[tuple[int, int], ...]
    blocks: tuple[BlockCell, ...]
    events: tuple[Event, ...] = ()
    ops: tuple[BlockOp, ...] = ()

    @classmethod
    def empty(cls, num_blocks: int) -> Frame:
        """Nothing has happened: what the first frame of a trace is compared with."""
        return cls(0, (), (), (), (), (FREE,) * num_blocks)

    def owners(self) -> dict[int, list[int]]:
        """Block id -> the requests that hold it, in their order. O(blocks in use).

        >>> rows = (RequestRow("a", 3, 2, block_ids=(1, 0)), RequestRow("b", 3, 2, block_ids=(1,)))
        >>> Frame(1, rows, (0, 1), (), (), (BlockCell(1), BlockCell(2))).owners()
        {1: [0, 1], 0: [0]}
        """
        owners: dict[int, list[int]] = {}
        for number, row in enumerate(self.requests):
            for block_id in row.block_ids:
                owners.setdefault(block_id, []).append(number)
        return owners

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, by all requests."""
        return sum(row.num_output_tokens for row in self.requests)


def label(number: int) -> str:
    """The letters that stand for a request in every view.

    >>> [label(n) for n in (0, 25, 26, 51, 52, 701, 702)]
    ['A', 'Z', 'AA', 'AZ', 'BA', 'ZZ', 'AAA']
    """
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
