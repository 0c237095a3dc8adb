"""`fedveil plan`: what a privacy budget buys, which settings to run with, and what to expect."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console, own_data
from fedveil.cli.plan_show import (
    OWN_DATA,
    draw,
    show_advice,
    show_feasible,
    write_recipe,
)
from fedveil.core.errors import ConfigError
from fedveil.core.registry import extension

if TYPE_CHECKING:
    from fedveil.planning.plan import Plan
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.advice import Advice
    from fedveil.tune.feasible import Question
    from fedveil.tune.tuner import Progress, Tuner


def _picture(text: str) -> Path:
    """Refuse an unknown kind of picture before anything is worked out."""
    path = Path(text)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"{text}: use .png, .pdf or .svg")
    return path


def whole(text: str) -> int:
    """Read a whole number, also as 1e6 or 1_000_000."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError from None
        return int(number)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(whole(part) for part in text.split(","))


_wholes.__name__ = "list of whole numbers"
whole.__name__ = "whole number"  # argparse says "invalid whole number value"

_TRUSTS = ("local", "distributed", "central")
_GIVEN = ("clients", "cohort", "dimension", "epsilon", "delta", "noise")  # by a recipe
_OPTIONS: dict[str, console.Options] = {
    "": {
        "--set KEY=VALUE": (list, "change the recipe"),
        "--proxy NAME": (str, "public data to try settings on: a source, a file, synthetic"),
        "--write FILE": (Path, "save the recommended recipe"),
        "--pilot": (bool, "only search for settings, and four times as long"),
        "--feasible": (bool, "only what noise costs, by trust and sampling"),
        "--time": (float, "seconds after which a search ends"),
        "--max-steps": (whole, "largest total of local steps (the recipe's)"),
        "--records": (whole, "of a client, if publicly known"),
        "--spent-epsilon": (float, "used up before", 0.0),
        "--spent-delta": (float, "used up before", 0.0),
        "--plot FILE": (_picture, "draw it: .png, .pdf or .svg"),
    },
    "a table of your own: what fedveil run would choose": own_data.OPTIONS,
    "tuning on private data, charged to the budget": {
        "--tune-on-private-data": (bool, "train, and keep the best of some runs"),
        "--tuning-mean": (float, "runs on average (10)", 10.0),
        "--output DIR": (Path, "where to keep the chosen model"),
    },
    "feasible: what to tabulate": {
        "--rounds": (_wholes, "as 10,100,1000 (these)"),
        "--trust": (list(_TRUSTS), "only this; may be repeated"),
        "--dropped": (float, "share of shares lost (0.1)", 0.1),
        "--colluders": (whole, "colluding clients (1)", 1),
    },
    "feasible without a recipe": {
        "--epsilon": (float, "the budget"),
        "--delta": (float, "default min(1e-5, clients^-1.1)"),
        "--clients": (whole, "owners of data"),
        "--cohort": (_wholes, "clients in a round; or a list"),
        "--dimension": (whole, "weights of the model"),
        "--noise": (("laplace", "gaussian"), "which (gaussian)"),
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("recipe", nargs="?", type=Path, help="plan this recipe's budget")
    for title, options in _OPTIONS.items():
        console.add_options(parser, options, title)


def execute(args: argparse.Namespace) -> int:
    """Answer what was asked: about a recipe, a table or a budget."""
    if args.pilot + args.tune_on_private_data + args.feasible > 1:
        raise ConfigError("plan: choose one of --pilot, --feasible and --tune-on-private-data")
    if args.time is not None and not (math.isfinite(args.time) and args.time > 0):
        raise ConfigError(f"--time: must be a positive number of seconds, got {args.time:g}")
    if args.tune_on_private_data:
        from fedveil.cli.plan_private import tune_privately

        return tune_privately(args)
    if args.output is not None:
        raise ConfigError("--output: can only be used with --tune-on-private-data")
    if args.data is not None and args.recipe is None:
        return own_data.plan_table(args)
    if args.recipe is not None or args.set or args.pilot:
        return _plan_recipe(args)
    for name in ("proxy", "write"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name}: can only be used with a recipe")
    if not args.feasible:
        raise ConfigError("plan: name a recipe, --data FILE, or use --feasible")
    return _feasible(args)


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Return the recipe that was named, with its changes; what it says must not be said again."""
    from fedveil.planning import recipe as recipes

    for name in _GIVEN:
        if getattr(args, name) is not None:
            raise ConfigError(f"{console.flag(name)}: given by the recipe; change it with --set")
    table = recipes.DEFAULT_JOB if args.recipe is None else recipes.read(args.recipe)
    return recipes.with_defaults(recipes.parse(table, args.set))


def _plan_recipe(args: argparse.Namespace) -> int:
    """Show what noise costs around a recipe, which settings to run, and what costs nothing."""
    recipe = recipe_of(args)

    from fedveil.tune import advice

    document: dict[str, Any] = {}
    if args.feasible:
        document = _around(args, *_what_is_left(args, recipe))
        found = None
    else:
        names = ("proxy", "records", "max_steps", "spent_epsilon", "spent_delta")
        given = {name: getattr(args, name) for name in names}
        seconds = math.inf if args.time is None else args.time
        effort = advice.PILOT if args.pilot else advice.EFFORT
        tuner = advice.prepare(recipe, **given, effort=effort, seconds=seconds)
        with progress("plan") as tuner.show:
            found = advice.advise(tuner)
        if not args.pilot:
            document = _around(args, tuner.trials.recipe, tuner.trials.real)
        _advise(args, tuner, found, document)
    if args.json:
        console.emit(document)
    return 130 if found is not None and found.interrupted else 0


def _what_is_left(args: argparse.Namespace, recipe: Recipe) -> tuple[Recipe, Plan]:
    """Return the recipe with the rest of its budget, and its plan."""
    from dataclasses import replace

    from fedveil.planning.assemble import federation_of, plan_of
    from fedveil.tune.feasible import remaining

    plan = plan_of(recipe, federation_of(recipe.data))
    if plan.guarantee is None or recipe.privacy.epsilon is None:
        raise ConfigError(f"training.method: {plan.method.name!r} has no budget to plan for")
    spent = args.spent_epsilon, args.spent_delta
    epsilon, delta = remaining(recipe.privacy.epsilon, plan.guarantee.delta, *spent)
    return replace(recipe, privacy=replace(recipe.privacy, epsilon=epsilon, delta=delta)), plan


def _around(args: argparse.Namespace, recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Answer what noise costs around a recipe that protects whole clients."""
    from fedveil.core.units import Unit
    from fedveil.tune.feasible import Question

    if plan.privacy_model is None or plan.privacy_model.unit is not Unit.CLIENT:
        if args.feasible:
            raise ConfigError(
                f"training.method: {plan.method.name!r} protects records, and --feasible is about "
                "whole clients; leave it out"
            )
        return {}
    rounds, delta = plan.method.rounds, plan.guarantee.delta if plan.guarantee else 0.0
    question = Question(
        recipe.privacy.epsilon or 0.0,
        delta if recipe.privacy.delta is None else recipe.privacy.delta,
        plan.sampling.clients or plan.federation.clients,
        plan.layout.size,
        (max(1, round(plan.sampling.expected_cohort)),),
        args.rounds or tuple(dict.fromkeys((max(1, rounds // 4), rounds, 4 * rounds))),
        noise=recipe.privacy.noise,
        **_ways(args),
    )
    return _answer(args, question)


def _feasible(args: argparse.Namespace) -> int:
    """Answer what noise costs for a budget and a population."""
    from fedveil.tune.feasible import ROUNDS, question_of

    needed = ("epsilon", "clients", "dimension", "cohort")
    if missing := [console.flag(name) for name in needed if getattr(args, name) is None]:
        raise ConfigError(f"--feasible needs {', '.join(missing)}, or a recipe")
    names = ("epsilon", "delta", "clients", "dimension", "spent_epsilon", "spent_delta")
    asked = {"cohorts": args.cohort, "rounds": args.rounds or ROUNDS, **_ways(args)}
    given = {name: getattr(args, name) for name in names}
    document = _answer(args, question_of(**given, **asked, noise=args.noise or "gaussian"))
    if args.json:
        console.emit(document)
    return 0


def _ways(args: argparse.Namespace) -> dict[str, Any]:
    from fedveil.core.units import Trust

    trusts = tuple(Trust(name) for name in args.trust or _TRUSTS)
    return {"trusts": trusts, "dropped": args.dropped, "colluders": args.colluders}


def _answer(args: argparse.Namespace, question: Question) -> dict[str, Any]:
    """Return the feasible set as a document, and show it unless JSON is asked for."""
    from fedveil.tune.feasible import SIGNAL_TO_NOISE, feasible, warnings, without_proof

    rows = feasible(question, extension("fedveil.papers", "claim_of"))
    document = {
        **vars(question),
        "signal_to_noise": SIGNAL_TO_NOISE,
        "rows": [row.to_dict() for row in rows],
        "without_proof": without_proof(question, rows),
        "warnings": warnings(rows),
    }
    for name in ("cohorts", "rounds", "trusts"):  # every row says its own
        del document[name]
    if args.plot is not None and args.feasible:
        draw("draw_feasible", rows, args.plot)
    if not args.json:
        show_feasible(question, rows, document)
    return document


def _advise(
    args: argparse.Namespace, tuner: Tuner, found: Advice, document: dict[str, Any]
) -> None:
    """Add what a search found to the document; show, draw and write what was asked for."""
    from fedveil.planning.assemble import plan_of
    from fedveil.tune.advice import recipe_of_option
    from fedveil.tune.free_gains import free_gains
    from fedveil.tune.proxy import with_look

    trials = tuner.trials
    chosen = with_look(recipe_of_option(trials.recipe, found.recommended), found.looked_at)
    guarantee = plan_of(chosen, trials.real.federation).guarantee
    theorem = _theorem(args, tuner, found)
    gains = free_gains(trials.recipe, trials.real)
    free = [f"At no cost in privacy: {gain}." for gain in gains]
    if args.write is not None:
        best = found.recommended
        remarks = [
            f"Found by {found.trials} simulated runs on {found.proxy}.",
            f"Reason: {best.reason}.",
            *(f"Note: {note}." for note in found.notes),
            *(f"Warning: {warning}." for warning in found.warnings),
        ]
        write_recipe(args.write, chosen, [*remarks, *free])
    if args.plot is not None:
        draw("draw_search", found, tuner.outcomes, args.plot)
    document |= {
        **found.to_dict(),
        "warnings": [*document.get("warnings", []), *found.warnings],
        "recommended": found.recommended.to_dict(),
        "theorem": None if theorem is None else theorem.to_dict(),
        "guarantee": None if guarantee is None else guarantee.to_dict(),
        "free_gains": [vars(gain) for gain in gains],
    }
    if not args.json:
        from fedveil.planning.assemble import is_protected

        own = any(is_protected(chosen.data, name) for name in chosen.privacy.tuned_on)
        show_advice(found, theorem, OWN_DATA if own else "no private data")
        if guarantee is not None:
            console.say(guarantee.summary, heading="Guarantee:")
        for line in free:
            console.say(line)
        if args.write is not None:
            console.say(f"Run it with: fedveil run {args.write}")


def _theorem(args: argparse.Namespace, tuner: Tuner, found: Advice) -> Any:
    """Return what a paper's theorem says about the options; None without the laboratory."""
    ask = extension("fedveil.papers", "theorem_of")
    if ask is None:
        return None
    trials, choices = tuner.trials, [option.candidate for option in found.options]
    public = trials.proxy.federation
    records = args.records or max(1, round(len(public.train) / public.clients))
    try:
        pairs = [(choice.local_steps, choice.rounds) for choice in choices]
        return ask(trials.recipe, trials.real, public, pairs, records)
    except ConfigError:
        return None  # its conditions do not hold


@contextmanager
def progress(what: str) -> Iterator[Callable[[Progress], None]]:
    """Show a search's progress on stderr: one line that changes, or a line now and then."""
    said = -1.0

    def text(state: Progress) -> str:
        share = min(1.0, state.share)
        return f"{what}: {state.stage}, {state.trials} runs, {share:.0%}, best {state.error:.4g}"

    def now_and_then(state: Progress) -> None:
        nonlocal said
        if state.share - said >= 0.2:
            said = state.share
            print(text(state), file=sys.stderr, flush=True)

    if sys.stderr.isatty():
        with console.stderr().status(what) as line:
            yield lambda state: line.update(text(state))
    else:
        yield now_and_then
