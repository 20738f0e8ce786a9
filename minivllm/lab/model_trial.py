"""A learner's attention or sampler in the full engine with a real (tiny, random) model.

The tokens must be those that the package's own parts give for the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from minivllm.config import SchedulerConfig
from minivllm.executor import ModelExecutor
from minivllm.lab.exam import Wrong
from minivllm.lab.trial import TrialRun, trial
from minivllm.model import LlamaModel
from minivllm.view.twin_runs import Job
from minivllm.weights import load_weights


@lru_cache(maxsize=1)
def tiny_model() -> LlamaModel:
    """The seeded random model, read once."""
    return LlamaModel(*load_weights("tiny"))


def model_trial(
    work: Sequence[Job],
    config: SchedulerConfig,
    *,
    attention: Callable[..., Any] | None = None,
    sampler: Callable[..., Any] | None = None,
    **parts: Any,
) -> TrialRun:
    """`trial` with the tiny model; attention stands in for paged_attention, sampler for sample.

    Both with the package's signatures. Prompts must lie in a vocabulary of 259 (bytes_jobs). Raises
    Wrong where a token differs from the package's.
    """
    temperature = {"temperature": parts.get("temperature", 0)}
    wanted = _run(work, config, {}, temperature)
    replaced = {"paged_attention": attention, "sample": sampler}
    run = _run(work, config, {k: v for k, v in replaced.items() if v is not None}, parts)
    for job in work:
        for at, pair in enumerate(
            zip(run.tokens.get(job.name, []), wanted.tokens[job.name], strict=False)
        ):
            if pair[0] != pair[1]:
                raise Wrong(
                    f"{job.name}: output token {at} is {pair[0]}, the package's engine gives "
                    f"{pair[1]}"
                )
    return run


def bytes_jobs(prompts: Sequence[str], outputs: Sequence[int]) -> list[Job]:
    """Jobs from texts, one token a byte as the tiny tokenizer has it."""
    return [
        Job(f"r{i}", [byte + 3 for byte in text.encode()], most)
        for i, (text, most) in enumerate(zip(prompts, outputs, strict=True))
    ]


def _run(
    work: Sequence[Job], config: SchedulerConfig, replaced: dict[str, Any], parts: dict[str, Any]
) -> TrialRun:
    with ExitStack() as stack:
        for name, part in replaced.items():
            stack.enter_context(patch(f"minivllm.executor.{name}", part))
        executor = ModelExecutor(
            tiny_model(), config.num_blocks, config.block_size, attention_backend="torch"
        )
        return trial(work, config, executor=executor, **parts)
