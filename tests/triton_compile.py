"""Compile the Triton kernels for GPUs that are not there, and read what came out.

`python tests/triton_compile.py 90` prints a table for compute capability 9.0, and JSON with --json.
The functions of triton_attention.py run as they are, on CPU tensors: where they would launch a
kernel, it is compiled instead, with just the arguments and so the specializations of that launch.
It must not run under TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from minivllm import triton_attention
from minivllm.attention import AttentionMetadata

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
KERNELS = ("_write_kernel", "_decode_kernel", "_merge_kernel", "_ragged_kernel")
# dtype, query heads, KV heads, head_dim: Llama 3 8B, SmolLM2, a lone head of 80 dims, wide heads.
VARIANTS = [
    (torch.bfloat16, 32, 8, 128),
    (torch.bfloat16, 9, 3, 64),
    (torch.float16, 8, 1, 80),
    (torch.bfloat16, 8, 4, 256),
    (torch.float32, 9, 3, 64),
    (torch.float32, 8, 4, 256),
]
UNALIGNED = (torch.bfloat16, 4, 2, 20)  # heads of 40 bytes: 16 at once would cross their ends


class PretendedDriver:
    """What triton asks a driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


class CompileOnly:
    """Stands for a kernel: `kernel[grid](...)` compiles it and keeps the report."""

    def __init__(self, kernel, reports: list[dict]) -> None:
        self.kernel, self.reports = kernel, reports

    def __getitem__(self, grid: tuple[int, ...]):
        def launch(*args, **options) -> None:
            compiled = self.kernel.run(*args, grid=grid, warmup=True, **options)
            tile_bytes = options.get("TILE", 0) * options.get("D_PADDED", 0) * args[0].itemsize
            self.reports.append(read(compiled, tile_bytes))

        return launch


def read(compiled, tile_bytes: int) -> dict:
    """Registers, memory and loads of a compiled kernel; tile_bytes: of one tile of K, or of V."""
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    loads = re.findall(r"ld\.global[.\w]*|cp\.async\.c[ag]\.shared\.global[^;]*", ptx)
    wide = [load for load in loads if re.search(r"v4\.b32|v2\.b64|0x10\b", load)]
    return {
        "kernel": compiled.metadata.name.strip("_").removesuffix("_kernel"),
        "target": re.search(r"\.target (sm_\d+)", ptx).group(1),
        "is_elf": cubin[:4] == b"\x7fELF",
        "registers": int(found["REG"]),
        "spilled": int(found["STACK"]) + int(found["LOCAL"]),
        "shared": compiled.metadata.shared,
        "wide_loads": len(wide),
        "narrow_loads": len(loads) - len(wide),
        # How often each thread loads, for a tile of K, if it takes 16 bytes each time.
        "loads_of_a_tile": tile_bytes // (16 * 32 * compiled.metadata.num_warps),
    }


def compile_variant(dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """One step of each kind: a write, a decode in splits, a chunk with a decode."""
    cache = torch.zeros(2, 4, 16, num_kv_heads, head_dim, dtype=dtype)  # [2, N, BS, KH, D]
    q = torch.zeros(6, num_heads, head_dim, dtype=dtype)  # [T, H, D]
    k = torch.zeros(6, num_kv_heads, head_dim, dtype=dtype)  # [T, KH, D]
    mixed = AttentionMetadata.build([1, 5], [20, 30], [[0, 1], [2, 3]], 16)
    decode = AttentionMetadata.build([1, 1], [20, 30], [[0, 1], [2, 3]], 16)
    holder = SimpleNamespace(key=[cache[0]], value=[cache[1]])
    triton_attention.write_kv(holder, 0, mixed.slot_mapping, k, k.clone())
    triton_attention.decode_attention(q[:2], *cache, decode, 0.1, split_size=16)
    triton_attention.ragged_attention(q, *cache, mixed, 0.1)


def compile_all(capability: int, variants: list[tuple]) -> list[dict]:
    """The reports of all kernels of all variants for one compute capability, say 90."""
    driver.set_active(PretendedDriver(capability))
    reports: list[dict] = []
    kernels = {name: getattr(triton_attention, name) for name in KERNELS}
    for name, kernel in kernels.items():
        setattr(triton_attention, name, CompileOnly(kernel, reports))
    for variant in variants:
        first = len(reports)
        compile_variant(*variant)
        for report in reports[first:]:
            report["variant"] = "-".join(str(x).removeprefix("torch.") for x in variant)
    return reports


def table(reports: list[dict]) -> str:
    """The reports, a line each."""
    lines = ["target   kernel  dtype-H-KH-D        registers  shared  spilled 16-byte loads others"]
    for r in reports:
        lines.append(
            f"{r['target']:8} {r['kernel']:7} {r['variant']:18} {r['registers']:10} {r['shared']:7}"
            f"{r['spilled']:9} {r['wide_loads']:14} {r['narrow_loads']:7}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = [UNALIGNED] if "--unaligned" in sys.argv else VARIANTS
    found = compile_all(int(sys.argv[1]), chosen)
    print(json.dumps(found) if "--json" in sys.argv else table(found))
