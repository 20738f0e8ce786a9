"""Families of jobs by their lengths: the mixes of the papers and of public traces, all seeded.

Where only the means of a data set are published, the family is named and the rest is a choice
stated here: a log-normal with the spread of an exponential (standard deviation = mean), cut so that
prompt + output <= 2048, its two medians solved for so that the means hold *after* the cut.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from minivllm.lab.jobs import Job

SIGMA = math.sqrt(math.log(2))  # of the logarithm: then standard deviation = mean
MAX_LEN = 2048
SHAREGPT_MEANS = (161.31, 337.99)  # prompt, output; as published with vLLM (SOSP 2023)
ALPACA_MEANS = (19.31, 58.45)
TRACES = Path(__file__).parent / "trace_lengths.json"


def uniform(
    num_jobs: int, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0
) -> list[Job]:
    """Lengths uniform between two bounds, both included; equal bounds fix a length."""
    rng = random.Random(f"uniform/{seed}")
    return [Job(rng.randint(*prompt), rng.randint(*output)) for _ in range(num_jobs)]


def orca_mix(num_jobs: int, seed: int = 0) -> list[Job]:
    """Orca's synthetic trace (OSDI 2022): prompts uniform 32..512, outputs uniform 1..128."""
    return uniform(num_jobs, (32, 512), (1, 128), seed)


def mix_80_20(num_jobs: int, seed: int = 0) -> list[Job]:
    """Of five outputs four are short (8..32) and one is long (128..256); prompts 32..128."""
    rng = random.Random(f"80/20/{seed}")
    bounds = [(128, 256) if i < num_jobs // 5 else (8, 32) for i in range(num_jobs)]
    rng.shuffle(bounds)
    return [Job(rng.randint(32, 128), rng.randint(*output)) for output in bounds]


def short_and_long(
    num_jobs: int, prompt_len: int, short: int, long: int, seed: int = 0
) -> list[Job]:
    """Seven outputs of `short` tokens for each of `long`, in random order: the textbook case."""
    outputs = [long if i < num_jobs // 8 else short for i in range(num_jobs)]
    random.Random(f"short and long/{seed}").shuffle(outputs)
    return [Job(prompt_len, output) for output in outputs]


def exponential_redrawn(
    num_jobs: int, cap: int, mean: float = 128.0, prompt_len: int = 512, seed: int = 0
) -> list[Job]:
    """Outputs exponential, those above `cap` drawn again (Anyscale, June 2023)."""
    rng = random.Random(f"exponential/{cap}/{seed}")

    def draw() -> int:
        while (length := math.ceil(rng.expovariate(1 / mean))) > cap:
            pass
        return length

    return [Job(prompt_len, draw()) for _ in range(num_jobs)]


# --- log-normals that hit published means -------------------------------------------------------


def sharegpt_like(num_jobs: int, seed: int = 0) -> list[Job]:
    """Chats: means of ShareGPT, log-normal, cut at 2048 tokens."""
    return log_normal(num_jobs, SHAREGPT_MEANS, f"sharegpt/{seed}")


def alpaca_like(num_jobs: int, seed: int = 0) -> list[Job]:
    """Instructions: means of Alpaca, log-normal, cut at 2048 tokens."""
    return log_normal(num_jobs, ALPACA_MEANS, f"alpaca/{seed}")


def log_normal(num_jobs: int, wanted: tuple[float, float], seed: str) -> list[Job]:
    """Jobs whose mean prompt and output are `wanted` after jobs above 2048 tokens are drawn again.

    Prompt and output are independent; lengths are rounded, 0 becomes 1.
    """
    rng = random.Random(seed)
    medians, normal = solve_medians(wanted), NormalDist()

    def length(median: float, u: float) -> int:
        return max(round(median * math.exp(SIGMA * normal.inv_cdf(u))), 1)

    jobs: list[Job] = []
    for draws in zip(spread_evenly(num_jobs, rng), spread_evenly(num_jobs, rng), strict=True):
        prompt, output = map(length, medians, draws)
        while prompt + output > MAX_LEN:
            prompt, output = (length(median, 1 - rng.random()) for median in medians)
        jobs.append(Job(prompt, output))
    return jobs


def spread_evenly(num_draws: int, rng: random.Random) -> list[float]:
    """Numbers in (0, 1), one from each of `num_draws` equal parts, in random order: like
    independent draws, but a small sample has the right mean, too.
    """
    draws = [(index + 1 - rng.random()) / (num_draws + 1e-9) for index in range(num_draws)]
    rng.shuffle(draws)
    return draws


@lru_cache
def solve_medians(wanted: tuple[float, float], num_points: int = 800) -> tuple[float, float]:
    """The medians before the cut that give the wanted means after it (fixed-point iteration).

    The means are integrals over a grid of num_points x num_points equally likely pairs.
    """
    normal = NormalDist()
    points = [normal.inv_cdf((i + 0.5) / num_points) for i in range(num_points)]
    factor = np.exp(SIGMA * np.array(points))
    medians = np.array(wanted) / math.exp(SIGMA**2 / 2)  # right when nothing is cut
    for _ in range(20):
        prompt, output = (np.maximum(np.round(median * factor), 1) for median in medians)
        kept = prompt[:, None] + output[None, :] <= MAX_LEN  # [num_points, num_points]
        got = np.array([prompt @ kept.sum(1), output @ kept.sum(0)]) / kept.sum()
        medians = medians * np.array(wanted) / got
    return float(medians[0]), float(medians[1])


# --- public traces ------------------------------------------------------------------------------


def trace_shaped(num_jobs: int, trace: str, seed: int = 0) -> list[Job]:
    """Lengths drawn from a trace's percentiles: "azure_conversation", "azure_code" or
    "mooncake_conversation". Prompt and output are independent of each other here.

    Raises ValueError for another name. Sources and licences stand in trace_lengths.json.
    """
    tables = json.loads(TRACES.read_text(encoding="utf-8"))
    if trace not in tables or trace == "about":
        names = ", ".join(name for name in tables if name != "about")
        raise ValueError(f"trace {trace!r} is not one of {names}")
    rng = random.Random(f"{trace}/{seed}")
    draws = []
    for column in (tables[trace]["prompt"], tables[trace]["output"]):
        table, mean = column["percentiles"], column["mean"]
        draws.append([at_quantile(table, mean, u) for u in spread_evenly(num_jobs, rng)])
    return [Job(prompt, output) for prompt, output in zip(*draws, strict=True)]


def at_quantile(percentiles: Sequence[int], mean: float, u: float) -> int:
    """The length that a share u of all stays below: the inverse of the distribution function.

    Straight between two percentiles, but for the last percent, whose tail is bent so that the whole
    has the trace's mean.

    >>> at_quantile(range(101), 50, 0.5), at_quantile(range(101), 50, 0.999)
    (50, 100)
    """
    place = u * 100
    index = min(int(place), 99)
    low, high, part = percentiles[index], percentiles[index + 1], place - index
    if index == 99:
        part = part ** tail_power(tuple(percentiles), mean)
    return max(round(low + (high - low) * part), 1)


@lru_cache
def tail_power(percentiles: tuple[int, ...], mean: float) -> float:
    """The k for which `p99 + (p100 - p99) * x ** k`, x in 0..1, gives the table `mean`; 1 where
    none does.

    The last percent has the mean p99 + (p100 - p99) / (k + 1).
    """
    below = sum(percentiles[:100]) - (percentiles[0] + percentiles[99]) / 2
    last = mean * 100 - below
    low, high = percentiles[99:]
    return (high - low) / (last - low) - 1 if low < last < high else 1.0
