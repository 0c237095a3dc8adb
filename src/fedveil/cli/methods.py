"""`fedveil methods`: what there is, whose data it protects, and from whom."""

from __future__ import annotations

import argparse

from fedveil.cli import console
from fedveil.core.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="only this method, with all it understands")


def execute(args: argparse.Namespace) -> int:
    from fedveil.config.methods import METHODS

    if args.name is not None and args.name not in METHODS:
        raise ConfigError(f"method {args.name!r} is unknown; there are {', '.join(METHODS)}")
    chosen = METHODS if args.name is None else {args.name: METHODS[args.name]}
    if args.json:
        documents = [
            {
                "name": name,
                "what": entry.about.what,
                "source": entry.about.source,
                "private": entry.about.private,
                "protects": entry.about.protects,
                "towards": entry.about.towards,
                "recipe": f"recipes/{name}.toml",
                "own_keys": list(entry.keys),
            }
            for name, entry in chosen.items()
        ]
        console.emit({"methods": documents})
        return 0
    from rich.table import Table

    table = Table(show_lines=True)
    for column in ("method", "what it does", "protects", "towards", "from"):
        table.add_column(column, overflow="fold")
    for name, entry in chosen.items():
        about = entry.about
        table.add_row(name, about.what, about.protects, about.towards, about.source)
    console.stdout().print(table)
    if args.name is not None and chosen[args.name].keys:
        console.stdout().print(f"recipe keys of its own: {', '.join(chosen[args.name].keys)}")
    console.stdout().print("A recipe for each is in recipes/, named as the method.")
    return 0
