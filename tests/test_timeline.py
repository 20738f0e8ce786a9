"""The timeline: what each request did in each iteration."""

import pytest
from view_runs import random_run

from minivllm.config import SchedulerConfig
from minivllm.view.timeline import LETTERS, activities, segments_of, timeline_text
from minivllm.view.twin_runs import jobs_of, run_continuous, run_static

JOBS = jobs_of([5, 2, 4], [3, 5, 2])


def test_static_batching_in_letters():
    """Rows that have ended stay (-) until the slowest of their batch has; the third waits."""
    trace = run_static(JOBS, batch_size=2, max_model_len=12, block_size=4)
    assert timeline_text(trace) == (
        "iterations 0 to 7 of 7\n"
        "A   Pdd--\n"
        "B   Pdddd\n"
        "C   .....Pd\n"
        ". waiting; P prefill; d decode; - idle"
    )


def test_continuous_batching_in_letters():
    """A prompt of 5 in chunks of 4 tokens; the others enter as the budget lets them."""
    config = SchedulerConfig(num_blocks=8, block_size=4, max_num_batched_tokens=4)
    assert timeline_text(run_continuous(JOBS, config)) == (
        "iterations 0 to 6 of 6\n"
        "A   PPdd\n"
        "B   .Pdddd\n"
        "C   .PPPd\n"
        ". waiting; P prefill; d decode"
    )


def test_preempted_and_swapped_are_told_apart():
    """The same crowded run, once recomputing and once swapping."""
    jobs = jobs_of([4] * 3, [10] * 3)
    settings = {"num_blocks": 6, "block_size": 4, "watermark_blocks": 0}
    recompute = timeline_text(run_continuous(jobs, SchedulerConfig(**settings)))
    swap = SchedulerConfig(**settings, preemption_mode="swap", num_host_blocks=6)
    swapped = timeline_text(run_continuous(jobs, swap))
    assert "x preempted" in recompute and "s swapped" not in recompute
    assert "s swapped" in swapped and "x preempted" not in swapped


def test_a_long_run_is_cut_into_bands():
    """No line is longer than asked for, and each iteration is in one band."""
    trace = run_static(JOBS, batch_size=1, max_model_len=12, block_size=4)
    text = timeline_text(trace, width=4)
    heads = [line for line in text.splitlines() if line.startswith("iterations")]
    assert heads[0] == "iterations 0 to 3 of 10" and heads[-1] == "iterations 8 to 10 of 10"
    assert all(len(line) <= 3 + 4 for line in text.splitlines()[:-1] if line not in heads)


@pytest.mark.parametrize("seed", range(10))
def test_segments_are_the_activities_of_all_frames(seed: int):
    """Each request's segments, laid out again, give its activity in each frame, with its tokens."""
    trace = random_run(seed)[0]
    rows = segments_of(trace)
    laid_out = [{k: s.kind for s in row for k in range(s.first, s.last + 1)} for row in rows]
    ran = [0] * len(rows)
    for index, frame in enumerate(trace):
        for number, (kind, tokens) in enumerate(activities(frame)):
            assert laid_out[number].get(index, "gone") == kind
            assert (tokens > 0) == (kind in ("prefill", "decode"))
            ran[number] += tokens
    assert [sum(segment.tokens for segment in row) for row in rows] == ran
    assert all(len(LETTERS[segment.kind]) == 1 for row in rows for segment in row)
