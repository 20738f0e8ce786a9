"""The limits of the engine, checked where they are born."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.policy import POLICIES
from minivllm.sampling_params import is_int


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step and one pool may hold. Raises ValueError for limits that contradict each other.

    block_size: tokens in a block. num_blocks: blocks in the pool. max_num_seqs: requests running at
    once. max_num_batched_tokens: tokens in one step, the token budget. max_model_len: tokens of one
    request, prompt and output. long_prefill_token_threshold: most tokens one request runs in a step
    (0: the whole budget). enable_chunked_prefill: whether a prompt may be run in pieces.
    watermark_blocks: blocks that an admission must leave free for those already running.
    enable_prefix_caching: whether full blocks are found again by requests with the same prefix.
    policy: "fcfs", "priority" or "sjf". preemption_mode: "recompute", or "swap" into
    num_host_blocks blocks of host memory.

    >>> SchedulerConfig(num_blocks=8, long_prefill_token_threshold=64, max_num_batched_tokens=32)
    Traceback (most recent call last):
        ...
    ValueError: long_prefill_token_threshold (64) is above max_num_batched_tokens (32)
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int = 2048
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    watermark_blocks: int = 1
    enable_prefix_caching: bool = False
    policy: str = "fcfs"
    preemption_mode: str = "recompute"
    num_host_blocks: int = 0

    def __post_init__(self) -> None:
        lowest = {
            "num_blocks": 1, "block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1,
            "max_model_len": 2, "long_prefill_token_threshold": 0, "watermark_blocks": 0,
            "num_host_blocks": 0,
        }  # fmt: skip
        for name, least in lowest.items():
            value = getattr(self, name)
            if not is_int(value) or value < least:
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        budget = self.max_num_batched_tokens
        if self.long_prefill_token_threshold > budget:
            raise ValueError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) is above "
                f"max_num_batched_tokens ({budget})"
            )
        if not self.enable_chunked_prefill and budget < self.max_model_len:
            raise ValueError(
                f"without chunked prefill a prompt must fit into one step: max_num_batched_tokens "
                f"({budget}) is below max_model_len ({self.max_model_len})"
            )
        if not self.enable_chunked_prefill and self.long_prefill_token_threshold:
            raise ValueError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) cuts prompts, "
                "and enable_chunked_prefill is False"
            )
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.preemption_mode not in ("recompute", "swap"):
            raise ValueError(
                f"preemption_mode must be recompute or swap, got {self.preemption_mode!r}"
            )

    @property
    def max_chunk(self) -> int:
        """Most tokens that one request may run in one step."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens
