"""Latencies, percentiles, failures apart; the KV split adds up and knows each kind of waste."""

import pytest

from minivllm.baselines.systems import SYSTEMS
from minivllm.config import SchedulerConfig
from minivllm.lab.jobs import Job
from minivllm.lab.kv_split import KVMeter, KVSplit
from minivllm.lab.metrics import RequestTimes, goodput, percentile, spread, summary, within
from minivllm.lab.simulation import simulate


def test_all_latencies_count_from_arrival():
    """Arrived at 10, tokens at 12, 13, 15: TTFT 2, TPOT 1.5, end to end 5."""
    times = RequestTimes(10.0, [12.0, 13.0, 15.0])
    assert (times.ttft, times.tpot, times.gaps) == (2.0, 1.5, [1.0, 2.0])
    assert times.latency == 5.0 and times.normalized_latency == pytest.approx(5 / 3)


def test_one_token_has_no_time_per_output_token():
    times = RequestTimes(0.0, [4.0])
    assert times.tpot is None and times.gaps == [] and times.normalized_latency == 4.0


@pytest.mark.parametrize(("percent", "value"), [(1, 1), (50, 50), (90, 90), (99, 99), (100, 100)])
def test_percentiles_are_nearest_rank(percent: int, value: int):
    assert percentile(range(1, 101), percent) == value
    assert percentile([7.0], percent) == 7.0


def test_the_spread_of_nothing_is_zero_and_of_one_is_that_one():
    assert set(spread([]).values()) == {0.0}
    assert set(spread([3.0]).values()) == {3.0}


def test_failed_requests_are_counted_apart_and_enter_no_latency():
    """D51: a request that fails at once would have the best time to first token of all."""
    run = [RequestTimes(0.0, [2.0, 4.0]), RequestTimes(0.0, [0.0], failed=True), RequestTimes(1.0)]
    figures = summary(run, 4.0)
    assert (figures["requests"], figures["failed"], figures["output_tokens"]) == (1, 2, 2)
    assert figures["throughput"] == 0.5 and figures["ttft"]["mean"] == 2.0
    assert figures["request_rate"] == 0.25


def test_goodput_needs_both_targets():
    run = [
        RequestTimes(0.0, [0.5, 0.6]),  # meets both
        RequestTimes(0.0, [3.0, 3.1]),  # first token late
        RequestTimes(0.0, [0.5, 9.0]),  # the next one late
        RequestTimes(0.0, [0.5], failed=True),
        RequestTimes(0.0, [0.5]),  # one token: no pace to miss
    ]
    assert goodput(run, 10.0, within(ttft=1.0, tpot=0.2)) == 0.2


# ---- the KV split ----


def test_a_split_on_paper():
    """20 slots: one request holds 8, stores 3, will need 5 (2 reserved, 3 in vain); another holds 4
    full ones it needs; 8 are nobody's."""
    split = KVSplit()
    split.add_moment(20, [(8, 3, 5), (4, 4, 9)])
    assert (split.token_states, split.reservation, split.internal, split.external) == (7, 2, 3, 8)
    assert split.shares == {
        "token_states": 35.0, "reservation": 10.0, "internal": 15.0, "external": 40.0
    }  # fmt: skip
    assert split.share_of_used == pytest.approx(100 * 7 / 12) and split.mean_running == 2


def split_of(name: str, block_size: int = 4) -> KVSplit:
    """Many requests of 6 prompt tokens and 7 output tokens in 64 slots, rows of 32."""
    config = SchedulerConfig(
        num_blocks=64 // block_size, block_size=block_size, max_num_seqs=8, max_model_len=32
    )
    meter = KVMeter(skip=2)
    simulate(SYSTEMS[name], config, [Job(6, 7)] * 40, None, meter)
    return meter.split


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_four_parts_are_all_of_the_memory(name: str):
    split = split_of(name)
    total = split.token_states + split.reservation + split.internal + split.external
    assert total == 64 * split.num_moments and split.num_moments > 10
    assert min(split.token_states, split.reservation, split.internal, split.external) >= 0


def test_each_system_has_its_own_kind_of_waste():
    """Max reserves 32 for 12 needed: 20 in vain, for each of 2. Oracle: 12 in a piece of 16, so no
    slot in vain and 4 in 16 lost. Paged: at most the last block is not full. (A moment is after a
    step, when those that have ended are gone.)"""
    longest = split_of("orca-max", 1)
    assert 1.5 < longest.mean_running <= 2 and longest.internal == 20 * longest.num_running
    oracle = split_of("orca-oracle", 1)
    assert oracle.internal == 0
    assert oracle.external == 64 * oracle.num_moments - 12 * oracle.num_running
    assert 3 < oracle.mean_running <= 4
    paged = split_of("vllm")
    assert paged.internal == 0 and paged.share_of_used > 80
    assert paged.mean_running > oracle.mean_running


def test_static_rows_that_have_ended_hold_memory_in_vain():
    config = SchedulerConfig(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=32)
    meter = KVMeter()
    simulate(SYSTEMS["static"], config, [Job(6, 2), Job(6, 9), Job(6, 9)], None, meter)
    split = meter.split
    assert split.num_moments == 9 and split.external == 0  # while the third waits
    # The short row stores 6 tokens after its first step and has ended after its second; the long
    # one stores 6 to 13 and has ended after its ninth. Each holds 32 slots all the time.
    assert split.token_states == 6 + sum(range(6, 14))
    assert split.token_states + split.reservation + split.internal == 9 * 64
