"""What lives beside the package in a source checkout: the papers' experiments and claims."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.advise.feasible import ClaimOf

ROOT = Path(__file__).resolve().parents[3]


def reproduction(module: str) -> Any:
    """A module of `reproduction`; an installed package without its checkout has none."""
    if not in_checkout():
        raise ConfigError(
            "the papers' experiments and claims are not part of the installed package; "
            "clone the repository and run this command there"
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return import_module(f"reproduction.{module}")


def in_checkout() -> bool:
    return (ROOT / "reproduction" / "__init__.py").is_file()


def claim_of() -> ClaimOf | None:
    """The papers' claims beside proved epsilons, where they are at hand."""
    if not in_checkout():
        return None
    found: ClaimOf = reproduction("claims.of_way").claim_of
    return found
