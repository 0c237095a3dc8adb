"""What people and scripts see: one JSON document or tables on stdout, all else on stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from fedveil.core.canonical import plain
from fedveil.core.display import amount

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from fedveil.tune.tuner import SearchProgress

Options = Mapping[str, tuple[Any, ...]]


def add_options(parser: argparse.ArgumentParser, options: Options, title: str = "") -> None:
    """Declare options.

    An option takes a type, one of a tuple of choices, some of a list of choices, any number of
    texts (`list`) or nothing (`bool`: a switch).

    Args:
        parser: The command's parser.
        options: By name, what each takes, its help text, and its default if it has one. A word
            after the name stands for the value in the help text.
        title: Of their group in the help text.
    """
    group: Any = parser.add_argument_group(title) if title else parser
    for name, (kind, text, *default) in options.items():
        flag, _, value = name.partition(" ")
        how: dict[str, Any] = {"help": text, "default": default[0] if default else None}
        if kind is bool:
            how = {"help": text, "action": "store_true"}
        elif kind is list:
            how = {"help": text, "action": "append", "default": []}
        elif isinstance(kind, list):
            how = {"help": text, "action": "append", "choices": kind}
        else:
            how |= {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        group.add_argument(flag, **how, **({"metavar": value} if value else {}))


def add_actions(
    parser: argparse.ArgumentParser, actions: Mapping[str, tuple[str, Sequence[str], Options]]
) -> None:
    """Declare a command's actions.

    Args:
        parser: The command's parser.
        actions: By name, the help text of each, its arguments ("NAME what it is") and its options.
            An argument whose name ends in three dots takes one value or more.
    """
    from argparse import SUPPRESS

    chosen = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, arguments, options) in actions.items():
        action = chosen.add_parser(name, help=text, description=text)
        for argument in arguments:
            word, _, help_text = argument.partition(" ")
            many = {"nargs": "+"} if word.endswith("...") else {}
            word = word.removesuffix("...")
            action.add_argument(word.lower(), metavar=word, help=help_text, **many)  # type: ignore[arg-type]
        add_options(action, options)
        # Declared by every command for itself too: here only if it is given.
        action.add_argument(
            "--json",
            action="store_true",
            default=SUPPRESS,
            help="print one JSON document on stdout",
        )


def flag(name: str) -> str:
    """Return the option that sets `name`."""
    return "--" + name.replace("_", "-")


def answer(args: argparse.Namespace, document: Mapping[str, Any], show: Callable[[], None]) -> int:
    """End a command: print one JSON document with --json, else show the answer.

    Args:
        args: The parsed options.
        document: The answer as plain values.
        show: Prints the answer for people.
    """
    if args.json:
        emit(document)
    else:
        show()
    return 0


def prepare_training() -> None:
    """Prepare the process for training."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt  # to be told to stop is to be interrupted: what is done is kept

    signal.signal(signal.SIGTERM, interrupt)
    # Waiting threads that spin make two-threaded training collapse beside any busy neighbour.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout. JSON knows no infinity: such numbers become null."""
    json.dump(plain(document), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """Say what went wrong, in one line on stderr."""
    print(f"fedveil: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def searching(what: str, *, quiet: bool = False) -> Iterator[Callable[[SearchProgress], None]]:
    """Show a search's progress on stderr: one line that changes, or a line now and then."""
    reported = -1.0

    def text(state: SearchProgress) -> str:
        share = min(1.0, state.share)
        runs = amount(state.trials, "run")
        return f"{what}: {state.stage}, {runs}, {share:.0%}, best {state.error:.4g}"

    def now_and_then(state: SearchProgress) -> None:
        nonlocal reported
        if state.share - reported >= 0.2:
            reported = state.share
            print(text(state), file=sys.stderr, flush=True)

    if quiet:
        yield lambda state: None
    elif sys.stderr.isatty():
        with stderr().status(what) as line:
            yield lambda state: line.update(text(state))
    else:
        yield now_and_then


def counting(quiet: bool) -> Callable[[str, int, int], None]:
    """Return a function that shows progress on stderr, a line every two seconds at most."""
    last_line = [time.monotonic()]

    def show(what: str, done: int, of: int) -> None:
        if not quiet and time.monotonic() - last_line[0] > 2:
            last_line[0] = time.monotonic()
            print(f"{what} {done:,} of {of:,}", file=sys.stderr, flush=True)

    return show


@cache
def stdout() -> Console:
    from rich.console import Console

    return Console(highlight=False)


@cache
def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(
    text: str,
    *,
    heading: str = "",
    colour: str = "bold",
    to: Console | None = None,
    command: bool = False,
) -> None:
    """Print plain text behind a short heading; brackets in names have no meaning.

    Args:
        text: The text.
        heading: Printed before it.
        colour: Of the heading.
        to: The console; by default that of stdout.
        command: Whether to print the text on a line that is not broken, so that it can be copied.
    """
    from rich.text import Text

    after = "\n" if command else " "
    head = Text(f"{heading}{after}", style=colour) if heading else Text()
    (to or stdout()).print(head + Text(text), soft_wrap=command)


def note(notes: Iterable[str], warnings: Iterable[str] = ()) -> None:
    """Print sentences on stderr.

    Args:
        notes: Sentences that are good to know.
        warnings: Sentences that one must know.
    """
    for heading, colour, sentences in (("note:", "yellow", notes), ("warning:", "red", warnings)):
        for sentence in sentences:
            say(sentence, heading=heading, colour=colour, to=stderr())


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    to: Console | None = None,
) -> None:
    """Print a table whose first column is left-aligned and whose numbers are right-aligned.

    Args:
        title: Of the table.
        columns: Their names.
        rows: Cells as texts.
        to: The console; by default that of stdout.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=Text(title), title_justify="left")
    for position, column in enumerate(columns):
        left_aligned = position == 0 or column in ("kind", "use")
        grid.add_column(column, justify="left" if left_aligned else "right")
    for row in rows:
        grid.add_row(*map(Text, row))
    (to or stdout()).print(grid)
