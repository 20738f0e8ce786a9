"""Exercises of chapter 7, the second half: requests that come late, and one that goes early."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.fake_executor import FakeExecutor
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.exercises.chapter_07 import OUTPUTS
from minivllm.lab.trial import jobs, solo_tokens, trial
from minivllm.page_table import num_blocks_for
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import SchedulerOutput
from minivllm.view.twin_runs import Job

ARRIVALS = [0, 0, 1, 2, 9, 30, 31]

# ---- 7.5 ----


def waits(outputs, arrivals, places):
    waited, free_after = [], [0] * places
    for num_tokens, arrival in zip(outputs, arrivals, strict=True):
        place = free_after.index(min(free_after))
        start = max(free_after[place], arrival)
        free_after[place] = start + num_tokens
        waited.append(start - arrival)
    return waited


def static_waits(outputs: list[int], arrivals: list[int], places: int) -> list[int]:
    """How long each waits if batches stay together."""
    waited: list[int] = []
    now = 0
    while len(waited) < len(outputs):
        first = len(waited)
        now = max(now, arrivals[first])
        batch = [i for i in range(first, len(outputs)) if arrivals[i] <= now][:places]
        waited += [now - arrivals[i] for i in batch]
        now += max(outputs[i] for i in batch)
    return waited


def waits_in_the_engine(places: int) -> list[int]:
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=places)
    run = trial(jobs([4] * len(OUTPUTS), OUTPUTS), config, arrivals=ARRIVALS)
    over = {event.name: frame.step - 1 for frame in run.trace for event in frame.events
            if event.kind == "admit"}  # fmt: skip
    return [over[f"r{index}"] - arrival for index, arrival in enumerate(ARRIVALS)]


def examine_waits(exam: Exam, waits: Callable[..., list[int]]) -> None:
    for places in (1, 2, 3):
        got = waits(list(OUTPUTS), list(ARRIVALS), places)
        what = f"waits({OUTPUTS}, {ARRIVALS}, {places})"
        exam.equal(got, waits_in_the_engine(places), what)


# ---- 7.6 ----


class MiniEngine:
    """The chapter's engine: schedule, execute, update."""

    def __init__(self, work: list[Job], num_blocks: int, places: int) -> None:
        self.pool, self.places = BlockPool(num_blocks), places
        self.executor = FakeExecutor(num_blocks, block_size=4)
        self.requests = [
            Request(job.name, job.prompt_token_ids,
                    SamplingParams(temperature=0, max_tokens=job.max_tokens), block_size=4)
            for job in work
        ]  # fmt: skip
        self.waiting, self.running = deque(self.requests), []

    def step(self) -> None:
        self.schedule()
        batch = SchedulerOutput(step=0)
        for request in self.running:
            batch.add(request, request.num_tokens - request.num_computed_tokens)
        new_tokens = self.executor.execute(batch).sampled_token_ids
        for request, (token,) in zip(self.running, new_tokens, strict=True):
            request.num_computed_tokens = request.num_tokens
            request.append_token(token)
            if request.finish_reason:
                self.pool.free_blocks(request.block_table.block_ids)
                request.status = RequestStatus.FINISHED
        self.running = [request for request in self.running if not request.finish_reason]

    def schedule(self) -> None:
        while self.waiting and len(self.running) < self.places:
            request = self.waiting[0]
            need = num_blocks_for(request.max_kv_tokens, 4)
            if need > self.pool.num_free_blocks:
                break
            request.block_table.block_ids = self.pool.get_new_blocks(need)
            request.status = RequestStatus.RUNNING
            self.running.append(self.waiting.popleft())


def abort(engine, request_id):
    for line in (engine.waiting, engine.running):
        for request in list(line):
            if request.request_id == request_id:
                line.remove(request)
                engine.pool.free_blocks(request.block_table.block_ids)


def abort_who_must_be_there(engine: Any, request_id: str) -> None:
    requests = {request.request_id: request for request in (*engine.waiting, *engine.running)}
    request = requests[request_id]
    (engine.waiting if request in engine.waiting else engine.running).remove(request)
    engine.pool.free_blocks(request.block_table.block_ids)


def examine_abort(exam: Exam, abort: Callable[[Any, str], None]) -> None:
    work = jobs([4, 5, 3, 4, 6], outputs=[9, 6, 4, 5, 3])
    engine = MiniEngine(work, num_blocks=8, places=2)
    engine.step()
    engine.step()
    for name, running, waiting, num_free in (
        ("r0", ["r1"], ["r2", "r3", "r4"], 5), ("r3", ["r1"], ["r2", "r4"], 5),
        ("r0", ["r1"], ["r2", "r4"], 5),
    ):  # fmt: skip
        abort(engine, name)
        what = f"after abort({name!r}),"
        exam.equal([r.request_id for r in engine.running], running, f"{what} engine.running")
        exam.equal([r.request_id for r in engine.waiting], waiting, f"{what} engine.waiting")
        exam.equal(engine.pool.num_free_blocks, num_free, f"{what} the number of free blocks")
    engine.step()
    exam.equal([r.request_id for r in engine.running], ["r1", "r2"], "in the next iteration")
    while engine.waiting or engine.running:
        engine.step()
    exam.equal(engine.pool.num_free_blocks, 8, "free blocks at the end")
    for index in (1, 2, 4):
        exam.equal(engine.requests[index].output_token_ids, solo_tokens(work[index]),
                   f"the tokens of r{index}")  # fmt: skip


EXERCISES = [
    Exercise(
        "7.5",
        waits,
        cases=[([3, 12, 4], [0, 0, 1], 2), ([5, 5], [0, 9], 1), ([4, 1, 2], [0, 2, 2], 1),
               ([], [], 2)],
        examine=examine_waits,
        mistakes=[
            Mistake(
                "max(free_after[place], arrival)", "free_after[place]",
                says="you let a request run before it has come, when a place is free",
            ),
            Mistake(
                "waited.append(start - arrival)", "waited.append(start)",
                says="you count from the first iteration; a wait begins with the arrival",
            ),
            Mistake(
                "free_after[place] = start + num_tokens", "free_after[place] += num_tokens",
                says="you forget the time in which the place stood empty",
            ),
            Mistake(
                "waited.append(start - arrival)", "waited.append(start - arrival + 1)",
                says="you count the iteration that runs the prompt, but then the wait is over",
            ),
            Mistake(
                wrong=static_waits,
                says="you let a batch end before the next request joins: that is static batching",
            ),
        ],
    ),
    Exercise(
        "7.6",
        abort,
        examine=examine_abort,
        mistakes=[
            Mistake(
                "                engine.pool.free_blocks(request.block_table.block_ids)\n", "",
                says="you let it go with its blocks, and nobody can ever have them again",
            ),
            Mistake(
                "(engine.waiting, engine.running)", "(engine.running,)",
                says="you look among the running only, but who waits can go, too",
            ),
            Mistake(
                "                line.remove(request)\n", "",
                says="you free its blocks and let it run on, in blocks that will be another's",
            ),
            Mistake(
                wrong=abort_who_must_be_there,
                says="you expect it to be there, but it may have ended a moment ago",
            ),
        ],
    ),
]  # fmt: skip
