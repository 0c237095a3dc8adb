"""`fedveil audit`: attack what a recipe promises, and say how close the attacks came."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import console
from fedveil.config import recipe as recipes
from fedveil.core.errors import ConfigError
from fedveil.privacy.shown import at_most

if TYPE_CHECKING:
    from fedveil.audit.audit import Audit

_OPTIONS: console.Options = {
    "--set KEY=VALUE": (list, "change one recipe entry"),
    "--games N": (int, "games to play: more of them come closer (20000)", 20_000),
    "--canaries N": (int, "canary clients of the one run (half of all); 0: no such run"),
    "--seed": (int, "of all randomness: audits are simulations and can be repeated (0)", 0),
    "--time SECONDS": (float, "stop about then, and say what was seen so far", math.inf),
    "--report FILE": (Path, "where to write a refuted guarantee (audit-NAME.json)"),
    "--quiet": (bool, "no progress, only the result"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a TOML recipe, or the name of one")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    console.prepare_training()
    recipe = recipes.with_defaults(recipes.parse(recipes.read(args.recipe), args.set))

    from fedveil.audit.audit import audit
    from fedveil.config.assemble import federation_of, plan_of

    if not args.time > 0:
        raise ConfigError("--time: need a positive number of seconds")
    plan = plan_of(recipe, federation_of(recipe.data))
    found = audit(
        plan,
        games=args.games,
        canaries=args.canaries,
        seed=args.seed,
        seconds=args.time,
        progress=_progress(args.quiet),
    )
    if found.refuted:
        path = args.report or Path(f"audit-{args.recipe.stem}.json")
        document = json.dumps(console.plain(found.to_dict()), indent=2)
        path.write_text(document + "\n", encoding="utf-8")
        console.complain(f"{found.refuted}; the audit is in {path}")
    console.answer(args, found.to_dict(), lambda: _show(found))
    return 1 if found.refuted else 0


def _progress(quiet: bool) -> Callable[[str, int, int], None]:
    """A line every two seconds at most."""
    shown = [time.monotonic()]

    def show(what: str, done: int, of: int) -> None:
        if not quiet and time.monotonic() - shown[0] > 2:
            shown[0] = time.monotonic()
            print(f"{what} {done:,} of {of:,}", file=sys.stderr, flush=True)

    return show


def _show(found: Audit) -> None:
    certified, many, one = found.guarantee, found.many, found.one
    rows = [("certified, at most", at_most(certified.epsilon), "the accountant's proof")]
    games = f"{many.games:,} games, nothing assumed"
    rows.append(("audited, at least", f"{many.epsilon:.3f}", games))
    if found.gaussian is not None:
        low, high = found.gaussian
        text = f"{low:.3f} to {high:.3f}"
        rows.append(("audited, estimate", text, "the same games, if noise is Gaussian"))
    if one is not None:
        text = f"one run, {one.right} of {one.guesses} guesses right"
        rows.append(("audited, at least", f"{one.epsilon:.3f}", text))
        for each in one.cosines:
            text = f"{each.epsilon[0]:.3f} to {each.epsilon[1]:.3f}"
            how = f"one run, cosines with {each.of}"
            rows.append(("audited, estimate", text, how))
    who = f"{certified.unit}, {certified.adjacency}, {certified.trust} trust"
    title = f"Epsilon at delta {at_most(certified.delta)} ({who}); bounds hold with 95 % each"
    console.table(title, ("", "epsilon", "from"), rows)
    if not many.complete or (one is not None and not one.complete):
        console.say("stopped by --time before the end.", heading="Cut short:")
    if found.refuted:
        console.say(found.refuted, heading="REFUTED:", colour="bold red")
    else:
        console.say("nothing here contradicts the guarantee.", heading="Result:")
    console.say("; ".join(found.not_tried) + ".", heading="Not tried:")
