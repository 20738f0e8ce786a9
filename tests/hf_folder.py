"""Write a model as a Hugging Face folder, so that `transformers` can load the same weights."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from minivllm.model import ModelConfig
from minivllm.tokenizer import Tokenizer


def write_hf_folder(
    folder: Path,
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    tokenizer: Tokenizer | None = None,
    shards: int = 1,
    **changes: object,
) -> Path:
    """config.json (`changes` replace entries, None removes one), safetensors, the tokenizer's
    files.

    `AutoModelForCausalLM.from_pretrained(folder)` then is the oracle for models of this config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = hf_config(config) | changes
    write_json(folder / "config.json", {k: v for k, v in values.items() if v is not None})
    names = sorted(weights)
    parts = [names[i::shards] for i in range(shards)]
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    if shards == 1:
        files = ["model.safetensors"]
    else:
        weight_map = {n: file for part, file in zip(parts, files, strict=True) for n in part}
        write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    for part, file in zip(parts, files, strict=True):
        tensors = {name: weights[name].contiguous() for name in part}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if tokenizer is not None:
        write_tokenizer(folder, tokenizer)
    return folder


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer._special_tokens}
    write_json(folder / "tokenizer_config.json", config)
    if tokenizer._template:
        (folder / "chat_template.jinja").write_text(tokenizer._template, encoding="utf-8")
    write_json(folder / "generation_config.json", {"eos_token_id": tokenizer.eos_token_ids})


def hf_config(config: ModelConfig) -> dict[str, object]:
    """config.json's entries for a ModelConfig."""
    model_type = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"
    return {
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "model_type": model_type,
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
        "rope_scaling": config.rope_scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "dtype": "float32",
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
