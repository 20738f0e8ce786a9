"""Beam search: what it finds, how its beams share blocks, and that no schedule changes the answer.

Its equality with transformers' own is in test_against_transformers.py.
"""

import random
from functools import cache

import pytest
import torch
from helpers import engine_of, is_empty, num_free, prompt, tables
from law import make_engine
from tiny import assert_nothing_is_held, dense_logits, tiny_engine, tiny_llm

from minivllm.beam_search import BeamSearch, BeamSearchParams
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.page_table import num_blocks_for

Found = list[tuple[list[int], float, str]]  # tokens, score, finish reason; the best first


def run(engine: Engine, *searches: BeamSearch, rng: random.Random | None = None) -> list[Found]:
    """Step all searches to their end, preempting somebody now and then where `rng` says so."""
    by_id = {search.request_id: search for search in searches}
    for _ in range(3000):
        if not any(search.is_running for search in searches):
            assert is_empty(engine)
            return [found(search) for search in searches]
        running = engine.scheduler.running
        if rng is not None and running and rng.random() < 0.1:
            engine.scheduler._preempt_request(rng.choice(running))
        for result in engine.step():
            by_id[result.request_id].take(result)
        engine.scheduler.check_integrity()
    raise AssertionError("the searches never end")


def found(search: BeamSearch) -> Found:
    return [(s.tokens, round(s.score, 6), s.finish_reason) for s in search.kept]


# --- what it finds --------------------------------------------------------------------------------


def reference(token_ids: list[int], params: BeamSearchParams, eos: tuple[int, ...]) -> Found:
    """The definition, over whole texts and the dense oracle, without an engine."""
    eos = () if params.ignore_eos else eos
    width, beams, ended = params.beam_width, [(0.0, token_ids)], []
    for length in range(1, params.max_tokens + 1):
        offers = []
        for score, tokens in beams:
            logprobs = dense_logits(tokens)[-1].log_softmax(-1).tolist()
            offers += [(score + lp, [*tokens, token]) for token, lp in enumerate(logprobs)]
        offers.sort(key=lambda offer: -offer[0])
        ends = [length == params.max_tokens or tokens[-1] in eos for _, tokens in offers]
        for (score, tokens), at_end in list(zip(offers, ends, strict=True))[:width]:
            if at_end:
                reason = "stop" if tokens[-1] in eos else "length"
                ended.append((tokens, score / length**params.length_penalty, reason))
        ended = sorted(ended, key=lambda e: -e[1])[:width]
        beams = [offer for offer, at_end in zip(offers, ends, strict=True) if not at_end][:width]
        can_win = beams and beams[0][0] / length**params.length_penalty
        if not beams or (len(ended) == width and can_win <= ended[-1][1]):
            break
    return ended


@pytest.mark.parametrize("eos", [(), tuple(range(0, 259, 9))], ids=["no end token", "29 of them"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_it_finds_what_the_definition_says(width: int, length_penalty: float, eos: tuple):
    """The tiny model, whose logits are close to one another: the beams cross often. Every ninth
    token of the vocabulary ends a text, so that most searches see texts of several lengths."""
    params = BeamSearchParams(width, 5, length_penalty=length_penalty)
    for first in (10, 100):
        engine = tiny_engine(eos_token_ids=eos)
        (ours,) = run(engine, BeamSearch(engine, "b", prompt(6, first), params))
        expected = reference(prompt(6, first), params, eos)
        assert [(tokens, reason) for tokens, _, reason in ours] == [
            (tokens, reason) for tokens, _, reason in expected
        ]
        scores = [score for _, score, _ in expected]
        assert [score for _, score, _ in ours] == pytest.approx(scores, abs=1e-4)


def test_ignore_eos_goes_through_end_tokens():
    eos = tuple(range(0, 259, 2))
    params = BeamSearchParams(3, 4, ignore_eos=True)
    engine = tiny_engine(eos_token_ids=eos)
    (ours,) = run(engine, BeamSearch(engine, "b", prompt(6), params))
    assert {reason for *_, reason in ours} == {"length"}
    assert {len(tokens) for tokens, *_ in ours} == {6 + 4}
    assert [tokens for tokens, *_ in ours] == [t for t, *_ in reference(prompt(6), params, eos)]


def test_it_goes_on_while_the_worst_text_kept_can_be_bettered():
    """2 beams, token 0 ends. Kept: -1.0 after one token and -3.2 / 2 = -1.6 after two. The best
    beam stands at -2.4 / 2 = -1.2: worse than the best text, but better than the worst, so the
    search goes on, and the third token makes it -2.5 / 3, the best of all."""
    engine = engine_of(4, 16)
    engine.eos_token_ids = (0,)
    low = {6: -20.0, 7: -20.0, 8: -20.0}
    engine.executor = Likeliest(
        [
            [{0: -1.0, 1: -1.2, 2: -5.0, 3: -6.0}],
            [{5: -1.2, 0: -2.0, 6: -9.0, 7: -9.0}, {5: -20.0, **low}],
            [{9: -0.1, **low}, {5: -20.0, **low}],
        ]
    )
    (ours,) = run(engine, BeamSearch(engine, "b", prompt(6), BeamSearchParams(2, 3)))
    assert [(tokens[6:], score, reason) for tokens, score, reason in ours] == [
        ([1, 5, 9], round(-2.5 / 3, 6), "length"),
        ([0], -1.0, "stop"),
    ]


# --- how beams share blocks -----------------------------------------------------------------------


class Likeliest:
    """Instead of a model: beam i of a round offers the tokens that the test has written down."""

    vocab_size = 100

    def __init__(self, rounds: list[list[dict[int, float]]]) -> None:
        self.rounds = rounds
        self.moves: list[tuple] = []

    def execute(self, output):
        from minivllm.step_records import ModelOutput

        self.moves += [tuple(op) for op in output.block_ops]
        answer = ModelOutput([[] for _ in output.requests])
        offers = self.rounds.pop(0)
        for index, (_, request, _) in enumerate(output.live_chunks()):
            answer.logprobs[index] = [offers[index]]
            assert request.is_beam
        return answer


def test_beams_share_blocks_until_one_writes():
    """Blocks of 4, a prompt of 6 in blocks 0 and 1 (half full), 2 beams.

    Round 1: tokens 11 and 12 are kept: sample 0 is forked, all its blocks are held by two. Round 2:
    each must write position 6. Sample 0 writes first and gets block 1 copied to 2; sample 1 then is
    alone in block 1 and writes in place. Both survivors of the round come from sample 1, so sample
    0 is dropped and block 2 is free at once; sample 2 is forked from 1. Block 0 is shared to the
    end.
    """
    engine = engine_of(4, 8)
    executor = engine.executor = Likeliest(
        [
            [{11: -1.0, 12: -2.0}],
            [{21: -9.0, 22: -9.5}, {31: -1.0, 32: -1.5}],
            [{41: -1.0, 42: -5.0}, {51: -1.1, 52: -5.0}],
        ]
    )
    search = BeamSearch(engine, "b", prompt(6), BeamSearchParams(2, 3))
    ref_cnt = engine.scheduler.kv.pool.ref_cnt

    def step() -> None:
        for result in engine.step():
            search.take(result)
        engine.scheduler.check_integrity()

    step()
    assert tables(engine) == {"b.0": [0, 1], "b.1": [0, 1]}
    assert ref_cnt[:3] == [2, 2, 0] and executor.moves == []
    step()
    assert executor.moves == [("copy", 1, 2)]
    assert tables(engine) == {"b.1": [0, 1], "b.2": [0, 1]}
    assert ref_cnt[:3] == [2, 2, 0] and num_free(engine) == 6
    step()
    assert executor.moves[1:] == [("copy", 1, 3)]
    assert is_empty(engine) and not search.is_running
    assert [sequence.tokens[6:] for sequence in search.kept] == [[12, 31, 41], [12, 32, 51]]
    assert [sequence.cum_logprob for sequence in search.kept] == [-4.0, -4.6]
    assert [round(sequence.score, 4) for sequence in search.kept] == [-1.3333, -1.5333]


def test_the_prompt_is_stored_once():
    """4 beams over a prompt of 16 blocks of 4: 16 shared blocks and one of its own for each beam
    but the prompt's, not 4 x 17."""
    engine = engine_of(4, 80, max_num_batched_tokens=64)
    search = BeamSearch(engine, "b", prompt(64), BeamSearchParams(4, 3))
    for _ in range(2):
        for result in engine.step():
            search.take(result)
    assert 16 < 80 - num_free(engine) <= 16 + 4
    run(engine, search)


# --- the law --------------------------------------------------------------------------------------


@cache
def alone(token_ids: tuple[int, ...], fields: tuple, vocab_size: int) -> Found:
    config = SchedulerConfig(num_blocks=200, block_size=4)
    engine = make_engine(config, vocab_size, (0,))
    params = BeamSearchParams(*fields[:2], length_penalty=fields[2])
    return run(engine, BeamSearch(engine, "b", list(token_ids), params))[0]


def play(seed: int) -> tuple[int, int]:
    """Several searches in a pool that holds little more than one of them; (preemptions, copies)."""
    rng = random.Random(seed)
    block_size, vocab_size = rng.randint(1, 5), rng.choice([3, 7])
    jobs = []
    for _ in range(rng.randint(1, 4)):
        token_ids = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 10))]
        token_ids[: len(token_ids) // 2] = [1] * (len(token_ids) // 2)
        fields = rng.randint(1, 4), rng.randint(1, 8), rng.choice([0.0, 1.0, 2.0])
        jobs.append((tuple(token_ids), fields))
    most = max(
        num_blocks_for(len(token_ids) + fields[1] - 1, block_size) * fields[0]
        for token_ids, fields in jobs
    )
    config = SchedulerConfig(
        num_blocks=most + 1 + rng.randint(0, 3),
        block_size=block_size,
        max_num_seqs=rng.randint(4, 8),
        max_num_batched_tokens=rng.randint(2, 12),
        enable_prefix_caching=rng.random() < 0.5,
        preemption_mode=rng.choice(["swap", "recompute"]),
        num_host_blocks=rng.randint(0, 8),
    )
    engine = make_engine(config, vocab_size, (0,))
    searches = [
        BeamSearch(engine, str(i), list(token_ids), BeamSearchParams(*fields[:2], False, 0.0,
                                                                     fields[2]))
        for i, (token_ids, fields) in enumerate(jobs)
    ]  # fmt: skip
    for (token_ids, fields), ours in zip(jobs, run(engine, *searches, rng=rng), strict=True):
        assert ours == alone(token_ids, fields, vocab_size), f"seed {seed}"
    stats = engine.scheduler.stats
    return stats.num_preemptions, stats.num_copied_blocks


def test_no_schedule_changes_what_a_search_finds():
    """Fake executor: preempted by recompute and by swap, over cached prefixes, in chunks: the same
    texts and the same scores as alone. In vocabularies of 3 a search may fall below its width for a
    round; the seats of the dropped beams were given away then, and more than max_num_seqs ran once
    it had grown again."""
    counts = [play(seed) for seed in range(400)]
    assert sum(preemptions for preemptions, _ in counts) > 300
    assert sum(copies for _, copies in counts) > 300


# --- the door -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(beam_width=0), "beam_width must be an integer >= 1, got 0"),
        (dict(beam_width=2.0), "beam_width must be an integer >= 1, got 2.0"),
        (dict(max_tokens=0), "max_tokens must be an integer >= 1, got 0"),
        (dict(max_tokens=None), "max_tokens must be an integer >= 1, got None"),
        (dict(temperature=0.5), "temperature must be 0 in a beam search, got 0.5"),
        (dict(length_penalty="long"), "length_penalty must be a finite number, got 'long'"),
        (dict(length_penalty=float("nan")), "length_penalty must be a finite number, got nan"),
    ],
)
def test_bad_parameters(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **fields})


def test_beams_that_could_not_all_fit_are_refused():
    """Beams wait for one another, so there must be room for all of them at their longest: 3 beams
    of 6 + 4 - 1 slots, 3 blocks of 4 each. With 9 blocks it runs, with 8 it is refused: it would
    have waited for itself for ever."""
    params = BeamSearchParams(3, 4)
    engine = engine_of(4, 8)
    with pytest.raises(ValueError, match="6 prompt tokens and up to 4 more need 9 blocks of 4"):
        BeamSearch(engine, "b", prompt(6), params)
    assert is_empty(engine)
    engine = engine_of(4, 9)
    assert len(run(engine, BeamSearch(engine, "b", prompt(6), params))[0]) == 3


def test_more_beams_than_seats_are_refused():
    engine = engine_of(4, 80, max_num_seqs=3)
    with pytest.raises(ValueError, match="n = 4 samples, max_num_seqs is 3"):
        BeamSearch(engine, "b", prompt(6), BeamSearchParams(4, 4))
    assert is_empty(engine)


def test_a_spoilt_row_ends_the_search_with_an_error():
    """NaN in one beam's logits: ValueError for the caller, all beams gone, the engine goes on."""
    llm = tiny_llm()
    compute, calls = llm.model.compute_logits, 0

    def spoilt(hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        logits = compute(hidden)
        if calls == 3:
            logits[1, 5] = float("nan")
        return logits

    llm.model.compute_logits = spoilt
    params = BeamSearchParams(3, 6, ignore_eos=True)
    with pytest.raises(ValueError, match="error: the largest of 259 logits is nan"):
        llm.beam_search("abc", params)
    assert_nothing_is_held(llm)
    assert len(llm.beam_search("abc", params)[0].sequences) == 3


def test_a_preempted_search_loses_nothing_to_swapping_off():
    """All beams of a search preempted at once, in every round: the same texts."""
    params = BeamSearchParams(3, 6)
    engine = engine_of(4, 40)
    (expected,) = run(engine, BeamSearch(engine, "b", prompt(7), params))
    for mode in ("recompute", "swap"):
        engine = engine_of(4, 40, preemption_mode=mode, num_host_blocks=40)
        search = BeamSearch(engine, "b", prompt(7), params)
        while search.is_running:
            for result in engine.step():
                search.take(result)
            for request in [*engine.scheduler.running]:
                engine.scheduler._preempt_request(request)
            engine.scheduler.check_integrity()
        assert found(search) == expected and is_empty(engine)
