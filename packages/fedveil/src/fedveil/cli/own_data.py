"""Options for a table of one's own, what is chosen for it, and the command that certifies it."""

from __future__ import annotations

import argparse
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.display import amount
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.folder import FILE, is_many

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.planning.recipe import Recipe
    from fedveil.run.purchase import Purchase
    from fedveil.tune.defaults import Chosen


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _weights(text: str) -> dict[str, float]:
    if text.strip() == "balanced":
        raise ConfigError(
            "--class-weights balanced: how often classes occur is private; give weights that you "
            "know without the rows, as no=1,yes=5"
        )
    try:
        pairs = [one.rpartition("=") for one in _names(text)]
        return {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        message = f"--class-weights {text}: write names and numbers, as no=1,yes=5"
        raise ConfigError(message) from None


OPTIONS: console.Options = {
    "--data FILE": (
        str,
        "a CSV or Parquet file to train on; or a folder or 'DIR/*.csv', a file a client",
    ),
    "--client-column NAME": (str, "its column that names the client"),
    "--person-column NAME": (str, "its column that names the person, where one has several rows"),
    "--label NAME": (str, "its column to predict; A,B,C: several that are true or false each"),
    "--label-separator TEXT": (str, "between the classes of a cell that names any number of them"),
    "--text-column A,B": (_names, "its columns of free text, read by data.text_encoder"),
    "--schema FILE": (str, "public statistics of its columns"),
    "--test FILE": (str, "rows to test on, instead of some of the clients' own"),
    "--classes A,B": (_names, "the label's classes, if they are public"),
    "--class-weights A=1,B=5": (str, "how much an example of a class counts; public"),
    "--unit": (
        ("record", "person", "client"),
        "protect single rows, or all rows of a person or a client together",
    ),
    "--epsilon": (float, "the privacy budget (4, or the recipe's)"),
    "--delta": (float, "its small probability (min(1e-5, units^-1.1))"),
}
_OPTION_OF = {
    "data.file": "data",
    "data.text_columns": "text_column",
    "data.test_file": "test",
    "training.class_weights": "class_weights",
    **{f"privacy.{name}": name for name in ("unit", "epsilon", "delta")},
}
# Options that describe a table.
_TABLE = ("client_column", "person_column", "label", "label_separator")
_OPTION_OF |= {f"data.{name}": name for name in (*_TABLE, "schema", "classes")}


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe keys that these options set."""
    values = {key: getattr(args, name) for key, name in _OPTION_OF.items()}
    named = ("data.client_column", "data.partition")
    elsewhere = any(one.lstrip().startswith(named) for one in args.set)
    if args.data and args.client_column is None and not elsewhere and not is_many(Path(args.data)):
        values["data.client_column"] = FILE  # all is one owner's
    if args.class_weights is not None:
        values["training.class_weights"] = _weights(args.class_weights)
    return {key: value for key, value in values.items() if value is not None}


def keys_set(args: argparse.Namespace) -> set[str]:
    """Return the recipe keys that options or --set name."""
    return {assignment.partition("=")[0].strip() for assignment in args.set} | set(given(args))


@contextmanager
def purchase(run: Path) -> Iterator[Purchase]:
    """Yield what is bought for a run that will be here; if none comes of it, that is said."""
    from fedveil.run.purchase import Purchase

    pending, ended = Purchase(run), "failed"
    try:
        yield pending
    except KeyboardInterrupt:
        ended = "was interrupted"
        raise
    finally:
        if pending.open:
            console.complain(
                f"the column statistics were released before the run {ended}; what they cost is "
                f"spent: fedveil account {shlex.quote(str(pending.path))}. Nothing was trained, so "
                "there is no run to go on with: the same command starts anew, and buys them again."
            )


def chosen(args: argparse.Namespace, recipe: Recipe, purchase: Purchase) -> Chosen | None:
    """Return what to run on a table that came without a recipe; None with one, or without a table.

    Args:
        args: The parsed options.
        recipe: What the options say.
        purchase: Writes down what is bought.
    """
    if args.recipe is not None or args.resume is not None or recipe.data.file is None:
        return None
    from fedveil.training.engines.distributed_env import under_torchrun
    from fedveil.tune.defaults import choose

    if under_torchrun():
        raise PrivacyRefusal(
            "under torchrun each process would choose settings and buy statistics of its own, and "
            "all of them would have to be paid for",
            "write a recipe first (fedveil plan --data FILE --schema FILE --write FILE)",
        )
    with console.searching("search", quiet=args.quiet) as show:
        return choose(recipe, keys_set(args), purchase, show=show)


def say(choice: Chosen | None, *, quiet: bool = False) -> None:
    """Say on stderr what was seen and chosen. Quiet leaves out what is only good to know."""
    if choice is None:
        return
    federation = choice.federation
    inputs = amount(math.prod(federation.input_shape), "input")
    summary = f"{amount(choice.clients, 'client')}, {inputs}"
    if federation.encoder is not None:
        summary += f" from {amount(len(federation.encoder.columns), 'column')}"
    notes = () if quiet else (f"{summary}.", *choice.notes)
    console.note(notes, [choice.warning] if choice.warning else [])


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
_IN_SHORT = {
    "seed": "it is a simulation with a seed",
    "classes": "the classes were read from the rows",
    "task": "what to predict was decided from the rows",
    "schema": "what the columns hold was read from the rows",
}
_REPEATED = ("data", *_TABLE, "test", "class_weights", "unit", "classes", "epsilon", "delta")


def in_short(reason: str) -> str:
    """Return why a run is not certified in few words; parts that no option removes as they are."""
    parts = ((_remedy(part), part) for part in reason.split("; "))
    return "; ".join(dict.fromkeys(_IN_SHORT.get(name or "", part) for name, part in parts))


def _remedy(part: str) -> str | None:
    """Return what removes one part of a reason; None if nothing does."""
    lower = part.lower()
    named = (name for name, phrases in _REMEDIES.items() if any(one in lower for one in phrases))
    return next(named, None)


def certifying_command(
    args: argparse.Namespace,
    reason: str,
    class_names: Sequence[str] = (),
    table: str | None = None,
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
    table = getattr(args, "data", None) or table
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
    if args.schema is not None and "of the schema are guesses" in reason:
        first = f"# first replace the guesses in {args.schema}, and delete their marks"
        return f"{first}\n{shlex.join([*words, *_options(args, ('schema',))])}"
    if table is not None and "schema" in needed:  # it also declares the label
        schema = _unused(Path(table).stem, ".toml")
        draft = ["fedveil", "data", "schema", table, *_options(args, _TABLE), "--output", schema]
        first = f"{shlex.join(draft)}  # then check its guesses"
        return f"{first}\n{shlex.join([*words, '--schema', schema])}"
    words += _options(args, ("schema",))
    if "classes" in needed and class_names:
        words += ["--classes", ",".join(class_names)]
    if "task" in needed:
        words += ["--set", f"data.task={'classification' if class_names else 'regression'}"]
    return shlex.join(words)


def _unused(name: str, suffix: str) -> str:
    """Return a file's name, with a number if there is one of that name already."""
    numbers = (f"-{number}" for number in itertools.count(2))
    names = (f"{name}{number}{suffix}" for number in itertools.chain([""], numbers))
    return next(one for one in names if not Path(one).exists())


def _options(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    words: list[str] = []
    for name in names:
        if (value := getattr(args, name, None)) is not None:
            words += [
                console.flag(name),
                ",".join(value) if isinstance(value, list) else f"{value}",
            ]
    return words


def show_columns(columns: Sequence[dict[str, Any]], to: Console | None = None) -> None:
    if columns:
        rows = [[str(value or "") for value in one.values()] for one in columns]
        console.table("Columns", tuple(columns[0]), rows, to)
