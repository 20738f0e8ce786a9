"""Counts for teaching: each with a number that can be checked by hand."""

from helpers import drain, engine_of, greedy, prompt, step

from minivllm.engine import Engine
from minivllm.stats import KVUsage, SchedulerStats


def usage(engine: Engine) -> KVUsage:
    return KVUsage.of(engine.scheduler.kv, engine.scheduler.running)


def test_an_empty_pool():
    assert usage(engine_of(4, 8)) == KVUsage(
        num_used_blocks=0,
        num_free_blocks=8,
        num_reserved_blocks=0,
        num_shared_blocks=0,
        num_cached_blocks=0,
        num_stored_tokens=0,
        num_wasted_slots=0,
    )


def test_a_half_prefilled_prompt():
    """Ten tokens, four computed: three blocks used, two of them reserved, 8 of 12 slots unused."""
    engine = engine_of(4, 8, chunk=4)
    engine.add_request("r", prompt(10), greedy(2))
    step(engine)
    seen = usage(engine)
    assert (seen.num_used_blocks, seen.num_free_blocks, seen.num_reserved_blocks) == (3, 5, 2)
    assert (seen.num_stored_tokens, seen.num_wasted_slots) == (4, 8)


def test_shared_tokens_count_once():
    """Three samples of six tokens in two blocks: 6 stored, 2 wasted, both blocks shared. After one
    more step: one full shared block and three of their own with three tokens each."""
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(6), greedy(4, n=3))
    step(engine)
    seen = usage(engine)
    assert (seen.num_used_blocks, seen.num_shared_blocks) == (2, 2)
    assert (seen.num_stored_tokens, seen.num_wasted_slots) == (6, 2)
    step(engine)
    seen = usage(engine)
    assert (seen.num_used_blocks, seen.num_shared_blocks) == (4, 1)
    assert (seen.num_stored_tokens, seen.num_wasted_slots) == (4 + 3 * 3, 3)


def test_cached_blocks_may_be_free():
    """Ten tokens leave two full blocks behind, findable though all eight are free."""
    engine = engine_of(4, 8, prefix=True)
    engine.add_request("r", prompt(10), greedy(1))
    drain(engine)
    seen = usage(engine)
    assert (seen.num_used_blocks, seen.num_free_blocks, seen.num_cached_blocks) == (0, 8, 2)


def test_the_hit_rate_is_a_share_of_prompt_tokens():
    """Ten tokens and ten again, of which eight are found: 8 of 20."""
    engine = engine_of(4, 8, prefix=True)
    for name in "ab":
        engine.add_request(name, prompt(10), greedy(3))
        drain(engine)
    stats = engine.scheduler.stats
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.hit_rate) == (20, 8, 0.4)


def test_no_prompt_no_hit():
    assert SchedulerStats().hit_rate == 0


def test_a_preemption_is_counted_with_what_it_costs():
    """Nine tokens were computed; all nine run again. By swap it is three blocks and no token."""
    for mode, recomputed, swapped in [("recompute", 9, 0), ("swap", 0, 3)]:
        engine = engine_of(4, 8, preemption_mode=mode, num_host_blocks=4)
        engine.add_request("r", prompt(8), greedy(4))
        step(engine)
        step(engine)
        engine.scheduler._preempt_request(engine.scheduler.running[0])
        drain(engine)
        stats = engine.scheduler.stats
        counts = (stats.num_preemptions, stats.num_recomputed_tokens, stats.num_swapped_blocks)
        assert counts == (1, recomputed, swapped)


def test_recomputing_in_pieces_counts_each_token_once():
    """Lost at 9, preempted again after 4 of them: 4 ran twice, then all 9 once more."""
    engine = engine_of(4, 8, chunk=4)
    engine.add_request("r", prompt(8), greedy(4))
    for _ in range(3):
        step(engine)
    for num_steps in (1, 3):
        engine.scheduler._preempt_request(engine.scheduler.running[0])
        for _ in range(num_steps):
            step(engine)
    assert engine.scheduler.stats.num_recomputed_tokens == 4 + 9
