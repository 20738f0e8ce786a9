"""What the user wants from one request, refused here when it makes no sense.

The fields bear vLLM's names, so that a script for vLLM runs with the import changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class SamplingParams:
    """How to choose the tokens of one request and when to stop.

    n: samples of the same prompt. max_tokens / min_tokens: bounds of the output (None: up to the
    model's length); stop tokens are suppressed before min_tokens. temperature 0 takes the likeliest
    token; top_k (0 or -1: off), top_p and min_p narrow the choice before the draw. seed: the
    request's own random stream. stop: strings that end the output and are cut from it;
    stop_token_ids: tokens that end it; ignore_eos: the model's own end token does not. logprobs:
    how many likeliest tokens to report per position. Raises ValueError for a value out of range.

    >>> SamplingParams(temperature=0.0, max_tokens=8).is_greedy
    True
    >>> SamplingParams(top_p=1.5)
    Traceback (most recent call last):
        ...
    ValueError: top_p must be in (0, 1], got 1.5
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self._require("n", is_int(self.n) and self.n >= 1, ">= 1")
        good = self.max_tokens is None or (is_int(self.max_tokens) and self.max_tokens >= 1)
        self._require("max_tokens", good, ">= 1 or None")
        self._require("min_tokens", is_int(self.min_tokens) and self.min_tokens >= 0, ">= 0")
        if self.max_tokens is not None:
            limit = f"<= max_tokens ({self.max_tokens})"
            self._require("min_tokens", self.min_tokens <= self.max_tokens, limit)
        finite = is_number(self.temperature) and math.isfinite(self.temperature)
        self._require("temperature", finite and self.temperature >= 0, ">= 0")
        self._require("top_p", is_number(self.top_p) and 0 < self.top_p <= 1, "in (0, 1]")
        self._require("top_k", is_int(self.top_k) and self.top_k >= -1, ">= 1, or 0 or -1 for off")
        self._require("min_p", is_number(self.min_p) and 0 <= self.min_p <= 1, "in [0, 1]")
        self._require("seed", self.seed is None or is_int(self.seed), "an integer or None")
        good = self.logprobs is None or (is_int(self.logprobs) and self.logprobs >= 0)
        self._require("logprobs", good, ">= 0 or None")
        self._check_stops()

    def _check_stops(self) -> None:
        for name in ("stop", "stop_token_ids"):
            good = isinstance(getattr(self, name), (str, list, tuple, type(None)))
            self._require(name, good, "a list")
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        good = all(isinstance(text, str) and text for text in self.stop)
        self._require("stop", good, "made of non-empty strings")
        self.stop_token_ids = list(self.stop_token_ids or [])
        good = all(is_int(token) and token >= 0 for token in self.stop_token_ids)
        self._require("stop_token_ids", good, "made of token ids >= 0")

    def _require(self, name: str, good: bool, rule: str) -> None:
        if not good:
            raise ValueError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw: at temperature 0, or top_k 1."""
        return self.temperature == 0 or self.top_k == 1


def is_int(value: object) -> bool:
    """True for an integer that is not a bool.

    >>> is_int(3), is_int(True), is_int(3.0)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """True for an int or float that is not a bool (nan included: the range checks refuse it)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
