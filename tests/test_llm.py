"""LLM: a script written for vLLM's offline API runs, and each promise of the text holds."""

from collections.abc import Iterator

import pytest
from tiny import Script, assert_nothing_is_held, constant_logits, greedy, tiny_llm

import minivllm
from minivllm.llm import LLM
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import SamplingParams

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def llm() -> Iterator[LLM]:
    """A fresh LLM; whatever a test did, nothing may be held afterwards."""
    llm = tiny_llm()
    yield llm
    assert_nothing_is_held(llm)


def generate(llm: LLM, prompts, params=None) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


# --- the forms of input and output ----------------------------------------------------------------


def test_a_script_for_vllm_runs_with_the_import_changed():
    """The loop of vLLM's quickstart, its names and its fields."""
    llm = minivllm.LLM(model="tiny", dtype="float32", block_size=16, max_model_len=64, seed=1)
    prompts = ["Hello, my name is", "The future of AI is"]
    sampling_params = minivllm.SamplingParams(temperature=0.8, top_p=0.95)
    outputs = llm.generate(prompts, sampling_params)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert isinstance(output, minivllm.RequestOutput)
        assert output.prompt == prompt and output.finished
        assert output.prompt_token_ids == llm.tokenizer.encode(prompt)
        completion = output.outputs[0]
        assert isinstance(completion, minivllm.CompletionOutput)
        assert (completion.index, completion.finish_reason) == (0, "length")
        assert completion.finished() and len(completion.token_ids) == 16
        assert completion.text == llm.tokenizer.decode(completion.token_ids)
        assert completion.logprobs is None and completion.cumulative_logprob is None
    assert_nothing_is_held(llm)


def test_all_forms_of_a_prompt_are_one(llm: LLM):
    """A text, its ids, a tuple, a dict with either: the same tokens; the text where it is known."""
    ids = llm.tokenizer.encode("same")
    forms = ["same", {"prompt": "same"}, ids, tuple(ids), {"prompt_token_ids": ids}]
    outputs = generate(llm, forms, greedy())
    assert {tuple(tokens(output)) for output in outputs} == {tuple(tokens(outputs[0]))}
    assert [output.prompt for output in outputs] == ["same", "same", None, None, None]
    for form in forms:
        assert [tokens(output) for output in generate(llm, form, greedy())] == [tokens(outputs[0])]
    assert generate(llm, []) == []


def test_ids_win_where_a_dict_has_both(llm: LLM):
    output = generate(llm, {"prompt": "shown", "prompt_token_ids": [5, 6]}, greedy())[0]
    assert output.prompt == "shown" and output.prompt_token_ids == [5, 6]
    assert tokens(output) == tokens(generate(llm, [5, 6], greedy())[0])


def test_one_params_for_all_or_one_for_each(llm: LLM):
    outputs = generate(llm, ["a", "b"], greedy(3))
    assert [len(tokens(output)) for output in outputs] == [3, 3]
    outputs = generate(llm, ["a", "b"], [greedy(3), greedy(5)])
    assert [len(tokens(output)) for output in outputs] == [3, 5]
    assert len(tokens(generate(llm, "a")[0])) == SamplingParams().max_tokens


def test_outputs_stand_in_the_order_of_the_prompts(llm: LLM):
    """The last ends first, and the first last."""
    outputs = generate(llm, ["a", "bb", "ccc"], [greedy(9), greedy(5), greedy(1)])
    assert [output.prompt for output in outputs] == ["a", "bb", "ccc"]


def test_chat_is_generate_over_the_template(llm: LLM):
    """Special tokens of the template become one id each, and no others are added."""
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    output = llm.chat(CHAT, greedy(), use_tqdm=False)[0]
    assert output.prompt == prompt
    assert output.prompt_token_ids == llm.tokenizer.encode(prompt, add_special_tokens=False)
    assert tokens(output) == tokens(generate(llm, prompt, greedy())[0])
    several = llm.chat([CHAT, CHAT], [greedy(2), greedy(3)], use_tqdm=False)
    assert [tokens(o) for o in several] == [tokens(output)[:2], tokens(output)[:3]]


def test_a_stream_grows_and_ends_as_generate_does(llm: LLM):
    """Each output is the same object every time; texts only grow, and their end is the whole."""
    prompts, params = ["one", "two"], [greedy(4), greedy(7)]
    whole = [(tokens(o), o.outputs[0].text) for o in generate(llm, prompts, params)]
    lengths: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    seen: dict[str, RequestOutput] = {}
    for output in llm.stream(prompts, params):
        assert seen.setdefault(output.request_id, output) is output
        lengths.setdefault(output.request_id, []).append(len(tokens(output)))
        assert output.outputs[0].text.startswith(texts.get(output.request_id, ""))
        texts[output.request_id] = output.outputs[0].text
    assert list(lengths.values()) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]
    assert [(tokens(o), o.outputs[0].text) for o in seen.values()] == whole


def test_two_streams_and_a_generate_share_the_engine(llm: LLM):
    """Whoever steps the engine, each gets its own outputs and all of them."""
    alone = [tokens(generate(llm, prompt, greedy(6))[0]) for prompt in "abc"]
    first, second = (llm.stream(prompt, greedy(6)) for prompt in "ab")
    next(first), next(second)
    assert tokens(generate(llm, "c", greedy(6))[0]) == alone[2]
    assert [tokens(list(stream)[-1]) for stream in (first, second)] == alone[:2]


def test_requests_one_by_one(llm: LLM):
    """add_request, step, abort: the door for a server. A later arrival joins the running batch."""
    first = llm.add_request("abc", greedy(4), "first")
    assert [o.request_id for o in llm.step()] == ["first"]
    second = llm.add_request("xyz", greedy(9), "second", priority=1)
    assert [o.request_id for o in llm.step()] == ["first", "second"]
    assert [o.outputs[0].finish_reason for o in llm.abort("second")] == ["abort"]
    assert llm.abort("second") == [] and llm.abort("nobody") == []
    while llm.has_unfinished_requests:
        llm.step()
    assert tokens(first) == tokens(generate(llm, "abc", greedy(4))[0])
    assert second.finished and len(tokens(second)) == 1


def test_an_id_of_our_own_making_never_meets_the_users(llm: LLM):
    """The user has taken "0" and "1", which the counter would give next."""
    llm.add_request("a", greedy(3), "0")
    llm.add_request("a", greedy(3), "1")
    assert llm.add_request("b", greedy(3)).request_id == "2"
    while llm.has_unfinished_requests:
        llm.step()


def test_cached_tokens_are_told(llm: LLM):
    """The second time, whole blocks of the prompt are found: 8 of 10 tokens."""
    counts = [generate(llm, "x" * 10, greedy())[0].num_cached_tokens for _ in range(2)]
    assert counts == [0, 8]


# --- sampling -------------------------------------------------------------------------------------


def test_samples_have_streams_of_their_own(llm: LLM):
    """n = 3: in the order of their index, different, the same again with the same seed, and each
    the one that a larger n gives, too."""
    params = dict(max_tokens=8, seed=11)
    three = generate(llm, "abc", SamplingParams(n=3, **params))[0].outputs
    assert [completion.index for completion in three] == [0, 1, 2]
    texts = [completion.token_ids for completion in three]
    assert len(set(map(tuple, texts))) == 3
    again = generate(llm, "abc", SamplingParams(n=5, **params))[0].outputs
    assert [completion.token_ids for completion in again][:3] == texts
    assert tokens(generate(llm, "abc", SamplingParams(**params))[0]) == texts[0]


def test_a_neighbour_never_changes_a_seeded_request(llm: LLM):
    """Alone, among requests without seeds, beside one with the same seed, in a pool too small."""
    params = SamplingParams(max_tokens=12, seed=5)
    alone = tokens(generate(llm, "seeded", params)[0])
    neighbours = [SamplingParams(max_tokens=n) for n in (2, 9, 20)]
    outputs = generate(llm, ["p", "q", "seeded", "r"], [*neighbours[:2], params, neighbours[2]])
    assert tokens(outputs[2]) == alone
    outputs = generate(llm, ["other", "seeded"], params)
    assert tokens(outputs[1]) == alone != tokens(outputs[0])
    small = tiny_llm(num_blocks=9)
    outputs = generate(small, ["p", "q", "seeded", "r"], [*neighbours[:2], params, neighbours[2]])
    assert tokens(outputs[2]) == alone
    assert small.engine.scheduler.stats.num_preemptions > 0


def test_the_seed_of_the_engine_decides_all_others():
    """Two engines made alike give the same, one with another seed something else; and requests of
    one engine have different seeds."""

    def run(seed: int) -> list[list[int]]:
        llm = tiny_llm()
        llm.engine.seed = seed  # LLM's own seed would draw another tiny model, too
        return [tokens(output) for output in generate(llm, ["a", "a"], SamplingParams())]

    assert run(0) == run(0) != run(1)
    assert run(0)[0] != run(0)[1]


def test_logprobs(llm: LLM):
    """The token taken and the 3 likeliest of each position: probabilities of the model's own
    distribution, ranks from 1, text; their sum is the cumulative one."""
    completion = generate(llm, "abc", greedy(4, logprobs=3))[0].outputs[0]
    assert len(completion.logprobs) == 4
    for token_id, by_id in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(by_id) == 3 and next(iter(by_id)) == token_id
        assert [entry.rank for entry in by_id.values()] == [1, 2, 3]
        assert by_id[token_id].decoded_token == llm.tokenizer.decode([token_id])
        assert all(entry.logprob < 0 for entry in by_id.values())
    taken = [e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(taken))


@pytest.mark.parametrize("asked", [0, 1])
def test_a_token_from_beyond_the_likeliest_has_no_known_rank(llm: LLM, asked: int):
    """The rank once was that among the tokens reported: a token drawn from the tail, the 90th of
    259 say, was told to be second (or first, with logprobs=0)."""
    constant_logits(llm, {7: 2.0})
    completion = generate(llm, "abc", SamplingParams(seed=1, logprobs=asked))[0].outputs[0]
    by_id = [(t, e) for t, e in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert all(t != 7 for t, _ in by_id[:1])
    for token_id, entries in by_id:
        assert len(entries) == (1 if token_id == 7 or asked == 0 else 2)
        expected = 1 if token_id == 7 and asked else None
        assert entries[token_id].rank == expected


def test_more_logprobs_than_tokens_are_all_there_are(llm: LLM):
    completion = generate(llm, "abc", greedy(2, logprobs=9999))[0].outputs[0]
    assert [len(by_id) for by_id in completion.logprobs] == [259, 259]


def test_d36_a_greedy_row_is_the_same_alone_and_with_any_neighbours(llm: LLM):
    """An engine took argmax for an all-greedy batch, and a tiny temperature for greedy rows of a
    mixed one. The logits here are rounded, so that ties are common: the lowest id must win on every
    path, and top_k = 1 must be the same thing."""
    compute = llm.model.compute_logits
    num_tied = 0

    def counting(hidden):
        nonlocal num_tied
        logits = compute(hidden).round()
        num_tied += int(((logits == logits.amax(-1, keepdim=True)).sum(-1) > 1).sum())
        return logits

    llm.model.compute_logits = counting
    params = greedy(20, ignore_eos=True)
    alone = tokens(generate(llm, "tie", params)[0])
    assert num_tied >= 5 and len(set(alone)) >= 5
    for neighbour in (greedy(20), SamplingParams(max_tokens=20), SamplingParams(min_p=0.1)):
        outputs = generate(llm, ["x", "tie", "yz"], [neighbour, params, neighbour])
        assert tokens(outputs[1]) == alone
    one = SamplingParams(temperature=1.0, top_k=1, max_tokens=20, ignore_eos=True)
    assert tokens(generate(llm, "tie", one)[0]) == alone
    assert tokens(generate(llm, ["x", "tie"], [SamplingParams(), one])[1]) == alone


# --- where a text ends ----------------------------------------------------------------------------


def test_d34_more_than_one_end_token(llm: LLM):
    """End tokens 3 and 7 are the likeliest everywhere, and min_tokens is 3: both are suppressed for
    three tokens, and both end the text after. (One EOS of several used to slip through.)"""
    llm.engine.eos_token_ids = (3, 7)
    for first, second in ((3, 7), (7, 3)):
        constant_logits(llm, {first: 9, second: 8, 65: 5})
        output = generate(llm, "abc", greedy(9, min_tokens=3))[0]
        assert tokens(output) == [65, 65, 65, first]
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)
    assert tokens(generate(llm, "abc", greedy(9))[0]) == [7]


def test_d35_ignore_eos_leaves_explicit_stop_ids_alone(llm: LLM):
    """ignore_eos: the model's end token 2 is a token like another, unless it stands among the
    request's own stop_token_ids."""
    constant_logits(llm, {2: 9})
    assert tokens(generate(llm, "abc", greedy(4))[0]) == [2]
    assert tokens(generate(llm, "abc", greedy(4, ignore_eos=True))[0]) == [2] * 4
    output = generate(llm, "abc", greedy(4, ignore_eos=True, stop_token_ids=[2]))[0]
    assert tokens(output) == [2]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", 2)


def test_a_stop_token_is_among_the_ids_but_not_in_the_text(llm: LLM):
    """As in vLLM. It once was: "ab." for stop_token_ids = [the id of "."]."""
    dot = llm.tokenizer.encode(".")
    Script(llm, "ab.cd")
    completion = generate(llm, "x", greedy(9, stop_token_ids=dot))[0].outputs[0]
    assert (completion.text, completion.token_ids) == ("ab", llm.tokenizer.encode("ab."))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", dot[0])


def stream_texts(llm: LLM, params: SamplingParams) -> list[str]:
    """The text after each step."""
    return [output.outputs[0].text for output in llm.stream("x", params)]


def test_d37_a_stop_string_over_several_tokens(llm: LLM):
    """Stop "DEFGHIJ" comes letter by letter: none of it reaches the reader, not even for a moment,
    and the request ends with the token that completes it."""
    script = Script(llm, "abcDEFGHIJKL")
    texts = stream_texts(llm, greedy(12, stop=["DEFGHIJ"]))
    assert texts == ["a", "ab"] + ["abc"] * 8
    assert script.num_steps == 10
    completion = generate(llm, "x", greedy(12, stop=["DEFGHIJ"]))[0].outputs[0]
    assert (completion.text, completion.finish_reason) == ("abc", "stop")
    assert completion.stop_reason == "DEFGHIJ" and len(completion.token_ids) == 10


def test_d37_what_was_held_back_is_given_out_when_it_was_no_stop_string(llm: LLM):
    """ "DEF" may be the beginning of "DEFGHIJ" until "x" comes; at the end nothing stays behind."""
    Script(llm, "abDEFxDEF")
    texts = stream_texts(llm, greedy(9, stop=["DEFGHIJ"]))
    assert texts == ["a", "ab", "ab", "ab", "ab", "abDEFx", "abDEFx", "abDEFx", "abDEFxDEF"]
    held = [len("abDEFxDEF"[: i + 1]) - len(text) for i, text in enumerate(texts)]
    assert max(held) <= len("DEFGHIJ") - 1


def test_d37_a_stop_string_that_comes_with_the_last_token(llm: LLM):
    """The same step reaches max_tokens: the reason is the stop string all the same."""
    Script(llm, "ab!")
    completion = generate(llm, "x", greedy(3, stop="!"))[0].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (
        "ab",
        "stop",
        "!",
    )


def test_stop_strings_wait_for_min_tokens(llm: LLM):
    """A stop string before min_tokens is text; so is one that is not complete before it."""
    Script(llm, "a!b!c!")
    assert generate(llm, "x", greedy(6, stop="!", min_tokens=3))[0].outputs[0].text == "a!b"
    assert generate(llm, "x", greedy(6, stop="!", min_tokens=2))[0].outputs[0].text == "a"


def test_two_samples_stop_in_one_step(llm: LLM):
    """Sample 0 meets its stop string in the step in which sample 1 reaches an end token: the engine
    was told of the stop at once, took the request for ended, and the end of sample 1 found no
    request any more (KeyError)."""
    for texts in (["ab!c", [100, 101, 2, 5]], [[100, 101, 2, 5], "ab!c"], ["ab!c", "xy!z"]):
        Script(llm, *texts)
        output = generate(llm, "x", greedy(4, n=2, stop="!"))[0]
        assert output.finished
        assert [completion.finish_reason for completion in output.outputs] == ["stop", "stop"]
        assert [len(completion.token_ids) for completion in output.outputs] == [3, 3]


def test_a_sample_that_stops_leaves_the_other_running(llm: LLM):
    Script(llm, "ab!c", "wxyz")
    output = generate(llm, "x", greedy(4, n=2, stop="!"))[0]
    texts = [(c.text, c.finish_reason) for c in output.outputs]
    assert texts == [("ab", "stop"), ("wxyz", "length")]


def test_d38_one_token_is_not_one_character(llm: LLM):
    """In the tiny tokenizer a token is a byte: "ď" is two of them, the emoji four. A reader never
    sees half a character, and what comes in pieces is the whole."""
    text = "aď🙂z"
    Script(llm, text)
    texts = stream_texts(llm, greedy(8))
    assert texts == ["a", "a", "aď", "aď", "aď", "aď", "aď🙂", "aď🙂z"]


def test_d38_half_a_character_at_the_end(llm: LLM):
    """Cut by max_tokens in the middle of the emoji: only now it is U+FFFD, as in the whole."""
    Script(llm, "a🙂")
    texts = stream_texts(llm, greedy(3))
    assert texts == ["a", "a", "a\N{REPLACEMENT CHARACTER}"]
    assert texts[-1] == llm.tokenizer.decode(llm.tokenizer.encode("a🙂")[:3])


def test_beam_search_in_the_face(llm: LLM):
    """Several prompts, beside a request that is under way: the best first, all tokens and the text
    of each; nothing is left behind."""
    params = minivllm.beam_search.BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True)
    under_way = llm.add_request("abc", greedy(4))
    outputs = llm.beam_search(["abc", [5, 6]], params)
    assert [len(output.sequences) for output in outputs] == [3, 3]
    for output, prompt in zip(outputs, (llm.tokenizer.encode("abc"), [5, 6]), strict=True):
        scores = [sequence.score for sequence in output.sequences]
        assert scores == sorted(scores, reverse=True)
        for sequence in output.sequences:
            assert sequence.tokens[: len(prompt)] == prompt
            assert len(sequence.tokens) == len(prompt) + 5
            assert sequence.text == llm.tokenizer.decode(sequence.tokens)
    assert tokens(under_way) == tokens(generate(llm, "abc", greedy(4))[0])


def test_one_beam_is_greedy(llm: LLM):
    params = minivllm.beam_search.BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True)
    best = llm.beam_search("abc", params)[0].sequences[0]
    assert best.tokens[3:] == tokens(generate(llm, "abc", greedy(6, ignore_eos=True))[0])
