"""Who goes first, and the bound on how often anybody is overtaken."""

import pytest

from minivllm.policy import POLICIES, fcfs, priority, sjf
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams


def request_at(
    arrival: int, urgency: int = 0, prompt_length: int = 1, max_tokens: int = 1
) -> Request:
    params = SamplingParams(max_tokens=max_tokens)
    request = Request(str(arrival), [1] * prompt_length, params, 4, priority=urgency)
    request.arrival = arrival
    return request


def overtakers(policy, late: Request, quick: Request) -> int:
    """How many of a steady stream of quick requests, arriving after `late`, stand before it."""
    count = 0
    for arrival in range(late.arrival + 1, late.arrival + 2000):
        quick.arrival = arrival
        count += (policy(quick), arrival) < (policy(late), late.arrival)
    return count


def test_the_three_policies():
    assert POLICIES == {"fcfs": fcfs, "priority": priority, "sjf": sjf}


def test_fcfs_overtakes_nobody():
    assert overtakers(fcfs, request_at(5, 9, 500), request_at(0, -9)) == 0


@pytest.mark.parametrize("difference", [1, 2, 7])
def test_priority_overtakes_at_most_100_times_the_difference(difference: int):
    """A smaller number goes first, as long as it comes within 100 places for each unit."""
    late, urgent = request_at(5, urgency=difference), request_at(6)
    assert priority(urgent) < priority(late)
    assert overtakers(priority, late, urgent) == 100 * difference - 1
    assert overtakers(priority, urgent, late) == 0


def test_equal_priorities_are_first_come_first_served():
    assert overtakers(priority, request_at(5, 3), request_at(6, 3)) == 0


@pytest.mark.parametrize("tokens, bound", [(16, 1), (160, 10), (1000, 62)])
def test_sjf_overtakes_at_most_a_sixteenth_of_the_jobs_length(tokens: int, bound: int):
    """A job of s tokens, prompt and output alike, lets at most s / 16 later ones pass."""
    for prompt_length in (1, tokens - 1):
        late = request_at(5, prompt_length=prompt_length, max_tokens=tokens - prompt_length)
        count = overtakers(sjf, late, request_at(6))
        assert bound - 1 <= count <= bound


def test_sjf_puts_the_shorter_job_first():
    assert sjf(request_at(1, prompt_length=4, max_tokens=4)) < sjf(request_at(0, prompt_length=90))
