"""Exercises of chapter 0: one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.model_trial import bytes_jobs, model_trial
from minivllm.sampler import SampledToken

# ---- 0.3 ----


def tokens_run(num_prompt, num_new):
    return sum(num_prompt + step for step in range(num_new))


# ---- 0.4 ----


def generate_until(next_token, prompt, max_tokens, stop_id):
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids))
        if token_ids[-1] == stop_id:
            break
    return token_ids[len(prompt) :]


def count_up(token_ids: list[int]) -> int:
    """A model that counts: its next token is the last one plus 1."""
    return token_ids[-1] + 1


def examine_generate_until(exam: Exam, generate_until: Callable[..., Any]) -> None:
    prompt = [1, 2, 3]
    tokens = generate_until(count_up, prompt, 4, 99)
    exam.equal(tokens, [4, 5, 6, 7], "generate_until(count_up, [1, 2, 3], 4, stop_id=99)")
    exam.equal(prompt, [1, 2, 3], "after generate_until the caller's own prompt")
    exam.equal(
        generate_until(count_up, [1, 2, 3], 9, 6), [4, 5, 6],
        "generate_until(count_up, [1, 2, 3], 9, stop_id=6)",
    )  # fmt: skip
    exam.equal(
        generate_until(count_up, [6, 7], 3, 6), [8, 9, 10],
        "generate_until(count_up, [6, 7], 3, stop_id=6)",
    )  # fmt: skip


# ---- 0.5 ----


def attention_pairs(num_prompt, num_new):
    lengths = range(num_prompt, num_prompt + num_new)
    return sum(length * (length + 1) // 2 for length in lengths)


# ---- 0.6 ----


def sample_token(logits, temperature, draw):
    weights = torch.softmax(logits / temperature, dim=0)  # [V]
    passed = 0.0
    for token_id, weight in enumerate(weights.tolist()):
        passed += weight
        if draw < passed:
            return token_id
    return int(weights.argmax())  # rounding: the weights sum to a little less than 1


def examine_sample_token(exam: Exam, sample_token: Callable[..., Any]) -> None:
    logits = torch.tensor([0.5, 2.0, 1.0, -3.0])
    for temperature, draw, expected in [
        (1.0, 0.0, 0), (1.0, 0.13, 0), (1.0, 0.2, 1), (1.0, 0.77, 2), (1.0, 0.999, 3),
        (0.25, 0.97, 1), (0.25, 0.99, 2), (4.0, 0.2, 0),
    ]:  # fmt: skip
        got = sample_token(logits.clone(), temperature, draw)
        exam.equal(
            got, expected, f"sample_token([0.5, 2, 1, -3], temperature {temperature}, draw {draw})"
        )

    def sampler(logits: Any, params: list, draws: list, suppressed: list) -> list[SampledToken]:
        rows = zip(logits, params, draws, strict=True)
        return [SampledToken(int(sample_token(row, p.temperature, draw))) for row, p, draw in rows]

    work = bytes_jobs(["The cat", "sat on the", "mat"], outputs=[6, 5, 7])
    config = SchedulerConfig(num_blocks=16, block_size=4)
    run = model_trial(work, config, sampler=sampler, temperature=0.8)
    exam.equal(run.num_steps, 7, "the number of iterations of the engine")


EXERCISES = [
    Question(
        "0.1",
        answer=lambda: tokens_run(5, 8),
        working="5 + 6 + 7 + 8 + 9 + 10 + 11 + 12: each pass runs the whole text so far",
        mistakes=[
            Mistake(wrong=12, says="that is each token once, but every pass starts from the first"),
            Mistake(wrong=13, says="that is the length of the finished text, not what passes run"),
            Mistake(wrong=40, says="that is 8 passes of 5 tokens, but the text grows in each pass"),
            Mistake(wrong=81, says="that runs all 13 tokens at the end, but the last is never run"),
        ],
    ),
    Question(
        "0.2",
        answer=False,
        working="causal attention: a token sees only itself and what stands before it",
        mistakes=[
            Mistake(wrong=True, says="no token sees what comes after it, so nothing can change"),
        ],
    ),
    Exercise(
        "0.3",
        tokens_run,
        cases=[(5, 8), (5, 1), (5, 0), (1, 3), (100, 100)],
        mistakes=[
            Mistake(
                "num_prompt + step for", "num_prompt for",
                says="you run the prompt in each pass, but the text grows by one token each time",
            ),
            Mistake(
                "num_prompt + step for", "num_prompt + step + 1 for",
                says="a pass runs the text before its new token is appended, not after",
            ),
            Mistake(
                wrong=lambda num_prompt, num_new: num_prompt + num_new - 1,
                says="you count each token once: that is what a cache would make of it",
            ),
            Mistake(
                "range(num_new)", "range(num_new + 1)",
                says="you count one pass too many: the last new token is never run",
            ),
        ],
    ),
    Exercise(
        "0.4",
        generate_until,
        examine=examine_generate_until,
        mistakes=[
            Mistake(
                "return token_ids[len(prompt) :]", "return token_ids",
                says="you return the prompt too, and only the new tokens were asked for",
            ),
            Mistake(
                "list(prompt)", "prompt",
                says="you append to the caller's list: copy the prompt first",
            ),
            Mistake(
                "return token_ids[len(prompt) :]",
                "return [t for t in token_ids[len(prompt) :] if t != stop_id]",
                says="you drop the stop token, but the model gave it: it belongs to the output",
            ),
            Mistake(
                "if token_ids[-1] == stop_id", "if stop_id in token_ids",
                says="you stop at a stop token in the prompt: only a new one ends the output",
            ),
            Mistake(
                "range(max_tokens)", "range(max_tokens - len(prompt))",
                says="you count the prompt in max_tokens, which limits the new tokens only",
            ),
        ],
    ),
    Exercise(
        "0.5",
        attention_pairs,
        cases=[(1, 1), (5, 1), (5, 8), (1, 3), (100, 100)],
        mistakes=[
            Mistake(
                "length * (length + 1) // 2", "length * length",
                says="you let each token see all others, but it sees only what stands before it",
            ),
            Mistake(
                "length * (length + 1) // 2", "length * (length - 1) // 2",
                says="you forget that a token looks at itself as well",
            ),
            Mistake(
                "length * (length + 1) // 2", "length",
                says="you count the last token's row only, but each pass computes all rows again",
            ),
        ],
    ),
    Exercise(
        "0.6",
        sample_token,
        examine=examine_sample_token,
        mistakes=[
            Mistake(
                "logits / temperature", "logits * temperature",
                says="you multiply by the temperature: divide, so that a low one sharpens it",
            ),
            Mistake(
                "logits / temperature", "logits",
                says="you do not use the temperature",
            ),
            Mistake(
                "if draw < passed", "if draw < weight",
                says="you compare the draw with one token's weight, not with the sum passed so far",
            ),
            Mistake(
                wrong=lambda logits, temperature, draw: int(logits.argmax()),
                says="you always take the likeliest token and never use the draw",
            ),
        ],
    ),
]  # fmt: skip
