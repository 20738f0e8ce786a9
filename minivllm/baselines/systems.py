"""Five serving systems in eight variants: each is a handful of settings of the same scheduler.

They differ in who shares a step, in what a request must reserve to enter, and in what happens when
memory runs out. All give the same tokens. Only static batching has an engine of its own
(static_batching.py), since a continuous scheduler knows no row that has ended and is computed all
the same; it is built here by the same call.

    system                 batch                      reserved on entering       out of memory
    static                 N together, to the end     a row of max_model_len     cannot happen
    orca-max, -pow2,       each step                  contiguous: max_model_len, cannot happen
      -oracle                                         next power of 2, true length
    tgi                    each step; prefills pause  prompt + max_new_tokens    cannot happen
                           the decodes
    trtllm-no-evict        each step                  prompt + max_new_tokens    cannot happen
    trtllm-max-utilization each step                  what is needed now         a request is paused
    vllm                   each step, in chunks       the prompt                 the youngest leaves
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from minivllm.admission import Reserve, known_tokens
from minivllm.allocator import BlockPool
from minivllm.baselines.contiguous import (
    BuddyPool,
    reserve_next_power_of_two,
    reserve_true_length,
)
from minivllm.baselines.prefill_first import PrefillFirst
from minivllm.baselines.static_batching import LockstepExecutor, StaticBatchingEngine
from minivllm.batching import FormBatch, mix
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine, Executor
from minivllm.request import Request
from minivllm.scheduler import Scheduler

Declared = Callable[[Request], int]  # the max_new_tokens that a request's user has asked for


class Executors(Protocol):
    """Makes what runs the steps: the model, its twin, or a simulation."""

    def paged(self, config: SchedulerConfig) -> Executor: ...

    def lockstep(self, batch_size: int, max_model_len: int) -> LockstepExecutor: ...


@dataclass(frozen=True)
class System:
    """A system's settings.

    about: what it keeps of the original, and what it leaves out. reserve: a rule of `reserve_of`.
    contiguous: whether a request's KV is one piece. chunked: whether prompts may be cut. watermark:
    the share of all blocks that an admission leaves free. form_batch: makes the batching rule.
    """

    name: str
    about: str
    reserve: str
    contiguous: bool = False
    chunked: bool = False
    watermark: float = 0.0
    form_batch: Callable[[], FormBatch] = lambda: mix
    is_static: bool = False


def make_engine(
    system: System,
    config: SchedulerConfig,
    executors: Executors,
    declared: Declared | None = None,
) -> Engine | StaticBatchingEngine:
    """An engine that behaves like `system` within the memory and the limits of `config`.

    Static batching gets as many rows of max_model_len as the blocks pay for, at most max_num_seqs.
    declared: the max_new_tokens that users ask for; by default the true output length, max_tokens.
    Raises ValueError when the memory does not hold one row of static batching.
    """
    if system.is_static:
        num_slots = config.num_blocks * config.block_size
        batch_size = min(num_slots // config.max_model_len, config.max_num_seqs)
        if batch_size < 1:
            raise ValueError(
                f"a row of {config.max_model_len} tokens does not fit into {num_slots} slots"
            )
        executor = executors.lockstep(batch_size, config.max_model_len)
        return StaticBatchingEngine(executor, batch_size, config.max_model_len)
    config = settings_of(system, config)
    pool = BuddyPool(config.num_blocks) if system.contiguous else BlockPool(config.num_blocks)
    reserve = reserve_of(system, config.max_model_len, declared)
    scheduler = Scheduler(config, reserve, system.form_batch(), pool)
    return Engine(scheduler, executors.paged(config))


def settings_of(system: System, config: SchedulerConfig) -> SchedulerConfig:
    """The limits as the system uses them: a whole prompt must fit into a step unless it is cut."""
    changes: dict[str, object] = {"watermark_blocks": int(system.watermark * config.num_blocks)}
    if not system.chunked:
        budget = max(config.max_num_batched_tokens, config.max_model_len)
        changes |= {"enable_chunked_prefill": False, "long_prefill_token_threshold": 0}
        changes |= {"max_num_batched_tokens": budget}
    if system.contiguous:
        changes |= {"enable_prefix_caching": False}
    return replace(config, **changes)


def reserve_of(system: System, max_model_len: int, declared: Declared | None) -> Reserve:
    """The rule how many tokens' slots a request must get; never more than max_model_len.

    known: prompt and output so far. true: prompt and true output. pow2: prompt and the next power
    of two of the true output. declared: prompt and max_new_tokens. longest: max_model_len.
    """
    ask = declared or (lambda request: request.max_tokens)
    rules: dict[str, Reserve] = {
        "known": known_tokens,
        "true": reserve_true_length,
        "pow2": reserve_next_power_of_two,
        "declared": lambda r: max(r.num_prompt_tokens + ask(r) - 1, r.max_kv_tokens),
        "longest": lambda request: max_model_len,
    }
    rule = rules[system.reserve]
    if system.reserve == "known":
        return rule

    def reserve(request: Request) -> int:
        if system.contiguous and request.params.n > 1:
            raise ValueError(
                f"request {request.request_id!r}: n = {request.params.n} samples share memory, and "
                f"{system.name} has none to share"
            )
        return min(rule(request), max_model_len)

    return reserve


_ORCA = (
    "Iteration-level scheduling: after every step whoever has ended leaves and whoever fits "
    "enters, first come first served; prefills and decodes share a step (selective batching). "
    "The KV of a request is one contiguous piece from a buddy allocator, as the vLLM paper rebuilt "
    "it. Left out: the pipeline over many GPUs. "
)
_SYSTEMS = (
    System(
        "static",
        "What serving was before Orca, and what Hugging Face's generate and FasterTransformer do: "
        "N requests start together, prompts padded to the longest, and the batch ends with its "
        "slowest; rows that have ended are computed on, and each row's K and V are reserved at "
        "full length. Kept whole; left out: fused kernels and any splitting of a batch.",
        reserve="longest",
        is_static=True,
    ),
    System("orca-max", _ORCA + "Max reserves max_model_len tokens.", "longest", contiguous=True),
    System(
        "orca-pow2",
        _ORCA + "Pow2 reserves the prompt and the next power of two of the true output.",
        "pow2",
        contiguous=True,
    ),
    System(
        "orca-oracle",
        _ORCA + "Oracle reserves exactly what will be used: nobody could, so it is a bound.",
        "true",
        contiguous=True,
    ),
    System(
        "tgi",
        "Hugging Face's Text Generation Inference: paged KV, prompt + max_new_tokens reserved "
        "against a token budget, so memory never runs out. New requests are prefilled in a step of "
        "their own, and all decodes pause meanwhile; the router lets newcomers in when "
        "waiting_served_ratio of them wait for each running one, or every max_waiting_tokens "
        "steps. Left out: its second look, which sends a batch back that turned out too small.",
        "declared",
        form_batch=PrefillFirst,
    ),
    System(
        "trtllm-no-evict",
        "TensorRT-LLM's in-flight batching under GUARANTEED_NO_EVICT: a request enters once prompt "
        "+ max_new_tokens fit, and is never paused. Context and generation share a step. Left "
        "out: chunked context, which is off by default.",
        "declared",
    ),
    System(
        "trtllm-max-utilization",
        "TensorRT-LLM's in-flight batching under MAX_UTILIZATION: a request enters once what it "
        "needs now fits; when memory runs out the youngest is paused, its KV given up, and it "
        "resumes first. Left out: reuse of its blocks on resuming.",
        "known",
    ),
    System(
        "vllm",
        "vLLM: the prompt's blocks on entering, one more block when the last is full, 1 % of all "
        "blocks kept free by admissions; out of blocks the youngest is preempted and computed "
        "again. Prompts are cut into chunks that share the step with decodes (V1). Left out: "
        "parallelism over GPUs; swapping, the paper's other choice, is preemption_mode='swap'.",
        "known",
        chunked=True,
        watermark=0.01,
    ),
)
SYSTEMS = {system.name: system for system in _SYSTEMS}
