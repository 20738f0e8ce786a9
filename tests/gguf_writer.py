"""Write small GGUF files by hand, as llama.cpp's converter would (q and k rows reordered)."""

from pathlib import Path

import gguf
import numpy as np
import torch

from minivllm.model import ModelConfig
from minivllm.token_bytes import bytes_of_character

F32 = gguf.GGMLQuantizationType.F32
STORED_NAMES = [  # Hugging Face's part of a name -> GGUF's
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
]


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    architecture: str = "llama",
    matrix_type: gguf.GGMLQuantizationType = F32,
    extra: dict[str, np.ndarray] | None = None,
    **changes: object,
) -> Path:
    """A model file; `changes` replace values (`__` stands for a dot, None removes one).

    Matrices are stored as `matrix_type`, vectors as float32; `extra` are more tensors, by GGUF's
    names.
    """
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (model_values(config, architecture) | tokenizer_values() | changes).items():
        add_value(writer, key, value)
    for name, weight in weights.items():
        array = weight.float().numpy()
        if architecture == "llama" and "q_proj" in name:
            array = llama_cpp_rows(array, config.num_heads)
        if architecture == "llama" and "k_proj" in name:
            array = llama_cpp_rows(array, config.num_kv_heads)
        kind = matrix_type if array.ndim == 2 else F32
        for ours, theirs in STORED_NAMES:
            name = name.replace(ours, theirs)
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_values(config: ModelConfig, architecture: str) -> dict[str, object]:
    """The values from which a loader must rebuild `config`."""
    values = {
        "block_count": config.num_layers,
        "context_length": config.max_position_embeddings,
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
    return {f"{architecture}.{key}": value for key, value in values.items()}


def tokenizer_values() -> dict[str, object]:
    """A byte-level tokenizer: 3 special tokens, 256 bytes, 3 merges, 1 user-defined token (263)."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [char for char, _ in sorted(bytes_of_character().items(), key=lambda item: item[1])]
    tokens += ["Ġt", "he", "Ġthe", "<tool_call>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 259 + [4],
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}[{{ m.content }}]{% endfor %}",
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Store a value with the type llama.cpp would give it; None leaves it out."""
    if value is None or key == "general.architecture":  # the writer wrote that one
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def llama_cpp_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows half by half -> pair by pair: what llama.cpp's converter does to q and k."""
    head_dim = weight.shape[0] // heads
    halves = weight.reshape(heads, 2, head_dim // 2, -1)  # [heads, 2, D / 2, in]
    return halves.swapaxes(1, 2).reshape(weight.shape)  # [heads * D, in]
