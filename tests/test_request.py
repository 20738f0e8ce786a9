"""Request: what it refuses, when it ends, and what a fork shares."""

import pytest
from helpers import greedy, request_of

from minivllm.request import Request, RequestGroup, RequestStatus
from minivllm.sampling_params import SamplingParams


def test_a_request_counts_its_tokens():
    """Three of prompt, then two of output; five tokens with M = 4 need 3 + 4 - 1 KV slots."""
    request = request_of([5, 6, 7], max_tokens=4)
    request.append_token(8)
    request.append_token(9)
    assert request.token_ids == [5, 6, 7, 8, 9]
    assert (request.num_prompt_tokens, request.num_output_tokens, request.num_tokens) == (3, 2, 5)
    assert (request.prompt_token_ids, request.output_token_ids) == ([5, 6, 7], [8, 9])
    assert request.max_kv_tokens == 6
    assert request.status is RequestStatus.WAITING and not request.is_finished


def test_the_prompt_is_copied():
    """A caller who goes on using its list does not change the request."""
    tokens = [1, 2]
    request = request_of(tokens)
    tokens.append(3)
    assert request.token_ids == [1, 2]


def test_d27_an_empty_prompt_is_refused():
    """An empty prompt once took a whole engine down with an IndexError."""
    with pytest.raises(ValueError, match=r"request 'r': the prompt is empty \(0 tokens\)"):
        request_of([])


@pytest.mark.parametrize("token", ["a", 1.0, None, True])
def test_a_prompt_of_something_else_is_refused(token: object):
    with pytest.raises(ValueError, match=f"request 'r': prompt_token_ids holds {token!r}"):
        request_of([1, token])


@pytest.mark.parametrize("priority", ["high", None, 1.5, float("nan")])
def test_a_priority_that_is_no_integer_is_refused(priority: object):
    """A word failed only inside the queue, when the request was registered already and stood
    nowhere: its id was in use for ever. A nan would have upset the order of the others."""
    with pytest.raises(ValueError, match="priority must be an int, got"):
        request_of([1], priority=priority)


def test_a_salt_that_is_no_text_is_refused():
    """A key must not depend on how an object happens to print."""
    with pytest.raises(ValueError, match="cache_salt must be text, got 7"):
        request_of([1], cache_salt=7)


def test_it_ends_with_max_tokens_and_not_one_later():
    request = request_of([1], max_tokens=2)
    request.append_token(5)
    assert request.finish_reason is None
    request.append_token(5)
    assert (request.finish_reason, request.stop_reason) == ("length", None)


def test_a_stop_token_ends_it_and_is_named():
    request = Request("r", [1], greedy(9, stop_token_ids=[7]), 4, eos_token_ids=[3])
    request.append_token(7)
    assert (request.finish_reason, request.stop_reason) == ("stop", 7)


def test_the_last_allowed_token_may_be_a_stop_token():
    """Both reasons hold at once: the token said stop."""
    request = Request("r", [1], greedy(1), 4, eos_token_ids=[3])
    request.append_token(3)
    assert (request.finish_reason, request.stop_reason) == ("stop", None)


@pytest.mark.parametrize("eos", [3, 7])
def test_d34_every_end_token_counts_and_waits_for_min_tokens(eos: int):
    """With two end tokens an engine suppressed one and stopped at the other. Both are kept out of
    the first three tokens, and both end the request from the fourth on."""
    request = Request("r", [1], greedy(9, min_tokens=3), 4, eos_token_ids=[3, 7])
    for _ in range(3):
        assert request.suppressed_token_ids == [3, 7]
        request.append_token(5)
    assert request.suppressed_token_ids == []
    request.append_token(eos)
    assert (request.finish_reason, request.stop_reason) == ("stop", None)


def test_d34_an_end_token_that_slips_in_early_does_not_stop():
    """Whoever samples may not know of the suppression: the third token is still too early."""
    request = Request("r", [1], greedy(9, min_tokens=3), 4, eos_token_ids=[3])
    for _ in range(3):
        request.append_token(3)
    assert request.finish_reason is None
    request.append_token(3)
    assert request.finish_reason == "stop"


def test_d35_ignore_eos_leaves_the_explicit_stop_tokens():
    """The model's end token 3 does not end it; 7 was asked for and does."""
    params = greedy(9, ignore_eos=True, stop_token_ids=[7])
    request = Request("r", [1], params, 4, eos_token_ids=[3])
    request.append_token(3)
    assert request.finish_reason is None
    request.append_token(7)
    assert (request.finish_reason, request.stop_reason) == ("stop", 7)


def test_d35_a_token_that_is_both_still_stops_when_eos_is_ignored():
    """ignore_eos speaks of the model's list, not of the user's."""
    params = greedy(9, ignore_eos=True, stop_token_ids=[3])
    request = Request("r", [1], params, 4, eos_token_ids=[3])
    request.append_token(3)
    assert (request.finish_reason, request.stop_reason) == ("stop", 3)


def test_draws_depend_on_seed_sample_and_position_only():
    """No generator with a state: asking twice, or after others have drawn, changes nothing."""
    request = Request("r", [1, 2], SamplingParams(seed=7), 4)
    other = Request("other", [1, 2], SamplingParams(seed=7), 4, seed=99)
    draw = request.next_draw()
    assert 0 <= draw < 1 and request.next_draw() == draw == other.next_draw()
    assert request.next_draw(sample_index=1) != draw
    request.append_token(3)
    assert request.next_draw() != draw
    assert Request("r", [1, 2], SamplingParams(seed=8), 4).next_draw() != draw
    assert Request("r", [1, 2], SamplingParams(), 4, seed=7).next_draw() == draw


def test_greedy_draws_nothing():
    assert request_of([1]).next_draw() is None


def test_a_seat_for_each_sample_that_is_to_come():
    """Three samples: one runs the prompt, two more will be forked from it."""
    request = Request("r", [1], greedy(4, n=3), 4)
    group = RequestGroup([request])
    assert (request.num_seats, request.name) == (3, "r.0")
    first, second = group.fork(request), group.fork(request)
    assert (request.num_seats, first.num_seats, second.num_seats) == (1, 1, 1)
    assert (first.name, second.name) == ("r.1", "r.2")
    assert group.samples == [request, first, second]
    assert group.fork(request).name == "r.3" and request.num_seats == 1  # a beam, say


def test_a_fork_has_tokens_and_table_of_its_own():
    """What one sample appends, the other does not see; every other field is the parent's."""
    parent = Request("r", [1, 2], greedy(4, n=2), 4, priority=3, cache_salt="a")
    parent.block_table.block_ids = [5]
    parent.block_hashes, parent.host_block_ids = [b"x"], [1]
    parent.num_preemptions = 2
    child = parent.fork(1)
    child.append_token(9)
    child.block_hashes.append(b"y")
    assert (parent.token_ids, parent.block_hashes) == ([1, 2], [b"x"])
    assert (child.block_table.block_ids, child.host_block_ids, child.num_preemptions) == ([], [], 0)
    assert (child.priority, child.cache_salt, child.seed) == (3, "a", parent.seed)
