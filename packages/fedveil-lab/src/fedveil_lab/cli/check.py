"""`fedveil check`: the true epsilon of a configuration written for another system."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil_lab.audit.check.finding import Finding

_OPTIONS: console.Options = {
    "--set NAME=VALUE": (list, "an argument, or a number the file does not tell: rounds, delta"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="a Python file that uses Flower or Opacus",
    )
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    from fedveil_lab.audit.check.check import check

    findings = check(args.file, dict(_said(text) for text in args.set))

    def shown() -> None:
        for finding in findings:
            _show(finding)

    console.answer(args, {"findings": [finding.to_dict() for finding in findings]}, shown)
    return 0 if all(finding.kept for finding in findings) else 1


def _said(text: str) -> tuple[str, Any]:
    """NAME=VALUE, where the value is a number, true or false, or a word."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"--set: write NAME=VALUE, got {text!r}")
    name = name.replace("-", "_")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _show(finding: Finding) -> None:
    place = f", {finding.where}" if finding.where else ""
    rows = [(name, str(value), origin) for name, value, origin in finding.settings]
    console.table(f"{finding.part}{place} ({finding.system})", ("setting", "value", "from"), rows)
    epsilons = [(row.what, _epsilon(row.epsilon)) for row in finding.proved]
    claimed = "none" if finding.claimed is None else f"{finding.claimed:.4g}"
    title = f"Epsilon at delta {at_most(finding.delta)}"
    console.table(title, ("", "epsilon"), [(f"claimed: {finding.claim}", claimed), *epsilons])
    if not finding.kept:
        verdict = "what is claimed is less than what is proved of what it does."
        console.say(verdict, heading="NOT PROVED:", colour="bold red")
    for reason in finding.why:
        console.say(f"{reason}.", heading="Why:")
    if finding.unproved:
        console.say("; ".join(finding.unproved) + ".", heading="No epsilon here covers:")


def _epsilon(value: float) -> str:
    return "none proved" if math.isinf(value) else at_most(value)
