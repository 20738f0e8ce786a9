"""FakeExecutor: it must notice each kind of wrong block, or the law would prove nothing."""

import pytest
from helpers import drain, engine_of, greedy, prompt, request_of, step

from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor, Slot, extend_digest
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import BlockOp, SchedulerOutput


def running(length: int = 6) -> Engine:
    """One request of `length` tokens that has run its prompt: blocks 0 and 1 of four."""
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(length), greedy(9))
    step(engine)
    return engine


def test_a_slot_holds_token_position_and_the_whole_prefix():
    engine = running(length=2)
    first = extend_digest(0, 1)
    second = extend_digest(first, 2)
    assert engine.executor.slots[:3] == [Slot(1, 0, first), Slot(2, 1, second), None]


def test_the_next_token_is_a_function_of_the_tokens_before():
    """Computed here from the definition, without blocks or steps."""
    tokens = prompt(6)
    for _ in range(4):
        digest = 0
        for token in tokens:
            digest = extend_digest(digest, token)
        tokens.append((extend_digest(digest, 0) >> 20) % 1000)
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(6), greedy(4))
    assert drain(engine)["r"] == tokens[6:]


def test_seeds_and_samples_choose_differently():
    engine = engine_of(4, 8)
    for name, params in [
        ("greedy", greedy(3)),
        ("seed 1", SamplingParams(max_tokens=3, seed=1)),
        ("seed 2", SamplingParams(max_tokens=3, seed=2, n=2)),
    ]:
        engine.add_request(name, prompt(4), params)
    assert len(set(map(tuple, drain(engine).values()))) == 4


def test_suppressed_tokens_are_not_chosen():
    """With three tokens of which two stop, min_tokens leaves one choice."""
    engine = engine_of(4, 8)
    engine.executor.vocab_size = 3
    engine.add_request("r", [0, 1], greedy(6, min_tokens=6, stop_token_ids=[0, 2]))
    assert drain(engine)["r"] == [1] * 6


def spoil(engine: Engine, **fields: int) -> None:
    """Change what position 2, the third slot of block 0, holds."""
    engine.executor.slots[2] = engine.executor.slots[2]._replace(**fields)


PLANTED = {
    "an empty slot": lambda engine, blocks: engine.executor.slots.__setitem__(0, None),
    "another token": lambda engine, blocks: spoil(engine, token_id=99),
    "another position": lambda engine, blocks: spoil(engine, position=3),
    "the same token after another prefix": lambda engine, blocks: spoil(engine, digest=5),
    "a wrong block": lambda engine, blocks: blocks.__setitem__(0, 7),
    "two blocks in the wrong order": lambda engine, blocks: blocks.reverse(),
    "a block too few": lambda engine, blocks: blocks.pop(),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_fault_is_noticed(plant):
    """Six tokens lie in blocks 0 and 1; one thing is spoiled, and the next step must say so."""
    engine = running()
    output = engine.scheduler.schedule()
    plant(engine, output.requests[0].block_table.block_ids)
    with pytest.raises((RuntimeError, ValueError), match="position"):
        engine.executor.execute(output)


def test_a_block_that_somebody_else_overwrites_is_noticed():
    """Freed too early and given away: both requests think that block 0 is theirs."""
    engine = running()
    engine.add_request("other", prompt(4, 50), greedy(4))
    output = engine.scheduler.schedule()
    output.requests[1].block_table.block_ids[0] = 0
    with pytest.raises(RuntimeError, match="r position 0: read Slot"):
        engine.executor.execute(output)


def test_two_tokens_in_one_slot_are_noticed():
    """Both write into the same place in the same step, before anybody reads."""
    engine = engine_of(4, 8)
    engine.add_request("a", prompt(3), greedy(4))
    engine.add_request("b", prompt(3), greedy(4))
    output = engine.scheduler.schedule()
    output.requests[1].block_table.block_ids[0] = output.requests[0].block_table.block_ids[0]
    with pytest.raises(RuntimeError, match="two tokens of one step are written into the same slot"):
        engine.executor.execute(output)


def test_the_newest_slot_alone_vouches_for_the_prefix():
    """Without check_all a step costs the same for any length: only the slot before the new ones is
    read. Its digest carries a wrong prefix on into the tokens, so they differ from a solo run."""
    quick = FakeExecutor(8, 4, check_all=False)
    engine = running()
    engine.executor.check_all = False
    engine.executor.slots[5] = engine.executor.slots[5]._replace(digest=5)
    right, wrong = running(), engine
    assert right.step()[0].new_token_ids != wrong.step()[0].new_token_ids
    assert quick.check_all is False
    engine.executor.slots[6] = None
    with pytest.raises(RuntimeError, match="position 6: read None"):
        engine.step()


def test_moves_are_made_in_their_order():
    """Block 0 goes to host block 1, block 2 is copied over it, and host block 1 comes to block 3:
    what a later move reads, an earlier one has written."""
    executor = FakeExecutor(4, 2, num_host_blocks=2)
    executor.slots[0:2], executor.slots[4:6] = [Slot(1, 0, 1)] * 2, [Slot(2, 0, 2)] * 2
    moves = [BlockOp("swap_out", 0, 1), BlockOp("copy", 2, 0), BlockOp("swap_in", 1, 3)]
    executor.execute(SchedulerOutput(step=1, block_ops=moves))
    assert [slot and slot.token_id for slot in executor.slots] == [2, 2, None, None, 2, 2, 1, 1]
    assert [slot and slot.token_id for slot in executor.host_slots] == [None, None, 1, 1]


def test_who_left_after_schedule_is_not_run():
    """Its blocks may be another's already: nothing is written, nothing answered for it."""
    engine = engine_of(4, 8)
    engine.add_request("a", prompt(3), greedy(4))
    engine.add_request("b", prompt(3, 50), greedy(4))
    output = engine.scheduler.schedule()
    engine.abort("a")
    sampled = engine.executor.execute(output).sampled_token_ids
    assert sampled[0] == [] and len(sampled[1]) == 1
    assert engine.executor.slots[0] is None


def test_an_incomplete_prompt_gets_no_token():
    request = request_of(prompt(6))
    request.block_table.block_ids = [0, 1]
    request.status = type(request.status).RUNNING
    output = SchedulerOutput(step=1)
    output.add(request, 4)
    executor = FakeExecutor(2, 4)
    assert executor.execute(output).sampled_token_ids == [[]]
    request.num_computed_tokens = 4
    output.num_scheduled_tokens = [2]
    assert len(executor.execute(output).sampled_token_ids[0]) == 1
