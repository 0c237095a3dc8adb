"""`fedveil attack`: what others could learn from uploads and models of a recipe, in pictures."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.arguments import interval
from fedveil.core.canonical import plain
from fedveil.core.errors import ConfigError
from fedveil.privacy.rounding import at_most
from fedveil.run.guarantees import recipe_of

if TYPE_CHECKING:
    from fedveil_lab.audit.attack.attack import Attack

_OPTIONS: console.Options = {
    "--set KEY=VALUE": (list, "change one recipe entry"),
    "--only": (
        ["reconstruct", "membership"],
        "try this alone; may be given twice",
    ),
    "--victims N": (int, "clients whose uploads are attacked (20)", 20),
    "--records N": (int, "records of each victim (1: nothing to hide behind)", 1),
    "--runs N": (int, "models to train for membership inference (64)", 64),
    "--seed": (int, "of all randomness (0)", 0),
    "--time SECONDS": (float, "stop training models about then", math.inf),
    "--out DIR": (Path, "where pictures and figures go (attack-NAME, or in the run)"),
    "--quiet": (bool, "no progress, only the result"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", type=Path, nargs="+", help="recipes, names of some, or run directories"
    )
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    console.prepare_training()
    interval("(0, inf]")("--time", args.time)
    many = len(args.recipe) > 1
    documents: list[dict[str, Any]] = []
    for path in args.recipe:
        name = path.resolve().name if path.is_dir() else path.stem
        own = path / "attack" if path.is_dir() else Path(f"attack-{name}")
        folder = own if args.out is None else args.out / name if many else args.out
        one = _attacked(path, args)
        written = _write(one, name, folder)
        documents.append(one.to_dict() | {"recipe": name, "files": list(map(str, written))})
        if not args.json:
            console.say(name, heading="Attacks on")
            _show(one, written)
    document = {"attacks": documents} if many else documents[0]
    return console.answer(args, document, lambda: None)


def _attacked(path: Path, args: argparse.Namespace) -> Attack:
    from fedveil.planning.assemble import federation_of, plan_of
    from fedveil_lab.audit.attack.attack import KINDS, attack

    recipe = recipe_of(path, args.set)
    if path.is_dir() and recipe.seed is None:
        raise ConfigError(
            f"{path}: a protected run; pictures of its records have no place in it, nor anywhere "
            "that others see"
        )
    recipe = replace(recipe, seed=args.seed)
    return attack(
        plan_of(recipe, federation_of(recipe.data)),
        kinds=args.only or KINDS,
        victims=args.victims,
        records=args.records,
        runs=args.runs,
        seed=args.seed,
        seconds=args.time,
        progress=console.counting(args.quiet),
    )


def _promise(name: str, found: Attack) -> str:
    told = "no guarantee" if found.epsilon is None else f"epsilon {at_most(found.epsilon)}"
    return f"{name}, {told}"


def _write(found: Attack, name: str, folder: Path) -> list[Path]:
    from fedveil_lab.audit.attack.pictures import is_image, roc, sheet

    folder.mkdir(parents=True, exist_ok=True)
    pictures = {}
    if found.reconstruction is not None and is_image(found.reconstruction):
        pictures["reconstructions"] = sheet(found.reconstruction, _promise(name, found))
    if found.membership is not None:
        title = f"{name}: was this {found.membership.unit} there?"
        pictures["membership"] = roc(found.membership, title)
    for old in ("reconstructions", "membership"):  # of an earlier attack
        (folder / f"{old}.png").unlink(missing_ok=True)
    written = []
    for title, picture in pictures.items():
        written.append(folder / f"{title}.png")
        written[-1].write_bytes(picture)
    written.append(folder / "attack.json")
    document = json.dumps(plain(found.to_dict()), indent=2)
    written[-1].write_text(document + "\n", encoding="utf-8")
    return written


def _show(found: Attack, written: list[Path]) -> None:
    if found.reconstruction is not None:
        made = found.reconstruction
        rows = [
            (one.view, f"{one.correlation:.3f}", f"{one.found} of {one.victims}")
            for one in made.likeness
        ]
        title = "Records back from uploads"
        columns = ("what is seen", "correlation", f"found among {made.candidates:,}")
        console.table(title, columns, rows)
    if found.membership is not None:
        members = found.membership
        points = [
            (
                curve.attack,
                f"{point.false_rate:.1%}",
                f"{point.true_rate:.2%}",
                "" if point.allowed is None else f"{point.allowed:.2%}",
            )
            for curve in members.curves
            for point in curve.points
        ]
        title = (
            f"Was this {members.unit} there, or is it that {members.without}? "
            f"{members.runs} models, {members.trials:,} trials"
        )
        heads = ("attack", "false positives", "true positives", "allowed by epsilon")
        console.table(title, heads, points)
        if not members.complete:
            console.say("stopped by --time before all models were trained.", heading="Cut short:")
    console.say("; ".join(found.not_tried) + ".", heading="Not tried:")
    console.say(", ".join(map(str, written)), heading="Written:")
