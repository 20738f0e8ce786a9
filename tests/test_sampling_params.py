"""SamplingParams: each field's range, in one clear line."""

import dataclasses

import pytest

from minivllm.sampling_params import SamplingParams

BAD = [
    (dict(n=0), "n must be >= 1, got 0"),
    (dict(n=1.5), "n must be >= 1, got 1.5"),
    (dict(max_tokens=0), "max_tokens must be >= 1 or None, got 0"),
    (dict(max_tokens=-3), "max_tokens must be >= 1 or None, got -3"),
    (dict(max_tokens=True), "max_tokens must be >= 1 or None, got True"),
    (dict(min_tokens=-1), "min_tokens must be >= 0, got -1"),
    (dict(min_tokens=9, max_tokens=8), r"min_tokens must be <= max_tokens \(8\), got 9"),
    (dict(temperature=-0.1), "temperature must be >= 0, got -0.1"),
    (dict(temperature=float("nan")), "temperature must be >= 0, got nan"),
    (dict(temperature=float("inf")), "temperature must be >= 0, got inf"),
    (dict(temperature="hot"), "temperature must be >= 0, got 'hot'"),
    (dict(top_p=0), r"top_p must be in \(0, 1\], got 0"),
    (dict(top_p=1.01), r"top_p must be in \(0, 1\], got 1.01"),
    (dict(top_p=float("nan")), r"top_p must be in \(0, 1\], got nan"),
    (dict(top_k=-2), "top_k must be >= 1, or 0 or -1 for off, got -2"),
    (dict(top_k=2.0), "top_k must be >= 1, or 0 or -1 for off, got 2.0"),
    (dict(min_p=-0.1), r"min_p must be in \[0, 1\], got -0.1"),
    (dict(min_p=1.5), r"min_p must be in \[0, 1\], got 1.5"),
    (dict(seed="x"), "seed must be an integer or None, got 'x'"),
    (dict(logprobs=-1), "logprobs must be >= 0 or None, got -1"),
    (dict(stop=""), "stop must be made of non-empty strings"),
    (dict(stop=["a", ""]), "stop must be made of non-empty strings"),
    (dict(stop=5), "stop must be a list, got 5"),
    (dict(stop_token_ids=5), "stop_token_ids must be a list, got 5"),
    (dict(stop_token_ids=[1, -1]), "stop_token_ids must be made of token ids >= 0"),
    (dict(stop_token_ids=["a"]), "stop_token_ids must be made of token ids >= 0"),
]


@pytest.mark.parametrize("fields, message", BAD)
def test_a_value_out_of_range_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        SamplingParams(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        dict(max_tokens=None, min_tokens=500),
        dict(temperature=0, top_p=1, min_p=0),
        dict(top_k=-1),
        dict(top_k=0),
        dict(min_p=1.0, top_p=1e-9),
        dict(min_tokens=16),
        dict(logprobs=0, seed=-5),
    ],
)
def test_the_edges_are_allowed(fields: dict):
    SamplingParams(**fields)


def test_d33_no_output_at_all_is_refused():
    """max_tokens = 0 never equalled the counter of an engine, which went on until the pool was
    gone. Nothing to generate is no request."""
    with pytest.raises(ValueError, match="max_tokens must be >= 1 or None, got 0"):
        SamplingParams(max_tokens=0)


def test_lists_are_made_and_copied():
    """A single stop string becomes a list; the caller's own list stays the caller's."""
    ids = [4]
    params = SamplingParams(stop="end", stop_token_ids=ids)
    ids.append(5)
    assert (params.stop, params.stop_token_ids) == (["end"], [4])
    assert (SamplingParams().stop, SamplingParams().stop_token_ids) == ([], [])
    assert dataclasses.replace(params, n=2).stop == ["end"]


def test_greedy_is_temperature_zero_or_a_choice_of_one():
    assert SamplingParams(temperature=0).is_greedy and SamplingParams(top_k=1).is_greedy
    assert not SamplingParams().is_greedy and not SamplingParams(top_k=2).is_greedy
