"""Where things are in the repository."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = tuple(
    ROOT / "packages" / name for name in ("fedveil", "fedveil-federation", "fedveil-lab")
)
SOURCES = tuple(package / "src" for package in PACKAGES)


def python_path(*first: Path) -> str:
    """Return a PYTHONPATH for child processes: the given folders, the sources, and `tests`."""
    return os.pathsep.join(map(str, (*first, *SOURCES, *PACKAGES, ROOT)))
