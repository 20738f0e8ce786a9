"""Where the engine runs, in which precision and with which attention: decided in one place."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch

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


def choose_attention_backend(backend: str, device: torch.device) -> str:
    """The name of the backend to use: "auto" is "triton" where its kernels run, and run fast.

    On a CPU they run in Triton's interpreter, a few thousand times slower: only when asked for by
    name, and only where TRITON_INTERPRET=1 was set before triton was imported. Raises ValueError,
    with the reason, when "triton" is asked for and cannot run, and for any other name.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"attention_backend must be auto, torch or triton, got {backend!r}")
    if backend == "torch":
        return backend
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    obstacle = None
    if find_spec("triton") is None:
        obstacle = "the package triton is not installed"
    elif device.type != "cuda" and not interpreted:
        obstacle = f"the device is {device}, and TRITON_INTERPRET=1 is not set"
    elif device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        major, minor = torch.cuda.get_device_capability(device)
        obstacle = f"the GPU has compute capability {major}.{minor}, below 8.0"
    if backend == "auto":
        return "torch" if obstacle or interpreted else "triton"
    if obstacle:
        raise ValueError(f"attention_backend is 'triton', but {obstacle}")
    return backend


def available_bytes(device: torch.device) -> int | None:
    """Bytes that are free on `device` now; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
