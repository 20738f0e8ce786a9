"""check_integrity: each rule is broken by hand once, and is named."""

import pytest
from helpers import engine_of, greedy, prompt, step

from minivllm.engine import Engine
from minivllm.request import RequestStatus


def busy_engine() -> Engine:
    """a (6 tokens) and b (12) run, c is swapped out, d waits; b shares a block with its sample."""
    engine = engine_of(4, 12, preemption_mode="swap", num_host_blocks=4, max_num_seqs=4)
    engine.add_request("a", prompt(6), greedy(4))
    engine.add_request("b", prompt(10, 20), greedy(4, n=2))
    engine.add_request("c", prompt(5, 40), greedy(4))
    step(engine)
    engine.scheduler._preempt_request(engine.scheduler.running[-1])
    engine.add_request("d", prompt(5, 60), greedy(4))
    engine.scheduler.check_integrity()
    return engine


def running(engine: Engine, index: int):
    return engine.scheduler.running[index]


def preempted(engine: Engine):
    return engine.scheduler.waiting.peek()


RULES = {
    "in two queues": (
        lambda e: e.scheduler.running.append(running(e, 0)),
        "5 live requests, but 6 places in the queues",
    ),
    "in no queue": (
        lambda e: e.scheduler.running.pop(),
        "5 live requests, but 4 places in the queues",
    ),
    "a stranger in the queue": (
        lambda e: e.scheduler.running.__setitem__(0, running(engine_of_stranger(), 0)),
        "5 live requests, but 5 places in the queues",
    ),
    "runs, but is said to wait": (
        lambda e: setattr(running(e, 0), "status", RequestStatus.WAITING),
        "stands in the wrong queue",
    ),
    "has ended, yet runs": (
        lambda e: setattr(running(e, 0), "status", RequestStatus.FINISHED),
        "stands in the wrong queue",
    ),
    "more run than there are seats": (
        lambda e: setattr(running(e, 0), "num_seats", 4),
        "more than max_num_seqs",
    ),
    "more computed than there are tokens": (
        lambda e: setattr(running(e, 0), "num_computed_tokens", 8),
        "computed tokens out of range",
    ),
    "a block too few": (
        lambda e: running(e, 0).block_table.block_ids.pop(),
        "holds 1 blocks, not 2 to 2",
    ),
    "a block too many": (
        lambda e: running(e, 0).block_table.block_ids.append(11),
        "holds 3 blocks, not 2 to 2",
    ),
    "a block while it waits": (
        lambda e: preempted(e).block_table.block_ids.append(11),
        "does not run, yet holds 1 blocks",
    ),
    "swapped out, but lacks a host block": (
        lambda e: preempted(e).host_block_ids.pop(),
        "has 1 host blocks",
    ),
    "another's block": (
        lambda e: running(e, 0).block_table.block_ids.__setitem__(0, 11),
        "block 0 has ref_cnt 1, but 0 holders",
    ),
    "a host block that another holds": (
        lambda e: preempted(e).host_block_ids.__setitem__(0, 3),
        "block 0 has ref_cnt 1, but 0 holders",
    ),
    "a leaked block": (
        lambda e: e.scheduler.kv.pool.get_new_blocks(1),
        "has ref_cnt 1, but 0 holders",
    ),
    "a leaked host block": (
        lambda e: e.scheduler.kv.host_pool.get_new_blocks(1),
        "has ref_cnt 1, but 0 holders",
    ),
}


def engine_of_stranger() -> Engine:
    engine = engine_of(4, 8)
    engine.add_request("stranger", prompt(6), greedy(4))
    step(engine)
    return engine


@pytest.mark.parametrize("break_it, message", RULES.values(), ids=RULES.keys())
def test_a_broken_rule_is_named(break_it, message: str):
    engine = busy_engine()
    break_it(engine)
    with pytest.raises(RuntimeError, match=message):
        engine.scheduler.check_integrity()


def test_reserved_blocks_are_no_error():
    """A request that was given all its blocks at the door holds more than its tokens need."""
    engine = engine_of(4, 8)
    engine.scheduler.reserve = lambda request: request.max_kv_tokens
    engine.add_request("r", prompt(3), greedy(9))
    step(engine)
    assert running(engine, 0).block_table.num_blocks == 3
    engine.scheduler.check_integrity()
