"""Our engines in the benchmark, each set up for one workload, with the same KV memory.

A contestant is a function that runs the workload once, from an empty engine, and returns a Run. All
use the same weights. Hugging Face's `generate` is in hf_generate.py, other engines are in peers/.
"""

from __future__ import annotations

from collections.abc import Callable

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.baselines.static_executor import StaticModelExecutor
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.lab.measure import Run, run_workload
from minivllm.lab.workload import Workload
from minivllm.model import LlamaModel
from minivllm.scheduler import Scheduler

Progress = Callable[[int], None]
Contestant = Callable[[Workload, Progress], Run]
BLOCK_SIZE = 16


def engine_config(workload: Workload, **options: object) -> SchedulerConfig:
    """The limits that give an engine the workload's KV memory and its max_num_seqs.

    options: SchedulerConfig's, in place of these.
    """
    settings = {
        "num_blocks": workload.batch_size * workload.row_slots // BLOCK_SIZE,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": workload.max_num_seqs,
        "max_model_len": workload.row_slots,
    }
    return SchedulerConfig(**{**settings, **options})


def run_minivllm(
    model: LlamaModel, workload: Workload, progress: Progress, **options: object
) -> Run:
    """Continuous batching on the paged KV cache. `options` are SchedulerConfig's."""
    config = engine_config(workload, **options)
    engine = Engine(Scheduler(config), ModelExecutor(model, config.num_blocks, config.block_size))
    used_blocks: list[int] = []
    pool = engine.scheduler.kv.pool
    engine.observers.append(lambda *_: used_blocks.append(pool.num_blocks - pool.num_free_blocks))
    run = run_workload(engine, workload, progress)
    stats = engine.scheduler.stats
    run.facts = {
        "kv_blocks": config.num_blocks,
        "kv_blocks_used_peak": max(used_blocks),
        "kv_blocks_used_mean": sum(used_blocks) / len(used_blocks),
        "preemptions": stats.num_preemptions,
        "cached_tokens": stats.num_cached_tokens,
    }
    return run


def run_static(model: LlamaModel, workload: Workload, progress: Progress) -> Run:
    """Static batching on contiguous rows: finished rows stay and are computed to the end."""
    executor = StaticModelExecutor(model, workload.batch_size, workload.row_slots)
    engine = StaticBatchingEngine(executor, workload.batch_size, workload.row_slots)
    run = run_workload(engine, workload, progress)
    run.facts = {
        "kv_slots_reserved": workload.batch_size * workload.row_slots,
        "row_steps": engine.num_row_steps,
        "useful_row_steps": engine.num_useful_row_steps,
    }
    return run
