"""Who goes first: an ordering policy is a function from a request to a number, smaller first.

The scheduler keeps `waiting` and `running` in this order, and preempts from its end. A key never
changes while a request lives, and each policy counts arrivals in it, so starvation is bounded: the
bound is stated with each function. Preempted requests stand before all new ones under any policy.
"""

from __future__ import annotations

from collections.abc import Callable

from minivllm.request import Request

Policy = Callable[[Request], float]

ARRIVALS_PER_PRIORITY = 100
TOKENS_PER_ARRIVAL = 16


def fcfs(request: Request) -> float:
    """First come, first served: nobody is ever overtaken, and the youngest is preempted."""
    return request.arrival


def priority(request: Request) -> float:
    """Smaller `priority` first (as in vLLM); one unit is worth 100 places in the line.

    So a request is overtaken by at most 100 later arrivals for each unit of difference, while
    vLLM's order is strict and lets a steady stream of urgent requests starve the others for ever.
    """
    return request.arrival + ARRIVALS_PER_PRIORITY * request.priority


def sjf(request: Request) -> float:
    """Shortest job first, by prompt + max_tokens; 16 tokens are worth one place in the line.

    A job of s tokens is overtaken by at most s / 16 later arrivals: after so many even an empty job
    stands behind it.
    """
    return request.arrival + (request.num_prompt_tokens + request.max_tokens) / TOKENS_PER_ARRIVAL


POLICIES = {"fcfs": fcfs, "priority": priority, "sjf": sjf}
