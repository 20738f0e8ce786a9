"""Throughput and latency: counted in sampled tokens, from the arrival, per token delivered."""

from dataclasses import dataclass, field

import pytest
from helpers import engine_of
from tiny import greedy, tiny_llm

from minivllm.lab import measure
from minivllm.lab.measure import Run, run_workload
from minivllm.lab.metrics import spread
from minivllm.lab.workload import WorkItem, Workload
from minivllm.request import Request
from minivllm.step_records import EngineOutput


@dataclass
class Clock:
    """A clock that a test moves."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


@dataclass
class PlayedEngine:
    """An engine that plays a record: for each step its seconds and what each request gets."""

    clock: Clock
    steps: list[tuple[float, dict[str, list[int]]]]
    asked: list[tuple[str, list[int], int]] = field(default_factory=list)

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.steps)

    def add_request(self, request_id, prompt_token_ids, params) -> None:
        self.clock.now += 100.0  # however long it takes, it is no part of the run
        self.asked.append((request_id, prompt_token_ids, params.max_tokens))

    def step(self) -> list[EngineOutput]:
        seconds, tokens = self.steps.pop(0)
        self.clock.now += seconds
        return [EngineOutput(Request(name, [1], greedy(), 4), new) for name, new in tokens.items()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


def workload_of(*sizes: tuple[int, int]) -> Workload:
    return Workload("test", [WorkItem([1] * length, most) for length, most in sizes])


def test_d51_time_to_first_token_counts_from_the_arrival(clock: Clock):
    """Both arrive at 0. The second is admitted only after 5 s, when the first has ended, and gets
    its token 1 s later: its time to first token is 6 s, waiting included, not 1 s."""
    engine = PlayedEngine(clock, [(2.0, {"0": [7]}), (3.0, {"0": [7]}), (1.0, {"1": [7]})])
    run = run_workload(engine, workload_of((3, 2), (4, 1)))
    assert run.token_times == [[2.0, 5.0], [6.0]]
    assert run.summary()["ttft"] == spread([2.0, 6.0]) and spread([2.0, 6.0])["mean"] == 4.0
    assert engine.asked == [("0", [1, 1, 1], 2), ("1", [1, 1, 1, 1], 1)]


def test_d49_time_per_token_is_divided_by_the_tokens_delivered(clock: Clock):
    """Tokens come in pieces of 1, 3 and 2 after 1, 4 and 8 s: 7 s for the 5 tokens after the
    first, 1.4 s each. Divided by the pieces it would be 3.5 s."""
    engine = PlayedEngine(clock, [(1.0, {"0": [7]}), (3.0, {"0": [7] * 3}), (4.0, {"0": [7] * 2})])
    summary = run_workload(engine, workload_of((3, 6))).summary()
    assert summary["tpot"] == spread([1.4])
    assert summary["tokens_per_second"] == 6 / 8 and summary["steps"] == 3


def test_a_request_of_one_token_has_no_time_per_token(clock: Clock):
    """It is left out of the mean, not counted as 0."""
    engine = PlayedEngine(clock, [(1.0, {"0": [7], "1": [7]}), (2.0, {"0": [7]})])
    assert run_workload(engine, workload_of((3, 2), (3, 1))).summary()["tpot"]["mean"] == 2.0


def test_a_request_without_any_token_is_in_no_latency():
    """It ended with an error. The summary of the others once failed with an IndexError."""
    summary = Run(4.0, 2, [[1.0, 2.0], []]).summary()
    assert summary["ttft"]["mean"] == 1.0 and summary["generated_tokens"] == 2
    assert Run(4.0, 2, [[]]).summary()["ttft"]["p99"] == 0.0


def test_d50_tokens_are_counted_as_sampled():
    """The text of 15 spaces is one token when it is encoded again; 15 were sampled. Tokens of a
    byte each, many of them no whole character: the text has fewer characters than tokens."""
    llm = tiny_llm()
    workload = workload_of((3, 15), (5, 9))
    run = run_workload(llm.engine, workload)
    assert run.num_tokens == workload.num_tokens == 24
    assert [len(times) for times in run.token_times] == [15, 9]


def test_progress_is_told_in_tokens():
    told = []
    run = run_workload(engine_of(4, 8), workload_of((3, 2), (3, 4)), told.append)
    assert told == [2, 2, 1, 1] and run.num_steps == 4


def test_spread_by_hand():
    """p99 is the smallest value that 99 % do not exceed: of 100 the 99th, of 200 the 198th."""
    assert spread([4.0]) == {"mean": 4.0, "p50": 4.0, "p90": 4.0, "p99": 4.0}
    assert spread([float(i) for i in range(1, 101)]) == {
        "mean": 50.5, "p50": 50.5, "p90": 90.0, "p99": 99.0
    }  # fmt: skip
    assert spread([float(i) for i in range(200, 0, -1)])["p99"] == 198.0
    assert spread([]) == {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
