"""What the user gets back: vLLM's RequestOutput and its parts, field for field."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Logprob:
    """One token's log probability at one position, in the model's own distribution.

    rank: among all tokens, 1 for the likeliest; None when it is not known. decoded_token: its text.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One sample's output, so far or whole.

    finish_reason: None while it runs, then "stop", "length", "abort" or "error". stop_reason: the
    stop string or token id that ended it; None for the model's own end token; an error's message.
    logprobs, where asked for: a dict token id -> Logprob for each output token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """One request: its prompt and its samples, in the order of their index."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
