"""What is said of a run, each figure with its definition.

All times are in seconds and count from a request's *arrival*, waiting included, not from the moment
it is let in. Tokens are counted as sampled. A request that failed (refused, or ended by an error)
is counted apart and enters no latency: the fastest way to fail must not look fast.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class RequestTimes:
    """When one request came and when each of its tokens did.

    >>> times = RequestTimes(1.0, [3.0, 3.5, 4.5])
    >>> times.ttft, times.tpot, times.gaps, times.latency, times.normalized_latency
    (2.0, 0.75, [0.5, 1.0], 3.5, 1.1666666666666667)
    """

    arrival: float
    token_times: list[float] = field(default_factory=list)
    failed: bool = False

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.token_times[0] - self.arrival

    @property
    def tpot(self) -> float | None:
        """Time per output token: from the first to the last, by the tokens after the first."""
        num_gaps = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / num_gaps if num_gaps else None

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: each pause between two tokens, of which tpot is the mean."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def latency(self) -> float:
        """End to end: from arrival to the last token."""
        return self.token_times[-1] - self.arrival

    @property
    def normalized_latency(self) -> float:
        """End-to-end latency by output tokens: the metric of Orca and of the vLLM paper."""
        return self.latency / len(self.token_times)


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean, median, 90th and 99th percentile (the smallest value that 99 % do not exceed).

    >>> spread([3.0, 1.0, 2.0])
    {'mean': 2.0, 'p50': 2.0, 'p90': 3.0, 'p99': 3.0}
    """
    ordered = sorted(values)
    if not ordered:
        return {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    return {
        "mean": statistics.fmean(ordered),
        "p50": statistics.median(ordered),
        "p90": percentile(ordered, 90),
        "p99": percentile(ordered, 99),
    }


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest of the ordered values that `percent` % of them do not exceed (nearest rank).

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 51)
    (2.0, 3.0)
    """
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


def summary(requests: Sequence[RequestTimes], seconds: float) -> dict[str, object]:
    """All figures of a run that took `seconds`.

    throughput: output tokens a second, of requests that did not fail; request_rate: requests ended
    a second.
    """
    good = [request for request in requests if not request.failed and request.token_times]
    num_tokens = sum(len(request.token_times) for request in good)
    return {
        "requests": len(good),
        "failed": len(requests) - len(good),
        "output_tokens": num_tokens,
        "seconds": seconds,
        "throughput": num_tokens / seconds,
        "request_rate": len(good) / seconds,
        "ttft": spread(request.ttft for request in good),
        "tpot": spread(r.tpot for r in good if r.tpot is not None),
        "inter_token_latency": spread(gap for request in good for gap in request.gaps),
        "normalized_latency": spread(request.normalized_latency for request in good),
        "latency": spread(request.latency for request in good),
    }


def goodput(
    requests: Sequence[RequestTimes], seconds: float, meets: Callable[[RequestTimes], bool]
) -> float:
    """Requests a second that meet a target; failed ones never do.

    >>> fast = lambda request: request.ttft <= 1.0
    >>> goodput([RequestTimes(0, [0.5]), RequestTimes(0, [2.0])], 4.0, fast)
    0.25
    """
    good = (request for request in requests if not request.failed and request.token_times)
    return sum(map(meets, good)) / seconds


def within(ttft: float, tpot: float) -> Callable[[RequestTimes], bool]:
    """The usual target: a first token within `ttft` seconds, the others `tpot` apart on average."""
    return lambda request: request.ttft <= ttft and (request.tpot or 0.0) <= tpot
