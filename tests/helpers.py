"""Small words for the tests of the bookkeeping half: block size, pool, chunk, prefix cache."""

from __future__ import annotations

from collections.abc import Iterable

from law import make_engine

from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import EngineOutput, SchedulerOutput


def engine_of(
    block_size: int, num_blocks: int, chunk: int = 0, prefix: bool = False, **limits: object
) -> Engine:
    """E(bs, nb, chunk, prefix) with the checking executor; no watermark, a budget of 64."""
    settings = {
        "max_num_batched_tokens": 64,
        "max_model_len": num_blocks * block_size + 1,
        "watermark_blocks": 0,
        "long_prefill_token_threshold": chunk,
        "enable_prefix_caching": prefix,
    }
    return make_engine(
        SchedulerConfig(num_blocks=num_blocks, block_size=block_size, **{**settings, **limits})
    )


def prompt(length: int, first: int = 1) -> list[int]:
    """first, first + 1, ...: no two prompts share a block unless they begin with the same token."""
    return list(range(first, first + length))


def greedy(max_tokens: int, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **more)


def request_of(
    tokens: list[int], max_tokens: int = 4, block_size: int = 4, **more: object
) -> Request:
    return Request("r", tokens, greedy(max_tokens), block_size, **more)


def step(engine: Engine) -> tuple[SchedulerOutput, list[EngineOutput]]:
    """One step taken apart, its rules checked. None of our games takes 500 steps."""
    output = engine.scheduler.schedule()
    assert output.step < 500, "no end in sight"
    results = engine.scheduler.update_from_output(output, engine.executor.execute(output))
    engine.scheduler.check_integrity()
    return output, results


def drain(engine: Engine, results: Iterable[EngineOutput] = ()) -> dict[str, list[int]]:
    """Step until nobody is left; the tokens of each request by name ("r", or "r.1" for n > 1)."""
    tokens: dict[str, list[int]] = {}
    results = list(results)
    while True:
        for result in results:
            name = f"{result.request_id}.{result.sample_index}" if result.sample_index else ""
            tokens.setdefault(name or result.request_id, []).extend(result.new_token_ids)
        if not engine.has_unfinished_requests:
            return tokens
        results = step(engine)[1]


def solo(token_ids: list[int], params: SamplingParams) -> list[int]:
    """What a request gives in a roomy engine of its own."""
    engine = engine_of(16, 64, max_model_len=1024)
    engine.add_request("solo", token_ids, params)
    return drain(engine)["solo"]


def scheduled(output: SchedulerOutput) -> dict[str, int]:
    """How many tokens each request runs in a step."""
    names = [request.name for request in output.requests]
    return dict(zip(names, output.num_scheduled_tokens, strict=True))


def sentences(output: SchedulerOutput, *kinds: str) -> list[str]:
    """The decisions of a step, as a reader sees them; of some kinds only, where given."""
    return [str(event) for event in output.events if not kinds or event.kind in kinds]


def tables(engine: Engine) -> dict[str, list[int]]:
    """The block table of each running request."""
    return {request.name: request.block_table.block_ids for request in engine.scheduler.running}


def num_free(engine: Engine) -> int:
    return engine.scheduler.kv.pool.num_free_blocks


def is_empty(engine: Engine) -> bool:
    """Nothing is held: neither blocks nor requests nor places in a line."""
    scheduler, kv = engine.scheduler, engine.scheduler.kv
    pools = [kv.pool] + ([kv.host_pool] if kv.host_pool else [])
    held = any(any(pool.ref_cnt) or pool.num_free_blocks < pool.num_blocks for pool in pools)
    return not (held or scheduler.requests or scheduler.running or len(scheduler.waiting))
