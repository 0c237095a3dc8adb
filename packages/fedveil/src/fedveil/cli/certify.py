"""The command that would certify a run which is not certified."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

# What removes a reason against a certificate, and parts of the sentences that it removes.
_REMEDIES = {
    "seed": ("comes from a seed", "arithmetic is idealised"),
    "classes": ("the classes, their names and order", "the number of classes"),
    "task": ("whether to predict classes or numbers",),
    "schema": (
        *("which columns are inputs", "means and deviations of", "categories of"),
        *("mean and deviation of the label", "of the schema are guesses"),
    ),
}
# Options that describe a table.
_TABLE = ("client_column", "person_column", "label", "label_separator")
_REPEATED = ("data", *_TABLE, "test", "class_weights", "unit", "classes", "epsilon", "delta")


def certifying_command(
    args: argparse.Namespace, reason: str, class_names: Sequence[str] = (), table: str | None = None
) -> str | None:
    """Return the command that repeats a run and would be certified.

    Args:
        args: the parsed options of `fedveil run`.
        reason: why the run is not certified, as the guarantee says it.
        class_names: the classes of the run; whoever runs the command declares them public.
        table: the file of the run's table, if it trains on one.

    Returns:
        A command line, after a line on the schema to write if one is needed; None if no declared
        fact would make the run certified.
    """
    needed = {_remedy(part) for part in reason.split("; ")}
    if None in needed or ("schema" in needed and table is None):
        return None
    words = ["fedveil", "run", *([] if args.recipe is None else [str(args.recipe)])]
    for assignment in args.set:
        if assignment.partition("=")[0].strip() != "seed":
            words += ["--set", assignment]
    words += _options(args, _REPEATED)
    if "seed" in needed and args.recipe is not None:
        words += ["--seed", "none"]  # the recipe may have one
    if table is not None and "schema" in needed:  # it also declares the label
        schema = f"{Path(table).stem}.toml"
        draft = ["fedveil", "data", "schema", table, *_options(args, _TABLE), "--output", schema]
        first = f"{shlex.join(draft)}  # then check its guesses"
        return f"{first}\n{shlex.join([*words, '--schema', schema])}"
    words += _options(args, ("schema",))
    if "classes" in needed and class_names:
        words += ["--classes", ",".join(class_names)]
    if "task" in needed:
        words += ["--set", f"data.task={'classification' if class_names else 'regression'}"]
    return shlex.join(words)


def _remedy(part: str) -> str | None:
    text = part.lower()
    return next((name for name, parts in _REMEDIES.items() if any(p in text for p in parts)), None)


def _options(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    words: list[str] = []
    for name in names:
        value = getattr(args, name, None)
        if value is not None:
            text = ",".join(value) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return words
