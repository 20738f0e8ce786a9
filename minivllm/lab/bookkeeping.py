"""What the bookkeeping costs: microseconds of schedule + update for each request in a step.

Without a model and without torch: every request decodes one token a step, an executor that keeps
nothing answers, and only the scheduler's own work is timed, in CPU time. The figure should not
depend on how many requests run, nor on how large the pool is: `python -m minivllm.lab.bookkeeping`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.step_records import ModelOutput, SchedulerOutput

BLOCK_SIZE = 16
REQUEST_STEPS = 200_000  # timed for each row, or 20 steps where that is more
LARGE_POOL = 1_000_000


class Answers:
    """One and the same token for everybody. It stores no KV: a slot that is a Python object, as in
    FakeExecutor, costs time in each run of the garbage collector, also while the scheduler works.
    """

    vocab_size = 1000

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        return ModelOutput([[7] for _ in output.requests])


@dataclass(frozen=True)
class BookkeepingCost:
    """One row: CPU microseconds per request and step, averaged over all timed steps."""

    num_requests: int
    num_blocks: int
    prefix_caching: bool
    schedule_us: float
    update_us: float

    @property
    def total_us(self) -> float:
        return self.schedule_us + self.update_us


def measure(
    num_requests: int,
    num_blocks: int | None = None,
    prefix_caching: bool = False,
    num_request_steps: int = REQUEST_STEPS,
) -> BookkeepingCost:
    """Let `num_requests` requests decode together, and time schedule and update apart.

    The prompts have 1 to 16 tokens, so that in each step one request in 16 opens a block; one more
    request waits for a seat all the time, as in a busy server.
    """
    num_steps = max(num_request_steps // num_requests, 20)
    engine = make_engine(num_requests, num_steps, num_blocks, prefix_caching)
    scheduler = engine.scheduler
    engine.step()  # all prompts
    spent = [0.0, 0.0]
    for _ in range(num_steps):
        begin = time.process_time()
        output = scheduler.schedule()
        spent[0] += time.process_time() - begin
        model_output = engine.executor.execute(output)
        begin = time.process_time()
        scheduler.update_from_output(output, model_output)
        spent[1] += time.process_time() - begin
        if len(output.requests) != num_requests:
            raise RuntimeError(f"{len(output.requests)} of {num_requests} requests decode")
    schedule_us, update_us = (1e6 * seconds / num_steps / num_requests for seconds in spent)
    num_blocks = scheduler.config.num_blocks
    return BookkeepingCost(num_requests, num_blocks, prefix_caching, schedule_us, update_us)


def make_engine(
    num_requests: int, num_steps: int, num_blocks: int | None, prefix_caching: bool
) -> Engine:
    """An engine with all requests in line and room for all they will generate."""
    num_tokens = BLOCK_SIZE + num_steps + 1  # of one request, at most
    blocks_each = -(-num_tokens // BLOCK_SIZE)
    config = SchedulerConfig(
        num_blocks=num_blocks or num_requests * blocks_each,
        block_size=BLOCK_SIZE,
        max_num_seqs=num_requests,
        max_num_batched_tokens=num_requests * BLOCK_SIZE,
        max_model_len=num_tokens,
        watermark_blocks=0,
        enable_prefix_caching=prefix_caching,
    )
    engine = Engine(Scheduler(config), Answers())
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 1)
    for index in range(num_requests + 1):  # the last one finds no seat
        prompt = [(index + position) % 1000 for position in range(1 + index % BLOCK_SIZE)]
        engine.add_request(str(index), prompt, params)
    return engine


def measure_all(sizes: Iterable[int] = (10, 100, 1000, 10_000)) -> list[BookkeepingCost]:
    """A row for each number of requests; then a large pool, and the prefix cache."""
    rows = [measure(size) for size in sizes]
    rows.append(measure(1000, num_blocks=LARGE_POOL))
    rows.append(measure(1000, prefix_caching=True))
    return rows


def format_table(rows: Iterable[BookkeepingCost]) -> str:
    """The rows as text, a line each."""
    lines = [" requests     blocks  prefix cache  schedule    update     total  us/request-step"]
    for row in rows:
        cache = "on" if row.prefix_caching else "off"
        lines.append(
            f"{row.num_requests:9,} {row.num_blocks:10,} {cache:>13} "
            f"{row.schedule_us:9.2f} {row.update_us:9.2f} {row.total_us:9.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_table(measure_all()))
