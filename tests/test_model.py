"""The model against Hugging Face's, and against itself whatever the attention it is given."""

import math

import pytest
import torch

from minivllm.attention import AttentionMetadata, dense_attention, paged_attention
from minivllm.kv_cache import KVCache
from minivllm.model import LlamaModel, ModelConfig, rope_frequencies, rope_table
from minivllm.ops import apply_rope

TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "llama3": {"rope_theta": 500.0, "rope_scaling": LLAMA3, "rms_norm_eps": 1e-6},
    "qwen2": {"qkv_bias": True, "tie_word_embeddings": True},
    "qwen3": {"qk_norm": True, "head_dim": 20},  # heads * head_dim is not hidden_size
}


def hugging_face(family: str, config: ModelConfig) -> torch.nn.Module:
    """Hugging Face's model of the same config, with random weights, norms and biases."""
    transformers = pytest.importorskip("transformers")
    kind = {"llama": "Llama", "llama3": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    rope = {"rope_type": "default", **(config.rope_scaling or {}), "rope_theta": config.rope_theta}
    hf_config = getattr(transformers, f"{kind}Config")(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters=rope,
        tie_word_embeddings=config.tie_word_embeddings,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(hf_config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.1 if weight.ndim == 1 else 0.2
            weight.copy_(spread * torch.randn_like(weight) + ("norm" in name))
    return model


def make(family: str) -> tuple[LlamaModel, torch.nn.Module]:
    """Our model and Hugging Face's, with the same weights."""
    config = ModelConfig(**{**TINY, **FAMILIES[family]})
    model = hugging_face(family, config)
    return LlamaModel(config, dict(model.state_dict())), model


def tiny_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random weights of a plain Llama, without Hugging Face."""
    torch.manual_seed(1)
    E, inner, D = config.hidden_size, config.intermediate_size, config.head_dim
    weights = {"model.embed_tokens.weight": torch.randn(config.vocab_size, E)}
    for i in range(config.num_layers):
        shapes = {
            "self_attn.q_proj": (config.num_heads * D, E),
            "self_attn.k_proj": (config.num_kv_heads * D, E),
            "self_attn.v_proj": (config.num_kv_heads * D, E),
            "self_attn.o_proj": (E, config.num_heads * D),
            "mlp.gate_proj": (inner, E),
            "mlp.up_proj": (inner, E),
            "mlp.down_proj": (E, inner),
        }
        for name, shape in shapes.items():
            weights[f"model.layers.{i}.{name}.weight"] = torch.randn(shape) / shape[1] ** 0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{name}.weight"] = 1 + 0.1 * torch.randn(E)
    weights["model.norm.weight"] = 1 + 0.1 * torch.randn(E)
    weights["lm_head.weight"] = torch.randn(config.vocab_size, E) / E**0.5
    return weights


def no_cache(model: LlamaModel, ids: list[int], positions: list[int] | None = None) -> torch.Tensor:
    """Logits [T, V] of one sequence, all at once, with the dense oracle and no cache."""
    scale = model.config.head_dim**-0.5
    with torch.inference_mode():
        hidden = model.forward(
            torch.tensor(ids),
            torch.tensor(positions or range(len(ids))),
            lambda layer, q, k, v: dense_attention(q, k, v, scale),
        )
        return model.compute_logits(hidden)


class Paged:
    """A model on a paged cache of unwritten slots (NaN), one block table for each request."""

    def __init__(self, model: LlamaModel, block_tables: list[list[int]], block_size: int) -> None:
        c = model.config
        num_blocks = 1 + max(max(table) for table in block_tables)
        self.model, self.block_tables = model, block_tables
        self.cache = KVCache(c.num_layers, num_blocks, block_size, c.num_kv_heads, c.head_dim)
        self.cache.key.fill_(math.nan)
        self.cache.value.fill_(math.nan)
        self.done = [0] * len(block_tables)  # tokens of each request in the cache

    def step(self, ids: dict[int, list[int]]) -> torch.Tensor:
        """Run the next tokens of some requests together; logits [T, V]."""
        starts = {r: self.done[r] for r in ids}
        for r, new in ids.items():
            self.done[r] += len(new)
        cache = self.cache
        metadata = AttentionMetadata.build(
            [len(new) for new in ids.values()],
            [self.done[r] for r in ids],
            [self.block_tables[r] for r in ids],
            cache.block_size,
        )

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cache.write(layer, metadata.slot_mapping, k, v)
            scale = self.model.config.head_dim**-0.5
            return paged_attention(q, cache.key[layer], cache.value[layer], metadata, scale)

        tokens = [token for new in ids.values() for token in new]
        positions = [p for r, new in ids.items() for p in range(starts[r], starts[r] + len(new))]
        with torch.inference_mode():
            hidden = self.model.forward(torch.tensor(tokens), torch.tensor(positions), attend)
            return self.model.compute_logits(hidden)


def ids_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY["vocab_size"], (length,), generator=generator).tolist()


@pytest.mark.hf
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_hugging_face(family: str) -> None:
    ours, theirs = make(family)
    ids = ids_of(100)  # beyond the 32 positions of llama3's first training
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]  # [T, V]
    assert expected.std() > 0.1  # the weights make the logits differ
    torch.testing.assert_close(no_cache(ours, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.hf
def test_llama3_frequencies_equal_hugging_face() -> None:
    """At the real sizes of Llama 3.2, where some pairs are kept, some blended, some divided."""
    transformers = pytest.importorskip("transformers")
    rope = {**LLAMA3, "original_max_position_embeddings": 8192, "factor": 32.0}
    sizes = {**TINY, "head_dim": 64, "rope_theta": 500000.0}
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
        transformers.LlamaConfig(
            hidden_size=384, num_attention_heads=6, head_dim=64,
            rope_parameters={**rope, "rope_theta": 500000.0},
        )
    )  # fmt: skip
    ours = rope_frequencies(ModelConfig(**sizes, rope_scaling=rope))
    plain = rope_frequencies(ModelConfig(**sizes))
    torch.testing.assert_close(ours, theirs.inv_freq, rtol=1e-6, atol=0)
    assert (ours == plain).any() and (ours == plain / 32).any()


def test_rope_turns_pairs_half_a_head_apart() -> None:
    """By hand: head_dim 4, theta 100, so the pairs (0, 2) and (1, 3) turn by p and p / 10."""
    config = ModelConfig(**{**TINY, "head_dim": 4, "rope_theta": 100.0})
    cos, sin = rope_table(config)[:, 3:4]  # position 3: each [1, 1, 4]
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])  # [1, 1, 4]
    c, s, c2, s2 = math.cos(3), math.sin(3), math.cos(0.3), math.sin(0.3)
    expected = [1 * c - 3 * s, 2 * c2 - 4 * s2, 3 * c + 1 * s, 4 * c2 + 2 * s2]
    torch.testing.assert_close(apply_rope(x, cos, sin)[0, 0], torch.tensor(expected))


@pytest.mark.parametrize("chunks", [[40], [1] * 40, [16, 16, 8], [7, 1, 20, 2, 10]])
def test_chunked_and_paged_equal_whole_and_dense(chunks: list[int]) -> None:
    model = LlamaModel(ModelConfig(**TINY), tiny_weights(ModelConfig(**TINY)))
    ids = ids_of(40)
    paged = Paged(model, [[5, 0, 9, 2, 7, 1, 8, 3, 6, 4, 12, 10, 11, 13]], block_size=3)
    ends = torch.tensor(chunks).cumsum(0).tolist()
    logits = [paged.step({0: ids[end - n : end]}) for n, end in zip(chunks, ends, strict=True)]
    torch.testing.assert_close(torch.cat(logits), no_cache(model, ids), rtol=0, atol=1e-4)


def test_batched_equals_alone() -> None:
    """Three requests that prefill, continue and decode in the same steps see nothing of another."""
    model = LlamaModel(ModelConfig(**TINY), tiny_weights(ModelConfig(**TINY)))
    a, b, c = ids_of(20, 1), ids_of(9, 2), ids_of(6, 3)
    paged = Paged(model, [[3, 1, 8, 6, 0], [2, 7, 4], [9, 5]], block_size=4)
    steps = [
        {0: a[:8]},
        {1: b[:5], 0: a[8:18]},
        {0: a[18:19], 2: c[:4], 1: b[5:6]},
        {2: c[4:5], 1: b[6:9], 0: a[19:20]},
        {2: c[5:6]},
    ]
    logits: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for step in steps:
        parts = paged.step(step).split([len(new) for new in step.values()])
        for r, part in zip(step, parts, strict=True):
            logits[r].append(part)
    for r, ids in enumerate((a, b, c)):
        torch.testing.assert_close(torch.cat(logits[r]), no_cache(model, ids), rtol=0, atol=1e-4)


def test_d44_position_jumps_by_the_prompt_length() -> None:
    """D44: after a prompt of 6 tokens a tutorial engine fed position 12, then 13, not 6, 7.

    The offset was moved by the prompt length once more at the first decode. Text still came out.
    Here the positions 0..5, 6, 7, 8 give the logits of the whole sequence, and 12, 13, 14 do not.
    """
    model = LlamaModel(ModelConfig(**TINY), tiny_weights(ModelConfig(**TINY)))
    ids = ids_of(9)
    right = no_cache(model, ids)
    for jump, is_right in ((0, True), (6, False)):
        fed = no_cache(model, ids, [*range(6), 6 + jump, 7 + jump, 8 + jump])
        assert bool((fed - right)[6:].abs().max() < 1e-4) == is_right


def test_bfloat16_stays_near_float32() -> None:
    config = ModelConfig(**TINY)
    exact = no_cache(LlamaModel(config, tiny_weights(config)), ids_of(30))
    rough = no_cache(LlamaModel(config, tiny_weights(config), torch.bfloat16), ids_of(30))
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().mean() < 0.05 * exact.std()


def test_missing_or_misshapen_weight_is_named() -> None:
    config = ModelConfig(**TINY)
    weights = tiny_weights(config)
    name = "model.layers.1.self_attn.k_proj.weight"
    bad = {**weights, name: torch.zeros(16, 47)}
    with pytest.raises(ValueError, match=rf"{name}: expected shape \(16, 48\), found \(16, 47\)"):
        LlamaModel(config, bad)
    del weights["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model.norm.weight: .*\(48,\), found no tensor"):
        LlamaModel(config, weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 4}, r"num_heads \(6\) must be a multiple of num_kv_heads \(4\)"),
        ({"head_dim": 7}, "head_dim must be even for RoPE, got 7"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling of type 'yarn' is not supported"),
    ],
)
def test_impossible_config_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{**TINY, **change})
