"""A decoder of the Llama family (Llama, SmolLM2, Qwen2, Qwen3), with attention passed in.

The model sees a flat axis of T tokens and their positions. Which request a token belongs to, and
where K and V are kept, is the business of `attend`: the same model runs with no cache, a contiguous
one, or a paged one. Everything it computes itself is per token, so a batch needs no padding.

Legend: T tokens, E hidden_size, I intermediate_size, H / KH query / KV heads, D head_dim, V vocab.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm import cpp_ops, ops
from minivllm.device import choose_kernels
from minivllm.linear import make_linear

# attend(layer, q [T, H, D], k [T, KH, D], v [T, KH, D]) -> [T, H, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a model and the few choices in which the families differ.

    qkv_bias: Qwen2's bias on q, k and v. qk_norm: Qwen3's RMSNorm of each head of q and k before
    RoPE. rope_scaling: None, or Llama 3's dict under Hugging Face's keys. Raises ValueError for
    sizes below 1, or that do not fit together, and for another kind of rope_scaling.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for size in fields(self):
            value = getattr(self, size.name)
            if size.type is int and value < 1:  # no string: this file's annotations are evaluated
                raise ValueError(f"{size.name} must be at least 1, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for RoPE, got {self.head_dim}")
        if self.rope_scaling is not None:
            kind = self.rope_scaling.get("rope_type")
            if kind != "llama3":
                raise ValueError(f"rope_scaling of type {kind!r} is not supported, only 'llama3'")


class Layer:
    """The weights of one decoder layer, fused so that each is read once: q, k, v; gate, up."""

    def __init__(self, take: "Weights", i: int, config: ModelConfig, kernels: str) -> None:
        hidden, inner, D = config.hidden_size, config.intermediate_size, config.head_dim
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        name = f"model.layers.{i}."
        qkv = [take(f"{name}self_attn.{p}_proj.weight", n * D, hidden) for p, n in heads.items()]
        bias = None
        if config.qkv_bias:
            biases = [take(f"{name}self_attn.{p}_proj.bias", n * D) for p, n in heads.items()]
            bias = torch.cat(biases)  # [(H + 2 KH) * D]
        self.qk_norm = None
        if config.qk_norm:
            norms = [take(f"{name}self_attn.{p}_norm.weight", D).expand(heads[p], D) for p in "qk"]
            self.qk_norm = torch.cat(norms)  # [H + KH, D]
        gate, up = (take(f"{name}mlp.{p}_proj.weight", inner, hidden) for p in ("gate", "up"))

        self.attention_norm = take(f"{name}input_layernorm.weight", hidden)
        self.qkv = make_linear(torch.cat(qkv), bias, kernels)  # E -> (H + 2 KH) * D
        o = take(f"{name}self_attn.o_proj.weight", hidden, heads["q"] * D)
        self.o = make_linear(o, None, kernels)  # H * D -> E
        self.mlp_norm = take(f"{name}post_attention_layernorm.weight", hidden)
        self.gate_up = make_linear(torch.cat([gate, up]), None, kernels)  # E -> 2 I
        down = take(f"{name}mlp.down_proj.weight", hidden, inner)
        self.down = make_linear(down, None, kernels)  # I -> E


class LlamaModel:
    """Token ids -> hidden states -> logits.

    `weights` maps Hugging Face's names to tensors. kernels: "torch", "cpp" (cpp_ops.py), or "auto"
    (C++ where it runs). Raises ValueError, with its name, for a weight that is missing or has
    another shape than `config` says, and where "cpp" cannot run.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kernels: str = "auto",
    ) -> None:
        take = Weights(weights, dtype, device)
        vocab, hidden = config.vocab_size, config.hidden_size
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self.kernels = choose_kernels(kernels, config, dtype, self.device)
        self.ops = cpp_ops if self.kernels == "cpp" else ops
        self.embedding = take("model.embed_tokens.weight", vocab, hidden)  # [V, E]
        self.layers = [Layer(take, i, config, self.kernels) for i in range(config.num_layers)]
        self.norm = take("model.norm.weight", hidden)  # [E]
        tied = config.tie_word_embeddings
        head = self.embedding if tied else take("lm_head.weight", vocab, hidden)  # [V, E]
        self.head = make_linear(head, None, self.kernels)  # E -> V
        self.rope_table = rope_table(config).to(dtype).to(device)  # [2, positions, 1, D]

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids [T] and positions [T], int64 -> hidden states [T, E], ready for the head."""
        num_heads, num_kv_heads = self.config.num_heads, self.config.num_kv_heads
        ops, eps = self.ops, self.config.rms_norm_eps
        cos, sin = self.rope_table[:, positions]  # each [T, 1, D]
        x = F.embedding(token_ids, self.embedding)  # [T, E]
        for i, layer in enumerate(self.layers):
            qkv = layer.qkv(ops.rms_norm(x, layer.attention_norm, eps))  # [T, (H + 2 KH) * D]
            qkv = qkv.unflatten(1, (-1, self.config.head_dim))  # [T, H + 2 KH, D]
            # qk [T, H + KH, D], v [T, KH, D]
            qk, v = qkv.split([num_heads + num_kv_heads, num_kv_heads], dim=1)
            if layer.qk_norm is not None:
                qk = ops.rms_norm(qk, None, eps) * layer.qk_norm  # [T, H + KH, D]
            # q [T, H, D], k [T, KH, D]
            q, k = ops.apply_rope(qk, cos, sin).split([num_heads, num_kv_heads], dim=1)
            x += layer.o(attend(i, q, k, v).flatten(1))  # [T, E]

            gate_up = layer.gate_up(ops.rms_norm(x, layer.mlp_norm, eps))  # [T, 2 I]
            x += layer.down(ops.silu_and_mul(gate_up))  # [T, E]
        return ops.rms_norm(x, self.norm, eps)  # [T, E]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, E] -> logits [n, V] in float32: call it only for rows that are sampled."""
        return self.head(hidden).float()  # [n, V]


class Weights:
    """Named tensors, handed out one by one with the shape checked."""

    def __init__(
        self, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.tensors, self.dtype, self.device = tensors, dtype, device

    def __call__(self, name: str, *shape: int) -> Tensor:
        tensor = self.tensors.get(name)
        found = None if tensor is None else tuple(tensor.shape)
        if found != shape:
            raise ValueError(f"weight {name}: expected shape {shape}, found {found or 'no tensor'}")
        return tensor.to(self.device, self.dtype)  # [*shape]


def rope_table(config: ModelConfig) -> Tensor:
    """Cosines and signed sines of all positions, [2, positions, 1, D] in float32."""
    angles = torch.outer(  # [positions, D / 2]
        torch.arange(config.max_position_embeddings, dtype=torch.float32), rope_frequencies(config)
    )
    cos, sin = angles.cos(), angles.sin()  # [positions, D / 2]
    both = torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)])  # [2, positions, D]
    return both.unsqueeze(2)  # [2, positions, 1, D]


def rope_frequencies(config: ModelConfig) -> Tensor:
    """The angle in radians by which each of the D / 2 pairs turns per position: [D / 2].

    Llama 3's scaling (Hugging Face's "llama3") divides the slow ones by `factor`, leaves the fast
    ones, and blends between; fast and slow are counted in turns within the context the model was
    first trained with.
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim  # [D / 2]
    frequencies = 1.0 / config.rope_theta**exponent  # [D / 2]
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # [D / 2]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # [D / 2]
    return frequencies * (kept + (1 - kept) / scaling["factor"])  # [D / 2]
