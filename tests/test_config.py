"""SchedulerConfig: limits that are out of range or contradict each other."""

import pytest
from helpers import drain, engine_of, greedy, prompt, scheduled, step

from minivllm.config import SchedulerConfig

INTEGERS = [
    ("num_blocks", 1),
    ("block_size", 1),
    ("max_num_seqs", 1),
    ("max_num_batched_tokens", 1),
    ("max_model_len", 2),
    ("long_prefill_token_threshold", 0),
    ("watermark_blocks", 0),
    ("num_host_blocks", 0),
]


@pytest.mark.parametrize("name, least", INTEGERS)
def test_a_limit_below_its_least_is_refused(name: str, least: int):
    for value in (least - 1, 2.5, "8", True):
        with pytest.raises(ValueError, match=f"{name} must be an integer >= {least}, got"):
            SchedulerConfig(**{"num_blocks": 8, name: value})
    assert getattr(SchedulerConfig(**{"num_blocks": 8, name: least}), name) == least


def test_d25_a_chunk_above_the_budget_is_refused():
    """A chunk of 16 under a budget of 8 killed a scheduler at the first long prompt."""
    message = r"long_prefill_token_threshold \(16\) is above max_num_batched_tokens \(8\)"
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(num_blocks=8, long_prefill_token_threshold=16, max_num_batched_tokens=8)


def test_d25_a_prompt_longer_than_the_budget_runs_in_pieces():
    """The rest of that case: P = 12 under a budget of 8 takes 8 tokens, then 4."""
    engine = engine_of(4, 8, max_num_batched_tokens=8)
    engine.add_request("r", prompt(12), greedy(1))
    assert scheduled(step(engine)[0]) == {"r": 8}
    assert scheduled(step(engine)[0]) == {"r": 4}


def test_d25_without_chunks_every_prompt_must_fit_into_a_step():
    whole = dict(enable_chunked_prefill=False)
    message = r"max_num_batched_tokens \(32\) is below max_model_len \(33\)"
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(8, 4, 1, max_num_batched_tokens=32, max_model_len=33, **whole)
    SchedulerConfig(8, 4, 1, max_num_batched_tokens=33, max_model_len=33, **whole)


def test_d25_a_chunk_length_without_chunks_is_refused():
    """Both were accepted, and prompts were cut although chunked prefill was off."""
    message = r"threshold \(4\) cuts prompts, and enable_chunked_prefill is False"
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(
            8, max_model_len=512, enable_chunked_prefill=False, long_prefill_token_threshold=4
        )


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="policy must be one of fcfs, priority, sjf, got 'lifo'"):
        SchedulerConfig(8, policy="lifo")
    with pytest.raises(ValueError, match="preemption_mode must be recompute or swap, got 'drop'"):
        SchedulerConfig(8, preemption_mode="drop")


def test_the_largest_chunk():
    """The threshold where there is one, else the whole budget."""
    assert SchedulerConfig(8, max_num_batched_tokens=32).max_chunk == 32
    limits = dict(max_num_batched_tokens=32, long_prefill_token_threshold=4)
    assert SchedulerConfig(8, **limits).max_chunk == 4


@pytest.mark.parametrize("watermark", [8, 100])
def test_a_watermark_above_the_pool_still_lets_one_at_a_time_run(watermark: int):
    """An empty engine asks for no watermark, so the limits are strange but not deadly."""
    engine = engine_of(4, 8, watermark_blocks=watermark)
    engine.add_request("a", prompt(4), greedy(2))
    engine.add_request("b", prompt(4), greedy(2))
    assert scheduled(step(engine)[0]) == {"a": 4}
    drain(engine)
