"""The tiny random model in a LLM or a bare engine, and ways to make it say what a test needs."""

from __future__ import annotations

from functools import cache

import torch
from helpers import is_empty

from minivllm.attention import dense_attention
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.llm import LLM
from minivllm.model import LlamaModel
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.step_records import ModelOutput, SchedulerOutput
from minivllm.weights import load_weights

VOCAB_SIZE = 259


@cache
def tiny_model() -> LlamaModel:
    """Three layers of random weights in float32; read-only, so that tests may share it."""
    config, weights = load_weights("tiny")
    return LlamaModel(config, weights)


def dense_logits(token_ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of the whole sequence in one piece, without any cache: the oracle."""
    model = tiny_model()
    scale = model.config.head_dim**-0.5
    with torch.inference_mode():
        hidden = model.forward(
            torch.tensor(token_ids),  # [T]
            torch.arange(len(token_ids)),  # [T]
            lambda layer, q, k, v: dense_attention(q, k, v, scale),
        )  # [T, E]
        return model.compute_logits(hidden)  # [T, V]


def tiny_engine(
    num_blocks: int = 64, block_size: int = 4, eos_token_ids: tuple[int, ...] = (), **limits: object
) -> Engine:
    """The shared tiny model under a scheduler of these limits."""
    settings = {"max_model_len": num_blocks * block_size + 1, "watermark_blocks": 0, **limits}
    config = SchedulerConfig(num_blocks=num_blocks, block_size=block_size, **settings)
    executor = ModelExecutor(tiny_model(), num_blocks, block_size, config.num_host_blocks)
    return Engine(Scheduler(config), executor, eos_token_ids)


def tiny_llm(num_blocks: int = 64, block_size: int = 4, **options: object) -> LLM:
    return LLM("tiny", num_blocks=num_blocks, block_size=block_size, **options)


def greedy(max_tokens: int = 8, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


def assert_nothing_is_held(llm: LLM) -> None:
    """No block, no request, no half-written output: whatever happened before, it is over."""
    assert is_empty(llm.engine)
    assert llm._processor.states == {}
    llm.engine.scheduler.check_integrity()


class Script:
    """An executor that says what it is told: sample i gets the tokens of texts[i], one a step."""

    def __init__(self, llm: LLM, *texts: str | list[int]) -> None:
        self.vocab_size = VOCAB_SIZE
        self.num_steps = 0
        self.texts = [t if isinstance(t, list) else llm.tokenizer.encode(t) for t in texts]
        llm.engine.executor = self

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        self.num_steps += 1
        answer = ModelOutput([[] for _ in output.requests])
        for index, request, num_new in output.live_chunks():
            if request.num_computed_tokens + num_new == request.num_tokens:
                first, place = request.sample_index, request.num_output_tokens
                samples = range(first, first + request.num_seats)
                answer.sampled_token_ids[index] = [self.texts[i][place] for i in samples]
        return answer


def constant_logits(llm: LLM, scores: dict[int, float]) -> None:
    """Make every position's logits the same: `scores` by token id, 0 for all others."""
    row = torch.zeros(VOCAB_SIZE)  # [V]
    for token_id, score in scores.items():
        row[token_id] = score
    llm.model.compute_logits = lambda hidden: row.repeat(len(hidden), 1)  # [n, V]
