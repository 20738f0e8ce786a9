"""Random runs of the engine for the tests of the views, and what an independent eye sees of it."""

from __future__ import annotations

import random
from typing import Any

from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.stats import KVUsage
from minivllm.view.recorder import Recorder
from minivllm.view.trace import Trace


def random_engine(rng: random.Random) -> Engine:
    """A small pool, so that it runs out; any policy, with or without cache, chunks and swapping."""
    block_size = rng.choice([1, 2, 4, 16])
    num_blocks = -(-64 // block_size) + rng.randrange(8)
    swaps = rng.random() < 0.5
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=rng.choice([4, 8]),
        max_num_batched_tokens=rng.choice([8, 32]),
        max_model_len=num_blocks * block_size,
        watermark_blocks=rng.choice([0, 1]),
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority", "sjf"]),
        preemption_mode="swap" if swaps else "recompute",
        num_host_blocks=num_blocks // 2 if swaps else 0,
    )
    executor = FakeExecutor(num_blocks, block_size, num_host_blocks=config.num_host_blocks)
    return Engine(Scheduler(config), executor)


def add_random_request(rng: random.Random, engine: Engine, name: str) -> None:
    prompt = [7] * rng.randrange(12) + [rng.randrange(50) for _ in range(rng.randint(1, 20))]
    params = SamplingParams(max_tokens=rng.randint(1, 24), n=rng.choice([1, 1, 1, 2, 3]))
    engine.add_request(name, prompt, params, priority=rng.randrange(3))


def see(engine: Engine) -> dict[str, Any]:
    """The engine's state, read by other ways than the recorder's and copied at once."""
    kv, running = engine.scheduler.kv, engine.scheduler.running
    live = [request for group in engine.scheduler.requests.values() for request in group.samples]
    return {
        "step": engine.scheduler.step,
        "ref_cnt": list(kv.pool.ref_cnt),
        "cached": [kv.prefix_cache is not None and b in kv.prefix_cache
                   for b in range(kv.pool.num_blocks)],
        "running": [request.name for request in running],
        "waiting": [request.name for request in engine.scheduler.waiting],
        "live": {
            request.name: (
                request.status.value, list(request.token_ids), request.num_computed_tokens,
                list(request.block_table.block_ids), list(request.host_block_ids),
                request.num_preemptions, request.num_cached_tokens,
            )
            for request in live
        },
        "usage": KVUsage.of(kv, running),
    }  # fmt: skip


def random_run(seed: int) -> tuple[Trace, list[dict[str, Any]], list[list[str]]]:
    """A recorded run, what `see` saw after each of its iterations, and the events' sentences."""
    rng = random.Random(seed)
    engine = random_engine(rng)
    recorder = Recorder(engine)
    seen, sentences = [see(engine)], [[]]
    engine.observers.append(lambda engine, output: seen.append(see(engine)))
    engine.observers.append(lambda _, output: sentences.append([str(e) for e in output.events]))
    for number in range(rng.randint(3, 10)):
        add_random_request(rng, engine, f"r{number}")
        for _ in range(rng.randrange(3)):
            engine.step()
        if rng.random() < 0.15:
            engine.abort(f"r{rng.randrange(number + 1)}")
    while engine.has_unfinished_requests:
        engine.step()
    return recorder.trace, seen, sentences
