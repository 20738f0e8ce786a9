"""Leaving early: a reader who goes away, an interrupt, a step that breaks off. Nothing leaks."""

from collections.abc import Callable, Iterator

import pytest
from helpers import num_free
from tiny import assert_nothing_is_held, greedy, tiny_llm

from minivllm.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import ModelOutput, SchedulerOutput


@pytest.fixture
def llm() -> Iterator[LLM]:
    llm = tiny_llm(num_blocks=32, max_num_batched_tokens=8)
    yield llm
    assert_nothing_is_held(llm)


def alone(prompt: str, params: SamplingParams) -> list[list[int]]:
    output = tiny_llm().generate(prompt, params, use_tqdm=False)[0]
    return [completion.token_ids for completion in output.outputs]


# --- readers who go away --------------------------------------------------------------------------


def test_d39_leaving_a_stream_frees_everything(llm: LLM):
    """At the first piece of text: one request decodes, one is being prefilled, one waits. An engine
    passed the abort as a function that nobody called, and went on for a reader who was gone."""
    for _ in llm.stream(["a", "b" * 20, "c" * 20], greedy(9)):
        break
    assert_nothing_is_held(llm)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_d39_closing_a_stream_frees_everything(llm: LLM, steps: int):
    """Also before its first piece, also in the middle of two samples; a neighbour goes on."""
    other = llm.add_request("neighbour", greedy(9))
    stream = llm.stream(["abc", "d" * 20], greedy(9, n=2))
    for _ in range(steps):
        next(stream)
    stream.close()
    assert list(llm.engine.scheduler.requests) == [other.request_id]
    while llm.has_unfinished_requests:
        llm.step()
    assert [other.outputs[0].token_ids] == alone("neighbour", greedy(9))


def test_d39_an_abort_at_any_time(llm: LLM):
    """While waiting, half prefilled, decoding: the blocks are free at once, the output tells it."""
    for steps in range(6):
        output = llm.add_request("x" * 20, greedy(9, ignore_eos=True))
        for _ in range(steps):
            llm.step()
        assert [o.outputs[0].finish_reason for o in llm.abort(output.request_id)] == ["abort"]
        assert output.finished and num_free(llm.engine) == 32


def test_an_abort_inside_the_loop_over_a_stream(llm: LLM):
    """The reader aborts one request of the stream: it is told once that it has ended, the others
    are served."""
    finished = []
    for output in llm.stream(["a", "b"], greedy(6)):
        if output.finished:
            finished.append((output.prompt, output.outputs[0].finish_reason))
        elif output.prompt == "a" and len(output.outputs[0].token_ids) == 2:
            llm.abort(output.request_id)
    assert finished == [("a", "abort"), ("b", "length")]


# --- steps that break off -------------------------------------------------------------------------


def break_off(llm: LLM, when: int, error: BaseException, before: bool = True) -> set[str]:
    """Let the executor fail once, in its `when`-th step: before it does anything, or after all.

    Returns the kinds of block moves that the failed step had, known once it has failed.
    """
    execute: Callable[[SchedulerOutput], ModelOutput] = llm.engine.executor.execute
    calls, kinds = 0, set()

    def failing(output: SchedulerOutput) -> ModelOutput:
        nonlocal calls
        calls += 1
        if calls != when:
            return execute(output)
        kinds.update(op.kind for op in output.block_ops)
        if not before:
            execute(output)
        raise error

    llm.engine.executor.execute = failing
    return kinds


@pytest.mark.parametrize("when", [1, 2, 4, 9])
def test_an_interrupt_in_generate_leaves_an_engine_that_works(llm: LLM, when: int):
    """Ctrl-C in a notebook: the prompts of that call are gone with all their blocks, a request of
    somebody else goes on, and the next call is served right."""
    other = llm.add_request("neighbour", greedy(12))
    break_off(llm, when, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "d" * 30], greedy(9), use_tqdm=False)
    assert list(llm.engine.scheduler.requests) == [other.request_id]
    assert len(llm._processor.states) == 1
    llm.engine.scheduler.check_integrity()
    assert (
        llm.generate("abc", greedy(9), use_tqdm=False)[0].outputs[0].token_ids
        == (alone("abc", greedy(9))[0])
    )
    while llm.has_unfinished_requests:
        llm.step()
    assert [other.outputs[0].token_ids] == alone("neighbour", greedy(12))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_step_that_breaks_off_changes_no_tokens(mode: str, before: bool):
    """Wherever the executor fails, in a pool so small that blocks are swapped and copied in many
    steps: whoever steps on gets the same tokens. The moves of the failed step were lost once: a
    request then read blocks that had never been swapped in, or copied."""
    asks = {"a" * 5: greedy(12), "b" * 11: greedy(10, n=2), "c" * 8: SamplingParams(seed=3, n=2)}
    expected = {prompt: alone(prompt, params) for prompt, params in asks.items()}
    kinds: set[str] = set()
    for when in range(1, 26):
        llm = tiny_llm(
            num_blocks=9, preemption_mode=mode, num_host_blocks=20, max_num_batched_tokens=12
        )
        outputs = {prompt: llm.add_request(prompt, params) for prompt, params in asks.items()}
        kinds_now = break_off(llm, when, RuntimeError("out of memory"), before)
        while llm.has_unfinished_requests:
            try:
                llm.step()
            except RuntimeError:
                kinds |= kinds_now
            llm.engine.scheduler.check_integrity()
        for prompt, output in outputs.items():
            assert [c.token_ids for c in output.outputs] == expected[prompt]
        assert_nothing_is_held(llm)
    assert kinds == ({"copy", "swap_out", "swap_in"} if mode == "swap" else {"copy"})


@pytest.mark.parametrize("when", [1, 2, 3, 4, 5, 6])
def test_an_observer_that_raises_in_generate_leaves_an_engine_that_works(llm: LLM, when: int):
    """The prompts of that call are gone, one with a stop string in just that step too; a request of
    somebody else misses no token."""
    text = tiny_llm().generate("abc", greedy(9), use_tqdm=False)[0].outputs[0].text
    stopping = greedy(9, stop=[text[1:3]])
    other = llm.add_request("neighbour", greedy(12))

    def observe(engine: object, output: SchedulerOutput) -> None:
        if output.step == when:
            raise KeyboardInterrupt

    llm.engine.observers.append(observe)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "abc", "d" * 30], [stopping, greedy(2), greedy(9)], use_tqdm=False)
    assert set(llm.engine.scheduler.requests) <= {other.request_id}
    assert set(llm._processor.states) == {other.request_id}
    while llm.has_unfinished_requests:
        llm.step()
    assert [other.outputs[0].token_ids] == alone("neighbour", greedy(12))


def test_an_interrupt_in_a_beam_search(llm: LLM):
    """All beams are gone, and the next search finds what it would have found."""
    from minivllm.beam_search import BeamSearchParams

    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    expected = tiny_llm().beam_search("abc", params)
    break_off(llm, 3, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        llm.beam_search("abc", params)
    assert_nothing_is_held(llm)
    assert llm.beam_search("abc", params) == expected


def test_a_bad_prompt_in_the_middle_of_a_list_of_any_kind(llm: LLM):
    """Not only a ValueError takes back what was accepted before it: a prompt whose reading is
    interrupted does, too."""

    class Interrupting(dict):
        def get(self, key: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", Interrupting(prompt="x")], greedy(3), use_tqdm=False)
    assert_nothing_is_held(llm)
