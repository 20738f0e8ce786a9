"""A Hugging Face folder (config.json, safetensors) as a ModelConfig plus tensors by their own
names.

The weights lie in model.safetensors, or in several files that model.safetensors.index.json lists.
Settings that model.py does not implement are refused by name, for a model that runs with one
setting ignored still talks, only worse.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from minivllm.model import ModelConfig
from minivllm.model_files import read_json

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
NUMBER_TYPES = ("F32", "F16", "BF16")
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class FolderWeights:
    """The weights in one folder: `config`, and each tensor's shape and numbers by its name.

    Raises ValueError for a model_type outside MODEL_TYPES, an unsupported setting, a missing or
    damaged file, each named.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_folder_config(folder)
        self._files: dict[str, Any] = {}  # opened, by file name
        self._file_of = self._find_tensors()  # tensor name -> file name

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape stored for a tensor, or None when the folder has no such tensor."""
        if name not in self._file_of:
            return None
        return tuple(self._slice(name).get_shape())

    def surplus(self, names: list[str]) -> list[str]:
        """Tensors in the folder that are none of `names` and would change what the model computes.

        Rotation frequencies (an old format stored them) and the head of a tied model are
        repetitions.
        """
        known = {*names, "lm_head.weight"}
        return [
            n for n in self._file_of if n not in known and not n.endswith("rotary_emb.inv_freq")
        ]

    def read(self, name: str, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """One tensor, in `dtype`."""
        number_type = self._slice(name).get_dtype()
        if number_type not in NUMBER_TYPES:
            raise ValueError(
                f"{self.folder}: tensor {name} has the type {number_type}; supported are "
                f"{', '.join(NUMBER_TYPES)}"
            )
        return self._open(self._file_of[name]).get_tensor(name).to(device, dtype)  # [*shape]

    def _slice(self, name: str) -> Any:
        file = self._file_of[name]
        try:
            return self._open(file).get_slice(name)
        except SafetensorError as error:  # the index promised it
            raise ValueError(f"{self.folder / file}: tensor {name} is missing") from error

    def _find_tensors(self) -> dict[str, str]:
        if (self.folder / INDEX_FILE).is_file():
            weight_map = read_json(self.folder / INDEX_FILE).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ValueError(f"{self.folder / INDEX_FILE} has no weight_map")
            for file in sorted(set(weight_map.values())):
                self._open(file)
            return weight_map
        return dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)

    def _open(self, file: str) -> Any:
        if file not in self._files:
            path = self.folder / file
            if not path.is_file():
                raise ValueError(f"{path} is missing")
            try:
                self._files[file] = safe_open(path, framework="pt")
            except SafetensorError as error:
                raise ValueError(f"{path} is no complete safetensors file: {error}") from error
        return self._files[file]


def read_folder_config(folder: Path) -> ModelConfig:
    """The ModelConfig in a folder's config.json; ValueError names what is missing or
    unsupported."""
    raw = read_json(folder / "config.json")
    kind = raw.get("model_type")
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"{folder}: the model_type {kind!r} is not supported; supported are "
            f"{', '.join(MODEL_TYPES)}"
        )
    _refuse_other_arithmetic(folder, raw)

    def number(key: str, default: Any = None) -> Any:
        value = raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{folder / 'config.json'}: {key} is {value!r}, not a positive number")
        return value

    heads, hidden = number("num_attention_heads"), number("hidden_size")
    theta, scaling = _rope(folder, raw)
    return ModelConfig(
        vocab_size=number("vocab_size"),
        hidden_size=hidden,
        intermediate_size=number("intermediate_size"),
        num_layers=number("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", heads if kind == "llama" else None),
        head_dim=number("head_dim", None if kind == "qwen3" else hidden // heads),
        max_position_embeddings=number("max_position_embeddings"),
        rms_norm_eps=number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        rope_scaling=scaling,
    )


def _refuse_other_arithmetic(folder: Path, raw: dict[str, Any]) -> None:
    context = raw.get("max_position_embeddings") or 0
    # Qwen states a window it does not use; the others use the one they state.
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    refused = {
        "hidden_act": raw.get("hidden_act", "silu") not in ("silu", "swish"),
        "attention_bias": bool(raw.get("attention_bias")),
        "mlp_bias": bool(raw.get("mlp_bias")),
        "quantization_config": raw.get("quantization_config") is not None,
        "sliding_window": window is not None and window < context,
        "partial_rotary_factor": raw.get("partial_rotary_factor", 1.0) != 1.0,
    }
    for key, is_refused in refused.items():
        if is_refused:
            raise ValueError(f"{folder / 'config.json'}: {key} = {raw[key]!r} is not supported")


def _rope(folder: Path, raw: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """The base of the rotation, and Llama 3's scaling when the model has it.

    Both have lived at the top level and, since transformers 5, in `rope_parameters`.
    """
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"{folder / 'config.json'}: the rope scaling {rope!r} is not supported")
    theta = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
    if kind == "default":
        return theta, None
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [key for key in keys if key not in rope]
    if missing:
        raise ValueError(f"{folder / 'config.json'}: the rope scaling lacks {', '.join(missing)}")
    return theta, {"rope_type": "llama3"} | {key: rope[key] for key in keys}
