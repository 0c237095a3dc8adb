"""result.json of a run directory: what a finished run ended with, and which versions made it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically

RESULT = "result.json"
_KEPT = (
    *("accuracy", "rmse", "loss", "baseline", "scores", "rounds", "released_rounds"),
    *("planned_rounds", "engine", "warnings", "certify"),
)
_PACKAGES = ("fedveil", "torch", "numpy", "scipy", "dp-accounting", "cryptography")


def write_result(directory: Path, result: Mapping[str, Any]) -> None:
    """Keep what may be shown of a result, protected or not, with the versions of this process."""
    document = {name: result[name] for name in _KEPT if name in result}
    document["versions"] = versions()
    write_atomically(directory / RESULT, (json.dumps(document, indent=2) + "\n").encode())


def read_result(directory: Path) -> dict[str, Any] | None:
    """Return the stored result; None for a run that has not finished."""
    try:
        document = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(f"{directory / RESULT}: damaged ({error}); resume the run") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{directory / RESULT}: damaged (no object); resume the run")
    return document


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree
            found[name] = "not installed"
    return found
