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
from fedveil.cli.plan_show import show_advice, show_feasible, write_recipe
from fedveil.core.errors import ConfigError
from fedveil.core.registry import extension

if TYPE_CHECKING:
    from fedveil.planning.plan import Plan
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.advice import Advice
    from fedveil.tune.tuner import SearchProgress, Tuner


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
    return _emit(args, _for_budget(args))


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Return the recipe that was named, with its changes; what it says must not be said again."""
    from fedveil.planning import recipe as recipes

    for name in _GIVEN:
        if getattr(args, name) is not None:
            raise ConfigError(f"{console.flag(name)}: given by the recipe; change it with --set")
    table = recipes.DEFAULT_JOB if args.recipe is None else recipes.read(args.recipe)
    return recipes.with_defaults(recipes.parse(table, args.set))


def _emit(args: argparse.Namespace, document: dict[str, Any]) -> int:
    """End with the document where it is asked for; everything else has been shown."""
    return console.answer(args, document, lambda: None)


def _plan_recipe(args: argparse.Namespace) -> int:
    """Show what noise costs around a recipe, which settings to run, and what costs nothing."""
    recipe = recipe_of(args)

    from fedveil.tune import advice

    if args.feasible:
        _, recipe, plan = advice.budgeted(recipe, args.spent_epsilon, args.spent_delta)
        return _emit(args, _around(args, recipe, plan))
    names = ("proxy", "records", "max_steps", "spent_epsilon", "spent_delta")
    tuner = advice.prepare(
        recipe,
        **{name: getattr(args, name) for name in names},
        effort=advice.PILOT if args.pilot else advice.EFFORT,
        seconds=math.inf if args.time is None else args.time,
    )
    with progress("plan") as tuner.show:
        found = advice.advise(tuner)
    document = {} if args.pilot else _around(args, tuner.trials.recipe, tuner.trials.real)
    _emit(args, _advise(args, tuner, found, document))
    return 130 if found.interrupted else 0


def _around(args: argparse.Namespace, recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Answer what noise costs around a recipe that protects whole clients."""
    from fedveil.core.units import Unit

    if plan.privacy_model is None or plan.privacy_model.unit is not Unit.CLIENT:
        if args.feasible:
            raise ConfigError(
                f"training.method: {plan.method.name!r} protects records, and --feasible is about "
                "whole clients; leave it out"
            )
        return {}
    rounds, delta = plan.method.rounds, plan.guarantee.delta if plan.guarantee else 0.0
    return _feasible(
        args,
        epsilon=recipe.privacy.epsilon or 0.0,
        delta=delta if recipe.privacy.delta is None else recipe.privacy.delta,
        clients=plan.sampling.clients or plan.federation.clients,
        dimension=plan.layout.size,
        cohorts=(max(1, round(plan.sampling.expected_cohort)),),
        rounds=args.rounds or tuple(dict.fromkeys((max(1, rounds // 4), rounds, 4 * rounds))),
        noise=recipe.privacy.noise,
    )


def _for_budget(args: argparse.Namespace) -> dict[str, Any]:
    """Answer what noise costs for a budget and a population."""
    from fedveil.core.arguments import count
    from fedveil.privacy.accounting import default_delta
    from fedveil.tune.feasible import ROUNDS, remaining

    needed = ("epsilon", "clients", "dimension", "cohort")
    if missing := [console.flag(name) for name in needed if getattr(args, name) is None]:
        raise ConfigError(f"--feasible needs {', '.join(missing)}, or a recipe")
    delta = args.delta
    if delta is None:
        delta = default_delta(count("clients", args.clients))
    epsilon, delta = remaining(args.epsilon, delta, args.spent_epsilon, args.spent_delta)
    return _feasible(
        args,
        epsilon=epsilon,
        delta=delta,
        clients=args.clients,
        dimension=args.dimension,
        cohorts=args.cohort,
        rounds=args.rounds or ROUNDS,
        noise=args.noise or "gaussian",
    )


def _feasible(args: argparse.Namespace, **asked: Any) -> dict[str, Any]:
    """Return the feasible set as a document, and show it unless JSON is asked for."""
    from fedveil.core.units import Trust
    from fedveil.tune import feasible as of

    trusts = tuple(Trust(name) for name in args.trust or _TRUSTS)
    question = of.Question(**asked, trusts=trusts, dropped=args.dropped, colluders=args.colluders)
    rows = of.feasible(question, extension("fedveil.papers", "claim_of"))
    document = {
        **vars(question),
        "signal_to_noise": of.SIGNAL_TO_NOISE,
        "rows": [row.to_dict() for row in rows],
        "without_proof": of.without_proof(question, rows),
        "warnings": of.warnings(rows),
    }
    for name in ("cohorts", "rounds", "trusts"):  # every row says its own
        del document[name]
    if args.plot is not None and args.feasible:
        from fedveil.report.plan_figures import draw_feasible

        draw_feasible(rows, args.plot)
    if not args.json:
        show_feasible(question, rows, document)
    return document


def _advise(
    args: argparse.Namespace, tuner: Tuner, found: Advice, document: dict[str, Any]
) -> dict[str, Any]:
    """Return what a search found beside the document; show, draw and write what was asked for."""
    from fedveil.planning.assemble import is_protected, plan_of
    from fedveil.tune.advice import recipe_of_option
    from fedveil.tune.free_gains import free_gains
    from fedveil.tune.proxy import with_look

    trials = tuner.trials
    chosen = with_look(recipe_of_option(trials.recipe, found.recommended), found.looked_at)
    guarantee = plan_of(chosen, trials.real.federation).guarantee
    theorem = _theorem(args, tuner, found)
    gains = free_gains(trials.recipe, trials.real)
    free = [f"At no cost in privacy: {gain}." for gain in gains]
    said = [f"Note: {note}." for note in found.notes]
    said += [f"Warning: {warning}." for warning in found.warnings]
    if args.write is not None:
        source = f"Found by {found.trials} simulated runs on {found.proxy}."
        reason = f"Reason: {found.recommended.reason}."
        write_recipe(args.write, chosen, [source, reason, *said, *free])
    if args.plot is not None:
        from fedveil.report.plan_figures import draw_search

        draw_search(found, tuner.outcomes, args.plot)
    if not args.json:
        own = any(is_protected(chosen.data, name) for name in chosen.privacy.tuned_on)
        show_advice(found, theorem, own_data=own)
        if guarantee is not None:
            console.say(guarantee.summary, heading="Guarantee:")
        for line in (*said, *free):
            console.say(line)
        if args.write is not None:
            console.say(f"Run it with: fedveil run {args.write}")
    return document | {
        **found.to_dict(),
        "warnings": [*document.get("warnings", []), *found.warnings],
        "recommended": found.recommended.to_dict(),
        "theorem": None if theorem is None else theorem.to_dict(),
        "guarantee": None if guarantee is None else guarantee.to_dict(),
        "free_gains": [vars(gain) for gain in gains],
    }


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
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[SearchProgress], None]]:
    """Show a search's progress on stderr: one line that changes, or a line now and then."""
    said = -1.0

    def text(state: SearchProgress) -> str:
        share = min(1.0, state.share)
        return f"{what}: {state.stage}, {state.trials} runs, {share:.0%}, best {state.error:.4g}"

    def now_and_then(state: SearchProgress) -> None:
        nonlocal said
        if state.share - said >= 0.2:
            said = state.share
            print(text(state), file=sys.stderr, flush=True)

    if quiet:
        yield lambda state: None
    elif sys.stderr.isatty():
        with console.stderr().status(what) as line:
            yield lambda state: line.update(text(state))
    else:
        yield now_and_then
