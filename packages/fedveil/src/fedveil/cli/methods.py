"""`fedveil methods`: what there is, whose data it protects, and from whom."""

from __future__ import annotations

import argparse

from fedveil.cli import console
from fedveil.methods.recipes.values import kind_name
from fedveil.methods.registry import METHODS, MethodEntry
from fedveil.planning.recipe import read, shipped


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="only this method, with all it understands")


def execute(args: argparse.Namespace) -> int:
    chosen = list(METHODS.values()) if args.name is None else [METHODS.find(args.name, "methods")]
    if args.json:
        papers = _papers()
        console.emit({"methods": [_document(entry, papers[entry.name]) for entry in chosen]})
        return 0
    from rich.padding import Padding
    from rich.text import Text

    screen, papers = console.stdout(), _papers()
    for entry in chosen:
        screen.print(Text(entry.name, "bold"), Text(f"({entry.source})", "dim"), soft_wrap=True)
        seen_by = f", from {entry.towards}" if entry.private else ""
        lines = [entry.what, f"protects {entry.protects}{seen_by}"]
        if entry.aliases:
            lines.append(f"also called {', '.join(entry.aliases)}")
        if papers[entry.name]:
            lines.append(f"as in the paper: {', '.join(papers[entry.name])}")
        for said in lines:
            screen.print(Padding(Text(said), (0, 0, 0, 4), expand=False))
    if args.name is None:
        screen.print("fedveil run NAME trains the recipe of that name; fedveil methods NAME says")
        screen.print("more. A recipe's file can be copied and changed: fedveil methods NAME --json")
        return 0
    (entry,) = chosen
    screen.print(entry.page, markup=False, highlight=False, soft_wrap=True)
    if entry.keys:
        screen.print(f"\noptional recipe keys: {', '.join(entry.keys)}", soft_wrap=True)
    for key in entry.own:
        kind = kind_name(key.kind)
        said = f"method.{key.name}: {kind}, {key.default} by default; {key.what}"
        screen.print(said, markup=False, soft_wrap=True)
    if entry.name in shipped():
        screen.print(f"\nits recipe: {shipped()[entry.name]}", soft_wrap=True)
    return 0


def _papers() -> dict[str, list[str]]:
    """Return the recipes with the papers' own settings, by the name of their method."""
    names: dict[str, list[str]] = {method: [] for method in METHODS}
    for name, path in shipped().items():
        if name.startswith("papers/"):
            names[read(path)["training"]["method"]].append(name)
    return names


def _document(entry: MethodEntry, papers: list[str]) -> dict[str, object]:
    recipe = shipped().get(entry.name)
    return {
        "name": entry.name,
        "earlier_names": list(entry.aliases),
        "what": entry.what,
        "source": entry.source,
        "private": entry.private,
        "protects": entry.protects,
        "towards": entry.towards,
        "recipe": None if recipe is None else str(recipe),
        "papers": papers,
        "keys": list(entry.keys),
        "own_keys": [
            {"name": f"method.{key.name}", "default": key.default, "what": key.what}
            for key in entry.own
        ],
    }
