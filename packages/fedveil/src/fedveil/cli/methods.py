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
    papers = _papers()
    documents = [_document(entry, papers[entry.name]) for entry in chosen]

    def show() -> None:
        for entry in chosen:
            seen_by = f", from {entry.towards}" if entry.private else ""
            lines = [entry.what, f"protects {entry.protects}{seen_by}"]
            if entry.aliases:
                lines.append(f"also called {', '.join(entry.aliases)}")
            if papers[entry.name]:
                lines.append(f"as in the paper: {', '.join(papers[entry.name])}")
            console.say(f"({entry.source})", heading=entry.name)
            for line in lines:
                console.say(f"    {line}", command=True)
        if args.name is None:
            console.say(
                "fedveil run NAME trains the recipe of that name; fedveil methods NAME says more. "
                "A recipe's file can be copied and changed: fedveil methods NAME --json"
            )
            return
        (entry,), (document,) = chosen, documents
        texts = [entry.page]
        if entry.keys:
            texts.append(f"\noptional recipe keys: {', '.join(entry.keys)}")
        for key in entry.own:
            kind = kind_name(key.kind)
            texts.append(f"method.{key.name}: {kind}, {key.default} by default; {key.what}")
        if document["recipe"] is not None:
            texts.append(f"\nits recipe: {document['recipe']}")
        for line in texts:
            console.say(line, command=True)

    return console.answer(args, {"methods": documents}, show)


def _papers() -> dict[str, list[str]]:
    """Return the recipes with the papers' own settings, by the name of their method."""
    names: dict[str, list[str]] = {method: [] for method in METHODS}
    for name, path in shipped().items():
        if name.startswith("papers/"):
            names[read(path)["training"]["method"]].append(name)
    return names


def _document(entry: MethodEntry, papers: list[str]) -> dict[str, object]:
    recipe = shipped().get(entry.name)
    names = ("name", "what", "source", "private", "protects", "towards")
    return {
        **{name: getattr(entry, name) for name in names},
        "earlier_names": list(entry.aliases),
        "recipe": None if recipe is None else str(recipe),
        "papers": papers,
        "keys": list(entry.keys),
        "own_keys": [
            {"name": f"method.{key.name}", "default": key.default, "what": key.what}
            for key in entry.own
        ],
    }
