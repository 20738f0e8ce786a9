"""What a figure depends on beside the engine: the machine, the day, the versions, the preloads."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import minivllm
from minivllm.lab.peers.protocol import preloads


def facts() -> dict[str, Any]:
    """Of this process; an engine with a process of its own tells its own versions and preloads."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "minivllm": minivllm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "preloads": preloads(),
    }


def cpu_model() -> str:
    """The processor's name, from /proc/cpuinfo where there is one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()
