"""Ends a loop that never would, where the system can (not on Windows, not in a thread)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeIsUp(Exception):
    """The answer ran too long: most likely a loop that never ends."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in the block once `seconds` are over."""
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and hasattr(signal, "setitimer")):
        yield
        return

    def ring(signum: int, frame: object) -> None:
        raise TimeIsUp(f"not done after {seconds:g} s: does a loop never end?")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
