"""Exercises of chapter 8: the scheduler."""

from __future__ import annotations

from minivllm.config import SchedulerConfig
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs
from minivllm.view.twin_runs import run_continuous

# ---- 8.2 ----


def iteration_of_b() -> int:
    """When B's 4 tokens run, which come an iteration after A's 60; the budget is 16."""
    config = SchedulerConfig(num_blocks=24, block_size=4, max_num_batched_tokens=16)
    trace = run_continuous(jobs([60, 4], outputs=[3, 8]), config, arrivals=[0, 1])
    return next(index for index, frame in enumerate(trace) if 1 in dict(frame.scheduled))


# ---- 8.3 ----


def num_iterations_of(prompt_len, num_decoding, budget):
    left = budget - num_decoding
    if left <= 0:
        return None
    return -(-prompt_len // left)


# ---- 8.4 ----


def ttft_and_tpot(arrival, token_times):
    ttft = token_times[0] - arrival
    if len(token_times) == 1:
        return ttft, None
    return ttft, (token_times[-1] - token_times[0]) / (len(token_times) - 1)


# ---- 8.5 ----


def plan_step(lacking, budget, max_chunk):
    given = []
    for num_lacking in lacking:
        given.append(min(num_lacking, budget, max_chunk))
        budget -= given[-1]
    return given


EXERCISES = [
    Question(
        "8.1",
        answer=lambda: num_iterations_of(40, 3, 16),
        working="the decoding three take 3 of 16, so 13 are left: 13 + 13 + 13 + 1",
        mistakes=[
            Mistake(wrong=3, says="that is 40 / 16, but the others take 3 of the 16 each time"),
            Mistake(wrong=2.5, says="iterations are whole, and the three others need tokens too"),
            Mistake(wrong=40, says="that is a token an iteration; a prompt takes all that is left"),
            Mistake(wrong=1, says="40 tokens and 3 more are above the budget of 16"),
        ],
    ),
    Question(
        "8.2",
        answer=iteration_of_b,
        working="A runs 16, 16, 16 and 12; in the fourth iteration 4 tokens are left for B",
        mistakes=[
            Mistake(wrong=2, says="A stands before B, and takes the whole budget of iteration 2"),
            Mistake(wrong=5, says="A's last chunk is only 12: 4 tokens of iteration 4 are left"),
            Mistake(wrong=7, says="B need not wait for A's answer, only for its prompt"),
            Mistake(wrong=3, says="after two chunks A still lacks 28 tokens, more than the budget"),
        ],
    ),
    Exercise(
        "8.3",
        num_iterations_of,
        cases=[(40, 3, 16), (39, 3, 16), (1, 0, 1), (100, 8, 8), (100, 9, 8), (8000, 8, 512)],
        mistakes=[
            Mistake(
                "budget - num_decoding", "budget",
                says="you give the prompt the whole budget, but those who decode come first",
            ),
            Mistake(
                "-(-prompt_len // left)", "prompt_len // left",
                says="you round down: the last chunk is an iteration too, however short",
            ),
            Mistake(
                "-(-prompt_len // left)", "prompt_len // left + 1",
                says="you always add one, but a prompt may end with a full chunk",
            ),
            Mistake(
                "left <= 0", "left < 0",
                says="you forget that nothing is left when budget and decodes are equal",
            ),
        ],
    ),
    Exercise(
        "8.4",
        ttft_and_tpot,
        cases=[(1.0, [3.0, 3.5, 4.5]), (0.0, [0.5]), (2.0, [2.5, 2.75]), (0.5, [1.0, 1.5, 2.0, 4])],
        mistakes=[
            Mistake(
                "token_times[0] - arrival", "token_times[0]",
                says="you count TTFT from time 0, not from the request's arrival",
            ),
            Mistake(
                "(len(token_times) - 1)", "len(token_times)",
                says="you divide by all tokens, but n tokens have n - 1 pauses between them",
            ),
            Mistake(
                "(token_times[-1] - token_times[0])", "(token_times[-1] - arrival)",
                says="you count the wait for the first token into the time per token",
            ),
            Mistake(
                "return ttft, None", "return ttft, 0.0",
                says="you say 0 for a single token: that would make it the fastest of all",
            ),
        ],
    ),
    Exercise(
        "8.5",
        plan_step,
        cases=[
            ([1, 1, 1, 40], 16, 16), ([1, 1, 1, 40], 16, 8), ([30, 30, 4], 16, 12),
            ([5, 1, 1], 4, 4), ([], 16, 16), ([20, 20, 20], 16, 6), ([9, 9], 10, 20),
        ],
        mistakes=[
            Mistake(
                "min(num_lacking, budget, max_chunk)", "min(num_lacking, budget)",
                says="you do not use max_chunk: the first long prompt takes all",
            ),
            Mistake(
                "min(num_lacking, budget, max_chunk)", "min(num_lacking, max_chunk)",
                says="you limit each request, but not all of them together",
            ),
            Mistake(
                "budget -= given[-1]", "budget -= num_lacking",
                says="you take what it lacks off the budget, not what it was given",
            ),
            Mistake(
                wrong=lambda lacking, budget, max_chunk: [
                    given for given in plan_step(lacking, budget, max_chunk) if given
                ],
                says="you leave out those who get nothing, and the list no longer fits the line",
            ),
        ],
    ),
]  # fmt: skip
