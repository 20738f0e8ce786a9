"""The line of waiting requests: preempted ones first, then in the order of a policy.

Invariant: whoever has been preempted is never overtaken by somebody who has not run yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from minivllm.policy import Policy
from minivllm.request import Request, RequestStatus


class RequestQueue:
    """A heap over (preempted first, the policy's key, arrival), with removal from the middle.

    A removed request stays in the heap as a dead entry until it surfaces; the heap is rebuilt once
    more than half of it is dead, so its size stays within twice the living ones.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple] = []
        self._entry_of: dict[Request, tuple] = {}  # the living entry of each waiting request

    def order(self, request: Request) -> tuple[float, int, int]:
        """What requests are sorted by: the policy's key, the arrival, the place among samples."""
        return self._policy(request), request.arrival, request.sample_index

    def push(self, request: Request) -> None:
        fresh = request.status is not RequestStatus.PREEMPTED
        entry = (fresh, self.order(request), request)
        heapq.heappush(self._heap, entry)
        self._entry_of[request] = entry

    def peek(self) -> Request | None:
        """The next in line, or None when nobody waits."""
        while self._heap and not self._is_alive(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> Request:
        """Take the next in line out. Raises IndexError when nobody waits."""
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty RequestQueue")
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands. Raises KeyError when it does not wait."""
        del self._entry_of[request]
        if len(self._heap) > 2 * len(self._entry_of):
            self._heap = list(self._entry_of.values())
            heapq.heapify(self._heap)

    def _is_alive(self, entry: tuple) -> bool:
        return self._entry_of.get(entry[-1]) is entry

    def __len__(self) -> int:
        return len(self._entry_of)

    def __contains__(self, request: Request) -> bool:
        return request in self._entry_of

    def __iter__(self) -> Iterator[Request]:
        """The requests in line order. O(n log n): for views, not for a step."""
        return iter([entry[-1] for entry in sorted(self._entry_of.values(), key=lambda e: e[:-1])])
