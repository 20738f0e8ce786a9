"""Hugging Face folders: written by hand and by `transformers`, whose logits are the oracle."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from gguf_writer import write_gguf
from hf_folder import hf_config, write_hf_folder, write_json

from minivllm.attention import dense_attention
from minivllm.model import LlamaModel, ModelConfig
from minivllm.weights import TINY_CONFIG, load_weights, random_weights, read_facts

CONFIG = dataclasses.replace(TINY_CONFIG, vocab_size=263, rms_norm_eps=2**-17)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def weights_of(config: ModelConfig) -> dict[str, torch.Tensor]:
    return random_weights(config, torch.float32, "cpu", seed=5)


def logits_without_cache(
    config: ModelConfig, weights: dict[str, torch.Tensor], token_ids: torch.Tensor
) -> torch.Tensor:
    """token_ids [T] -> logits [T, V] by the dense oracle."""
    model = LlamaModel(config, weights, torch.float32, "cpu")
    positions = torch.arange(len(token_ids))  # [T]
    hidden = model.forward(  # [T, E]
        token_ids, positions, lambda layer, q, k, v: dense_attention(q, k, v, q.shape[-1] ** -0.5)
    )
    return model.compute_logits(hidden)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        dataclasses.replace(CONFIG, qkv_bias=True, tie_word_embeddings=True),
        dataclasses.replace(CONFIG, qk_norm=True, head_dim=32, rope_theta=1e6),
        dataclasses.replace(CONFIG, rope_scaling=LLAMA3),
    ],
)
def test_a_folder_gives_back_config_and_weights(config: ModelConfig, shards: int, tmp_path: Path):
    """Every number, from one file or from three listed in an index."""
    weights = weights_of(config)
    write_hf_folder(tmp_path, config, weights, shards=shards)
    got_config, got = load_weights(str(tmp_path))
    assert got_config == config and list(got) == list(weights)
    for name in weights:
        torch.testing.assert_close(got[name], weights[name], rtol=0, atol=0)


def test_a_folder_and_a_gguf_of_one_model_are_equal(tmp_path: Path):
    """Two formats, two orders of rows, one model."""
    weights = weights_of(CONFIG)
    folder = load_weights(str(write_hf_folder(tmp_path / "m", CONFIG, weights)))
    gguf = load_weights(str(write_gguf(tmp_path / "m.gguf", CONFIG, weights)))
    assert folder[0] == gguf[0] and list(folder[1]) == list(gguf[1])
    assert all(torch.equal(folder[1][name], gguf[1][name]) for name in folder[1])


@pytest.mark.hf
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3 | {"rope_theta": 1e4}}),
        ("Qwen2", {"sliding_window": 4, "use_sliding_window": False}),
        ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
        ("Mistral", {"sliding_window": None}),
    ],
)
def test_logits_are_those_of_transformers(
    family: str, settings: dict[str, object], transformers, tmp_path: Path
):
    """A random model of each family, saved by transformers (in shards), loaded by us."""
    sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "rms_norm_eps": 1e-5}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, **settings)
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # biases and norms too
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    token_ids = torch.randint(0, 99, (40,))  # [T]
    with torch.no_grad():
        expected = theirs(token_ids[None]).logits[0]  # [T, V]
    got = logits_without_cache(*load_weights(str(tmp_path)), token_ids)  # [T, V]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_cast_to_the_dtype_asked_for(dtype: torch.dtype, tmp_path: Path):
    """Stored in half precision, loaded as float32, and the other way round."""
    weights = {name: weight.to(dtype) for name, weight in weights_of(CONFIG).items()}
    write_hf_folder(tmp_path, CONFIG, weights)
    _, wide = load_weights(str(tmp_path))
    _, narrow = load_weights(str(tmp_path), dtype)
    for name, weight in weights.items():
        assert torch.equal(wide[name], weight.float()) and torch.equal(narrow[name], weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2' is not supported; .* llama, mistral"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"hidden_size": None}, "hidden_size is None, not a positive number"),
        ({"vocab_size": "many"}, "vocab_size is 'many', not a positive number"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"mlp_bias": True}, "mlp_bias = True is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4} is not"),
        (
            {"model_type": "mistral", "sliding_window": 512},
            "sliding_window = 512 is not supported",
        ),
        (
            {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True},
            "sliding_window = 512 is not supported",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope scaling {'type': 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope scaling {'rope_type'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor, high"),
        ({"num_key_value_heads": 3}, "num_heads .4. must be a multiple of num_kv_heads .3."),
        (
            {"intermediate_size": 96},
            r"layers.0.mlp.gate_proj.weight has the shape \(128, 64\), expected \(96, 64\)",
        ),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 2}, "9 tensors are not part .* first is model.layers.2."),
    ],
)
def test_a_folder_that_does_not_fit(changes: dict[str, object], message: str, tmp_path: Path):
    """What is missing, misshapen or means other arithmetic is named, with the numbers."""
    write_hf_folder(tmp_path, CONFIG, weights_of(CONFIG), **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False},
        {"model_type": "mistral", "sliding_window": 1024},
        {"rope_scaling": {"rope_type": "default"}},
        {"hidden_act": "swish", "attention_bias": False, "partial_rotary_factor": 1.0},
    ],
)
def test_settings_that_change_nothing_are_accepted(changes: dict[str, object], tmp_path: Path):
    """Published Qwen2.5 states a window it does not use; a window of the whole context is none."""
    config = dataclasses.replace(CONFIG, qkv_bias=changes.get("model_type") == "qwen2")
    write_hf_folder(tmp_path, config, weights_of(config), **changes)
    assert load_weights(str(tmp_path))[0] == config


@pytest.mark.parametrize("shards", [1, 2])
def test_a_missing_tensor_is_named(shards: int, tmp_path: Path):
    """One tensor was never written."""
    weights = weights_of(CONFIG)
    del weights["model.layers.1.self_attn.k_proj.weight"]
    write_hf_folder(tmp_path, CONFIG, weights, shards=shards)
    with pytest.raises(
        ValueError, match="tensor model.layers.1.self_attn.k_proj.weight is missing"
    ):
        load_weights(str(tmp_path))


def test_missing_and_damaged_files_are_named(tmp_path: Path):
    """No weights; a shard that was not copied; a tensor its shard lacks; a file cut short."""
    weights = weights_of(CONFIG)
    write_json(tmp_path / "config.json", hf_config(CONFIG))
    with pytest.raises(ValueError, match="model.safetensors is missing"):
        load_weights(str(tmp_path))
    write_hf_folder(tmp_path, CONFIG, weights, shards=2)
    second = tmp_path / "model-00002-of-00002.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="00002.safetensors is no complete safetensors file"):
        load_weights(str(tmp_path))
    second.unlink()
    with pytest.raises(ValueError, match="model-00002-of-00002.safetensors is missing"):
        load_weights(str(tmp_path))
    second.write_bytes((tmp_path / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(ValueError, match="00002.safetensors: tensor .* is missing"):
        load_weights(str(tmp_path))
    write_json(tmp_path / "model.safetensors.index.json", {"no": "map"})
    with pytest.raises(ValueError, match="index.json has no weight_map"):
        load_weights(str(tmp_path))


def test_integers_are_no_weights(tmp_path: Path):
    """A quantized checkpoint that does not say so in config.json."""
    weights = weights_of(CONFIG)
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].to(torch.int8)
    write_hf_folder(tmp_path, CONFIG, weights)
    with pytest.raises(ValueError, match=f"tensor {name} has the type I8; supported are F32, F16"):
        load_weights(str(tmp_path))


def test_repetitions_are_ignored(tmp_path: Path):
    """A tied model may store its head again, an old checkpoint its rotation frequencies."""
    config = dataclasses.replace(CONFIG, tie_word_embeddings=True)
    weights = weights_of(config)
    more = {
        "lm_head.weight": weights["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    write_hf_folder(tmp_path, config, weights | more)
    assert list(load_weights(str(tmp_path))[1]) == list(weights)


def test_facts_of_a_folder(tmp_path: Path):
    """End ids: generation_config.json before config.json, then the tokenizer's own."""
    write_hf_folder(tmp_path, CONFIG, weights_of(CONFIG), eos_token_id=7)
    assert read_facts(str(tmp_path)).eos_token_ids == [7]
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [9, 8]})
    assert read_facts(str(tmp_path)).eos_token_ids == [9, 8]
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": {"content": "</s>"}})
    write_json(tmp_path / "tokenizer.json", {"added_tokens": [{"id": 2, "content": "</s>"}]})
    facts = read_facts(str(tmp_path))
    assert facts.eos_token_ids == [9, 8, 2]
    assert (facts.config, facts.context_length) == (CONFIG, 1024)


def test_a_folder_stays_as_it_was(tmp_path: Path):
    """Loaded weights are ours: writing to them does not reach the file."""
    write_hf_folder(tmp_path, CONFIG, weights_of(CONFIG))
    before = (tmp_path / "model.safetensors").read_bytes()
    load_weights(str(tmp_path))[1]["model.norm.weight"].fill_(0)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
