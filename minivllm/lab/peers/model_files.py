"""Our weights in the two forms that other engines read: a Hugging Face folder and a GGUF file.

Invariant: every engine computes with the very numbers minivllm computes with, already rounded to
the dtype of the benchmark (a GGUF keeps the norms in float32, which holds them exactly).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from minivllm.model import ModelConfig
from minivllm.weights_gguf import gguf_name

GGUF_TYPES = {
    torch.float32: gguf.GGMLQuantizationType.F32,
    torch.bfloat16: gguf.GGMLQuantizationType.BF16,
    torch.float16: gguf.GGMLQuantizationType.F16,
}


def check_plain_llama(config: ModelConfig, engine: str) -> None:
    """ValueError for a model with Qwen's extras or with rescaled positions."""
    if config.qkv_bias or config.qk_norm or config.rope_scaling:
        raise ValueError(f"the engine {engine} runs plain Llama models only")


def hugging_face_values(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The sizes under transformers' names, as config.json and LlamaConfig take them."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": str(dtype).removeprefix("torch."),
    }


def write_folder(
    folder: Path, config: ModelConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype
) -> Path:
    """config.json and model.safetensors of a plain Llama; no tokenizer. Returns the folder."""
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    values = {**kind, **hugging_face_values(config, dtype)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
    tensors = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_gguf(
    path: Path, config: ModelConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype
) -> Path:
    """A GGUF file of the architecture "llama". Returns its path.

    Requests and answers of the benchmark are token ids, so the vocabulary is a list of names, <0>
    <1> ...; of the tokenizers that llama.cpp knows, RWKV's is one without an end of text, which is
    what "end of text is ignored" means elsewhere (llama.cpp's own ignore_eos forbids the token).
    """
    writer = gguf.GGUFWriter(path, "llama")
    for key, number in _llama_values(config).items():
        add = writer.add_float32 if isinstance(number, float) else writer.add_uint32
        add(f"llama.{key}", number)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"<{token_id}>" for token_id in range(config.vocab_size)])
    for name, weight in weights.items():
        if ".q_proj." in name:
            weight = pair_rows(weight, config.num_heads)  # [H * D, E]
        if ".k_proj." in name:
            weight = pair_rows(weight, config.num_kv_heads)  # [KH * D, E]
        kind = GGUF_TYPES[dtype if weight.dim() == 2 else torch.float32]
        array = weight.float().cpu().numpy()  # [*shape]
        writer.add_tensor(gguf_name(name), _as_type(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pair_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k from Hugging Face's order, half by half, to llama.cpp's, pair by pair.

    `weight` [heads * D, in], the same shape back. One head of 4 rows: 0 1 2 3 -> 0 2 1 3.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)  # [heads, 2, D / 2, in]
    return halves.swapaxes(1, 2).reshape(rows, columns)  # [heads * D, in]


def _as_type(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    return array if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(array, kind)


def _llama_values(config: ModelConfig) -> dict[str, int | float]:
    return {
        "block_count": config.num_layers,
        "context_length": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": config.head_dim,
    }
