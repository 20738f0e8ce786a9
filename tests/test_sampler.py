"""A row of logits and a number in [0, 1) -> a token, whatever the rows beside it do."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from minivllm.sampler import SampledToken, filtered_weights, inverse_cdf, sample
from minivllm.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(temperature=1.0)
# Probabilities of 6 tokens, not in order: 0.05, 0.30, 0.10, 0.40, 0.03, 0.12
PROBABILITIES = [0.05, 0.30, 0.10, 0.40, 0.03, 0.12]


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities).log()[None]  # [1, V]


def spread(num: int) -> list[float]:
    """Draws at equal distance: how often a token is taken is then exact to one count."""
    return [(i + 0.5) / num for i in range(num)]


def frequencies(probabilities: list[float], params: SamplingParams, num: int = 1000) -> list[float]:
    """How often each token is taken over `num` evenly spread draws."""
    logits = logits_of(probabilities).expand(num, -1)
    counts = Counter(r.token_id for r in sample(logits, [params] * num, spread(num)))
    return [counts[token] / num for token in range(len(probabilities))]


def tokens(results: list[SampledToken]) -> list[int]:
    assert all(r.error is None for r in results)
    return [r.token_id for r in results]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (PLAIN, [0, 1, 2, 3, 4, 5]),
        (SamplingParams(top_k=2), [1, 3]),
        (SamplingParams(top_k=6), [0, 1, 2, 3, 4, 5]),
        (SamplingParams(top_k=-1), [0, 1, 2, 3, 4, 5]),
        (SamplingParams(top_p=0.39), [3]),
        (SamplingParams(top_p=0.69), [1, 3]),
        (SamplingParams(top_p=0.71), [1, 3, 5]),  # 0.40 + 0.30 are not enough
        (SamplingParams(top_p=0.999999), [0, 1, 2, 3, 4, 5]),
        (SamplingParams(min_p=0.26), [1, 3, 5]),  # 0.26 of 0.40 is 0.104
        (SamplingParams(min_p=0.08), [0, 1, 2, 3, 5]),
        (SamplingParams(min_p=1.0), [3]),
        (SamplingParams(top_k=3, top_p=0.6), [1, 3]),  # of 0.82 left, 0.492 are needed
        (SamplingParams(min_p=0.2, top_k=4, top_p=0.9), [1, 2, 3, 5]),
    ],
)
def test_filters_by_hand(params: SamplingParams, kept: list[int]) -> None:
    """Only the kept tokens are taken, each as often as its part of what was kept."""
    whole = sum(PROBABILITIES[token] for token in kept)
    expected = [p / whole if token in kept else 0.0 for token, p in enumerate(PROBABILITIES)]
    found = frequencies(PROBABILITIES, params)
    assert found == pytest.approx(expected, abs=0.002)
    assert [f > 0 for f in found] == [e > 0 for e in expected]


@pytest.mark.parametrize("temperature", [0.25, 0.5, 2.0, 5.0])
def test_temperature(temperature: float) -> None:
    powers = [p ** (1 / temperature) for p in PROBABILITIES]
    expected = [p / sum(powers) for p in powers]
    found = frequencies(PROBABILITIES, SamplingParams(temperature=temperature))
    assert found == pytest.approx(expected, abs=0.002)


def test_temperature_comes_before_the_filters() -> None:
    """At temperature 2 the likeliest two tokens hold 0.48, not 0.70, so 0.6 takes a third."""
    found = frequencies(PROBABILITIES, SamplingParams(temperature=2.0, top_p=0.6))
    assert [token for token, f in enumerate(found) if f] == [1, 3, 5]


def test_a_tiny_temperature_is_greedy() -> None:
    for temperature in (1e-3, 1e-10, 1e-300):
        assert frequencies(PROBABILITIES, SamplingParams(temperature=temperature), 50)[3] == 1.0


def test_a_large_vocabulary_follows_its_distribution() -> None:
    """5,000 tokens, 4,000 seeded draws: the counts of ten groups of tokens are near the sums."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 5000, generator=generator)
    draws = torch.rand(4000, generator=generator, dtype=torch.float64).tolist()
    probabilities = logits[0].double().softmax(0)
    weights = filtered_weights(logits - logits.max(), [PLAIN])
    taken = inverse_cdf(weights.expand(len(draws), -1), draws)
    found = torch.bincount(taken % 10, minlength=10) / len(draws)
    expected = torch.stack([probabilities[digit::10].sum() for digit in range(10)])
    three_sigma = 3 * (expected * (1 - expected) / len(draws)).sqrt()
    assert ((found - expected).abs() < three_sigma).all()


def test_a_wide_nucleus_is_found_whole() -> None:
    """A nucleus wider than the first look at the likeliest tokens, of 9,000 nearly equal ones."""
    logits = torch.zeros(1, 9000)
    logits[0, ::3] = 0.001  # 3000 tokens a little likelier than the other 6000
    weights = filtered_weights(logits - logits.max(), [SamplingParams(top_p=0.3)])
    assert (weights > 0).sum() == 3000
    weights = filtered_weights(logits - logits.max(), [SamplingParams(top_p=0.4)])
    assert (weights > 0).sum() == 9000  # equals of the last token kept are kept


def test_edges_of_the_draw() -> None:
    """Draw 0 takes the first token that can be taken, the largest draw the last; never weight 0."""
    logits = logits_of([0.0, 0.5, 0.0, 0.5, 0.0]).expand(3, -1)
    largest = math.nextafter(1.0, 0.0)
    assert tokens(sample(logits, [PLAIN] * 3, [0.0, 0.4999, largest])) == [1, 1, 3]
    wide = torch.rand(1, 50_000)
    assert tokens(sample(wide, [PLAIN], [largest]))[0] < 50_000


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 7.0, 7.0, 7.0], [3.0, 3.0, 3.0, 3.0]])
    assert tokens(sample(logits, [GREEDY] * 2, [None] * 2)) == [1, 0]


def test_d36_a_greedy_row_beside_sampling_rows() -> None:
    """D36: a batch with one sampling row drew its greedy rows too, at a tiny temperature.

    So a tie, or a near one, came out differently than in an all-greedy batch; and top_k=1 was not
    temperature 0. Here the greedy row takes token 2 alone, beside greedy and beside random rows.
    """
    row = torch.full((40,), 1.0)
    row[[2, 17, 30]] = 5.0
    top_1 = SamplingParams(temperature=0.7, top_k=1)
    others = [GREEDY, PLAIN, SamplingParams(top_p=0.5), SamplingParams(min_p=0.5)]
    for params in (GREEDY, top_1):
        for neighbours in ([], [GREEDY], [PLAIN], others):
            batch = [*neighbours, params, *neighbours]
            results = sample(row.expand(len(batch), -1), batch, [0.9] * len(batch))
            assert results[len(neighbours)].token_id == 2


def test_each_row_is_as_if_alone() -> None:
    """Every kind of parameters in one batch: each row's token and logprobs equal its solo ones."""
    generator = torch.Generator().manual_seed(0)
    kinds = [
        GREEDY,
        PLAIN,
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=5),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=3.0, top_p=0.99),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=0.5, top_k=40, top_p=0.8, min_p=0.01),
    ]
    params = [replace(kind, logprobs=i % 3 or None) for i, kind in enumerate(kinds * 4)]
    logits = 2 * torch.randn(len(params), 1000, generator=generator)
    draws = torch.rand(len(params), generator=generator, dtype=torch.float64).tolist()
    suppressed = [[i, 2 * i] if i % 5 == 0 else [] for i in range(len(params))]
    for i, together in enumerate(sample(logits, params, draws, suppressed)):
        alone = sample(logits[i : i + 1], [params[i]], [draws[i]], [suppressed[i]])[0]
        assert together.token_id == alone.token_id
        assert (together.logprobs is None) == (alone.logprobs is None)
        assert (together.logprobs or {}) == pytest.approx(alone.logprobs or {})


def test_d34_every_stop_token_is_suppressed_before_min_tokens() -> None:
    """D34: of two end tokens {3, 7} only the first was suppressed while min_tokens were missing."""
    logits = torch.zeros(2, 9)
    logits[:, 7], logits[:, 3], logits[:, 5] = 9.0, 8.0, 1.0
    before = logits.clone()
    assert tokens(sample(logits, [GREEDY] * 2, [None] * 2, [[3, 7], []])) == [5, 7]
    assert torch.equal(logits, before)  # the caller's logits are left alone
    num = 200
    results = sample(logits[:1].expand(num, -1), [PLAIN] * num, spread(num), [[3, 7]] * num)
    assert not {3, 7} & set(tokens(results))


def test_logprobs_are_those_of_the_raw_logits() -> None:
    """As in vLLM: before temperature, filters and suppression; the token taken is always there."""
    logits = logits_of(PROBABILITIES).expand(4, -1)
    cold = SamplingParams(temperature=0.1, top_k=2, logprobs=2)
    rows = [replace(GREEDY, logprobs=2), cold, replace(GREEDY, logprobs=0), GREEDY]
    results = sample(logits, rows, [None, 0.5, None, None], [[3], [], [], []])
    expected = [{1: 0.30, 3: 0.40}, {3: 0.40, 1: 0.30}, {3: 0.40}]
    for result, wanted in zip(results, expected, strict=False):
        assert {t: math.exp(p) for t, p in result.logprobs.items()} == pytest.approx(wanted)
    assert results[3].logprobs is None
    everything = sample(logits[:1], [replace(GREEDY, logprobs=20)], [None])[0].logprobs
    assert sum(math.exp(p) for p in everything.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, PLAIN, SamplingParams(top_p=0.5, logprobs=1)])
def test_a_spoilt_row_is_an_error_of_that_row_alone(params: SamplingParams, value: float) -> None:
    logits = logits_of(PROBABILITIES).repeat(3, 1)
    logits[1, 4] = value
    good, bad, other = sample(logits, [params] * 3, [0.5] * 3)
    assert "NaN or infinity" in bad.error and "6 logits" in bad.error
    assert good.error is None and other.error is None
    assert good == other == sample(logits[:1], [params], [0.5])[0]


def test_all_tokens_suppressed_is_an_error_of_that_row() -> None:
    results = sample(torch.zeros(2, 3), [PLAIN] * 2, [0.5] * 2, [[0, 1, 2], []])
    assert "every token is suppressed" in results[0].error
    assert tokens(results[1:]) == [1]


def test_a_missing_draw_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows \[1\] are sampled at random but have no draw"):
        sample(torch.zeros(2, 3), [GREEDY, PLAIN], [None, None])
