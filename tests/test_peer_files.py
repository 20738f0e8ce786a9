"""Our weights as other engines read them: what comes back through our own loader is identical."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from minivllm.lab.peers.model_files import check_plain_llama, pair_rows, write_folder, write_gguf
from minivllm.model import ModelConfig
from minivllm.weights import TINY_CONFIG, load_weights, random_weights
from minivllm.weights_gguf import half_split_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def assert_same(path: Path, config: ModelConfig, weights: dict, dtype: torch.dtype) -> None:
    found_config, found = load_weights(str(path), dtype)
    assert found_config == config
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_holds_the_very_weights(tmp_path: Path, dtype: torch.dtype, tied: bool):
    """Six query heads and two of KV: the rows of q and k are reordered, each by its own count."""
    config = replace(
        TINY_CONFIG, num_heads=6, tie_word_embeddings=tied, rms_norm_eps=float(np.float32(1e-5))
    )
    weights = random_weights(config, dtype, "cpu", seed=1)
    path = write_gguf(tmp_path / "x.gguf", config, weights, dtype)
    assert_same(path, config, weights, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_holds_the_very_weights(tmp_path: Path, dtype: torch.dtype, tied: bool):
    config = replace(TINY_CONFIG, tie_word_embeddings=tied)
    weights = random_weights(config, dtype, "cpu", seed=1)
    assert_same(write_folder(tmp_path / "x", config, weights, dtype), config, weights, dtype)


def test_rows_in_pairs_by_hand():
    """One head of 4 rows: its halves are 0 1 and 2 3, its pairs 0 2 and 1 3."""
    rows = torch.arange(4.0)[:, None]  # [4, 1]
    assert pair_rows(rows, 1).flatten().tolist() == [0, 2, 1, 3]
    assert torch.equal(half_split_rows(pair_rows(rows, 1), 1), rows)


@pytest.mark.parametrize(
    "extras", [dict(qk_norm=True), dict(qkv_bias=True)], ids=["qk_norm", "qkv_bias"]
)
def test_other_models_are_refused(extras: dict):
    check_plain_llama(TINY_CONFIG, "vllm")
    with pytest.raises(ValueError, match="the engine vllm runs plain Llama models only"):
        check_plain_llama(replace(TINY_CONFIG, **extras), "vllm")
