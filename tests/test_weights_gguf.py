"""GGUF files of the Llama family, written by hand, against the weights they were written from."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_writer import write_gguf

from minivllm.model import ModelConfig
from minivllm.weights import TINY_CONFIG, load_weights, random_weights, read_facts
from minivllm.weights_gguf import gguf_name, half_split_rows

CONFIG = dataclasses.replace(TINY_CONFIG, vocab_size=263, rms_norm_eps=2**-17, rope_theta=1e5)
QWEN2 = dataclasses.replace(CONFIG, qkv_bias=True, tie_word_embeddings=True)
QWEN3 = dataclasses.replace(CONFIG, qk_norm=True, head_dim=32)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def weights_of(config: ModelConfig) -> dict[str, torch.Tensor]:
    return random_weights(config, torch.float32, "cpu", seed=3)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", CONFIG),
        ("llama", dataclasses.replace(CONFIG, tie_word_embeddings=True, num_kv_heads=4)),
        ("qwen2", QWEN2),
        ("qwen3", QWEN3),
    ],
)
def test_a_file_gives_back_config_and_weights(
    architecture: str, config: ModelConfig, tmp_path: Path
):
    """Every number, in Hugging Face's order of rows; q and k are reordered for llama only."""
    weights = weights_of(config)
    path = str(write_gguf(tmp_path / "m.gguf", config, weights, architecture))
    got_config, got = load_weights(path)
    assert got_config == config
    assert list(got) == list(weights)
    for name in weights:
        torch.testing.assert_close(got[name], weights[name], rtol=0, atol=0)
    facts = read_facts(path)
    assert facts.config == config
    assert (facts.eos_token_ids, facts.context_length) == ([2, 0], 1024)


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_files(kind: Type, dtype: torch.dtype, tmp_path: Path):
    """Each type comes near the weights it was made from, in the dtype asked for."""
    weights = weights_of(CONFIG)
    path = write_gguf(tmp_path / "m.gguf", CONFIG, weights, matrix_type=kind)
    _, got = load_weights(str(path), dtype)
    limit = 0.15 if kind in (Type.Q4_0, Type.Q4_1) else 0.02
    for name, weight in weights.items():
        assert got[name].dtype == dtype
        error = (got[name].float() - weight).norm() / weight.norm()
        assert error < limit, name


def test_half_split_rows_by_hand():
    """One head of 4 rows; then the rotation itself: pairs turned before equal halves turned
    after."""
    rows = torch.tensor([[0.0], [2.0], [1.0], [3.0]])  # [4, 1], pair by pair
    assert half_split_rows(rows, heads=1).flatten().tolist() == [0, 1, 2, 3]

    generator = torch.Generator().manual_seed(0)
    stored = torch.randn(2 * 8, 5, generator=generator)  # [heads * D, in]
    x = torch.randn(5, generator=generator)  # [in]
    angles = torch.tensor([0.3, 0.7, 1.1, 1.9])  # [D / 2]

    def turn(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()]

    by_pair = (stored @ x).reshape(2, 4, 2)  # [heads, D / 2, 2]
    turned_pairs = torch.stack(turn(by_pair[..., 0], by_pair[..., 1]), -1)  # [heads, D / 2, 2]
    by_half = (half_split_rows(stored, heads=2) @ x).reshape(2, 2, 4)  # [heads, 2, D / 2]
    turned_halves = torch.stack(turn(by_half[:, 0], by_half[:, 1]), 1)  # [heads, 2, D / 2]
    torch.testing.assert_close(turned_pairs.swapaxes(1, 2), turned_halves)


def test_names():
    """The three kinds of name."""
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"
    assert gguf_name("model.layers.12.self_attn.k_proj.bias") == "blk.12.attn_k.bias"
    assert gguf_name("model.layers.0.post_attention_layernorm.weight") == "blk.0.ffn_norm.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": None}, "llama.block_count is None, not a positive number"),
        ({"llama__block_count": "three"}, "llama.block_count is 'three', not a positive number"),
        ({"llama__context_length": 0}, "llama.context_length is 0, not a positive number"),
        ({"llama__attention__head_count_kv": [2, 2, 4]}, r"head_count_kv is \[2, 2, 4\], not a"),
        ({"llama__expert_count": 8}, "llama.expert_count = 8 is not supported"),
        ({"llama__rope__scaling__type": "yarn"}, "rope.scaling.type = 'yarn' is not supported"),
        ({"llama__rope__scaling__factor": 4.0}, "rope.scaling.factor = 4.0 is not supported"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count = 8 is not supported"),
        ({"llama__attention__value_length": 8}, "value_length = 8 is not supported"),
        ({"llama__attention__sliding_window": 512}, "a sliding window of 512 tokens .*1024"),
        ({"llama__logit_scale": 16.0}, "llama.logit_scale = 16.0 is not supported"),
        (
            {"llama__feed_forward_length": 96},
            r"tensor model.layers.0.mlp.gate_proj.weight has the shape \(128, 64\), "
            r"expected \(96, 64\)",
        ),
        ({"llama__block_count": 4}, "tensor model.layers.3.input_layernorm.weight is missing"),
        ({"llama__block_count": 2}, "9 tensors are not part .*the first is blk.2.attn_norm.weight"),
        (
            {"extra": {"blk.0.attn_q.bias": np.ones(64, np.float32)}},
            "1 tensors .*blk.0.attn_q.bias",
        ),
        (
            {"extra": {"rope_freqs.weight": np.full(8, 3.0, np.float32)}},
            "rope_freqs.weight is not Llama 3's rope scaling",
        ),
    ],
)
def test_a_file_that_does_not_fit(changes: dict[str, object], message: str, tmp_path: Path):
    """What is missing, misshapen or means other arithmetic is named, with the numbers."""
    path = write_gguf(tmp_path / "m.gguf", CONFIG, weights_of(CONFIG), **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(str(path))
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_settings_that_change_nothing_are_accepted(tmp_path: Path):
    """One number a layer, a window as long as the context, a scaling that is none."""
    changes = {
        "llama__attention__head_count_kv": [2, 2, 2],
        "llama__attention__sliding_window": 1024,
        "llama__rope__scaling__type": "none",
    }
    path = write_gguf(tmp_path / "m.gguf", CONFIG, weights_of(CONFIG), **changes)
    assert load_weights(str(path))[0] == CONFIG


def test_another_architecture_is_named(tmp_path: Path):
    """gemma2 has other norms: the same tensors would give nonsense."""
    path = write_gguf(tmp_path / "m.gguf", CONFIG, weights_of(CONFIG), architecture="gemma2")
    with pytest.raises(ValueError, match="'gemma2' is not supported; supported are llama, qwen2"):
        read_facts(str(path))


def test_no_embedding(tmp_path: Path):
    """Without it not even the size of the vocabulary is known."""
    weights = weights_of(CONFIG)
    del weights["model.embed_tokens.weight"]
    path = write_gguf(tmp_path / "m.gguf", CONFIG, weights)
    with pytest.raises(ValueError, match="tensor token_embd.weight is missing"):
        read_facts(str(path))


@pytest.mark.hf
def test_llama3_rope_scaling_is_recovered_from_its_divisors(transformers, tmp_path: Path):
    """GGUF stores what comes out of the four numbers, the model wants the numbers.

    The divisors are transformers': plain frequencies over scaled ones.
    """
    hf_config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=64,
        rope_parameters=LLAMA3 | {"rope_theta": 5e5},
    )
    init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"]
    scaled, _ = init(hf_config, "cpu")  # [D / 2]
    plain = 5e5 ** -(torch.arange(32) / 32)  # [D / 2]
    divisors = (plain / scaled).numpy()
    assert ((divisors > 1.01) & (divisors < 31.9)).sum() >= 2  # the blend between is there
    config = dataclasses.replace(CONFIG, rope_theta=5e5, head_dim=64, rope_scaling=LLAMA3)
    path = write_gguf(
        tmp_path / "m.gguf", config, weights_of(config), extra={"rope_freqs.weight": divisors}
    )
    assert load_weights(str(path))[0] == config
