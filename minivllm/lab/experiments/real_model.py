"""The real model for the experiments that measure: loaded once for all their cases."""

from __future__ import annotations

from functools import lru_cache

from minivllm.device import choose_device, choose_dtype
from minivllm.lab.experiment import Options
from minivllm.model import LlamaModel
from minivllm.weights import load_weights


@lru_cache(maxsize=1)
def _load(name: str, dtype_name: str) -> LlamaModel:
    device = choose_device("auto")
    dtype = choose_dtype(dtype_name, device)
    config, weights = load_weights(name, dtype, device)
    return LlamaModel(config, weights, dtype, device)


def load_model(options: Options) -> LlamaModel:
    """The model that `options` name, on the machine's device."""
    return _load(options.model, options.dtype)
