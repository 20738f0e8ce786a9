"""Exercises of chapter 9: memory pressure."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.config import SchedulerConfig
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial
from minivllm.request import Request
from minivllm.scheduler import Scheduler

# ---- 9.1 ----


def tokens_after_resuming() -> int:
    """What the youngest of the chapter's three requests runs when it comes back."""
    config = SchedulerConfig(num_blocks=8, block_size=4)
    run = trial(jobs([5, 6, 6], outputs=[12, 9, 8]), config)
    return [dict(frame.scheduled)[2] for frame in run.trace if 2 in dict(frame.scheduled)][4]


# ---- 9.2 ----

CLOCK = Clock(A100_40GB, OPT_13B)
SWAP_IS_CHEAPER = 2 * CLOCK.swap_seconds(512, 512 // 16) < CLOCK.recompute_seconds(512)

# ---- 9.3 ----


def num_entering(needs, num_free, watermark, num_running):
    entered = 0
    for need in needs:
        kept = watermark if num_running + entered > 0 else 0
        if num_free - kept < need:
            break
        num_free -= need
        entered += 1
    return entered


# ---- 9.4 ----


def victims(running, num_free, num_needed):
    names, left = [], list(running)
    while num_free < num_needed:
        name, num_blocks = left.pop()
        names.append(name)
        num_free += num_blocks
    return names


# ---- 9.5 ----


def swap_cost(num_tokens, block_size, num_layers, bytes_per_token, bandwidth, copy_cost):
    num_blocks = -(-num_tokens // block_size)
    num_copies = 2 * num_layers * num_blocks
    num_bytes = num_blocks * block_size * bytes_per_token
    return 2 * (num_copies * copy_cost + num_bytes / bandwidth)


# ---- 9.6 ----


def careful(request):
    return request.num_prompt_tokens + request.max_tokens - 1


def examine_careful(exam: Exam, reserve: Callable[[Request], int]) -> None:
    config = SchedulerConfig(num_blocks=8, block_size=4, watermark_blocks=0)
    run = trial(jobs([5, 6, 6], outputs=[12, 9, 8]), config, reserve=reserve)
    num_preemptions = run.engine.scheduler.stats.num_preemptions
    exam.equal(num_preemptions, 0, "preemptions with prompts 5, 6, 6 in 8 blocks:")
    run = trial(jobs([9, 24, 25], outputs=[8, 9, 8]), config, reserve=reserve)
    exam.equal(run.num_steps, 25, "iterations of three requests, of which two fill the pool:")


# ---- 9.7 ----


class MyScheduler(Scheduler):
    def schedule_running(self, output):
        budget = self.config.max_num_batched_tokens
        for request in list(self.running):
            if request not in self.running:
                continue  # it had to go for one that stands before it
            num_new = min(request.num_tokens - request.num_computed_tokens, budget)
            while num_new > 0 and self.kv.allocate_slots(request, num_new) is None:
                if self._preempt_request(self.running[-1]) is request:
                    num_new = 0
            if num_new > 0:
                output.add(request, num_new)
                budget -= num_new
        return budget


def examine_scheduler(exam: Exam, scheduler: type[Scheduler]) -> None:
    many = jobs([5, 6, 6, 2, 9, 3], outputs=[12, 9, 8, 6, 10, 14])
    three = jobs([6, 7, 5], outputs=[12, 9, 8])  # here the youngest needs a block itself
    for work, num_blocks, budget in ((many, 64, 64), (many, 8, 64), (three, 8, 64), (many, 9, 7)):
        config = SchedulerConfig(
            num_blocks=num_blocks, block_size=4, max_num_batched_tokens=budget, watermark_blocks=0
        )
        theirs, ours = trial(work, config), trial(work, config, scheduler=scheduler)
        for index, (frame, expected) in enumerate(zip(ours.trace, theirs.trace, strict=False)):
            what = f"{num_blocks} blocks, (request, tokens) of iteration {index}:"
            exam.equal(list(frame.scheduled), list(expected.scheduled), what)
        exam.equal(ours.num_steps, theirs.num_steps, f"{num_blocks} blocks: the iterations")


EXERCISES = [
    Question(
        "9.1",
        answer=tokens_after_resuming,
        working="all it knows, 6 + 4: K and V of 9 of them are lost, the tenth never had any",
        mistakes=[
            Mistake(wrong=6, says="that is the prompt; the answer so far must be computed as well"),
            Mistake(wrong=9, says="that is what was lost; the last token was sampled, not yet run"),
            Mistake(wrong=1, says="that would do if its K and V were still somewhere: see swap"),
            Mistake(wrong=4, says="that is the answer so far; the prompt's K and V are gone too"),
        ],
    ),
    Question(
        "9.2",
        answer=SWAP_IS_CHEAPER,
        working="each way 2560 copies cost 25.6 ms and the bytes 16.8: 84.8 ms, against 43.1",
        mistakes=[
            Mistake(wrong=True, says="the bytes would be cheaper, but each small copy costs too"),
        ],
    ),
    Exercise(
        "9.3",
        num_entering,
        cases=[
            ([2, 3, 1], 8, 1, 2), ([8], 8, 1, 0), ([4, 4], 8, 1, 0), ([3, 1], 3, 1, 2),
            ([2, 1], 4, 1, 1), ([2, 2, 2], 4, 0, 1), ([], 8, 1, 0),
        ],
        mistakes=[
            Mistake(
                "break", "continue",
                says="you pass over one that does not fit; those behind it must wait as well",
            ),
            Mistake(
                "watermark if num_running + entered > 0 else 0", "watermark",
                says="you keep the watermark even when nobody runs, and a large one never enters",
            ),
            Mistake(
                "num_free - kept < need", "num_free - kept <= need",
                says="you refuse what fits exactly",
            ),
            Mistake(
                "num_free -= need", "pass",
                says="you give the same free blocks to all of them",
            ),
            Mistake(
                "num_running + entered > 0", "num_running > 0",
                says="you forget that those who have just entered run too",
            ),
            Mistake(
                "num_free - kept < need", "num_free < need",
                says="you do not use the watermark",
            ),
        ],
    ),
    Exercise(
        "9.4",
        victims,
        cases=[
            ([["a", 3], ["b", 2], ["c", 1]], 0, 1), ([["a", 3], ["b", 2], ["c", 1]], 0, 3),
            ([["a", 3], ["b", 2]], 2, 2), ([["a", 3], ["b", 2], ["c", 2]], 1, 4), ([], 1, 1),
        ],
        mistakes=[
            Mistake(
                "left.pop()", "left.pop(0)",
                says="you send the oldest away, and with it the guarantee that somebody ends",
            ),
            Mistake(
                "num_free += num_blocks", "num_free += 1",
                says="you count one block for each, but a victim gives up all of its blocks",
            ),
            Mistake(
                "num_free < num_needed", "num_free <= num_needed",
                says="you go on when there is just enough",
            ),
            Mistake(
                "while num_free", "if num_free",
                says="you stop after the first, even if that is not enough",
            ),
        ],
    ),
    Exercise(
        "9.5",
        swap_cost,
        cases=[
            (512, 16, 40, 819200, 25e9, 1e-5), (500, 16, 40, 819200, 25e9, 1e-5),
            (1, 128, 32, 131072, 50e9, 1e-5), (64, 64, 2, 1000, 1e6, 0.0),
        ],
        mistakes=[
            Mistake(
                "return 2 * (", "return (",
                says="you count one way only: out and in",
            ),
            Mistake(
                "2 * num_layers * num_blocks", "num_layers * num_blocks",
                says="you count one copy a layer, but K and V lie apart",
            ),
            Mistake(
                "num_blocks * block_size * bytes_per_token", "num_tokens * bytes_per_token",
                says="you move the filled slots of the last block only; blocks are moved whole",
            ),
            Mistake(
                "-(-num_tokens // block_size)", "num_tokens // block_size",
                says="you leave the last block behind when it is not full",
            ),
        ],
    ),
    Exercise(
        "9.6",
        careful,
        examine=examine_careful,
        mistakes=[
            Mistake(
                "request.num_prompt_tokens + request.max_tokens - 1", "request.num_prompt_tokens",
                says="you reserve the prompt only: then the answer grows into others' blocks",
            ),
            Mistake(
                "request.max_tokens - 1", "request.max_tokens",
                says="you reserve a slot for the last token, which is never fed back",
            ),
            Mistake(
                "request.num_prompt_tokens + request.max_tokens - 1", "request.max_tokens",
                says="you reserve the answer only, and there is no room for the prompt",
            ),
            Mistake(
                wrong=lambda request: 2048,
                says="you reserve the longest text there may be, as before paging",
            ),
        ],
    ),
    Exercise(
        "9.7",
        MyScheduler,
        examine=examine_scheduler,
        mistakes=[
            Mistake(
                "self._preempt_request(self.running[-1])", "self._preempt_request(self.running[0])",
                says="you preempt the oldest; the youngest stands at the end of running",
            ),
            Mistake(
                "while num_new > 0 and self", "if num_new > 0 and self",
                says="you preempt and do not try again, so no block has been given to anybody",
            ),
            Mistake(
                "self._preempt_request(self.running[-1])", "self._preempt_request(request)",
                says="you send away the one who needs a block, even if it is the oldest",
            ),
            Mistake(
                "num_new = 0\n", "break\n",
                says="you schedule a request that has just been preempted itself",
            ),
            Mistake(
                "            if request not in self.running:\n                continue", "",
                says="you go on with a request that had to leave for one before it",
            ),
        ],
    ),
]  # fmt: skip
