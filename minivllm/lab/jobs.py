"""A job: how long a request's prompt and output are and when it comes, without any token.

Experiments are about lengths; the tokens are made when a job is given to an engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Job:
    """One request of an experiment. Raises ValueError for an empty prompt or output.

    arrival: seconds since the beginning. max_new_tokens: what its user allows, where that is more
    than what comes. block_hashes: names of the prompt's full blocks, equal where a prefix is.
    """

    prompt_len: int
    output_len: int
    arrival: float = 0.0
    max_new_tokens: int | None = None
    block_hashes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt_len < 1 or self.output_len < 1:
            raise ValueError(
                f"a job needs at least one token each way, got a prompt of {self.prompt_len} and "
                f"an output of {self.output_len}"
            )

    @property
    def num_tokens(self) -> int:
        return self.prompt_len + self.output_len


def arriving(jobs: Iterable[Job], times: Iterable[float]) -> list[Job]:
    """The same jobs, each at its time.

    >>> [job.arrival for job in arriving([Job(3, 1), Job(4, 1)], [0.5, 2.0])]
    [0.5, 2.0]
    """
    return [replace(job, arrival=time) for job, time in zip(jobs, times, strict=True)]


def make_prompt(job: Job, index: int, vocab_size: int) -> list[int]:
    """A prompt of the job's length, seeded by its place among the jobs: no two share a block."""
    rng = random.Random(f"prompt/{index}")
    return rng.choices(range(vocab_size), k=job.prompt_len)


def means(jobs: Sequence[Job]) -> tuple[float, float]:
    """Mean prompt and output length.

    >>> means([Job(3, 1), Job(5, 2)])
    (4.0, 1.5)
    """
    prompts, outputs = (sum(job.prompt_len for job in jobs), sum(job.output_len for job in jobs))
    return prompts / len(jobs), outputs / len(jobs)
