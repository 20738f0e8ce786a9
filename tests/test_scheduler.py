"""Scheduler: who enters, how many tokens each runs, who leaves; in numbers and sentences."""

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
from law import make_engine

from minivllm.config import SchedulerConfig
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import ModelOutput


def test_prefill_and_decode_share_a_step():
    """Budget 8, blocks of four. a decodes while b's ten tokens run as 7 + 3 and c's four beside."""
    engine = engine_of(4, 16, max_num_batched_tokens=8)
    engine.add_request("a", prompt(3), greedy(4))
    output, results = step(engine)
    assert scheduled(output) == {"a": 3} and tables(engine) == {"a": [0]}
    assert sentences(output) == ["a joins the line: 3 prompt tokens", "a enters with 1 block"]
    assert len(results) == 1 and len(results[0].new_token_ids) == 1

    engine.add_request("b", prompt(10, 20), greedy(2))
    engine.add_request("c", prompt(4, 40), greedy(1))
    output, results = step(engine)
    assert scheduled(output) == {"a": 1, "b": 7}
    assert tables(engine) == {"a": [0], "b": [1, 2, 3]}
    assert [result.request_id for result in results] == ["a"]
    assert sentences(output, "admit", "chunk", "wait") == [
        "b enters with 3 blocks",
        "b runs 7 of the 10 tokens it lacks",
        "c waits: 4 tokens to run, 0 left of the budget",
    ]

    output, results = step(engine)
    assert scheduled(output) == {"a": 1, "b": 3, "c": 4}
    assert tables(engine) == {"a": [0, 4], "b": [1, 2, 3]}
    assert sentences(output) == [
        "c enters with 1 block",
        "c ends (length): 1 token, 1 block back",
    ]
    output, results = step(engine)
    assert scheduled(output) == {"a": 1, "b": 1}
    assert [result.finish_reason for result in results] == ["length", "length"]
    assert is_empty(engine)


@pytest.mark.parametrize("watermark, enters", [(0, True), (1, False)])
def test_admission_leaves_the_watermark_free(watermark: int, enters: bool):
    """Five blocks, a holds two, b needs three: 3 - watermark >= 3 decides."""
    engine = engine_of(4, 5, watermark_blocks=watermark)
    engine.add_request("a", prompt(8), greedy(4))
    engine.add_request("b", prompt(12, 40), greedy(1))
    output, _ = step(engine)
    assert ("b" in scheduled(output)) == enters
    if not enters:
        assert sentences(output, "wait") == ["b waits: needs 3 blocks, 3 free, watermark 1"]


def test_an_empty_engine_asks_for_no_watermark():
    """The request that fills the pool enters when nobody else runs: else it would wait for ever."""
    engine = engine_of(4, 5, watermark_blocks=3)
    engine.add_request("a", prompt(20), greedy(1))
    assert scheduled(step(engine)[0]) == {"a": 20}


def test_blocks_of_who_ends_are_there_for_the_next_schedule():
    """Two blocks, each needs both: b enters in the step after a's last, not one later."""
    engine = engine_of(4, 2)
    engine.add_request("a", prompt(5), greedy(2))
    engine.add_request("b", prompt(5, 40), greedy(1))
    assert [scheduled(step(engine)[0]) for _ in range(3)] == [{"a": 5}, {"a": 1}, {"b": 5}]


def test_no_more_run_than_there_are_seats():
    engine = engine_of(4, 16, max_num_seqs=2)
    for name in "abc":
        engine.add_request(name, prompt(2), greedy(3))
    output, _ = step(engine)
    assert scheduled(output) == {"a": 2, "b": 2}
    assert sentences(output, "wait") == ["c waits: needs 1 seat, 0 free"]


def test_samples_to_come_need_their_seats_at_once():
    """Three samples and two seats free: it waits, though its prompt alone would fit."""
    engine = engine_of(4, 16, max_num_seqs=3)
    engine.add_request("a", prompt(2), greedy(2))
    engine.add_request("b", prompt(2), greedy(2, n=3))
    output, _ = step(engine)
    assert sentences(output, "wait") == ["b.0 waits: needs 3 seats, 2 free"]
    step(engine)
    output, results = step(engine)
    assert sentences(output, "fork") == [
        "b.1 is forked from b.0, sharing 1 block",
        "b.2 is forked from b.0, sharing 1 block",
    ]
    assert [(r.request_id, r.sample_index) for r in results] == [("b", 0), ("b", 1), ("b", 2)]


def test_samples_share_the_prompt_and_copy_its_last_block():
    """Six tokens, three samples: block 0 is shared to the end, block 1 is copied twice and kept by
    the last to write. Four blocks in all instead of six."""
    engine = engine_of(4, 8)
    engine.add_request("a", prompt(6), SamplingParams(n=3, max_tokens=3, seed=1))
    step(engine)
    assert tables(engine) == {"a.0": [0, 1], "a.1": [0, 1], "a.2": [0, 1]}
    output, _ = step(engine)
    assert tables(engine) == {"a.0": [0, 2], "a.1": [0, 3], "a.2": [0, 1]}
    assert sentences(output) == [
        "block 1 is shared: copied to 2 to be written",
        "block 1 is shared: copied to 3 to be written",
    ]
    assert engine.scheduler.stats.num_copied_blocks == 2
    tokens = drain(engine)
    assert len(set(map(tuple, tokens.values()))) == 3  # and each sample drew its own tokens
    assert is_empty(engine)


def test_samples_that_end_with_their_first_token_leave_nothing():
    """max_tokens 1: the fork, its only token and its end all fall into one update."""
    engine = engine_of(4, 8)
    engine.add_request("a", prompt(6), greedy(1, n=3))
    _, results = step(engine)
    assert [(r.sample_index, r.finish_reason) for r in results] == [
        (0, "length"),
        (1, "length"),
        (2, "length"),
    ]
    assert [result.request_ended for result in results] == [False, False, True]
    assert is_empty(engine)


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_has_room():
    """Budget 12 of which a takes 1: eleven tokens would fit, twelve wait until a has ended."""
    engine = engine_of(
        4, 8, enable_chunked_prefill=False, max_num_batched_tokens=12, max_model_len=12
    )
    engine.add_request("a", prompt(2), greedy(3))
    assert scheduled(step(engine)[0]) == {"a": 2}
    engine.add_request("b", prompt(11, 20), greedy(1))
    assert scheduled(step(engine)[0]) == {"a": 1, "b": 11}
    engine.add_request("c", prompt(11, 40), greedy(1))
    engine.add_request("d", prompt(1, 60), greedy(1))
    output, _ = step(engine)
    assert scheduled(output) == {"a": 1, "c": 11}
    assert sentences(output, "wait") == ["d waits: 1 token to run, 0 left of the budget"]


def test_an_empty_step_is_legal():
    engine = engine_of(4, 2)
    output, results = step(engine)
    assert (output.requests, output.block_ops, output.events, results) == ([], [], [], [])


def test_the_whole_output_can_be_reserved_at_the_door():
    """reserve = prompt + max_tokens - 1: four blocks at admission, and decoding takes none."""
    engine = make_engine(SchedulerConfig(8, 4), reserve=lambda request: request.max_kv_tokens)
    engine.add_request("a", prompt(6), greedy(8))
    step(engine)
    assert tables(engine) == {"a": [0, 1, 2, 3]}
    assert drain(engine)["a"] == solo(prompt(6), greedy(8))[1:]


# --- the door -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8, 9])
def test_d17_what_cannot_run_alone_is_refused_at_the_door(length: int):
    """Two blocks of four, P = 8 and M = 4: an engine ran until it needed slot 9 and died there.
    The 11 slots are counted at the door, and the reason has the numbers; the engine goes on."""
    engine = engine_of(4, 2, max_model_len=100)
    message = f"{length} prompt tokens and up to 4 more need 3 blocks of 4; the pool has 2"
    with pytest.raises(ValueError, match=message):
        engine.add_request("r", prompt(length), greedy(4))
    assert is_empty(engine)
    assert scheduled(step(engine)[0]) == {}
    engine.add_request("r", prompt(5), greedy(4))  # 5 + 4 - 1 = 8 slots: the last one that fits
    assert drain(engine)["r"] == solo(prompt(5), greedy(4))


def test_d28_a_prompt_that_is_too_long_is_refused_with_the_numbers():
    """A server once logged it and dropped the request; the client waited for ever."""
    engine = engine_of(4, 8, max_model_len=10)
    message = "the prompt has 10 tokens, and max_model_len is 10: no room for an output token"
    with pytest.raises(ValueError, match=message):
        engine.add_request("r", prompt(10), greedy(1))
    engine.add_request("r", prompt(9), greedy(50))
    assert len(drain(engine)["r"]) == 1  # what the length leaves


def test_no_limit_on_the_output_means_the_models_length():
    engine = engine_of(4, 8, max_model_len=10)
    engine.add_request("r", prompt(4), greedy(None))
    assert len(drain(engine)["r"]) == 6


def test_more_samples_than_seats_are_refused():
    engine = engine_of(4, 8, max_num_seqs=2)
    with pytest.raises(ValueError, match="n = 3 samples, max_num_seqs is 2"):
        engine.add_request("r", prompt(4), greedy(1, n=3))
    assert is_empty(engine)


def test_d29_a_duplicate_id_is_refused_while_the_first_lives():
    """Id x three times: the second, while the first runs, is refused and disturbs nothing; the
    third comes after the end of the first and is served."""
    engine = engine_of(4, 8)
    engine.add_request("x", prompt(4), greedy(3))
    _, results = step(engine)
    with pytest.raises(ValueError, match="request 'x': this id is in use"):
        engine.add_request("x", prompt(4, 40), greedy(3))
    assert drain(engine, results)["x"] == solo(prompt(4), greedy(3))
    engine.add_request("x", prompt(4, 40), greedy(3))
    assert drain(engine)["x"] == solo(prompt(4, 40), greedy(3))


def test_d33_blocks_of_one_token_work():
    """block_size 1 was never caught by a test for `len % block_size == 1`."""
    engine = engine_of(1, 6)
    engine.add_request("r", prompt(3), greedy(4))
    step(engine)
    assert tables(engine) == {"r": [0, 1, 2]}
    step(engine)
    assert tables(engine) == {"r": [0, 1, 2, 3]}


# --- chunks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d24_a_middle_chunk_emits_nothing(temperature: float):
    """P = 12 in chunks of 4: two steps without output, the third emits the only token; with a seed,
    the middle chunks have drawn nothing, so it is the token of an unchunked run."""
    params = SamplingParams(temperature=temperature, max_tokens=1, seed=5)
    engine = engine_of(4, 8, chunk=4)
    engine.add_request("r", prompt(12), params)
    output, results = step(engine)
    assert (scheduled(output), results) == ({"r": 4}, [])
    assert step(engine)[1] == []
    _, results = step(engine)
    assert [result.finish_reason for result in results] == ["length"]
    assert results[0].new_token_ids == solo(prompt(12), params)


def test_d15_a_hit_shortens_what_is_scheduled():
    """The tokens to run were counted before the hit was known, and the slice reached beyond the
    prompt. Four of seven tokens are cached: three are scheduled, positions 4 to 6."""
    engine = engine_of(4, 8, prefix=True)
    engine.add_request("first", prompt(7), greedy(1))
    drain(engine)
    engine.add_request("r", prompt(7), greedy(1))
    output = engine.scheduler.schedule()
    assert scheduled(output) == {"r": 3}
    assert output.requests[0].next_positions(3) == range(4, 7)
    assert sentences(output, "admit") == ["r enters with 2 blocks, 4 tokens found in the cache"]


def test_d15_after_a_preemption_too():
    """The same after a preemption: it finds its own first block again and runs the other three."""
    engine = engine_of(4, 8, prefix=True)
    engine.add_request("r", prompt(6), greedy(3))
    step(engine)
    engine.scheduler._preempt_request(engine.scheduler.running[0])
    output = engine.scheduler.schedule()
    assert scheduled(output) == {"r": 3}
    assert output.requests[0].next_positions(3) == range(4, 7)


def test_d16_who_is_not_scheduled_holds_nothing():
    """Budget 8, W1 takes all of it: W2 had its blocks already and was then left out. It holds no
    block, and its prefix gained no holder."""
    engine = engine_of(4, 16, prefix=True, max_num_batched_tokens=8)
    engine.add_request("w1", prompt(8), greedy(2))
    engine.add_request("w2", prompt(6, 40), greedy(2))
    output, _ = step(engine)
    assert scheduled(output) == {"w1": 8} and tables(engine) == {"w1": [0, 1]}
    assert sentences(output, "wait") == ["w2 waits: 6 tokens to run, 0 left of the budget"]
    assert engine.scheduler.kv.pool.ref_cnt == [1, 1] + [0] * 14
    assert scheduled(step(engine)[0]) == {"w1": 1, "w2": 6}


def test_d12_twins_of_one_step_both_compute():
    """Two equal prompts before the first step: neither counts on blocks the other has not written;
    both give the same tokens, and a third one finds one copy of the prefix."""
    engine = engine_of(4, 16, prefix=True)
    engine.add_request("a", prompt(12), greedy(2))
    engine.add_request("b", prompt(12), greedy(2))
    output, results = step(engine)
    assert scheduled(output) == {"a": 12, "b": 12}
    tokens = drain(engine, results)
    assert tokens["a"] == tokens["b"] == solo(prompt(12), greedy(2))
    engine.add_request("c", prompt(12), greedy(2))
    output = engine.scheduler.schedule()
    assert scheduled(output) == {"c": 4} and output.requests[0].block_table.block_ids[:2] == [0, 1]


# --- order --------------------------------------------------------------------------------------


def test_d22_nobody_passes_the_head_of_the_line():
    """Four blocks are free, the head needs six, ten behind it need one each. Letting them pass
    would serve them sooner and the head never, should they keep coming. Here the bound is zero:
    none enters before the head does, and all are served in order."""
    engine = engine_of(4, 8)
    engine.add_request("running", prompt(16), greedy(6))
    step(engine)
    engine.add_request("head", prompt(24, 40), greedy(1))
    for i in range(10):
        engine.add_request(f"small{i}", prompt(2, 70), greedy(1))
    order = []
    while engine.has_unfinished_requests:
        order += [event.name for event in step(engine)[0].events if event.kind == "admit"]
    assert order == ["head"] + [f"small{i}" for i in range(10)]


def test_priority_goes_first_and_runs_first():
    """A smaller number enters before those who came earlier, and stands before them in a step."""
    engine = engine_of(4, 16, policy="priority", max_num_seqs=2)
    for name, priority in [("a", 0), ("b", 2), ("c", 1)]:
        engine.add_request(name, prompt(3), greedy(2), priority=priority)
    assert list(scheduled(step(engine)[0])) == ["a", "c"]
    step(engine)
    engine.add_request("d", prompt(3), greedy(2), priority=-1)
    assert list(scheduled(step(engine)[0])) == ["d", "b"]


def test_shortest_job_first():
    engine = engine_of(4, 32, policy="sjf", max_num_seqs=1, max_model_len=200)
    for name, length in [("long", 90), ("short", 3), ("middle", 50)]:
        engine.add_request(name, prompt(length), greedy(1))
    assert list(drain(engine)) == ["short", "middle", "long"]


# --- the end ------------------------------------------------------------------------------------


def test_the_end_token_ends_it_in_that_step():
    """A vocabulary of two, of which 0 ends: blocks are back before the update returns."""
    engine = make_engine(SchedulerConfig(8, 4), vocab_size=2, eos_token_ids=(0,))
    engine.add_request("r", [1, 1, 1], greedy(20))
    results = []
    while engine.has_unfinished_requests:
        results = step(engine)[1]
    assert (results[0].new_token_ids, results[0].finish_reason) == ([0], "stop")
    assert num_free(engine) == 8


def test_errors_end_one_request_and_no_other():
    """An executor reports that one row failed: it ends with the message, its neighbour goes on."""
    engine = engine_of(4, 8)
    engine.add_request("a", prompt(4), greedy(3))
    engine.add_request("b", prompt(4, 40), greedy(3))
    output = engine.scheduler.schedule()
    tokens = engine.executor.execute(output).sampled_token_ids
    failed = ModelOutput([[], tokens[1]], errors={0: "row 0 is not finite"})
    results = engine.scheduler.update_from_output(output, failed)
    assert [(r.request_id, r.finish_reason, r.stop_reason) for r in results] == [
        ("a", "error", "row 0 is not finite"),
        ("b", None, None),
    ]
    assert num_free(engine) == 7 and results[0].request_ended
    engine.scheduler.check_integrity()
    assert drain(engine, results)["b"] == solo(prompt(4, 40), greedy(3))
