"""The C++ kernels of cpp/: compiled once, which takes some seconds, and kept in a cache folder.

They are plain C functions on plain arrays, so they need a compiler and nothing else: no headers of
torch, no build system. They share torch's threads, since both use the OpenMP library that torch has
loaded. Without a compiler all runs in plain torch; `python -m minivllm.cpp_build` says which it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch  # also because its OpenMP library must be loaded before ours asks for one

SOURCE_FOLDER = Path(__file__).parent / "cpp"
FLAGS = ["-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC"]
COMPILERS = ("c++", "g++", "clang++")
SWITCH = "MINIVLLM_CPP"  # this environment variable set to 0: plain torch


P, N, X = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
ARGUMENTS = {  # of the C functions, which return nothing
    "pack_weight": [P] * 2 + [N] * 2,
    "linear": [P] * 4 + [N] * 3,
    "rms_norm": [P] * 3 + [N] * 2 + [X],
    "silu_and_mul": [P] * 2 + [N] * 2,
    "apply_rope": [P] * 4 + [N] * 4,
    "write_kv": [P] * 5 + [N] * 4,
    "paged_attention": [P] * 7 + [N] * 7 + [X],
}


class NoKernels(RuntimeError):
    """Why the C++ kernels cannot be used here."""


@cache
def load() -> ctypes.CDLL:
    """The library, compiled first where the cache has none. Raises NoKernels with the reason."""
    if os.environ.get(SWITCH) == "0":
        raise NoKernels(f"{SWITCH}=0 is set")
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise NoKernels(f"no C++ compiler was found (looked for {', '.join(COMPILERS)})")
    try:
        return ctypes.CDLL(str(compile_once(compiler)))
    except (OSError, subprocess.CalledProcessError) as error:
        complaint = getattr(error, "stderr", "") or str(error)
        raise NoKernels(f"{compiler} failed: {complaint.strip().splitlines()[0]}") from None


def why_not() -> str | None:
    """Why the kernels cannot be used here; None where they can."""
    try:
        load()
    except NoKernels as reason:
        return str(reason)
    return None


@cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """The C function of this name for tensors of `dtype`, float32 or bfloat16.

    It takes `Tensor.data_ptr()` for arrays, and believes every size it is told.
    """
    function = getattr(load(), f"{name}_{str(dtype).removeprefix('torch.')}")
    function.argtypes, function.restype = ARGUMENTS[name], None
    return function


@cache
def has_amx() -> bool:
    """Whether cpp/linear_amx.cpp was compiled, and the system lends the matrix unit."""
    return hasattr(load(), "amx_works") and bool(load().amx_works())


def compile_once(compiler: str) -> Path:
    """The compiled library's path; another one for other sources, another compiler or processor."""
    sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
    version = _run([compiler, "--version"])
    identity = [compiler, version, *FLAGS, _processor()]
    identity += [file.read_text() for file in sorted(SOURCE_FOLDER.iterdir())]
    name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minivllm"
    library = folder / f"kernels-{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        _run([compiler, *FLAGS, *map(str, sources), "-o", str(unfinished)])
        unfinished.replace(library)  # at once: another process may be waiting for it, or making it
    return library


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    """What decides which instructions -march=native may use."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    lines = cpuinfo.read_text().splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))


if __name__ == "__main__":
    reason = why_not()
    print(f"C++ kernels: {'ready' if reason is None else reason + '; plain torch is used instead'}")
