"""Static batching: the real thing, as wasteful as it was, and right to the token."""

from copy import copy

import pytest
import torch
from helpers import drain
from tiny import dense_logits, greedy, tiny_engine, tiny_model

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.baselines.static_executor import StaticModelExecutor
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import EngineOutput

SHORT, LONG = [50, 51, 52], [60, 61, 62, 63, 64, 65, 66]


def static_engine(
    batch_size: int = 3, max_model_len: int = 64, eos_token_ids: tuple[int, ...] = ()
) -> StaticBatchingEngine:
    model = copy(tiny_model())  # its own, so that a test may listen at it
    executor = StaticModelExecutor(model, batch_size, max_model_len)
    return StaticBatchingEngine(executor, batch_size, max_model_len, eos_token_ids)


def run(engine: StaticBatchingEngine, results: list[EngineOutput] = ()) -> dict[str, list[int]]:
    """Step until nobody is left; the tokens of each request."""
    tokens: dict[str, list[int]] = {}
    results = list(results)
    while True:
        for result in results:
            tokens.setdefault(result.request_id, []).extend(result.new_token_ids)
        if not engine.has_unfinished_requests:
            return tokens
        results = engine.step()


def record_inputs(engine: StaticBatchingEngine) -> list[dict[str, list[list[int]]]]:
    """What each step feeds to the model: tokens and positions, a list for each row."""
    steps: list[dict] = []
    model, inner = engine.executor.model, engine.executor.model.forward

    def forward(token_ids, positions, attend):
        rows = (len(engine.rows), -1)
        fed = {"tokens": token_ids, "positions": positions}
        steps.append({name: x.unflatten(0, rows).tolist() for name, x in fed.items()})
        return inner(token_ids, positions, attend)

    model.forward = forward
    return steps


def record_logits(engine: StaticBatchingEngine) -> list[torch.Tensor]:
    """The logits [B, V] of each step."""
    steps: list[torch.Tensor] = []
    model, inner = engine.executor.model, engine.executor.model.compute_logits

    def compute(hidden):
        steps.append(inner(hidden))
        return steps[-1]

    model.compute_logits = compute
    return steps


def test_the_same_tokens_as_the_engine():
    """Nine requests of all lengths, greedy and seeded, in batches of 3: token for token what
    continuous batching gives."""
    asks = {
        str(i): (list(range(20 + i, 20 + i + 1 + 3 * i)), 2 + 5 * i % 11, i % 2) for i in range(9)
    }

    def params(max_tokens: int, is_random: int) -> SamplingParams:
        return SamplingParams(temperature=float(is_random), seed=7, max_tokens=max_tokens, top_k=5)

    static, continuous = static_engine(), tiny_engine(eos_token_ids=(2, 0))
    static.eos_token_ids = (2, 0)
    for name, (prompt, max_tokens, is_random) in asks.items():
        for engine in (static, continuous):
            engine.add_request(name, prompt, params(max_tokens, is_random))
    assert run(static) == drain(continuous)


def test_finished_rows_stay_and_are_computed():
    """The picture in the module: outputs of 6, 2 and 3 tokens take 6 steps of 3 rows; 7 of these 18
    are computed for nothing, and a row that has ended is fed its last token again and again."""
    engine = static_engine()
    fed = record_inputs(engine)
    for name, most in (("0", 6), ("1", 2), ("2", 3)):
        engine.add_request(name, LONG, greedy(most))
    tokens = run(engine)
    assert [len(step["tokens"]) for step in fed] == [3] * 6
    assert (engine.num_steps, engine.num_row_steps, engine.num_useful_row_steps) == (6, 18, 11)
    assert [step["tokens"][1] for step in fed[2:]] == [[tokens["1"][-1]]] * 4
    assert [step["positions"][0] for step in fed] == [list(range(7)), [7], [8], [9], [10], [11]]


def test_nobody_enters_until_the_slowest_has_ended():
    """Two rows of three are done early and four wait: they wait all the same."""
    engine = static_engine(batch_size=3)
    for i, most in enumerate([2, 9, 2, 1, 1, 1, 1]):
        engine.add_request(str(i), SHORT, greedy(most))
    batches = []
    while engine.has_unfinished_requests:
        engine.step()
        batches.append([request.request_id for request in engine.rows])
    assert batches == [["0", "1", "2"]] * 9 + [["3", "4", "5"]] + [["6"]]


def test_the_kv_of_a_batch_is_reserved_at_its_full_length():
    """2 (K and V) x 3 layers x 5 rows x 2 KV heads x 64 columns x 16 dims x 4 bytes, before the
    first request and after the last; whatever the requests need."""
    executor = StaticModelExecutor(tiny_model(), batch_size=5, max_model_len=64)
    expected = 2 * 3 * 5 * 2 * 64 * 16 * 4
    assert executor.nbytes == executor.key.nbytes + executor.value.nbytes == expected
    engine = StaticBatchingEngine(executor, 5, 64)
    engine.add_request("r", SHORT, greedy(2))
    run(engine)
    assert executor.nbytes == expected


def test_a_batch_must_fit_into_its_columns():
    """30 + 3 and 3 + 30 tokens fit into 40 columns each, but not together: the longest prompt and
    the longest output would meet in one batch."""
    engine = static_engine(batch_size=3, max_model_len=40)
    asks = [(30, 3), (3, 30), (3, 10)]
    for i, (length, most) in enumerate(asks):
        engine.add_request(str(i), [70] * length, greedy(most))
    batches = []
    while engine.has_unfinished_requests:
        engine.step()
        batches.append(tuple(request.request_id for request in engine.rows))
    assert list(dict.fromkeys(batches)) == [("0",), ("1", "2")]


def test_d46_left_padding_has_positions_of_its_own():
    """Prompts of 7 and 3 tokens: the short row's positions are 0, 1, 2 in columns 4 to 6, and its
    logits are those it has alone. (One position vector for all rows gave it 4, 5, 6.)"""
    engine = static_engine(batch_size=2)
    fed, logits = record_inputs(engine), record_logits(engine)
    engine.add_request("long", LONG, greedy(3))
    engine.add_request("short", SHORT, greedy(3))
    run(engine)
    assert engine.executor.padding.tolist() == [0, 4]
    assert fed[0]["positions"][0] == [0, 1, 2, 3, 4, 5, 6]
    assert fed[0]["positions"][1][4:] == [0, 1, 2] and fed[0]["tokens"][1][4:] == SHORT
    assert [step["positions"] for step in fed[1:]] == [[[7], [3]], [[8], [4]]]
    for row, prompt in enumerate((LONG, SHORT)):
        torch.testing.assert_close(logits[0][row], dense_logits(prompt)[-1], atol=1e-4, rtol=1e-4)


def test_d47_padding_stays_masked_in_every_step():
    """Every step's logits are those the row has alone, not only the first's: a mask that was built
    for the prompt and forgotten let each decode attend to the padding. To make that show, the K and
    V in the padding are replaced by large numbers after the prefill."""
    engine = static_engine(batch_size=2)
    logits = record_logits(engine)
    engine.add_request("long", LONG, greedy(8))
    engine.add_request("short", SHORT, greedy(8))
    results = engine.step()
    engine.executor.key[:, 1, :, :4] = 100.0  # [L, KH, 4, D] of row 1
    engine.executor.value[:, 1, :, :4] = 100.0
    tokens = run(engine, results)
    for row, (name, prompt) in enumerate((("long", LONG), ("short", SHORT))):
        expected = dense_logits(prompt + tokens[name])[len(prompt) - 1 : -1]  # [8, V]
        found = torch.stack([step[row] for step in logits])  # [8, V]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_next_batch_sees_nothing_of_the_last():
    """The same columns, another batch, shorter than the last: the tokens are those of a new
    engine."""
    engine = static_engine(batch_size=2)
    for i, (prompt, most) in enumerate([(LONG * 3, 9), (LONG * 2, 20), (SHORT, 6), (LONG, 4)]):
        engine.add_request(str(i), prompt, greedy(most))
    tokens = run(engine)
    fresh = static_engine(batch_size=2)
    fresh.add_request("2", SHORT, greedy(6))
    fresh.add_request("3", LONG, greedy(4))
    assert run(fresh) == {name: tokens[name] for name in "23"}


def test_an_abort_keeps_the_row():
    """A waiting request leaves the line; a running one ends, and its row is computed to the end of
    the batch. The others' tokens stay what they were."""
    engine = static_engine(batch_size=2)
    for name in "abcd":
        engine.add_request(name, LONG, greedy(5))
    results = engine.step()
    for name in "ac":
        (end,) = engine.abort(name)
        assert (end.finish_reason, end.request_ended, end.new_token_ids) == ("abort", True, [])
        assert engine.abort(name) == []
    tokens = run(engine, results)
    assert len(tokens["a"]) == 1 and "c" not in tokens
    assert len(tokens["b"]) == 5 and tokens["b"] == tokens["d"]
    assert engine.num_row_steps == 2 * 5 + 5
    assert engine.abort("nobody") == [] and engine.step() == []


def test_an_end_token_ends_the_row_and_not_the_batch():
    end = run_first_token(SHORT)
    engine = static_engine(batch_size=2, eos_token_ids=(end,))
    engine.add_request("stops", SHORT, greedy(6))
    engine.add_request("ignores", SHORT, greedy(6, ignore_eos=True))
    results = engine.step()
    assert [(r.finish_reason, r.request_ended) for r in results] == [("stop", True), (None, False)]
    assert len(run(engine, results)["ignores"]) == 6


def run_first_token(prompt: list[int]) -> int:
    return int(dense_logits(prompt)[-1].argmax())


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], greedy(), r"the prompt is empty \(0 tokens\)"),
        ([5] * 64, greedy(), "64 prompt tokens, n = 1; a row holds 64 tokens"),
        (SHORT, greedy(n=2), "3 prompt tokens, n = 2; a row holds 64 tokens of one sample"),
        ([259], greedy(), "token id 259 is outside the vocabulary of 259"),
        ([-1], greedy(), "token id -1 is outside the vocabulary of 259"),
    ],
)
def test_bad_input_is_refused_and_the_others_go_on(prompt, params, message):
    """A token id outside the vocabulary was once found by the embedding, in the midst of a step."""
    engine = static_engine()
    engine.add_request("good", SHORT, greedy(3))
    with pytest.raises(ValueError, match=message):
        engine.add_request("bad", prompt, params)
    assert list(run(engine)) == ["good"]


def test_d29_an_id_in_use():
    """Refused while its request lives; free again at its end, though its row stays in the batch."""
    engine = static_engine()
    engine.add_request("x", SHORT, greedy(1))
    engine.add_request("y", SHORT, greedy(5))
    with pytest.raises(ValueError, match="'x': this id is in use"):
        engine.add_request("x", SHORT, greedy(1))
    engine.step()
    engine.add_request("x", LONG, greedy(2))
    assert [len(tokens) for tokens in run(engine).values()] == [4, 2]


def test_without_max_tokens_a_row_fills_its_columns():
    engine = static_engine(max_model_len=20)
    engine.add_request("r", SHORT, SamplingParams(temperature=0, max_tokens=None))
    assert len(run(engine)["r"]) == 17


def test_a_prefill_that_breaks_off_is_begun_again(monkeypatch: pytest.MonkeyPatch):
    """An interrupt in the first step: the executor took the batch for begun, and the next step
    decoded over columns that had never been written."""
    engine = static_engine()
    engine.add_request("r", LONG, greedy(4))
    forward = engine.executor._forward
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.executor, "_forward", lambda columns: interrupt())
        engine.step()
    assert engine.executor._forward == forward
    fresh = static_engine()
    fresh.add_request("r", LONG, greedy(4))
    assert run(engine) == run(fresh)


def interrupt() -> None:
    raise KeyboardInterrupt
