"""Out of blocks, and out of patience: preemption, resuming, and abort in every state."""

import random

import pytest
from helpers import (
    drain,
    engine_of,
    greedy,
    is_empty,
    num_free,
    prompt,
    scheduled,
    sentences,
    solo,
    step,
    tables,
)

from minivllm.engine import Engine
from minivllm.request import RequestStatus


def two_that_do_not_fit(**limits) -> Engine:
    """E(4, 8, chunk 4): a and b, P = 12 and M = 12, six blocks each at the end."""
    engine = engine_of(4, 8, chunk=4, **limits)
    engine.add_request("a", prompt(12), greedy(12))
    engine.add_request("b", prompt(12, 40), greedy(12))
    return engine


def test_the_youngest_leaves_and_gives_its_blocks():
    """a needs a fifth block in step 8; b gives all four and takes no part in this step."""
    engine = two_that_do_not_fit()
    for _ in range(7):
        step(engine)
    assert tables(engine) == {"a": [0, 1, 2, 6], "b": [3, 4, 5, 7]} and num_free(engine) == 0
    output, _ = step(engine)
    assert scheduled(output) == {"a": 1} and tables(engine) == {"a": [0, 1, 2, 6, 7]}
    assert sentences(output) == [
        "b is preempted so that a gets a block: 16 tokens to compute again"
    ]
    output, _ = step(engine)
    assert sentences(output) == ["b waits: needs 5 blocks, 3 free"]


def test_the_youngest_may_have_to_leave_itself():
    """It is b that needs a block, and nobody is younger: a goes on undisturbed."""
    engine = engine_of(4, 4)
    engine.add_request("a", prompt(9), greedy(3))
    engine.add_request("b", prompt(4, 40), greedy(4))
    step(engine)
    output, _ = step(engine)
    assert scheduled(output) == {"a": 1} and tables(engine) == {"a": [0, 1, 2]}
    assert sentences(output) == ["b is preempted for want of a block: 4 tokens to compute again"]


def test_swap_moves_the_kv_away_and_back():
    """The same with host memory: four blocks go, and b's next step runs one token, not 17."""
    engine = two_that_do_not_fit(preemption_mode="swap", num_host_blocks=4)
    results = []
    for _ in range(14):
        output, new = step(engine)
        results += new
        if output.step == 8:
            assert sentences(output) == [
                "b is preempted so that a gets a block: 4 blocks moved to host memory"
            ]
            kinds = [(op.kind, op.src, op.dst) for op in output.block_ops]
            assert kinds == [("swap_out", b, h) for h, b in enumerate([3, 4, 5, 7])]
    output, new = step(engine)
    assert scheduled(output) == {"b": 1} and tables(engine) == {"b": [4, 3, 5, 7, 6]}
    assert [op.kind for op in output.block_ops] == ["swap_in"] * 4
    tokens = drain(engine, results + new)
    assert tokens["b"] == solo(prompt(12, 40), greedy(12))
    assert engine.scheduler.stats.num_recomputed_tokens == 0
    assert engine.scheduler.stats.num_swapped_blocks == 4
    assert is_empty(engine)


def test_no_host_memory_left_means_computing_again():
    """Three host blocks for four: all or nothing."""
    engine = two_that_do_not_fit(preemption_mode="swap", num_host_blocks=3)
    for _ in range(8):
        output, _ = step(engine)
    assert "16 tokens to compute again" in sentences(output)[0]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_d18_preemptions_stay_bounded(mode: str):
    """A scheduler looked at the next chunk only, let the preempted request in at once and threw it
    out again. Admission asks for the whole context: b is preempted once, comes back when a has
    ended, and fewer than three times the least number of tokens are computed."""
    engine = two_that_do_not_fit(preemption_mode=mode, num_host_blocks=6)
    computed, results = 0, []
    while engine.has_unfinished_requests:
        output, new = step(engine)
        computed += output.total_num_scheduled_tokens
        results += new
    assert engine.scheduler.stats.num_preemptions == 1
    assert engine.scheduler.stats.num_recomputed_tokens == (16 if mode == "recompute" else 0)
    least = 2 * (12 + 12 - 1)
    assert computed == least + engine.scheduler.stats.num_recomputed_tokens < 3 * least
    tokens = drain(engine, results)
    assert tokens["a"] == solo(prompt(12), greedy(12))
    assert tokens["b"] == solo(prompt(12, 40), greedy(12))


def test_d18_no_more_preemptions_than_requests_for_each_request():
    """The stated bound, over 200 random crowds: at most R preemptions for each of R requests."""
    for seed in range(200):
        rng = random.Random(seed)
        engine = engine_of(rng.randint(1, 4), 12, chunk=rng.choice([0, 4]), watermark_blocks=1)
        count = rng.randint(2, 6)
        for name in range(count):
            length = rng.randint(1, 12)
            engine.add_request(str(name), prompt(length), greedy(rng.randint(1, 12 - length + 1)))
        drain(engine)
        assert engine.scheduler.stats.num_preemptions <= count * count


def test_d19_the_stream_has_no_gap_and_no_repeat():
    """A preempted request once ended with tokens missing. Each token comes once, in order, and
    there are exactly M of them; nothing is sent again while it is computed again."""
    engine = two_that_do_not_fit()
    got = {"a": [], "b": []}
    while engine.has_unfinished_requests:
        for result in step(engine)[1]:
            assert len(result.new_token_ids) == 1
            got[result.request_id] += result.new_token_ids
            assert result.finish_reason == ("length" if len(got[result.request_id]) == 12 else None)
    assert got == {"a": solo(prompt(12), greedy(12)), "b": solo(prompt(12, 40), greedy(12))}


def test_d20_a_preempted_request_keeps_its_place():
    """a is preempted while b waits for its first step: a comes back before b, though both fit the
    same blocks; among preempted ones the earlier arrival is first."""
    engine = engine_of(4, 4, max_num_seqs=2)
    engine.add_request("a", prompt(8), greedy(4))
    engine.add_request("a2", prompt(4), greedy(4))
    step(engine)
    engine.add_request("b", prompt(3, 40), greedy(1))
    scheduler = engine.scheduler
    scheduler._preempt_request(scheduler.running[1])
    scheduler._preempt_request(scheduler.running[0])
    assert [request.name for request in scheduler.waiting] == ["a", "a2", "b"]
    output, _ = step(engine)
    assert sentences(output, "resume") == ["a resumes with 3 blocks"]
    assert sentences(output, "wait") == ["a2 waits: needs 2 blocks, 1 free"]
    assert "b" not in tables(engine)  # one block is free and enough for b, but a2 stands first


def test_d23_a_preempted_request_runs_no_more():
    """It stayed in the running list and was served twice. The queues share nobody."""
    engine = two_that_do_not_fit()
    for _ in range(8):
        step(engine)
    scheduler = engine.scheduler
    assert [request.name for request in scheduler.running] == ["a"]
    assert [request.name for request in scheduler.waiting] == ["b"]
    assert scheduler.waiting.peek().status is RequestStatus.PREEMPTED


def test_d26_resuming_computes_prompt_and_output():
    """Resumed with the length of its prompt, a request went on from the wrong place. P = 6 with
    three generated tokens, in chunks of four: 9 tokens run as 4 + 4 + 1, and only the last emits.
    """
    engine = engine_of(4, 8, chunk=4)
    engine.add_request("r", prompt(6), greedy(6))
    results = [result for _ in range(4) for result in step(engine)[1]]
    assert len(results) == 3
    engine.scheduler._preempt_request(engine.scheduler.running[0])
    counts = []
    for _ in range(3):
        output, new = step(engine)
        counts.append((scheduled(output)["r"], len(new)))
        results += new
    assert counts == [(4, 0), (4, 0), (1, 1)]
    assert drain(engine, results)["r"] == solo(prompt(6), greedy(6))


def test_d13_finding_its_own_work_again_is_no_hit():
    """After a preemption the cache gave back what the request itself had computed, and the hit rate
    shown rose. Unique prompts, one preemption each: the rate stays 0, and little is recomputed."""
    engine = engine_of(4, 32, prefix=True)
    for name, first in [("a", 1), ("b", 100), ("c", 200)]:
        engine.add_request(name, prompt(9, first), greedy(4))
    step(engine)
    for request in list(engine.scheduler.running):
        engine.scheduler._preempt_request(request)
    output, _ = step(engine)
    assert len(sentences(output, "resume")) == 3
    assert all("8 tokens found in the cache" in words for words in sentences(output, "resume"))
    stats = engine.scheduler.stats
    assert (stats.hit_rate, stats.num_cached_tokens, stats.num_prompt_tokens) == (0, 0, 27)
    assert stats.num_recomputed_tokens == 3  # of 27 that were lost, 24 were found
    assert all(request.num_cached_tokens == 0 for request in engine.scheduler.running)


def test_what_is_found_again_is_not_counted_as_recomputed():
    """The count once took all that a preemption throws away: 18 tokens "to compute again", of which
    the cache then gave back 18. Counted is what has run twice."""
    engine = engine_of(4, 8, prefix=True)
    engine.add_request("r", prompt(8), greedy(4))
    step(engine)
    step(engine)
    engine.scheduler._preempt_request(engine.scheduler.running[0])
    assert engine.scheduler.stats.num_recomputed_tokens == 0
    step(engine)  # 9 had been computed, 8 are found
    assert engine.scheduler.stats.num_recomputed_tokens == 1


# --- abort --------------------------------------------------------------------------------------


def check_abort(engine: Engine, name: str = "r") -> None:
    """It ends once, at once, with nothing held and nothing said later."""
    results = engine.abort(name)
    assert [(r.request_id, r.finish_reason, r.new_token_ids) for r in results] == [
        (name, "abort", [])
    ]
    assert results[0].request_ended
    engine.scheduler.check_integrity()
    assert engine.abort(name) == []
    assert is_empty(engine)
    output, results = step(engine)
    assert results == [] and output.requests == []


def test_abort_while_it_waits():
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(12), greedy(4))
    check_abort(engine)


def test_d03_abort_in_the_middle_of_a_prefill():
    """Only running requests were marked, and a half-prefilled one sat in a third place: its blocks
    leaked. E(4, 8, chunk 4), P = 12, four tokens in: all eight blocks are free at once."""
    engine = engine_of(4, 8, chunk=4)
    engine.add_request("r", prompt(12), greedy(4))
    step(engine)
    assert num_free(engine) == 5
    check_abort(engine)
    assert num_free(engine) == 8


def test_abort_while_it_decodes():
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(4), greedy(4))
    step(engine)
    step(engine)
    check_abort(engine)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_abort_while_it_is_preempted(mode: str):
    """Host blocks go back, too."""
    engine = engine_of(4, 8, preemption_mode=mode, num_host_blocks=4)
    engine.add_request("r", prompt(6), greedy(4))
    step(engine)
    engine.scheduler._preempt_request(engine.scheduler.running[0])
    assert len(engine.scheduler.waiting.peek().host_block_ids) == (2 if mode == "swap" else 0)
    check_abort(engine)


@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize("resuming", [False, True])
def test_abort_between_schedule_and_update(executed: bool, resuming: bool):
    """The step is under way: what it still brings for the request is dropped, and its blocks are
    free. The same when it was just being swapped in."""
    engine = engine_of(4, 8, preemption_mode="swap", num_host_blocks=4)
    engine.add_request("r", prompt(6), greedy(4))
    if resuming:
        step(engine)
        engine.scheduler._preempt_request(engine.scheduler.running[0])
    output = engine.scheduler.schedule()
    model_output = engine.executor.execute(output) if executed else None
    assert [result.finish_reason for result in engine.abort("r")] == ["abort"]
    model_output = model_output or engine.executor.execute(output)
    assert engine.scheduler.update_from_output(output, model_output) == []
    engine.scheduler.check_integrity()
    assert is_empty(engine) and not engine.has_unfinished_requests


def test_an_id_used_again_in_the_same_step_gets_no_old_token():
    """r is aborted while its step runs and comes again with another prompt: the old answer is not
    taken for the new request's."""
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(6), greedy(3))
    output = engine.scheduler.schedule()
    model_output = engine.executor.execute(output)
    engine.abort("r")
    engine.add_request("r", prompt(6, 40), greedy(3))
    assert engine.scheduler.update_from_output(output, model_output) == []
    assert drain(engine)["r"] == solo(prompt(6, 40), greedy(3))


def test_abort_ends_every_live_sample():
    """Three samples of which one has ended: two last outputs, the second of them the request's."""
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(6), greedy(4, n=3))
    step(engine)
    engine.stop("r", 1, "END")
    results = engine.abort("r")
    assert [(r.sample_index, r.request_ended) for r in results] == [(0, False), (2, True)]
    assert is_empty(engine)


def test_abort_of_an_unknown_id_is_nothing():
    assert engine_of(4, 8).abort("nobody") == []


def test_d39_a_client_that_is_gone_frees_its_blocks_for_the_next():
    """Work went on for clients that had left. Eight blocks, r holds five of them in mid-prefill and
    w waits for six: as soon as r is aborted, w enters in the next schedule."""
    engine = engine_of(4, 8, chunk=4)
    engine.add_request("r", prompt(20), greedy(4))
    engine.add_request("w", prompt(22, 40), greedy(1))
    output, _ = step(engine)
    assert sentences(output, "wait") == ["w waits: needs 6 blocks, 3 free"]
    engine.abort("r")
    assert scheduled(step(engine)[0]) == {"w": 4}


# --- preemption meets a step that is under way ---------------------------------------------------


@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_d04_preempted_while_its_step_runs(mode: str, executed: bool):
    """A slot that the launched step had been given was never given back. The step's token is
    dropped and comes again; nothing is held at the end."""
    engine = engine_of(4, 8, preemption_mode=mode, num_host_blocks=8)
    engine.add_request("r", prompt(4), greedy(5))
    _, results = step(engine)
    output = engine.scheduler.schedule()  # takes block 1 for position 4
    model_output = engine.executor.execute(output) if executed else None
    engine.scheduler._preempt_request(engine.scheduler.running[0])
    model_output = model_output or engine.executor.execute(output)
    assert engine.scheduler.update_from_output(output, model_output) == []
    engine.scheduler.check_integrity()
    assert num_free(engine) == 8
    assert drain(engine, results)["r"] == solo(prompt(4), greedy(5))
    assert is_empty(engine)


def test_d09_no_request_reads_anothers_tokens():
    """Outputs once held other prompts' tokens, with chunks, reuse and host memory together. Twenty
    requests whose prompts share no token, blocks for four of them, preemptions at random: each slot
    a request reads holds its own token (the executor checks), and its output is its solo run."""
    rng = random.Random(9)
    for mode in ("recompute", "swap"):
        limits = dict(preemption_mode=mode, num_host_blocks=6, max_num_seqs=8)
        engine = engine_of(4, 16, 4, True, max_num_batched_tokens=12, **limits)
        engine.executor.vocab_size = 2000
        for r in range(20):
            engine.add_request(f"r{r}", prompt(10, 100 * r), greedy(6))
        results = []
        while engine.has_unfinished_requests:
            results += step(engine)[1]
            if engine.scheduler.running and rng.random() < 0.2:
                engine.scheduler._preempt_request(rng.choice(engine.scheduler.running))
        tokens = drain(engine, results)
        for r in range(20):
            alone = engine_of(16, 8)
            alone.executor.vocab_size = 2000
            alone.add_request("solo", prompt(10, 100 * r), greedy(6))
            assert tokens[f"r{r}"] == drain(alone)["solo"]
        assert is_empty(engine)
