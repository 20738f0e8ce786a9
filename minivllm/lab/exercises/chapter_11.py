"""Exercises of chapter 11: the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import fake_executor, jobs, solo_tokens
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.step_records import ModelOutput, SchedulerOutput

# ---- 11.3 ----


def fewest_steps(outputs, max_at_once):
    return max(max(outputs), -(-sum(outputs) // max_at_once))


# ---- 11.4 ----


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


# ---- 11.5 ----


def breaks_the_law(serve, questions):
    together = serve(questions)
    broken = []
    for question in questions:
        name = question[0]
        if serve([question])[name] != together[name]:
            broken.append(name)
    return broken


class RowsSwapped(FakeExecutor):
    """The last two requests of a step of three or more get each other's tokens."""

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        answer = super().execute(output)
        tokens = answer.sampled_token_ids
        if len(tokens) > 2:
            tokens[-2], tokens[-1] = tokens[-1], tokens[-2]
        return answer


def server(
    executor: type[FakeExecutor] = FakeExecutor, harm: Callable[[dict], None] | None = None
) -> Callable[[list], dict]:
    """Serves questions in an engine of their own; harm spoils the answers of a batch."""

    def serve_all(questions: list) -> dict:
        engine = Engine(Scheduler(SchedulerConfig(num_blocks=64, block_size=4)), executor(64, 4))
        answers = serve(engine, questions)
        if harm and len(questions) > 1:
            harm(answers)
        return answers

    return serve_all


def spoil(answers: dict) -> None:
    """A first token, a last one, and an answer that ends too early."""
    answers["r0"][0] += 1
    answers["r1"][-1] += 1
    del answers["r2"][-1]
    answers["r3"][0] += 1


def examine_law(exam: Exam, breaks_the_law: Callable[..., list]) -> None:
    work = jobs([4, 2, 6, 3, 5], outputs=[5, 2, 3, 7, 4])
    questions = [(job.name, job.prompt_token_ids, job.max_tokens) for job in work]
    for serve_all, broken, what in (
        (server(), [], "an engine without a fault:"),
        (server(harm=spoil), ["r0", "r1", "r2", "r3"], "an engine that spoils four of five:"),
        (server(RowsSwapped), ["r3", "r4"], "an engine that swaps two rows of a batch:"),
    ):
        exam.equal(breaks_the_law(serve_all, list(questions)), broken, what)


def tells_whether(serve: Any, questions: list) -> bool:
    return breaks_the_law(serve, questions) != []


def together_twice(serve: Any, questions: list) -> list:
    once, again = serve(questions), serve(questions)
    return [name for name, *_ in questions if once[name] != again[name]]


EXERCISES = [
    Question(
        "11.1",
        answer=4 * 16,
        working="four batches of 8, and in each somebody has an answer of 16 tokens",
        mistakes=[
            Mistake(wrong=16, says="that is one batch: there are four, one after the other"),
            Mistake(wrong=32, says="you count people: a batch runs as long as its longest answer"),
            Mistake(wrong=512, says="those are row-steps: the 8 rows of a batch share its steps"),
            Mistake(wrong=65, says="the step that runs the prompts gives the first token already"),
        ],
    ),
    Question(
        "11.2",
        answer=16,
        working="all run at once, and the longest answer needs a step for each of its 16 tokens",
        mistakes=[
            Mistake(wrong=64, says="those are the static batches: here nobody waits for another"),
            Mistake(wrong=17, says="the step that runs a prompt gives the first token already"),
            Mistake(wrong=6, says="that is the short answers only: the long ones need 16 steps"),
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
    Exercise(
        "11.5",
        breaks_the_law,
        examine=examine_law,
        mistakes=[
            Mistake(wrong=together_twice,
                    says="you run them together twice: the fault is the same both times"),
            Mistake("serve([question])[name] != together[name]",
                    "serve([question])[name][:1] != together[name][:1]",
                    says="you compare first tokens only: an answer may go wrong later"),
            Mistake("serve([question])[name] != together[name]",
                    "len(serve([question])[name]) != len(together[name])",
                    says="you compare how long the answers are: compare the tokens"),
            Mistake("            broken.append(name)", "            return [name]",
                    says="you stop at the first, but all who got a wrong answer are asked for"),
            Mistake(wrong=tells_whether,
                    says="you say whether the law is broken: say for whom"),
        ],
    ),
]  # fmt: skip
