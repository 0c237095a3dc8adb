"""Options for a table of one's own, and what is chosen for it where the user says nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError, PrivacyRefusal

if TYPE_CHECKING:
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
        raise ConfigError(
            f"--class-weights {text}: write names and numbers, as no=1,yes=5"
        ) from None


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
}
_KEYS = {
    "data.file": "data",
    "data.client_column": "client_column",
    "data.person_column": "person_column",
    "data.label": "label",
    "data.label_separator": "label_separator",
    "data.text_columns": "text_column",
    "data.schema": "schema",
    "data.test_file": "test",
    "data.classes": "classes",
    "training.class_weights": "class_weights",
    "privacy.unit": "unit",
    "privacy.epsilon": "epsilon",
    "privacy.delta": "delta",
}


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The recipe keys that these options set."""
    values = {key: getattr(args, name) for key, name in _KEYS.items()}
    if args.class_weights is not None:
        values["training.class_weights"] = _weights(args.class_weights)
    return {key: value for key, value in values.items() if value is not None}


@contextmanager
def purchase(run: Path) -> Iterator[Purchase]:
    """What is bought for a run that will be here; if none comes of it, that is said."""
    from fedveil.run.purchase import Purchase

    own = Purchase(run)
    try:
        yield own
    finally:
        if own.open:
            console.complain(
                "statistics were bought, and count though no run came of it: fedveil account "
                f"{own.path}"
            )


def chosen(args: argparse.Namespace, recipe: Recipe, purchase: Purchase) -> Chosen | None:
    """What to run on a table that came without a recipe; None if there is one, or no table."""
    if args.recipe is not None or getattr(args, "resume", None) or recipe.data.file is None:
        return None
    from fedveil.training.engines.distributed_env import under_torchrun
    from fedveil.tune.defaults import choose

    if under_torchrun():
        raise PrivacyRefusal(
            "under torchrun each process would choose settings and buy statistics of its own, and "
            "all of them would have to be paid for",
            "write a recipe first (fedveil plan --data FILE --schema FILE --write FILE)",
        )
    keys = {assignment.partition("=")[0].strip() for assignment in args.set}
    from fedveil.cli.plan import progress

    with progress("settings", quiet=args.quiet) as show:
        return choose(recipe, keys | set(given(args)), purchase, show=show)


def plan_table(args: argparse.Namespace) -> int:
    """`fedveil plan --data`: what `fedveil run` would choose and promise."""
    from fedveil.cli.plan import progress
    from fedveil.cli.plan_show import write_recipe
    from fedveil.planning import recipe as recipes
    from fedveil.planning.assemble import plan_of
    from fedveil.tune.defaults import choose
    from fedveil.tune.proxy import with_look

    recipe = recipes.parse({}, args.set, given(args))
    keys = {assignment.partition("=")[0].strip() for assignment in args.set}
    # Nothing may be bought for a run that does not take place.
    with progress("plan") as tell:
        choice = choose(recipe, keys | set(given(args)), buy=False, show=tell)
    guarantee = plan_of(choice.recipe, choice.federation).guarantee
    if args.write is not None:
        looked = () if recipe.data.schema is not None else (str(recipe.data.file),)
        write_recipe(args.write, with_look(choice.recipe, looked), choice.notes)
    document = {
        "settings": recipes.to_table(choice.recipe),
        "columns": _columns(choice),
        "notes": list(choice.notes),
        "warnings": [choice.warning] if choice.warning else [],
        "guarantee": None if guarantee is None else guarantee.to_dict(),
    }

    def show() -> None:
        say(choice)
        if columns := _columns(choice):
            rows = [[str(value) for value in one.values()] for one in columns]
            console.table("Inputs", tuple(columns[0]), rows)
        if guarantee is not None:
            console.say(guarantee.summary, heading="Guarantee:")
        if args.write is not None:
            console.say(f"Run it with: fedveil run {args.write}")

    return console.answer(args, document, show)


def _columns(choice: Chosen) -> list[dict[str, Any]]:
    """What becomes of every column that is an input."""
    from fedveil.data.encoder import feature_names

    encoder, found = choice.federation.encoder, []
    for name, column in {} if encoder is None else encoder.columns.items():
        scale = f"{column.buckets or len(column.categories)} values"
        if column.cuts:
            low, high = column.cuts[0], column.cuts[-1]
            scale = f"{len(column.cuts) + 1} bins from {low:.4g} to {high:.4g}"
        elif column.kind in ("number", "date"):
            scale = f"centre {column.centre:.4g}, width {column.width:.4g}"
        elif column.kind == "boolean":
            scale = "true or false"
        elif column.kind == "text":
            scale = f"vectors of {column.encoder}"
        inputs = len(feature_names(name, column))
        found.append({"column": name, "kind": str(column.kind), "inputs": inputs, "scale": scale})
    return found


def say(choice: Chosen | None, *, quiet: bool = False) -> None:
    """What was seen and chosen, on stderr. Quiet leaves out what is only good to know."""
    if choice is None:
        return
    federation, errors = choice.federation, console.stderr()
    if not quiet:
        inputs = math.prod(federation.input_shape)
        seen = f"{choice.clients:,} clients, {inputs:,} inputs"
        if federation.encoder is not None:
            seen += f" from {len(federation.encoder.columns)} columns"
        for sentence in (f"{seen}.", *choice.notes):
            console.say(sentence, heading="note:", colour="yellow", to=errors)
    if choice.warning:
        console.say(choice.warning, heading="warning:", colour="red", to=errors)
