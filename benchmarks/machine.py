"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str]:
    """Processor, cores, memory, system and versions, for a reader who wants to compare."""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "load before": load,
    }


def _field(file: str, name: str) -> str:
    path = Path(file)
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith(name)), "")


def _memory() -> str:
    kilobytes = _field("/proc/meminfo", "MemTotal").split()
    return f"{int(kilobytes[0]) / 2**20:.1f} GB" if kilobytes else "unknown"
