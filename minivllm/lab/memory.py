"""The most memory a process had resident, since its start or since the peak was reset."""

from __future__ import annotations

from pathlib import Path


def peak_memory_bytes(pid: int | str = "self") -> int | None:
    """Linux's VmHWM of a process; None where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None


def reset_peak_memory(pid: int | str = "self") -> None:
    """Let the peak begin again at what is resident now, where the system allows it."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        pass
