"""`fedveil audit`: attack what a recipe or a run promises, and say how close the attacks came."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import console
from fedveil.core.arguments import interval
from fedveil.core.canonical import plain
from fedveil.core.errors import ConfigError
from fedveil.privacy.rounding import at_least, at_most
from fedveil.run.guarantees import recipe_of

if TYPE_CHECKING:
    from fedveil_lab.audit.audit import Audit

_OPTIONS: console.Options = {
    "--set KEY=VALUE": (list, "change one recipe entry"),
    "--games N": (int, "games to play: more of them come closer (20000)", 20_000),
    "--canaries N": (int, "canary clients of the one run (half of all, none of a protected run)"),
    "--seed": (int, "of all randomness: audits are simulations and can be repeated (0)", 0),
    "--time SECONDS": (float, "stop about then, and say what was seen so far", math.inf),
    "--report FILE": (Path, "where to write it (a run: its audit.json; else if it is refuted)"),
    "--quiet": (bool, "no progress, only the result"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a recipe, the name of one, or a run directory")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    console.prepare_training()
    run = args.recipe if args.recipe.is_dir() else None
    if run is not None and args.set:
        raise ConfigError("--set: a run is audited as it was; name a recipe to change one")

    from fedveil.planning.assemble import federation_of, plan_of
    from fedveil_lab.audit.audit import audit

    recipe = recipe_of(args.recipe, args.set)
    interval("(0, inf]")("--time", args.time)
    canaries = args.canaries
    if run is not None and recipe.seed is None and canaries is None:
        canaries = 0  # its data have been paid for once, and must not be trained on again
    found = audit(
        plan_of(recipe, federation_of(recipe.data)),
        games=args.games,
        canaries=canaries,
        seed=args.seed,
        seconds=args.time,
        progress=console.counting(args.quiet),
    )
    path = args.report or (run / "audit.json" if run else Path(f"audit-{args.recipe.stem}.json"))
    if found.refuted or run:
        document = json.dumps(plain(found.to_dict()), indent=2)
        path.write_text(document + "\n", encoding="utf-8")
    if found.refuted:
        console.complain(f"{found.refuted}; the audit is in {path}")
    console.answer(args, found.to_dict(), lambda: _show(found))
    return 1 if found.refuted else 0


def _show(found: Audit) -> None:
    certified, many, one = found.guarantee, found.many, found.one
    proved = "certified, at most" if certified.certified else "not certified; the plan's, at most"
    rows = [(proved, at_most(certified.epsilon), "the accountant's proof")]
    games = f"{many.games:,} games, nothing assumed"
    rows.append(("audited, at least", at_least(many.epsilon), games))
    if found.gaussian is not None:
        low, high = found.gaussian
        text = f"{low:.3f} to {high:.3f}"
        rows.append(("audited, estimate", text, "the same games, if noise is Gaussian"))
    if one is not None:
        text = f"one run, {one.right} of {one.guesses} guesses right"
        rows.append(("audited, at least", at_least(one.epsilon), text))
        text = "the same guesses, if its curve is a Gaussian's"
        rows.append(("audited, at least", at_least(one.gaussian), text))
    who = f"{certified.unit}, {certified.adjacency}, {certified.trust} trust"
    title = f"Epsilon at delta {at_most(certified.delta)} ({who}); bounds hold with 95 % each"
    console.table(title, ("", "epsilon", "from"), rows)
    if found.probes:
        held = sum(not probe.broken for probe in found.probes)
        told = f"{held} of {len(found.probes)} updates or records stayed within what is accounted."
        console.say(told, heading="Probes:")
    if not many.complete or (one is not None and not one.complete):
        console.say("stopped by --time before the end.", heading="Cut short:")
    if found.refuted:
        console.say(found.refuted, heading="REFUTED:", colour="bold red")
    else:
        console.say("nothing here contradicts the guarantee.", heading="Result:")
    console.say("; ".join(found.not_tried) + ".", heading="Not tried:")
