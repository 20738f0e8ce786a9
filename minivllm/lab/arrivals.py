"""When requests come: arrival times in seconds, seeded, for open-loop experiments.

Open loop: requests come at their times whether or not the server keeps up, as users do.
"""

from __future__ import annotations

import random
from itertools import accumulate


def poisson(rate: float, num_jobs: int, seed: int = 0) -> list[float]:
    """Independent users, `rate` a second on average: exponential gaps (coefficient of
    variation 1)."""
    return gamma(rate, 1.0, num_jobs, seed)


def gamma(rate: float, cv: float, num_jobs: int, seed: int = 0) -> list[float]:
    """Gamma gaps with a coefficient of variation `cv`: above 1 bursty, below 1 regular, 0 a clock.

    Raises ValueError for a rate that is not positive or a negative cv.
    """
    if rate <= 0 or cv < 0:
        raise ValueError(f"rate must be above 0 and cv at least 0, got {rate} and {cv}")
    if cv == 0:
        return [(index + 1) / rate for index in range(num_jobs)]
    rng = random.Random(f"arrivals/{rate}/{cv}/{seed}")
    shape = 1 / cv**2
    gaps = (rng.gammavariate(shape, 1 / (rate * shape)) for _ in range(num_jobs))
    return list(accumulate(gaps))


def bursts(num_jobs: int, size: int, every: float) -> list[float]:
    """`size` at once, then nobody for `every` seconds, and again.

    >>> bursts(5, size=2, every=10.0)
    [0.0, 0.0, 10.0, 10.0, 20.0]
    """
    if size < 1 or every < 0:
        raise ValueError(f"size must be >= 1 and every >= 0, got {size} and {every}")
    return [index // size * every for index in range(num_jobs)]
