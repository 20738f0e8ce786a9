"""The law with the real arithmetic: the tokens of a request do not depend on the schedule.

The tiny random model in float32, small pools, and schedules drawn from a seed: chunks, preemption
by recompute and by swap, prefix hits, forks, aborts, any block size. Seeded samples draw from the 5
likeliest tokens, so that no draw lies within a rounding error of the border between two tokens.
"""

import random
from functools import cache

import pytest
from helpers import is_empty
from tiny import greedy, tiny_engine

from minivllm.engine import Engine
from minivllm.page_table import num_blocks_for
from minivllm.sampling_params import SamplingParams

NUM_SEEDS = 60
Ask = tuple[tuple[int, ...], int, int, bool, int]  # prompt, n, max_tokens, greedy or not, seed


def params_of(ask: Ask) -> SamplingParams:
    _, n, max_tokens, is_greedy, seed = ask
    if is_greedy:
        return greedy(max_tokens, n=n, ignore_eos=True)
    return SamplingParams(n=n, max_tokens=max_tokens, top_k=5, seed=seed, ignore_eos=True)


def run(engine: Engine, asks: list[Ask], rng: random.Random | None = None) -> dict:
    """Submit the asks over time, disturb them where `rng` says so; (ask, sample) -> tokens."""
    tokens: dict[tuple[int, int], list[int]] = {}
    aborted: set[int] = set()
    line = list(enumerate(asks))
    while line or engine.has_unfinished_requests:
        while line and (rng is None or rng.random() < 0.5):
            index, ask = line.pop(0)
            engine.add_request(str(index), ask[0], params_of(ask))
        running = engine.scheduler.running
        if rng is not None and running and rng.random() < 0.15:
            engine.scheduler._preempt_request(rng.choice(running))
        if rng is not None and running and rng.random() < 0.02:
            aborted.add(int(rng.choice(running).request_id))
            engine.abort(str(max(aborted)))
        for result in engine.step():
            key = int(result.request_id), result.sample_index
            tokens.setdefault(key, []).extend(result.new_token_ids)
        engine.scheduler.check_integrity()
    assert is_empty(engine)
    return {key: value for key, value in tokens.items() if key[0] not in aborted}


@cache
def alone(ask: Ask) -> dict[int, list[int]]:
    """The tokens of each sample in a roomy engine, without chunks and without a prefix cache."""
    engine = tiny_engine(num_blocks=64, block_size=16, max_num_seqs=4)
    return {sample: tokens for (_, sample), tokens in run(engine, [ask]).items()}


def make_ask(rng: random.Random) -> Ask:
    """Long common beginnings, so that prefixes are shared and forks meet half-full blocks."""
    length = rng.randint(1, 24)
    prompt = [7] * (length * 3 // 4) + [rng.choice([7, 8, 9]) for _ in range(length)]
    n, max_tokens = rng.choice([1, 1, 2, 3]), rng.randint(1, 10)
    return tuple(prompt[:length]), n, max_tokens, rng.random() < 0.5, rng.randint(0, 2)


def make_engine(rng: random.Random, asks: list[Ask]) -> Engine:
    block_size = rng.randint(1, 5)
    most = max(num_blocks_for(len(ask[0]) + ask[2], block_size) for ask in asks)
    return tiny_engine(
        num_blocks=most + rng.randint(0, 8),
        block_size=block_size,
        max_num_seqs=rng.randint(3, 6),
        max_num_batched_tokens=rng.randint(3, 30),
        long_prefill_token_threshold=rng.choice([0, 1, 2, 3]),
        enable_prefix_caching=rng.random() < 0.6,
        preemption_mode=rng.choice(["recompute", "swap"]),
        num_host_blocks=rng.randint(0, 12),
        watermark_blocks=rng.randint(0, 1),
        policy=rng.choice(["fcfs", "sjf"]),
    )


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """What all schedules together have met."""
    return dict.fromkeys(("preemptions", "swapped", "copied", "cached", "recomputed"), 0)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_the_schedule_does_not_change_the_tokens(seed: int, counts: dict[str, int]):
    rng = random.Random(seed)
    asks = [make_ask(rng) for _ in range(rng.randint(2, 6))]
    engine = make_engine(rng, asks)
    for (index, sample), tokens in run(engine, asks, rng).items():
        assert tokens == alone(asks[index])[sample], f"request {index}, sample {sample}"
    stats = engine.scheduler.stats
    counts["preemptions"] += stats.num_preemptions
    counts["swapped"] += stats.num_swapped_blocks
    counts["copied"] += stats.num_copied_blocks
    counts["cached"] += stats.num_cached_tokens
    counts["recomputed"] += stats.num_recomputed_tokens


def test_the_schedules_have_met_everything(counts: dict[str, int]):
    """The law would be easy to keep by schedules in which nothing happens."""
    if not any(counts.values()):
        pytest.skip("the schedules were not run")
    assert all(count >= 30 for count in counts.values()), counts
