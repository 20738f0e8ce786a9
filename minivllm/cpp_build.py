"""The C++ kernels of cpp/: compiled once, which takes some seconds, and kept in a cache folder.

They are plain C functions on plain arrays, so they need a compiler (GCC 12 or newer) and nothing
else: no headers of torch, no build system. They share torch's threads, since torch on Linux has
loaded the OpenMP library that GCC's code asks for. Without a compiler all runs in plain torch;
`python -m minivllm.cpp_build` says which it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch  # also because its OpenMP library must be loaded before ours asks for one

SOURCE_FOLDER = Path(__file__).parent / "cpp"
FLAGS = ["-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC"]
COMPILERS = ("g++", "c++")
TIMEOUT = 300  # seconds for the compiler
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


def load() -> ctypes.CDLL:
    """The library, compiled first where the cache has none. Raises NoKernels with the reason."""
    library = _library_or_reason()
    if isinstance(library, str):
        raise NoKernels(library)
    return library


def why_not() -> str | None:
    """Why the kernels cannot be used here; None where they can."""
    library = _library_or_reason()
    return library if isinstance(library, str) else None


@cache
def _library_or_reason() -> ctypes.CDLL | str:
    """Tried once in a process, so that a compiler that fails is not asked again."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 is set"
    compiler = shlex.split(os.environ.get("CXX", "")) or [*filter(shutil.which, COMPILERS)][:1]
    if not compiler:
        return f"no C++ compiler was found (looked for {', '.join(COMPILERS)})"
    try:
        return ctypes.CDLL(str(compile_once(compiler)))
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        complaints = [line for line in lines if "error" in line] or lines or [str(error)]
        return f"{' '.join(compiler)} failed: {complaints[0]}"
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return f"the C++ kernels could not be built: {error}"


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


def compile_once(compiler: list[str]) -> Path:
    """The compiled library's path; another one for other sources, another compiler or processor."""
    files = [*sorted(SOURCE_FOLDER.glob("*.cpp")), *sorted(SOURCE_FOLDER.glob("*.h"))]
    identity = [*compiler, _run([*compiler, "--version"]), *FLAGS, *_processor()]
    identity += [file.read_text(encoding="utf-8") for file in files]
    name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minivllm"
    library = folder / f"kernels-{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            made = Path(unfinished) / library.name
            sources = [str(file) for file in files if file.suffix == ".cpp"]
            _run([*compiler, *FLAGS, *sources, "-o", str(made)])
            made.replace(library)  # at once: another process may be making it, too
    return library


def _run(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=TIMEOUT
    ).stdout


def _processor() -> list[str]:
    """What decides which instructions -march=native may use: names and features, x86 and ARM."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    telling = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return [platform.machine(), platform.processor(), *sorted(
        {line for line in lines if line.startswith(telling)}
    )]  # fmt: skip


if __name__ == "__main__":
    reason = why_not()
    print(f"C++ kernels: {'ready' if reason is None else reason + '; plain torch is used instead'}")
