"""Exercises of chapter 2: static batching and its waste."""

from __future__ import annotations

from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial
from minivllm.scheduler import Scheduler

# ---- 2.3 ----


def useful_share(outputs):
    return sum(outputs) / (len(outputs) * max(outputs))


# ---- 2.4 ----


def num_steps(outputs, batch_size):
    starts = range(0, len(outputs), batch_size)
    return sum(max(outputs[start : start + batch_size]) for start in starts)


# ---- 2.5 ----


def pad_prompts(prompts, padding_token=0):
    longest = max(len(prompt) for prompt in prompts)
    return [[padding_token] * (longest - len(prompt)) + prompt for prompt in prompts]


def examine_padding(exam: Exam, pad: Any) -> None:
    prompts = [[5], [6, 7]]
    rows = pad(prompts, 9)
    exam.equal(rows, [[9, 5], [6, 7]], "pad_prompts([[5], [6, 7]], 9)")
    exam.true(prompts == [[5], [6, 7]], "the lists you were given have changed")


def pad_in_place(prompts, padding_token=0):
    longest = max(len(prompt) for prompt in prompts)
    for prompt in prompts:
        while len(prompt) < longest:
            prompt.insert(0, padding_token)
    return prompts


# ---- 2.6 ----


def fewest_steps(outputs, batch_size):
    return sum(sorted(outputs, reverse=True)[::batch_size])


# ---- 2.7 ----


class BatchAtATime(Scheduler):
    def schedule_waiting(self, output, budget):
        if not self.running:
            super().schedule_waiting(output, budget)


def examine_batch_at_a_time(exam: Exam, scheduler: Any) -> None:
    outputs = [3, 6, 2, 5, 4, 1, 7]
    config = SchedulerConfig(num_blocks=32, block_size=4, max_num_seqs=3)
    run = trial(jobs([2, 5, 3, 4, 2, 6, 3], outputs), config, scheduler=scheduler)
    exam.equal(run.num_steps, num_steps(outputs, 3), "the number of steps of 7 requests")
    largest = max(len(frame.scheduled) for frame in run.trace)
    exam.equal(largest, 3, "the largest number of requests in a step")
    trial(jobs([2], [3]), config, scheduler=scheduler)


EXERCISES = [
    Question(
        "2.1",
        answer=lambda: 8 * 2000 - (7 * 50 + 2000),
        working="8 rows * 2000 steps are 16,000 row-steps; 7 * 50 + 2000 = 2350 give a token",
        mistakes=[
            Mistake(wrong=2350, says="those are the useful ones: each gives a token"),
            Mistake(wrong=16000, says="those are all row-steps, useful ones included"),
            Mistake(wrong=1950, says="that is one idle row, and there are seven"),
            Mistake(wrong=0, says="a row that has ended is computed until the whole batch ends"),
        ],
    ),
    Question(
        "2.2",
        answer=2001,
        working="batch 1 ends with its slowest row, in step 2000; then the next one starts",
        mistakes=[
            Mistake(wrong=51, says="seven rows are idle, but nobody may enter a running batch"),
            Mistake(wrong=50, says="seven rows end there, but the batch goes on without them"),
            Mistake(wrong=2000, says="in step 2000 the first batch still runs, for its last token"),
            Mistake(wrong=9, says="rows run side by side: a step gives each of them a token"),
        ],
    ),
    Exercise(
        "2.3",
        useful_share,
        cases=[([50] * 7 + [2000],), ([4, 3, 12, 5],), ([7],), ([5, 5],), ([1, 3],)],
        mistakes=[
            Mistake(
                "sum(outputs) / (len(outputs) * max(outputs))",
                "1 - sum(outputs) / (len(outputs) * max(outputs))",
                says="that is the share of waste: the useful share is what is left of 1",
            ),
            Mistake(
                "len(outputs) * max(outputs)", "sum(outputs)",
                says="you divide by the useful ones: all rows run as long as the longest",
            ),
            Mistake(
                "len(outputs) * max(outputs)", "max(outputs)",
                says="you divide by the steps: each of them has a row-step for every row",
            ),
            Mistake(
                "sum(outputs) / (", "100 * sum(outputs) / (",
                says="you give percent: the answer is a number from 0 to 1",
            ),
        ],
    ),
    Exercise(
        "2.4",
        num_steps,
        cases=[
            ([50] * 7 + [2000], 8), ([4, 3, 12, 5], 2), ([1, 9, 2, 8, 5], 2), ([3], 4), ([], 4),
            ([2, 3, 4], 1),
        ],
        mistakes=[
            Mistake(
                "return sum(max(outputs[start : start + batch_size]) for start in starts)",
                "return max(outputs, default=0) * len(starts)",
                says="you let each batch run as long as the longest of all, not of its own",
            ),
            Mistake(
                "range(0, len(outputs), batch_size)",
                "range(0, len(outputs) - batch_size + 1, batch_size)",
                says="you forget the last batch when it is not full",
            ),
            Mistake(
                "sum(max(outputs[start : start + batch_size]) for start in starts)",
                "sum(outputs)",
                says="you serve one after another: the rows of a batch share its steps",
            ),
            Mistake(
                wrong=lambda outputs, batch_size: sum(
                    sorted(outputs, reverse=True)[::batch_size]
                ),
                says="you sort the line, but the first to come is the first to be served",
            ),
        ],
    ),
    Exercise(
        "2.5",
        pad_prompts,
        cases=[([[1, 2, 3], [4]],), ([[7], [8, 9]], 5), ([[1], [2]],), ([[1, 2]], 3)],
        examine=examine_padding,
        mistakes=[
            Mistake(
                "[padding_token] * (longest - len(prompt)) + prompt",
                "prompt + [padding_token] * (longest - len(prompt))",
                says="you pad on the right: then the newest tokens lie in different columns",
            ),
            Mistake(
                "[padding_token] *", "[0] *",
                says="you pad with 0, whatever the padding token is",
            ),
            Mistake(
                "[padding_token] * (longest - len(prompt)) + prompt",
                "[padding_token] * longest + prompt",
                says="you pad all rows by the same number: only the difference is missing",
            ),
            Mistake(
                wrong=pad_in_place,
                says="you write into the prompts themselves, and their owners will find padding",
            ),
        ],
    ),
    Exercise(
        "2.6",
        fewest_steps,
        cases=[([1, 2, 3], 2), ([9, 1, 9, 1], 2), ([1, 2, 3, 4], 2), ([7], 3), ([], 2),
               ([2, 2, 8], 1)],
        mistakes=[
            Mistake(
                "sum(sorted(outputs, reverse=True)[::batch_size])",
                "sum(sorted(outputs)[::batch_size])",
                says="you add the shortest of each batch: a batch lasts as long as its longest",
            ),
            Mistake(
                "sum(sorted(outputs, reverse=True)[::batch_size])",
                "num_steps(sorted(outputs), batch_size)",
                says="you begin with the short ones, so the batch that is not full has the longest",
            ),
            Mistake(
                "sum(sorted(outputs, reverse=True)[::batch_size])",
                "num_steps(outputs, batch_size)",
                says="you keep the order of arrival: put those together that are alike",
            ),
            Mistake(
                "sum(sorted(outputs, reverse=True)[::batch_size])",
                "-(-sum(outputs) // batch_size)",
                says="you fill every row all the time, but nobody may enter a running batch",
            ),
        ],
    ),
    Exercise(
        "2.7",
        BatchAtATime,
        examine=examine_batch_at_a_time,
        mistakes=[
            Mistake(
                wrong=Scheduler,
                says="you let newcomers enter while others still run",
            ),
            Mistake(
                "if not self.running:", "if self.running:",
                says="you let them in only while somebody runs, so the first never gets in",
            ),
            Mistake(
                "if not self.running:",
                "if not self.running and len(self.waiting) >= self.config.max_num_seqs:",
                says="you wait until a batch is full: the last requests in line never start",
            ),
        ],
    ),
]  # fmt: skip
