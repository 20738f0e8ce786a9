"""Beams that wait for one another through a preemption; what a search finds is tested elsewhere."""

import pytest
from helpers import engine_of, prompt

from minivllm.beam_search import BeamSearch, BeamSearchParams
from minivllm.engine import Engine


def search_in(engine: Engine, first: int) -> BeamSearch:
    params = BeamSearchParams(beam_width=2, max_tokens=6)
    return BeamSearch(engine, "b", prompt(7, first), params)


def run(engine: Engine, search: BeamSearch) -> list[list[int]]:
    """To the end; the kept texts."""
    for _ in range(100):
        if not search.is_running:
            return [sequence.tokens for sequence in search.kept]
        for result in engine.step():
            search.take(result)
    raise AssertionError("the search never ends")


@pytest.mark.parametrize("first", range(1, 9))
def test_an_offer_made_again_is_not_taken_for_the_next_one(first: int):
    """Beam 1 has offered and waits; both beams are preempted, beam 0 before it could offer. They
    come back in one step and both offer: beam 0's offer completes the round and the choice is made,
    then beam 1's old offer arrives again. It was taken for an offer of the next round: other tokens
    than alone, or, where beam 1 had just been dropped, a search that never ends."""
    alone = engine_of(4, 16)
    expected = run(alone, search_in(alone, first))
    engine = engine_of(4, 16)
    search = search_in(engine, first)
    for result in engine.step():
        search.take(result)
    for round_number in range(2):
        output = engine.scheduler.schedule()
        model_output = engine.executor.execute(output)
        engine.scheduler._preempt_request(engine.scheduler.running[0])  # its answer is dropped
        for result in engine.scheduler.update_from_output(output, model_output):
            search.take(result)
        assert len(search.offers) == 1, round_number
        engine.scheduler._preempt_request(engine.scheduler.running[0])
        for result in engine.step():
            search.take(result)
        engine.scheduler.check_integrity()
    assert run(engine, search) == expected
