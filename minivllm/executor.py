"""SchedulerOutput -> tensors -> token ids: where requests become one ragged batch.

The step's tokens of all requests stand one after another on one axis T, prefill chunks and decodes
mixed and unpadded; the weights are read once for all of them. Invariant: block moves come first, in
their order; then each layer writes the step's K and V before anybody reads them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minivllm import cpp_ops
from minivllm.attention import AttentionMetadata, paged_attention
from minivllm.device import choose_attention_backend
from minivllm.kv_cache import KVCache
from minivllm.model import LlamaModel
from minivllm.request import Request
from minivllm.sampler import sample
from minivllm.step_records import BlockOp, ModelOutput, SchedulerOutput


def attention_functions(backend: str) -> tuple[Callable[..., None], Callable[..., Tensor]]:
    """How a backend, "torch", "cpp" or "triton", writes K and V into the cache, and how it attends.

    The only place that asks for the Triton kernels, and only when they are wanted.
    """
    if backend == "cpp":
        return cpp_ops.write_kv, cpp_ops.paged_attention
    if backend == "triton":
        from minivllm import triton_attention

        return triton_attention.write_kv, triton_attention.paged_attention
    return KVCache.write, paged_attention


class ModelExecutor:
    """A model and its KV cache: `num_blocks` blocks of `block_size` tokens.

    num_host_blocks: blocks in host memory for preempted requests that are swapped out.
    attention_backend: "torch", "cpp", "triton", or "auto" (device.py). Raises ValueError where the
    one that is asked for cannot run.
    """

    def __init__(
        self,
        model: LlamaModel,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        attention_backend: str = "auto",
    ) -> None:
        self.model = model
        self.vocab_size = model.config.vocab_size
        self.scale = model.config.head_dim**-0.5
        config = model.config
        self.attention_backend = choose_attention_backend(
            attention_backend, config, model.dtype, model.device
        )
        self._write, self._attend = attention_functions(self.attention_backend)
        sizes = (block_size, config.num_kv_heads, config.head_dim, model.dtype)
        self.cache = KVCache(config.num_layers, num_blocks, *sizes, model.device)
        self.host_cache = None
        if num_host_blocks:
            self.host_cache = KVCache(config.num_layers, num_host_blocks, *sizes, "cpu")

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> ModelOutput:
        """Run one step; the answer is aligned with `output.requests`."""
        for op in output.block_ops:
            self._move(op)
        chunks = output.live_chunks()
        answer = ModelOutput([[] for _ in output.requests])
        if not chunks:
            return answer
        hidden = self._forward([(request, num_new) for _, request, num_new in chunks])  # [T, E]
        last, complete, end = [], [], 0
        for index, request, num_new in chunks:
            end += num_new
            if request.num_computed_tokens + num_new == request.num_tokens:
                last.append(end - 1)
                complete.append((index, request))
        if complete:
            logits = self.model.compute_logits(hidden[last])  # [complete, V]
            self._sample(logits, complete, answer)
        return answer

    def _forward(self, chunks: list[tuple[Request, int]]) -> Tensor:
        """Final hidden states [T, E] of the step's tokens, their K and V written to the cache."""
        token_ids: list[int] = []
        positions: list[int] = []
        for request, num_new in chunks:
            span = request.next_positions(num_new)
            token_ids += request.token_ids[span.start : span.stop]
            positions += span
        metadata = AttentionMetadata.build(
            [num_new for _, num_new in chunks],
            [request.num_computed_tokens + num_new for request, num_new in chunks],
            [request.block_table.block_ids for request, _ in chunks],
            self.cache.block_size,
            self.model.device,
        )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._write(self.cache, layer, metadata.slot_mapping, k, v)
            key, value = self.cache.key[layer], self.cache.value[layer]  # [N, BS, KH, D]
            return self._attend(q, key, value, metadata, self.scale)  # [T, H, D]

        device = self.model.device
        return self.model.forward(
            torch.tensor(token_ids, device=device),  # [T]
            torch.tensor(positions, device=device),  # [T]
            attend,
        )  # [T, E]

    def _sample(
        self, logits: Tensor, complete: list[tuple[int, Request]], answer: ModelOutput
    ) -> None:
        """Draw a token for each complete request, and one for each sample it will fork into; for a
        beam, only the log probabilities to choose from. logits [complete, V].
        """
        rows = [
            (row, index, request, request.sample_index + i)
            for row, (index, request) in enumerate(complete)
            for i in range(1 if request.is_beam else request.num_seats)
        ]
        if len(rows) > len(complete):
            logits = logits[[row for row, *_ in rows]]  # [rows, V]
        drawn = sample(
            logits,
            [request.params for _, _, request, _ in rows],
            [request.next_draw(sample_index) for _, _, request, sample_index in rows],
            [request.suppressed_token_ids for _, _, request, _ in rows],
        )
        for (_, index, request, _), token in zip(rows, drawn, strict=True):
            if not request.is_beam:
                answer.sampled_token_ids[index].append(token.token_id)
            if token.error is not None:
                answer.errors[index] = token.error
            if token.logprobs is not None:
                answer.logprobs.setdefault(index, []).append(token.logprobs)

    def _move(self, op: BlockOp) -> None:
        """Copy one block's K and V, all layers."""
        if op.kind == "copy":
            self.cache.copy_block(op.src, op.dst)
            return
        source, target = self.cache, self.host_cache
        if op.kind == "swap_in":
            source, target = target, source
        target.key[:, op.dst].copy_(source.key[:, op.src])  # [L, BS, KH, D]
        target.value[:, op.dst].copy_(source.value[:, op.src])  # [L, BS, KH, D]
