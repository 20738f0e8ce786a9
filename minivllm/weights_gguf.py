"""A GGUF file of the Llama family as a ModelConfig plus tensors under Hugging Face's names.

    blk.3.attn_q.weight  ->  model.layers.3.self_attn.q_proj.weight

llama.cpp rotates neighbouring pairs (x0 x1)(x2 x3)... of a head, this package the two halves (x0 x2
...)(x1 x3 ...), as Hugging Face does; llama.cpp's converter therefore reorders the rows of q and k
in files of the architecture "llama" (not in Qwen's), and `read` puts them back. Left undone the
text still looks fluent, but the perplexity of plain English is 67 instead of 10.

What would need other arithmetic than model.py's (experts, sliding windows, rescaled positions or
logits) is refused by name.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from minivllm.gguf_file import GGUFFile
from minivllm.model import ModelConfig, rope_frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3")
OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Values that change the arithmetic, with the settings under which they change nothing.
HARMLESS = {
    "expert_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "attention.scale": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
}
LLAMA3_DIVISORS = "rope_freqs.weight"


def gguf_name(name: str) -> str:
    """GGUF's name for a tensor.

    >>> gguf_name("model.layers.3.self_attn.q_proj.weight")
    'blk.3.attn_q.weight'
    """
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER_NAMES[part]}.{kind}"


class GGUFWeights:
    """The weights in one GGUF file: `config`, and each tensor's shape and numbers by its name.

    Raises ValueError for an architecture outside ARCHITECTURES, a missing value, or a setting that
    model.py does not implement.
    """

    def __init__(self, path: Path) -> None:
        self.file = GGUFFile(path)
        self.architecture = self.file.metadata.get("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"{path}: the architecture {self.architecture!r} is not supported; supported are "
                f"{', '.join(ARCHITECTURES)}"
            )
        self.config = self._read_config()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape the file's table gives for a tensor, or None when it has no such tensor."""
        tensor = self.file.tensors.get(gguf_name(name))
        return None if tensor is None else tensor.shape

    def surplus(self, names: list[str]) -> list[str]:
        """Tensors in the file that are none of `names`."""
        known = {gguf_name(name) for name in names} | {LLAMA3_DIVISORS}
        return [name for name in self.file.tensors if name not in known]

    def read(self, name: str, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """One tensor, dequantized, rows in Hugging Face's order."""
        array = self.file.read_tensor(gguf_name(name))  # [*shape]
        weight = torch.from_numpy(array).to(device, dtype)  # [*shape]
        if self.architecture == "llama" and ".q_proj." in name:
            weight = half_split_rows(weight, self.config.num_heads)  # [H * D, E]
        if self.architecture == "llama" and ".k_proj." in name:
            weight = half_split_rows(weight, self.config.num_kv_heads)  # [KH * D, E]
        return weight

    def _read_config(self) -> ModelConfig:
        heads = self._number("attention.head_count")
        hidden = self._number("embedding_length")
        head_dim = self._number("attention.key_length", hidden // heads)
        context = self._number("context_length")
        self._refuse_other_arithmetic(head_dim, context)
        config = ModelConfig(
            vocab_size=self._embedding_rows(),
            hidden_size=hidden,
            intermediate_size=self._number("feed_forward_length"),
            num_layers=self._number("block_count"),
            num_heads=heads,
            num_kv_heads=self._number("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_position_embeddings=context,
            rms_norm_eps=self._number("attention.layer_norm_rms_epsilon"),
            rope_theta=float(self._number("rope.freq_base", 10000.0)),
            tie_word_embeddings="output.weight" not in self.file.tensors,
            qkv_bias=self.architecture == "qwen2",
            qk_norm=self.architecture == "qwen3",
        )
        return self._with_rope_scaling(config)

    def _number(self, key: str, default: Any = None) -> Any:
        value = self.file.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]  # one entry a layer, all the same
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(
                f"{self.file.path}: {self.architecture}.{key} is {value!r}, not a positive number"
            )
        return value

    def _embedding_rows(self) -> int:
        shape = self.shape("model.embed_tokens.weight")
        if shape is None:
            raise ValueError(f"{self.file.path}: tensor token_embd.weight is missing")
        return shape[0]

    def _refuse_other_arithmetic(self, head_dim: int, context: int) -> None:
        metadata = self.file.metadata
        harmless = HARMLESS | {
            "rope.dimension_count": (head_dim,),
            "attention.value_length": (head_dim,),
        }
        for key, settings in harmless.items():
            value = metadata.get(f"{self.architecture}.{key}", settings[0])
            if value not in settings:
                raise ValueError(
                    f"{self.file.path}: {self.architecture}.{key} = {value!r} is not supported"
                )
        window = metadata.get(f"{self.architecture}.attention.sliding_window", 0)
        if 0 < window < context:
            raise ValueError(
                f"{self.file.path}: a sliding window of {window} tokens is not supported "
                f"(context length {context})"
            )

    def _with_rope_scaling(self, config: ModelConfig) -> ModelConfig:
        """Add Llama 3's rope scaling, which GGUF stores as one divisor for each rotated pair.

        Of the four numbers behind the divisors every published Llama 3.x shares all but the factor,
        which is the largest divisor; a table that does not come out of them is refused.
        """
        if LLAMA3_DIVISORS not in self.file.tensors:
            return config
        stored = torch.from_numpy(self.file.read_tensor(LLAMA3_DIVISORS))  # [D / 2]
        scaling = {
            "rope_type": "llama3",
            "factor": round(stored.max().item(), 3),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        scaled = dataclasses.replace(config, rope_scaling=scaling)
        expected = rope_frequencies(config) / rope_frequencies(scaled)  # [D / 2]
        if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=1e-3):
            raise ValueError(
                f"{self.file.path}: {LLAMA3_DIVISORS} is not Llama 3's rope scaling, "
                "the only one supported"
            )
        return scaled


def half_split_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k from llama.cpp's order, pair by pair, to Hugging Face's, half by half.

    `weight` [heads * D, in], the same shape back. One head of 4 rows: 0 2 1 3 -> 0 1 2 3.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)  # [heads, D / 2, 2, in]
    return pairs.swapaxes(1, 2).reshape(rows, columns)  # [heads * D, in]
