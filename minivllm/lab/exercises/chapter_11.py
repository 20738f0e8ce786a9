"""Exercises of chapter 11: the whole engine."""

from __future__ import annotations

from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import fake_executor, jobs, solo_tokens, trial
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler

# ---- 11.3 ----


def fewest_steps(outputs, max_at_once):
    return max(max(outputs), -(-sum(outputs) // max_at_once))


# ---- 11.4 ----


def shortest_first(request):
    return request.max_tokens


def examine_policy(exam: Exam, policy: Any) -> None:
    outputs = [9, 2, 7, 1, 3, 8]
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=1)
    run = trial(jobs([3, 5, 2, 6, 4, 1], outputs), config, policy=policy)
    ended = [event.split()[0] for event in run.events if " ends " in event]
    exam.equal(ended, ["r3", "r1", "r4", "r2", "r5", "r0"], "the order in which requests end")
    tight = SchedulerConfig(num_blocks=8, block_size=4, max_num_seqs=4, watermark_blocks=0)
    trial(jobs([3, 5, 2, 6, 4, 1], outputs), tight, policy=policy)


# ---- 11.5 ----


def serve(engine, questions):
    answers = {}
    for request_id, token_ids, max_tokens in questions:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        engine.add_request(request_id, token_ids, params)
        answers[request_id] = []
    while engine.has_unfinished_requests:
        for output in engine.step():
            answers[output.request_id] += output.new_token_ids
    return answers


def examine_serve(exam: Exam, serve: Any) -> None:
    work = jobs([4, 2, 6, 3], outputs=[5, 1, 3, 7])
    config = SchedulerConfig(num_blocks=16, block_size=4, max_num_seqs=4)
    engine = Engine(Scheduler(config), fake_executor(config))
    questions = [(job.name, job.prompt_token_ids, job.max_tokens) for job in work]
    answers = serve(engine, questions)
    wanted = {job.name: solo_tokens(job) for job in work}
    exam.true(isinstance(answers, dict), "the answers must be a dictionary")
    exam.equal(list(answers), list(wanted), "the ids in the answers")
    for name, tokens in wanted.items():
        exam.equal(answers[name], tokens, f"the answer to {name}")
    exam.equal(engine.scheduler.step, 7, "the number of steps of four questions")


def serve_one_by_one(engine: Any, questions: Any) -> dict:
    answers: dict = {}
    for question in questions:
        answers |= serve(engine, [question])
    return answers


EXERCISES = [
    Question(
        "11.1",
        answer=4 * 24,
        working="four batches of 8, and in each somebody has an answer of 24 tokens",
        mistakes=[
            Mistake(wrong=24, says="that is one batch: there are four, one after the other"),
            Mistake(wrong=32, says="you count people: a batch runs as long as its longest answer"),
            Mistake(wrong=768, says="those are row-steps: the 8 rows of a batch share its steps"),
            Mistake(wrong=97, says="the step that runs the prompts gives the first token already"),
        ],
    ),
    Question(
        "11.2",
        answer=24,
        working="all run at once, and the longest answer needs a step for each of its 24 tokens",
        mistakes=[
            Mistake(wrong=96, says="those are the static batches: here nobody waits for another"),
            Mistake(wrong=25, says="the step that runs a prompt gives the first token already"),
            Mistake(wrong=8, says="that is the short answers only: the long ones need 24 steps"),
            Mistake(wrong=32, says="you count people, but all of them share a step"),
        ],
    ),
    Exercise(
        "11.3",
        fewest_steps,
        cases=[([8, 8, 24], 8), ([8] * 25 + [24] * 7, 8), ([3, 3, 3], 2), ([5], 1), ([4, 4], 1),
               ([1, 1, 9], 2)],
        mistakes=[
            Mistake("max(max(outputs), -(-sum(outputs) // max_at_once))", "max(outputs)",
                    says="you forget that only so many run at once: all tokens must find a place"),
            Mistake("max(max(outputs), -(-sum(outputs) // max_at_once))",
                    "-(-sum(outputs) // max_at_once)",
                    says="you forget the longest: one request gets one token a step"),
            Mistake("-(-sum(outputs) // max_at_once)", "sum(outputs) // max_at_once",
                    says="you round down, but a step that is not full is a step, too"),
            Mistake("max(max(outputs), -(-sum(outputs) // max_at_once))",
                    "max(outputs) + -(-sum(outputs) // max_at_once)",
                    says="you add the two limits: the larger of them is already enough"),
        ],
    ),
    Exercise(
        "11.4",
        shortest_first,
        examine=examine_policy,
        mistakes=[
            Mistake("return request.max_tokens", "return -request.max_tokens",
                    says="smaller numbers go first, so you serve the longest first"),
            Mistake("return request.max_tokens", "return request.arrival",
                    says="that is first come, first served"),
            Mistake("return request.max_tokens", "return request.num_prompt_tokens",
                    says="you sort by the prompt, but the steps go into the output"),
        ],
    ),
    Exercise(
        "11.5",
        serve,
        examine=examine_serve,
        mistakes=[
            Mistake("answers[output.request_id] += output.new_token_ids",
                    "answers[output.request_id] = output.new_token_ids",
                    says="you keep only what the last step gave: each step adds to the answer"),
            Mistake("while engine.has_unfinished_requests:", "if engine.has_unfinished_requests:",
                    says="you take one step: go on while anybody has not ended"),
            Mistake(wrong=serve_one_by_one,
                    says="you serve one after the other: let all of them in before the first step"),
            Mistake("max_tokens=max_tokens", "max_tokens=16",
                    says="you do not pass on how long the answer may be"),
        ],
    ),
]  # fmt: skip
