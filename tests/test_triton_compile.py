"""The Triton kernels compile for GPUs that are not there: A100, H100 or H200, B200.

Each target is compiled in a process of its own, for this one runs Triton's interpreter.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from need import need

SCRIPT = Path(__file__).with_name("triton_compile.py")
TARGETS = [80, 90, 100]  # compute capability 8.0, 9.0, 10.0
Reports = list[dict]


def compile_for(target: int, cache: Path, *options: str) -> Reports:
    """The reports of triton_compile.py, with nothing taken from an older cache."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(SCRIPT), str(target), "--json", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=TARGETS)
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    need("triton")
    return compile_for(request.param, tmp_path_factory.mktemp("triton"))


def name(report: dict) -> str:
    return f"{report['target']} {report['kernel']} {report['variant']}"


def test_ptx_and_cubin_come_out(reports: Reports, record_property):
    """Six variants of three kernels, and the merge; the table is printed at the end of the run."""
    from triton_compile import VARIANTS, table

    assert len(reports) == 4 * len(VARIANTS)
    assert len({r["target"] for r in reports}) == 1 and all(r["is_elf"] for r in reports)
    record_property("table", table(reports))


def test_no_kernel_spills_registers(reports: Reports):
    """A spilled register goes through memory, which these kernels have none to spare of."""
    assert not [f"{name(r)}: {r['spilled']} bytes" for r in reports if r["spilled"]]


def test_shared_memory_leaves_room_for_two_programs(reports: Reports):
    """164 KB on an A100, 228 on the others: with one program alone nothing hides its waiting."""
    room = 164 if reports[0]["target"] == "sm_80" else 228
    assert not [name(r) for r in reports if 2 * r["shared"] > room * 1024]


def test_k_and_v_are_loaded_16_bytes_at_once(reports: Reports):
    """Read in the PTX: each tile of K and V is fetched twice over (before the loop and in it) by
    loads of 16 bytes; the few other loads are of lengths, offsets and the block table."""
    attention = [r for r in reports if r["kernel"] in ("decode", "ragged")]
    assert len(attention) == len(reports) // 2
    for r in attention:
        assert r["wide_loads"] >= 4 * r["loads_of_a_tile"] > 0, name(r)
        assert r["narrow_loads"] <= 12, name(r)


def test_a_head_that_16_bytes_do_not_divide_is_seen(tmp_path: Path):
    """The check above can fail: heads of 20 dims are 40 bytes, and are loaded in smaller pieces."""
    need("triton")
    for r in compile_for(80, tmp_path, "--unaligned"):
        if r["kernel"] in ("decode", "ragged"):
            assert r["wide_loads"] < 4 * r["loads_of_a_tile"] and r["narrow_loads"] > 12, name(r)
