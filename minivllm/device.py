"""Where the engine runs, in which precision and with which attention: decided in one place."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from minivllm import cpp_ops

if TYPE_CHECKING:
    from minivllm.model import ModelConfig

# Large pages for large tensors, where Linux has them: weights and blocks are then read with fewer
# misses of the page tables. torch looks at this once, when it first allocates.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" is CUDA where present. Raises ValueError for any other."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {device!r}")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch sees no CUDA device here")
    return chosen


def choose_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of this name; "auto": float32 on a CPU, bfloat16 on a GPU. Raises ValueError."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    chosen = DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        raise ValueError(f"dtype must be auto, {', '.join(DTYPES)}, got {dtype!r}")
    return chosen


def choose_kernels(
    kernels: str, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> str:
    """What computes a model, attention apart: "auto" is "cpp" where that runs, else "torch".

    Raises ValueError, with the reason, for "cpp" where it cannot run, and for any other name.
    """
    if kernels not in ("auto", "torch", "cpp"):
        raise ValueError(f"kernels must be auto, torch or cpp, got {kernels!r}")
    if kernels == "torch":
        return kernels
    obstacle = cpp_ops.why_not(cpp_ops.MODEL_MULTIPLES, config, dtype, device)
    if kernels == "cpp" and obstacle:
        raise ValueError(f"kernels is 'cpp', but {obstacle}")
    return "torch" if obstacle else "cpp"


def choose_attention_backend(
    backend: str, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> str:
    """The name of the backend to use: "auto" is Triton on a GPU and C++ on a CPU, where they run.

    Raises ValueError, with the reason, for one that cannot run, and for any other name.
    """
    if backend not in ("auto", "torch", "cpp", "triton"):
        raise ValueError(f"attention_backend must be auto, torch, cpp or triton, got {backend!r}")
    if backend == "torch":
        return backend
    if backend == "auto":
        backend = "triton" if device.type == "cuda" else "cpp"
        return "torch" if _obstacle(backend, config, dtype, device) else backend
    if obstacle := _obstacle(backend, config, dtype, device):
        raise ValueError(f"attention_backend is {backend!r}, but {obstacle}")
    return backend


def _obstacle(
    backend: str, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why attention cannot run by "cpp" or "triton"; None where it can.

    Triton on a CPU means its interpreter, a few thousand times slower: it wants TRITON_INTERPRET=1
    to be set before triton is imported.
    """
    if backend == "cpp":
        return cpp_ops.why_not(cpp_ops.ATTENTION_MULTIPLES, config, dtype, device)
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type != "cuda":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted else f"the device is {device}, and TRITON_INTERPRET=1 is not set"
    if torch.cuda.get_device_capability(device) < (8, 0):
        major, minor = torch.cuda.get_device_capability(device)
        return f"the GPU has compute capability {major}.{minor}, below 8.0"
    return None


def available_bytes(device: torch.device) -> int | None:
    """Bytes that are free on `device` now; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
