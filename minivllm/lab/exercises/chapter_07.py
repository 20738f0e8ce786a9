"""Exercises of chapter 7: continuous batching."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam, Wrong
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial
from minivllm.request import Request
from minivllm.scheduler import Scheduler
from minivllm.step_records import SchedulerOutput

OUTPUTS = [3, 12, 4, 5, 3, 4, 6]

# ---- 7.3 ----


def finish_times(outputs, places):
    times, free_after = [], [0] * places
    for num_tokens in outputs:
        place = free_after.index(min(free_after))
        free_after[place] += num_tokens
        times.append(free_after[place])
    return times


def static_finish_times(outputs: list[int], places: int) -> list[int]:
    """When each request ends if batches stay together."""
    times, start = [], 0
    for first in range(0, len(outputs), places):
        batch = outputs[first : first + places]
        times += [start + num_tokens for num_tokens in batch]
        start += max(batch)
    return times


# ---- 7.4 ----


def num_to_admit(needs, num_free_blocks, num_free_places):
    count = 0
    for need in needs[:num_free_places]:
        if need > num_free_blocks:
            break
        num_free_blocks -= need
        count += 1
    return count


def all_tokens(request: Request) -> int:
    """Slots that a request can ever need."""
    return request.max_kv_tokens


def scheduler_with(rule: Callable[..., int]) -> type[Scheduler]:
    """A scheduler that lets the learner's rule decide how many of those who wait enter."""

    class WithYourRule(Scheduler):
        def schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
            places = self.config.max_num_seqs - len(self.running)
            needs = [self.kv.initial_need(request, self.reserve(request)).num_blocks
                     for request in self.waiting]  # fmt: skip
            count = rule(needs, self.kv.pool.num_free_blocks, places)
            if not isinstance(count, int) or not 0 <= count <= len(needs):
                raise Wrong(f"num_to_admit({needs}, ...) gave {count!r}, but {len(needs)} wait")
            for _ in range(count):
                request = self.waiting.pop()
                need = self.kv.initial_need(request, self.reserve(request))
                self.kv.allocate_initial(request, self.reserve(request), need)
                self._enter(request, 0, need.num_blocks)
                output.add(request, request.num_tokens)

    return WithYourRule


def examine_num_to_admit(exam: Exam, num_to_admit: Callable[..., int]) -> None:
    config = SchedulerConfig(num_blocks=8, block_size=4, max_num_seqs=3)
    parts = {"scheduler": scheduler_with(num_to_admit), "reserve": all_tokens}
    run = trial(jobs([4] * 7, OUTPUTS), config, **parts)
    exam.equal(run.num_steps, 17, "the number of iterations of the engine")
    run = trial(jobs([9, 2, 5, 1], [6, 9, 4, 3]), config, arrivals=[0, 2, 2, 3], **parts)
    exam.equal(run.num_steps, 11, "the number of iterations with late arrivals")


EXERCISES = [
    Question(
        "7.1",
        answer=lambda: max(12, 3) + max(4, 5) + max(3, 4) + 6,
        working="12 + 5 + 4 + 6, the longest of each batch of two",
        mistakes=[
            Mistake(
                wrong=37,
                says="that is the number of tokens, but two requests get one in each iteration",
            ),
            Mistake(
                wrong=19,
                says="that would be without any waste; a batch lasts as long as its slowest",
            ),
            Mistake(wrong=12, says="that is the first batch only"),
            Mistake(
                wrong=21,
                says="you let a waiting request join when a place is free; here the batch stays",
            ),
        ],
    ),
    Question(
        "7.2",
        answer=lambda: 3 + 1,
        working="A gets its last token in iteration 3 and leaves; C joins in the next one",
        mistakes=[
            Mistake(wrong=13, says="that is when B ends, but C need not wait for B any more"),
            Mistake(
                wrong=3,
                says="in iteration 3 A still runs: its place is free after it, not during it",
            ),
            Mistake(
                wrong=5,
                says="you leave an iteration out: C joins in the one right after A's last",
            ),
            Mistake(wrong=1, says="there are two places, and A and B have them"),
        ],
    ),
    Exercise(
        "7.3",
        finish_times,
        cases=[
            ([3, 12, 4], 2), (OUTPUTS, 2), (OUTPUTS, 3), ([5], 3), ([], 2), ([1, 1, 1], 1),
            ([2, 9, 2, 2], 2),
        ],
        mistakes=[
            Mistake(
                wrong=static_finish_times,
                says="you let a batch wait for its slowest; a place is free when its own request "
                "has ended",
            ),
            Mistake(
                "free_after.index(min(free_after))", "len(times) % places",
                says="you deal the places out in turn, but the first that becomes free is taken",
            ),
            Mistake(
                "times.append(free_after[place])", "times.append(num_tokens)",
                says="you give how long each runs, and forget when it began",
            ),
            Mistake(
                "free_after[place] += num_tokens", "free_after[place] += num_tokens + 1",
                says="you lose an iteration between leaving and joining: joining costs none",
            ),
        ],
    ),
    Exercise(
        "7.4",
        num_to_admit,
        cases=[
            ([2, 3, 1], 8, 4), ([2, 3, 1], 4, 4), ([2, 3, 1], 6, 4), ([2, 3, 1], 6, 2),
            ([5], 4, 1), ([], 4, 2), ([1, 1, 1], 2, 4), ([1, 1], 8, 0),
        ],
        examine=examine_num_to_admit,
        mistakes=[
            Mistake(
                "            break\n", "            continue\n",
                says="you go on after one that does not fit: those behind it would overtake it",
            ),
            Mistake(
                "        num_free_blocks -= need\n", "",
                says="you compare each with all free blocks, but those before it take theirs",
            ),
            Mistake(
                "need > num_free_blocks", "need >= num_free_blocks",
                says="you always keep a block back; one that fits exactly may enter",
            ),
            Mistake(
                "needs[:num_free_places]", "needs",
                says="you forget the places: there may be blocks, and no place left",
            ),
        ],
    ),
]  # fmt: skip
