"""The commands of the laboratory; each is a module of this package."""

from __future__ import annotations

import argparse
from typing import Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

COMMANDS = {
    "reproduce": "the papers' tables and figures, run again on real data",
    "bound": "local steps and rounds by the papers' convergence bounds",
    "audit": "attack what a recipe promises: lower bounds on epsilon",
    "attack": "what others could learn from uploads and models, in pictures",
    "check": "the true epsilon of a configuration written for another system",
}


def needed(args: argparse.Namespace, what: str, *names: str) -> dict[str, Any]:
    """Return the values of these flags, all of which must be there."""
    given = {name: getattr(args, name) for name in names}
    missing = [console.flag(name) for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}")
    return given
