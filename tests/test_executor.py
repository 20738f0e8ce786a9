"""ModelExecutor: a ragged batch gives each request what it gets alone; moves come in order."""

from copy import copy

import pytest
import torch
from helpers import drain, is_empty, step
from tiny import dense_logits, greedy, tiny_engine, tiny_model

from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.kv_cache import KVCache
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import BlockOp, SchedulerOutput

PROMPTS = {"a": [5, 6, 7], "b": list(range(40, 59)), "c": list(range(100, 111))}


def record_logits(engine: Engine) -> dict[str, list[torch.Tensor]]:
    """The logits of each request, in the order in which its tokens were drawn."""
    seen: dict[str, list[torch.Tensor]] = {}
    inner = engine.executor._sample

    def spy(logits, complete, answer):
        for row, (_, request) in enumerate(complete):
            seen.setdefault(request.name, []).append(logits[row])
        inner(logits, complete, answer)

    engine.executor._sample = spy
    return seen


def alone(prompt: list[int], params: SamplingParams) -> list[int]:
    engine = tiny_engine()
    engine.add_request("alone", prompt, params)
    return drain(engine)["alone"]


def test_d43_chunks_and_decodes_in_one_step_equal_the_whole_in_one_piece():
    """Three requests under a budget of 8, chunks of at most 5, blocks of 4: most steps hold a chunk
    and decodes, in changing order. Every row's logits are those of the dense oracle over that
    request alone. (Offsets that are right for one request only used to spoil the second.)"""
    engine = tiny_engine(max_num_batched_tokens=8, long_prefill_token_threshold=5)
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, greedy(12))
    seen = record_logits(engine)
    mixed, tokens = 0, {name: [] for name in PROMPTS}
    while engine.has_unfinished_requests:
        output, results = step(engine)
        mixed += 1 in output.num_scheduled_tokens and max(output.num_scheduled_tokens) > 1
        for result in results:
            tokens[result.request_id] += result.new_token_ids
    assert mixed >= 4
    for name, prompt in PROMPTS.items():
        assert len(tokens[name]) == 12
        expected = dense_logits(prompt + tokens[name])[len(prompt) - 1 : -1]  # [12, V]
        torch.testing.assert_close(torch.stack(seen[name]), expected, atol=1e-4, rtol=1e-4)
        assert tokens[name] == expected.argmax(-1).tolist() == alone(prompt, greedy(12))


def test_d24_a_middle_chunk_emits_nothing_and_draws_nothing():
    """P = 12 in chunks of 4, one token: steps 1 and 2 compute no logits at all, step 3 emits and
    ends. The seeded token is the one of a prompt run in one piece."""
    params = SamplingParams(max_tokens=1, seed=4)
    engine = tiny_engine(long_prefill_token_threshold=4)
    seen = record_logits(engine)
    engine.add_request("r", list(range(30, 42)), params)
    results = [step(engine)[1] for _ in range(3)]
    assert results[:2] == [[], []] and len(seen["r"]) == 1
    assert [r.finish_reason for r in results[2]] == ["length"] and is_empty(engine)
    assert results[2][0].new_token_ids == alone(list(range(30, 42)), params)


def test_d44_positions_go_on_by_one():
    """P = 6: the positions fed are 0 to 5, then 6, 7, 8. They once went 6, 12, 13: the length of
    the prompt was added twice."""
    engine = tiny_engine()
    fed = []
    engine.executor.model = model = copy(tiny_model())
    inner = model.forward

    def spy(token_ids, positions, attend):
        fed.append(positions.tolist())
        return inner(token_ids, positions, attend)

    model.forward = spy
    engine.add_request("r", list(range(10, 16)), greedy(4))
    drain(engine)
    assert fed == [[0, 1, 2, 3, 4, 5], [6], [7], [8]]


def test_block_moves_are_done_in_their_order():
    """Blocks hold their own number. Out with 0, 1 over 0, in with the old 0 over 1, that copied on
    to 2: each reads what the one before has left."""
    executor = ModelExecutor(tiny_model(), num_blocks=4, block_size=2, num_host_blocks=2)
    for cache in (executor.cache.key, executor.cache.value):
        for block in range(4):
            cache[:, block] = block
    moves = [("swap_out", 0, 1), ("copy", 1, 0), ("swap_in", 1, 1), ("copy", 1, 2)]
    answer = executor.execute(SchedulerOutput(1, block_ops=[BlockOp(*move) for move in moves]))
    assert answer.sampled_token_ids == []
    for cache in (executor.cache.key, executor.cache.value):
        for block, holds in enumerate([1, 0, 0, 3]):
            assert (cache[:, block] == holds).all()  # in every layer and slot
    assert (executor.host_cache.key[:, 1] == 0).all()


def test_swapped_blocks_come_back_whole():
    """A request that is swapped out and in decodes on without computing a token again."""
    engine = tiny_engine(preemption_mode="swap", num_host_blocks=8)
    engine.add_request("r", PROMPTS["b"], greedy(8))
    results = step(engine)[1] + step(engine)[1]
    scheduler = engine.scheduler
    scheduler._preempt_request(scheduler.running[0])
    output, more = step(engine)
    assert [op.kind for op in output.block_ops] == ["swap_out"] * 5 + ["swap_in"] * 5
    assert output.num_scheduled_tokens == [1]
    assert drain(engine, results + more)["r"] == alone(PROMPTS["b"], greedy(8))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_d42_a_spoilt_row_ends_that_request_only(bad: float):
    """NaN or infinity in one request's logits, at its third token: it ends with "error" and a
    sentence, its blocks are free, and its neighbours never notice."""
    engine = tiny_engine()
    inner = engine.executor._sample

    def spoil(logits, complete, answer):
        for row, (_, request) in enumerate(complete):
            if request.name == "b" and request.num_output_tokens == 2:
                logits[row, 17] = bad
        inner(logits, complete, answer)

    engine.executor._sample = spoil
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, greedy(6))
    results = []
    while engine.has_unfinished_requests:
        results += step(engine)[1]
    ends = {r.request_id: (r.finish_reason, r.stop_reason) for r in results if r.request_ended}
    assert ends["b"][0] == "error" and "of 259 logits" in ends["b"][1]
    assert ends["a"] == ends["c"] == ("length", None)
    tokens = drain(engine, results)
    for name in "ac":
        assert tokens[name] == alone(PROMPTS[name], greedy(6))
    assert tokens["b"] == alone(PROMPTS["b"], greedy(6))[:2]
    assert is_empty(engine)


def test_a_request_that_left_after_schedule_is_not_run():
    """Between schedule and execute one is aborted and one preempted: their blocks are no longer
    theirs, so nothing is written into them, and the third is served."""
    engine = tiny_engine()
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, greedy(4))
    output = engine.scheduler.schedule()
    tables = {r.name: list(r.block_table.block_ids) for r in output.requests}
    engine.abort("a")
    engine.scheduler._preempt_request(output.requests[1])
    answer = engine.executor.execute(output)
    assert [len(tokens) for tokens in answer.sampled_token_ids] == [0, 0, 1]
    for block_id in tables["a"] + tables["b"]:
        assert (engine.executor.cache.key[:, block_id] == 0).all()
    results = engine.scheduler.update_from_output(output, answer)
    tokens = drain(engine, results)
    assert "a" not in tokens
    for name in "bc":
        assert tokens[name] == alone(PROMPTS[name], greedy(4))


def test_each_sample_has_logprobs_of_its_own():
    """Three samples forked from one row: for each, the log probability of its own token."""
    engine = tiny_engine()
    engine.add_request("r", PROMPTS["a"], SamplingParams(n=3, seed=2, logprobs=2, max_tokens=2))
    expected = dense_logits(PROMPTS["a"])[-1].log_softmax(-1)  # [V]
    results = step(engine)[1]
    assert [r.sample_index for r in results] == [0, 1, 2]
    assert len({r.new_token_ids[0] for r in results}) > 1
    likeliest = expected.topk(2).indices.tolist()
    for result in results:
        (chosen,) = result.logprobs
        assert set(chosen) == {result.new_token_ids[0], *likeliest}
        for token_id, logprob in chosen.items():
            assert logprob == pytest.approx(expected[token_id].item(), abs=1e-4)
    drain(engine)


def test_unwritten_slots_are_never_read():
    """The whole pool filled with NaN before the first step: no token sees any of it."""
    engine = tiny_engine(block_size=5)
    for cache in (engine.executor.cache.key, engine.executor.cache.value):
        cache.fill_(float("nan"))
    for name, prompt in PROMPTS.items():
        engine.add_request(name, prompt, greedy(6))
    tokens = drain(engine)
    for name, prompt in PROMPTS.items():
        assert tokens[name] == alone(prompt, greedy(6))


def test_no_host_memory_unless_it_is_wanted():
    assert ModelExecutor(tiny_model(), 2, 4).host_cache is None
    host = ModelExecutor(tiny_model(), 2, 4, num_host_blocks=3).host_cache
    assert isinstance(host, KVCache) and host.num_blocks == 3
