"""Whole models by name: SmolLM2 by its numbers, the random one by its seed."""

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from minivllm.attention import dense_attention
from minivllm.model import LlamaModel, ModelConfig
from minivllm.tokenizer import Tokenizer
from minivllm.weights import TINY_CONFIG, load_weights, read_facts, weight_shapes
from minivllm.weights_gguf import half_split_rows

RIGHT, WRONG = 9.77, 67.2  # perplexity of ENGLISH with the rows in order, and as they are stored

ENGLISH = """\
The heart is a muscle that pumps blood through the body. It has four chambers, two on each side.
The right side receives blood from the body and sends it to the lungs, where it takes up oxygen.
The left side receives this blood from the lungs and pumps it to the rest of the body. The heart
of an adult beats about seventy times a minute when the person is at rest, and faster during
exercise. Arteries carry blood away from the heart, and veins bring it back. Between them lie the
capillaries, which are so narrow that the blood cells pass through them one at a time. Here oxygen
and nutrients leave the blood, and waste products such as carbon dioxide enter it. Four valves
keep the blood moving in one direction. When they close, they make the sound that a doctor hears
through a stethoscope.
"""


def forward(model: LlamaModel, token_ids: torch.Tensor) -> torch.Tensor:
    """token_ids [T] -> logits [T, V], without a cache."""
    scale = model.config.head_dim**-0.5
    hidden = model.forward(  # [T, E]
        token_ids,
        torch.arange(len(token_ids)),
        lambda layer, q, k, v: dense_attention(q, k, v, scale),
    )
    return model.compute_logits(hidden)


def perplexity(
    config: ModelConfig, weights: dict[str, torch.Tensor], token_ids: list[int]
) -> float:
    """How many tokens the model hesitates between, on average: e to the mean loss."""
    ids = torch.tensor(token_ids)  # [T]
    logits = forward(LlamaModel(config, weights, torch.float32, "cpu"), ids)  # [T, V]
    return math.exp(F.cross_entropy(logits[:-1], ids[1:]))


@pytest.mark.model
def test_smollm2_reads_plain_english(
    smollm2_weights: tuple[ModelConfig, dict[str, torch.Tensor]], smollm2_tokenizer: Tokenizer
):
    """A fluent model may still be a wrong one, so the rows of q and k are tested by numbers.

    llama.cpp stores them in another order. Loaded as they lie in the file, the model still writes
    sentences, but is several times as surprised by plain English.
    """
    config, weights = smollm2_weights
    ids = smollm2_tokenizer.encode(ENGLISH)
    as_stored = dict(weights)
    for name, weight in weights.items():
        if ".q_proj." in name or ".k_proj." in name:
            as_stored[name] = pair_by_pair(weight, weight.shape[0] // config.head_dim)
    assert perplexity(config, weights, ids) == pytest.approx(RIGHT, rel=0.01)
    assert perplexity(config, as_stored, ids) == pytest.approx(WRONG, rel=0.05)


@pytest.mark.model
@pytest.mark.hf
def test_smollm2_logits_are_those_of_transformers(
    smollm2_folder: Path,
    smollm2_weights: tuple[ModelConfig, dict[str, torch.Tensor]],
    smollm2_tokenizer: Tokenizer,
    transformers: ModuleType,
):
    """The same weights in the library's own model: every logit of 60 tokens within 1e-3."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder)
    ids = torch.tensor(smollm2_tokenizer.encode(ENGLISH)[:60])  # [T]
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]  # [T, V]
    got = forward(LlamaModel(*smollm2_weights, torch.float32, "cpu"), ids)  # [T, V]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)


@pytest.mark.model
def test_facts_of_smollm2(smollm2: str):
    """What the file says of itself, without reading a weight."""
    facts = read_facts(smollm2)
    assert facts.config == ModelConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=100000.0,
        tie_word_embeddings=True,
    )
    assert (facts.eos_token_ids, facts.context_length) == ([2, 0], 8192)


@pytest.mark.model
def test_smollm2_in_bfloat16(
    smollm2: str, smollm2_weights: tuple[ModelConfig, dict[str, torch.Tensor]]
):
    """Cast as it is read: the float32 weights, rounded."""
    _, narrow = load_weights(smollm2, torch.bfloat16)
    assert sum(weight.nbytes for weight in narrow.values()) == 2 * 134_515_008
    assert all(torch.equal(narrow[n], w.bfloat16()) for n, w in smollm2_weights[1].items())


def test_tiny_is_complete_and_seeded():
    """The same seed, the same numbers; another seed, others; another dtype, the same rounded."""
    config, first = load_weights("tiny", seed=1)
    assert config == TINY_CONFIG == read_facts("tiny").config
    assert {name: tuple(w.shape) for name, w in first.items()} == weight_shapes(config)
    again, other = load_weights("tiny", seed=1)[1], load_weights("tiny", seed=2)[1]
    narrow = load_weights("tiny", torch.bfloat16, seed=1)[1]
    for name, weight in first.items():
        assert weight.dtype == torch.float32 and torch.equal(weight, again[name])
        assert not torch.equal(weight, other[name])
        assert torch.equal(narrow[name], weight.bfloat16())


@pytest.mark.parametrize("seed", range(5))
def test_tiny_writes_varied_text(seed: int):
    """Greedy text of the random model does not get stuck, so that tests on it can fail."""
    model = LlamaModel(*load_weights("tiny", seed=seed), torch.float32, "cpu")
    ids = [10, 20, 30]
    for _ in range(40):
        ids.append(int(forward(model, torch.tensor(ids))[-1].argmax()))
    assert len(set(ids[3:])) > 10


def test_tiny_and_its_tokenizer_agree():
    """Every id the model can sample is a token, and the same ids end the text."""
    tokenizer = Tokenizer.from_model("tiny")
    facts = read_facts("tiny")
    assert tokenizer.vocab_size == facts.config.vocab_size
    assert tokenizer.eos_token_ids == facts.eos_token_ids


@pytest.mark.parametrize("load", [load_weights, read_facts, Tokenizer.from_model])
def test_an_unknown_model(load: Callable[[str], object]):
    """Every door gives the same line."""
    with pytest.raises(ValueError, match="unknown model 'gpt-5' .*give 'smollm2', 'tiny'"):
        load("gpt-5")


def test_every_door_leads_to_the_same_damaged_file(tmp_path: Path):
    """A truncated file is named whether weights, facts or the tokenizer are asked for."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0")
    for load in (load_weights, read_facts, Tokenizer.from_model):
        with pytest.raises(ValueError, match="m.gguf: truncated GGUF"):
            load(str(tmp_path / "m.gguf"))


def pair_by_pair(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The inverse of half_split_rows: [heads * D, in] in llama.cpp's order."""
    rows = torch.arange(weight.shape[0])[:, None]  # [heads * D, 1]
    order = half_split_rows(rows, heads)[:, 0]  # [heads * D]
    stored = torch.empty_like(weight)  # [heads * D, in]
    stored[order] = weight
    return stored
