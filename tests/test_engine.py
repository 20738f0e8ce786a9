"""Engine: the door, the loop, and what observers see."""

import pytest
from helpers import drain, engine_of, greedy, is_empty, num_free, prompt, solo

from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler


def test_a_request_goes_through():
    """Three tokens, three steps; then nobody is left."""
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(5), greedy(3))
    assert engine.has_unfinished_requests
    reasons = [[result.finish_reason for result in engine.step()] for _ in range(3)]
    assert reasons == [[None], [None], ["length"]]
    assert not engine.has_unfinished_requests and engine.step() == []


def test_default_parameters():
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(3))
    assert len(drain(engine)["r"]) == SamplingParams().max_tokens == 16


@pytest.mark.parametrize("token", [-1, 1000, 1001])
def test_d30_a_token_outside_the_vocabulary_is_refused(token: int):
    """V = 1000: -1 would read the embedding from its end, V and V + 1 beyond it. In the prompt and
    among the stop tokens alike; nothing is held, and the next request goes on."""
    engine = engine_of(4, 8)
    with pytest.raises(ValueError, match=f"token id {token} is outside the vocabulary of 1000"):
        engine.add_request("r", [1, token], greedy(2))
    if token > 0:
        with pytest.raises(ValueError, match=f"token id {token} is outside the vocabulary"):
            engine.add_request("r", [1], greedy(2, stop_token_ids=[token]))
    assert is_empty(engine) and not engine.has_unfinished_requests
    engine.add_request("r", [0, 999], greedy(2))
    assert drain(engine)["r"] == solo([0, 999], greedy(2))


@pytest.mark.parametrize(
    "bad",
    [
        dict(prompt_token_ids=[]),
        dict(prompt_token_ids=["a"]),
        dict(prompt_token_ids=[1], priority="high"),
        dict(prompt_token_ids=[1], cache_salt=1),
        dict(prompt_token_ids=prompt(40)),
        dict(prompt_token_ids=[1], params=greedy(99, n=99)),
    ],
)
def test_d27_bad_input_is_refused_and_the_others_go_on(bad: dict):
    """Whatever is wrong with one request: ValueError in one line, its id is free again, and the one
    that runs is not disturbed."""
    engine = engine_of(4, 8)
    engine.add_request("good", prompt(5), greedy(4))
    results = engine.step()
    with pytest.raises(ValueError, match="request 'bad'") as caught:
        engine.add_request("bad", **bad)
    assert "\n" not in str(caught.value)
    assert list(engine.scheduler.requests) == ["good"] and len(engine.scheduler.waiting) == 0
    engine.add_request("bad", [1, 2], greedy(1))
    assert drain(engine, results)["good"] == solo(prompt(5), greedy(4))


def test_requests_without_a_seed_get_different_ones():
    """And the same again in an engine that is made the same way."""

    def run() -> dict[str, list[int]]:
        engine = engine_of(4, 16)
        for name in "ab":
            engine.add_request(name, prompt(3), SamplingParams(max_tokens=6))
        return drain(engine)

    tokens = run()
    assert tokens["a"] != tokens["b"] and tokens == run()


def test_a_seed_of_its_own_makes_the_neighbours_irrelevant():
    params = SamplingParams(max_tokens=6, seed=3)
    alone = solo(prompt(3), params)
    engine = engine_of(4, 16)
    for name in "abc":
        engine.add_request(name, prompt(4, 30), SamplingParams(max_tokens=2))
    engine.add_request("r", prompt(3), params)
    assert drain(engine)["r"] == alone


def test_the_models_end_token_ends_a_request():
    engine = engine_of(4, 8)
    first = solo(prompt(3), greedy(1))[0]
    engine.eos_token_ids = (first,)
    engine.add_request("r", prompt(3), greedy(5))
    engine.add_request("on", prompt(3), greedy(5, ignore_eos=True))
    results = engine.step()
    assert [(r.finish_reason, r.stop_reason) for r in results] == [("stop", None), (None, None)]


def test_stop_ends_one_sample_and_leaves_the_others():
    """A stop string in the text of sample 1: it ends with the string as its reason."""
    engine = engine_of(4, 8)
    engine.add_request("r", prompt(6), greedy(4, n=2))
    engine.step()
    result = engine.stop("r", 1, "END")
    assert (result.sample_index, result.finish_reason, result.stop_reason) == (1, "stop", "END")
    assert not result.request_ended
    with pytest.raises(KeyError, match="no live sample 1"):
        engine.stop("r", 1, "END")
    assert list(drain(engine)) == ["r"] and is_empty(engine)


def test_observers_see_each_step_after_its_update():
    """Events of the update, an end say, are in the output they get; without any nothing changes."""
    engine = engine_of(4, 8)
    seen = []

    def observe(engine, output):
        kinds = [event.kind for event in output.events]
        seen.append((output.step, kinds, num_free(engine), engine.has_unfinished_requests))

    engine.observers.append(observe)
    engine.add_request("r", prompt(5), greedy(2))
    drain_steps = [engine.step(), engine.step()]
    assert seen == [(1, ["add", "admit"], 6, True), (2, ["finish"], 8, False)]
    assert drain_steps[1][0].finish_reason == "length"


def test_an_observer_that_raises_costs_no_token():
    """A broken picture, or Ctrl-C while it was drawn: the step had been done, its tokens stood in
    the requests, and nobody ever got them. The error goes on to the caller at once; the next step
    gives what the last one brought, also when that was the end of all requests."""
    for broken in range(1, 7):
        engine = engine_of(4, 8)
        for name, first in [("a", 1), ("b", 40)]:
            engine.add_request(name, prompt(5, first), greedy(4, n=1 + (name == "b")))

        def observe(engine, output, broken=broken):
            if output.step == broken:
                raise ZeroDivisionError

        engine.observers.append(observe)
        results, num_errors = [], 0
        while engine.has_unfinished_requests:
            try:
                results += engine.step()
            except ZeroDivisionError:
                num_errors += 1
        assert num_errors == (broken <= 4) and is_empty(engine)
        tokens = drain(engine, results)
        assert tokens["a"] == solo(prompt(5), greedy(4))
        assert tokens["b"] == tokens["b.1"] == solo(prompt(5, 40), greedy(4))
        assert [r.request_id for r in results if r.request_ended] == ["a", "b"]


def test_an_abort_after_an_observer_raised_brings_what_was_held_back():
    """The last token and the abort come as one output, so nothing of a request follows its end."""
    engine = engine_of(4, 8)
    engine.observers.append(lambda engine, output: 1 // (2 - output.step))
    engine.add_request("a", prompt(5), greedy(4))
    engine.add_request("b", prompt(5, 40), greedy(4, n=2))
    engine.add_request("c", prompt(5, 80), greedy(2))
    first = engine.step()
    with pytest.raises(ZeroDivisionError):
        engine.step()
    (last,) = engine.abort("a")
    assert (last.finish_reason, last.request_ended) == ("abort", True)
    assert first[0].new_token_ids + last.new_token_ids == solo(prompt(5), greedy(4))[:2]
    assert [(o.finish_reason, o.request_ended) for o in engine.abort("c")] == [("length", True)]
    ends = [(o.finish_reason, len(o.new_token_ids), o.request_ended) for o in engine.abort("b")]
    assert ends == [("abort", 1, False), ("abort", 1, True)]
    assert engine.step() == [] and is_empty(engine) and not engine.has_unfinished_requests


def test_events_between_steps_belong_to_the_next_one():
    engine = engine_of(4, 8)
    outputs = []
    engine.observers.append(lambda engine, output: outputs.append(output))
    engine.add_request("r", prompt(5), greedy(4))
    engine.step()
    engine.abort("r")
    engine.step()
    assert [str(event) for event in outputs[1].events] == ["r ends (abort): 1 token, 2 blocks back"]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_step_that_breaks_off_loses_nothing(mode: str):
    """Interrupted in the middle of a step, when c has just left for a and b: the error reaches the
    caller, nobody knows what the blocks hold here and in host memory, and the next steps compute
    all of it again. The events say how many tokens that costs; they once said 0."""
    engine = engine_of(4, 6, preemption_mode=mode, num_host_blocks=8)
    for name, first in [("a", 1), ("b", 40), ("c", 80)]:
        engine.add_request(name, prompt(6, first), greedy(4))
    results = [result for _ in range(3) for result in engine.step()]
    execute = engine.executor.execute

    def break_off(output):
        engine.executor.slots[:] = [None] * 24
        raise KeyboardInterrupt

    engine.executor.execute = break_off
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.executor.execute = execute
    engine.scheduler.check_integrity()
    assert is_empty_but_for_the_line(engine)
    words = [str(event) for event in engine.scheduler.events if event.kind == "preempt"]
    assert words[0].startswith("c is preempted so that a gets a block")
    assert words[1:] == [
        f"{name} is preempted since the step broke off: 8 tokens to compute again" for name in "ab"
    ]
    tokens = drain(engine, results)
    for name, first in [("a", 1), ("b", 40), ("c", 80)]:
        assert tokens[name] == solo(prompt(6, first), greedy(4))
    assert is_empty(engine)


def is_empty_but_for_the_line(engine) -> bool:
    kv = engine.scheduler.kv
    host_is_free = kv.host_pool is None or not any(kv.host_pool.ref_cnt)
    return not engine.scheduler.running and num_free(engine) == 6 and host_is_free


def test_stop_tokens_may_not_cover_the_vocabulary_before_min_tokens():
    """With every token a stop token and min_tokens 1 there is nothing to draw: the twin looked for
    a free token for ever. Such a request is refused at the door."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=4, block_size=4))
    engine = Engine(scheduler, FakeExecutor(num_blocks=4, block_size=4, vocab_size=3))
    params = SamplingParams(max_tokens=2, min_tokens=1, stop_token_ids=[0, 1, 2])
    with pytest.raises(ValueError, match="all 3 tokens are stop tokens"):
        engine.add_request("r", [1], params)
    engine.add_request("r", [1], SamplingParams(max_tokens=2, stop_token_ids=[0, 1, 2]))
    assert engine.step()[0].finish_reason == "stop"
