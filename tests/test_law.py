"""The law of the project: the tokens of a request do not depend on the schedule.

Thousands of random games (see law.py): small pools, tiny alphabets, chunks, budgets, seats,
watermarks, policies, salts, samples, prefix cache, swap, aborts and preemptions at any moment, also
between schedule and execute and between execute and update. LAW_SEEDS sets how many.
"""

import re

import law
import pytest

NUM_GROUPS = 10


@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_tokens_do_not_depend_on_the_schedule(group: int):
    """Every request's tokens equal its solo run; the rules hold after each step; nothing stays."""
    for seed in range(group, law.num_seeds(3000), NUM_GROUPS):
        law.check_seed(seed)


def test_the_games_meet_what_they_are_for():
    """Among 300 seeds each mechanism is at work often: a law about idle machinery proves little."""
    seen = dict.fromkeys(["preempt", "swap", "recompute", "copy", "hit", "abort", "forced"], 0)
    for seed in range(300):
        game = law.Game(law.make_case(seed))
        game.play()
        stats = game.scheduler.stats
        seen["preempt"] += stats.num_preemptions > 0
        seen["swap"] += stats.num_swapped_blocks > 0
        seen["recompute"] += stats.num_recomputed_tokens > 0
        seen["copy"] += stats.num_copied_blocks > 0
        seen["hit"] += stats.num_cached_tokens > 0
        seen["abort"] += len(game.aborted) > 0
        seen["forced"] += law.case_has(game.case, "preempt")
    assert all(count >= 25 for count in seen.values()), seen


def test_a_broken_engine_is_caught_and_its_story_is_short(monkeypatch: pytest.MonkeyPatch):
    """Blocks that a preemption forgets to give back: the first bad seed is found, and what is
    printed is a handful of actions, not the whole game."""
    preempt = law.Scheduler._preempt_request

    def leaky(scheduler, request, why="on demand"):
        held = request.block_table.block_ids[:1]
        scheduler.kv.pool.touch(held)
        return preempt(scheduler, request, why)

    monkeypatch.setattr(law.Scheduler, "_preempt_request", leaky)
    with pytest.raises(AssertionError) as caught:
        for seed in range(100):
            law.check_seed(seed)
    story = str(caught.value)
    assert re.match(r"seed \d+ breaks the law: RuntimeError: block \d+ has ref_cnt 1", story)
    assert "is preempted" in story
    assert len(story.splitlines()) < 30


def test_shrinking_keeps_only_what_the_failure_needs(monkeypatch: pytest.MonkeyPatch):
    """A game that fails whenever request 1 comes: of all its actions that one is left."""
    case = next(case for case in map(law.make_case, range(100)) if len(case.asks) >= 4)

    def add(game, index):
        assert index != 1

    monkeypatch.setattr(law.Game, "_add", add)
    monkeypatch.setattr(law.Game, "_check_drained", lambda game: None)
    assert len(case.actions) > 10
    assert law.shrink(case).actions == (("add", 1),)
