"""tools/gpu_check.py without a GPU: its dry run goes through every part, and claims no time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from need import need

SCRIPT = Path(__file__).parent.parent / "tools" / "gpu_check.py"


def run_script(*options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_dry_run_checks_everything_and_times_nothing(tmp_path: Path):
    """A figure of a GPU must come from a GPU: all that a time would be made of is null."""
    need("triton")
    out = tmp_path / "figures" / "gpu_check.json"
    done = run_script("--dry-run", "--budget", "600", "--out", str(out))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(out.read_text())
    assert report["dry_run"] and report["device"] == "no GPU: dry run"
    assert len(report["checks"]) == 6 and all(check["ok"] for check in report["checks"])
    parts = ["decode", "ragged", "steps", "others", "ladder", "choices"]
    assert all(report[part] for part in parts)
    assert report["others"][0]["flex_difference"] < 0.01
    assert "goal" not in report and report["copy_bytes_per_second"] is None
    rows = [report, *(row for part in parts for row in report[part])]
    timed = [
        value
        for row in rows
        for key, value in row.items()
        if ("second" in key or "share" in key) and not key.endswith("modelled")
    ]
    assert len(timed) > 30 and set(timed) == {None}


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is present")
def test_without_a_gpu_it_says_so():
    done = run_script()
    assert done.returncode == 2 and "torch sees no CUDA device here" in done.stderr
