"""Bad input ends at the door, in one line with the numbers in it; the others go on, nothing leaks.

Each case runs beside a good request that is under way, whose tokens must be those it has alone.
"""

from collections.abc import Callable

import pytest
import torch
from tiny import assert_nothing_is_held, greedy, tiny_llm

from minivllm.beam_search import BeamSearchParams
from minivllm.llm import LLM
from minivllm.sampling_params import SamplingParams


def params(**fields: object) -> Callable[[LLM], object]:
    """A request that is well but for its SamplingParams."""
    return lambda llm: llm.generate("x", SamplingParams(**fields), use_tqdm=False)


def prompt(*prompts: object, wanted: object = None) -> Callable[[LLM], object]:
    """A request with these prompts (one: as it is)."""
    given = prompts[0] if len(prompts) == 1 else list(prompts)
    wanted = greedy(2) if wanted is None else wanted
    return lambda llm: llm.generate(given, wanted, use_tqdm=False)


def chat(messages: object) -> Callable[[LLM], object]:
    return lambda llm: llm.chat(messages, greedy(2), use_tqdm=False)


def beams(width: int, max_tokens: int = 8, given: object = "abc") -> Callable[[LLM], object]:
    return lambda llm: llm.beam_search(given, BeamSearchParams(width, max_tokens))


# The engine below: 16 blocks of 4 slots, max_model_len 60, at most 4 requests, vocabulary 259.
CASES = {
    # the prompt
    "d27 empty text": (prompt(""), r"the prompt is empty \(0 tokens\)"),
    "d27 no ids": (prompt([[]]), r"the prompt is empty \(0 tokens\)"),
    "d27 no ids in a dict": (prompt({"prompt_token_ids": []}), r"is empty \(0 tokens\)"),
    "d27 empty among good ones": (prompt("a", "", "b"), r"prompt 1 of 3: .* is empty"),
    "d28 longer than max_model_len": (prompt("x" * 61), "61 tokens, and max_model_len is 60"),
    "d28 as long as max_model_len": (prompt([5] * 60), "60 tokens, .* no room for an output"),
    "d30 token -1": (prompt([-1]), "token id -1 is outside the vocabulary of 259"),
    "d30 token V": (prompt([259]), "token id 259 is outside the vocabulary of 259"),
    "d30 token V + 1": (prompt([1, 260]), "token id 260 is outside the vocabulary of 259"),
    "no prompt": (prompt(None), "got None"),
    "a number": (prompt(5), "got 5"),
    "bytes": (prompt(b"abc"), "got b'abc'"),
    "a tensor": (prompt(torch.tensor([1, 2])), "prompts must be a prompt or a list"),
    "fractions": (prompt([1.5]), "got 1.5"),
    "mixed ids": (prompt("a", [1, "x"]), "prompt 1 of 2: .* holds 'x', not an integer"),
    "an empty dict": (prompt({}), "got {}"),
    "ids that are a number": (prompt({"prompt_token_ids": 5}), "must be a list .* got 5"),
    "text that is none": (prompt({"prompt": None}), "text must be a str, got NoneType"),
    "half a surrogate": (prompt("\ud800"), "cannot be encoded"),
    "salt": (prompt({"prompt": "x", "cache_salt": 5}), "cache_salt must be text, got 5"),
    # what is wanted
    "max_tokens 0": (params(max_tokens=0), "max_tokens must be >= 1 or None, got 0"),
    "d33 max_tokens -1": (params(max_tokens=-1), "max_tokens must be >= 1 or None, got -1"),
    "min above max": (params(min_tokens=9, max_tokens=8), r"<= max_tokens \(8\), got 9"),
    "temperature": (params(temperature=-0.5), "temperature must be >= 0, got -0.5"),
    "temperature nan": (params(temperature=float("nan")), "temperature must be >= 0, got nan"),
    "top_p 0": (params(top_p=0.0), r"top_p must be in \(0, 1\], got 0.0"),
    "top_p 1.5": (params(top_p=1.5), r"top_p must be in \(0, 1\], got 1.5"),
    "top_k": (params(top_k=-2), "top_k must be .* got -2"),
    "min_p": (params(min_p=1.1), r"min_p must be in \[0, 1\], got 1.1"),
    "n 0": (params(n=0), "n must be >= 1, got 0"),
    "n above max_num_seqs": (params(n=5), "n = 5 samples, max_num_seqs is 4"),
    "an empty stop": (params(stop=["a", ""]), "stop must be made of non-empty strings"),
    "d30 stop id V": (params(stop_token_ids=[259]), "token id 259 is outside the vocabulary"),
    "never fits the pool": (
        prompt([5] * 30, wanted=greedy(40)),
        "30 prompt tokens and up to 30 more need 15 blocks",
    ),
    "two params for three": (prompt("a", "b", "c", wanted=[greedy(1)] * 2), "3 prompts, but 2"),
    "params that are a dict": (prompt("a", wanted={"max_tokens": 3}), "got {'max_tokens': 3}"),
    "params that are a word": (prompt("a", "b", wanted=[greedy(1), "x"]), "'x' is not a Sampl"),
    # chats
    "an empty chat": (chat([[]]), r"messages must be a non-empty list, got \[\]"),
    "a chat that is a text": (chat("hello"), "message 0 must be a dict"),
    "a chat that is nothing": (chat(None), "messages must be a list, got None"),
    "no role": (chat([{"content": "x"}]), "'role', got None"),
    "no content": (chat([{"role": "user"}]), "'content', got None"),
    # beams
    "no beams": (beams(0), "beam_width must be an integer >= 1, got 0"),
    "beams above max_num_seqs": (beams(5), "n = 5 samples, max_num_seqs is 4"),
    "beams above the pool": (beams(4, 57), "3 prompt tokens and up to 57 more need"),
    "one bad search of two": (beams(2, 4, ["good", ""]), "the prompt is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_and_the_others_go_on(case: str):
    """Whatever was accepted of the same call before the bad part is taken back, too."""
    ask, message = CASES[case]
    blocks = 14 if case == "never fits the pool" else 16
    llm = tiny_llm(num_blocks=blocks, max_model_len=60, max_num_seqs=4)
    good = llm.add_request("good", greedy(12))
    llm.step()
    with pytest.raises(ValueError, match=message) as caught:
        ask(llm)
    assert "\n" not in str(caught.value)
    assert list(llm.engine.scheduler.requests) == [good.request_id]
    while llm.has_unfinished_requests:
        llm.step()
    alone = tiny_llm().generate("good", greedy(12), use_tqdm=False)[0]
    assert good.outputs[0].token_ids == alone.outputs[0].token_ids
    assert_nothing_is_held(llm)


def test_d28_every_accepted_request_has_exactly_one_end():
    """A long prompt once was dropped with a warning in the log, and its client waited for ever."""
    llm = tiny_llm(num_blocks=8, max_model_len=30)
    outputs = [llm.add_request("x" * length, greedy(99)) for length in (1, 20, 29)]
    ends = []
    while llm.has_unfinished_requests:
        ends += [output.request_id for output in llm.step() if output.finished]
    assert sorted(ends) == [output.request_id for output in outputs]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [29, 10, 1]
    assert_nothing_is_held(llm)


def test_d29_an_id_in_use():
    """The second "x" while the first runs is refused and does not disturb it; the third, after its
    end, is welcome."""
    llm = tiny_llm()
    first = llm.add_request("abc", greedy(5), "x")
    llm.step()
    with pytest.raises(ValueError, match="request 'x': this id is in use"):
        llm.add_request("other", greedy(5), "x")
    while llm.has_unfinished_requests:
        llm.step()
    third = llm.add_request("abc", greedy(5), "x")
    while llm.has_unfinished_requests:
        llm.step()
    assert first.outputs[0].token_ids == third.outputs[0].token_ids
    assert_nothing_is_held(llm)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(model="no/such/model"), "unknown model 'no/such/model'"),
        (dict(dtype="int8"), "dtype must be auto, float32, .* got 'int8'"),
        (dict(device="nowhere"), "unknown device 'nowhere'"),
        (dict(device="meta"), "device must be auto, cpu or cuda, got 'meta'"),
        (dict(device="mps"), "device must be auto, cpu or cuda, got 'mps'"),
        (dict(block_size=0), "block_size must be an integer >= 1, got 0"),
        (dict(block_size="16"), "block_size must be an integer >= 1, got '16'"),
        (dict(num_blocks=0), "num_blocks must be an integer >= 1, got 0"),
        (dict(num_blocks=1 << 40), "KV cache takes .* GiB, but .* GiB are free"),
        (dict(kv_cache_memory=12_287), "is 12287 bytes; one block takes 12288"),
        (dict(kv_cache_memory=-1), "is -1 bytes; one block takes 12288"),
        (dict(kv_cache_memory=1 << 60), "GiB are free"),
        (dict(kv_cache_memory="1GB"), "must be a number of bytes, got '1GB'"),
        (dict(kv_cache_memory=1e6), "must be a number of bytes, got 1000000.0"),
        (dict(num_blocks=4, kv_cache_memory=1 << 20), r"num_blocks \(4\) or kv_cache_memory"),
        (dict(max_model_len=0), "max_model_len must be an integer >= 2, got 0"),
        (dict(max_model_len=1025), "max_model_len is 1025; the model was made for 1024"),
        (dict(max_num_seqs=0), "max_num_seqs must be an integer >= 1, got 0"),
        (dict(max_num_batched_tokens=0), "max_num_batched_tokens must be .* got 0"),
        (
            dict(long_prefill_token_threshold=16, max_num_batched_tokens=8),
            r"long_prefill_token_threshold \(16\) is above max_num_batched_tokens \(8\)",
        ),
        (dict(seed="x"), "seed must be an integer, got 'x'"),
        (dict(policy="random"), "policy must be one of .* got 'random'"),
        (dict(preemption_mode="hope"), "preemption_mode must be .* got 'hope'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_limits_that_cannot_work_are_refused(options: dict, message: str):
    """block_size=0 was a ZeroDivisionError, max_model_len=0 meant the whole context, and "meta" was
    taken for a device to compute on."""
    with pytest.raises(ValueError, match=message) as caught:
        LLM(**{"model": "tiny", **options})
    assert "\n" not in str(caught.value)
