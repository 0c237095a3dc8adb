"""`fedveil plan`: what a privacy budget buys, which settings to run with, and what to expect."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console, own_data
from fedveil.core.arguments import optional, positive
from fedveil.core.errors import ConfigError
from fedveil.core.registry import extension
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil.planning.plan import Plan
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.advice import Advice
    from fedveil.tune.feasible import Question, Row
    from fedveil.tune.tuner import Expected, Tuner


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
_GIVEN = ("clients", "cohort", "dimension", "noise")  # by a recipe
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
    },
    "what to train on, and what to protect, as of fedveil run": own_data.OPTIONS,
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
    "feasible without a recipe, with --epsilon": {
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
    optional(positive)("--time", args.time)
    if args.tune_on_private_data:
        from fedveil.cli.plan_private import tune_privately

        return tune_privately(args)
    if args.output is not None:
        raise ConfigError("--output: can only be used with --tune-on-private-data")
    if args.data is not None and args.recipe is None:
        return _plan_table(args)
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
    return recipes.with_defaults(recipes.parse(table, args.set, own_data.given(args)))


def _emit(args: argparse.Namespace, document: dict[str, Any]) -> int:
    """End with the document where it is asked for; everything else has been shown."""
    return console.answer(args, document, lambda: None)


def _plan_table(args: argparse.Namespace) -> int:
    """Show what `fedveil run` would choose for a table, and promise."""
    from fedveil.planning import recipe as recipes
    from fedveil.planning.assemble import plan_of
    from fedveil.run.columns import columns_of
    from fedveil.tune.defaults import choose
    from fedveil.tune.proxy import with_look

    recipe = recipes.parse({}, args.set, own_data.given(args))
    # Nothing may be bought for a run that does not take place.
    with console.searching("plan") as tell:
        choice = choose(recipe, own_data.keys_set(args), buy=False, show=tell)
    guarantee = plan_of(choice.recipe, choice.federation).guarantee
    columns, certify = columns_of(choice.recipe.data, choice.federation), None
    if guarantee is not None and not guarantee.certified:
        names, file = choice.federation.class_names, choice.recipe.data.file
        certify = own_data.certifying_command(args, guarantee.reason, names, file)
    looked = () if recipe.data.schema is not None else (str(recipe.data.file),)
    settings = with_look(choice.recipe, looked)
    if choice.federation.bought is not None:  # which nobody has paid for
        data = replace(settings.data, statistics="data", columns={}, bought={})
        settings = replace(settings, data=data)
    if args.write is not None:
        write_recipe(args.write, settings, choice.notes)
    document = {
        "settings": recipes.to_table(settings),
        "columns": columns,
        "notes": list(choice.notes),
        "warnings": [choice.warning] if choice.warning else [],
        "guarantee": None if guarantee is None else guarantee.to_dict(),
        "certify": certify,
    }

    def show() -> None:
        own_data.say(choice)
        own_data.show_columns(columns)
        if guarantee is not None:
            console.say(guarantee.summary, heading="Guarantee:")
        if certify is not None:
            console.say(certify, heading="To certify this, run:", command=True)
        if args.write is not None:
            uncertified = " (not certified: this plan has looked at the rows)" if looked else ""
            console.say(f"Run it with: fedveil run {args.write}{uncertified}")

    return console.answer(args, document, show)


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
    with console.searching("plan") as tuner.show:
        advised = advice.advise(tuner)
    document = {} if args.pilot else _around(args, tuner.trials.recipe, tuner.trials.real)
    _emit(args, _advise(args, tuner, advised, document))
    return 130 if advised.interrupted else 0


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


def _feasible(args: argparse.Namespace, **question_fields: Any) -> dict[str, Any]:
    """Return the feasible set as a document, and show it unless JSON is asked for."""
    from fedveil.core.units import Trust
    from fedveil.tune import feasible as of

    trusts = tuple(Trust(name) for name in args.trust or _TRUSTS)
    question = of.Question(
        **question_fields, trusts=trusts, dropped=args.dropped, colluders=args.colluders
    )
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
    if not args.json:
        _show_feasible(question, rows, document)
    return document


def _show_feasible(question: Question, rows: list[Row], document: dict[str, Any]) -> None:
    """Show a table for every trust and sampling."""
    console.say(
        f"{question.noise.capitalize()} noise for ({question.epsilon:g}, {question.delta:.3g}), "
        f"protecting one of {question.clients} clients whole; {question.dimension} weights."
    )
    risks = [f"ε: {question.dropped:.0%} drop", f"{question.colluders} collude"]
    for trust, sampling in dict.fromkeys((row.trust, row.sampling) for row in rows):
        group = [row for row in rows if (row.trust, row.sampling) == (trust, sampling)]
        claim = group[0].claim
        claim_column = "paper" if claim is None else claim.paper.removesuffix(" et al.") + " says"
        console.table(
            f"{trust} trust, {sampling} sampling, adjacency {group[0].adjacency}",
            ["cohort", "rounds", "noise", "S/N round", "S/N run", *risks, claim_column],
            [feasible_row(row) for row in group],
        )
    size = "scale" if question.noise == "laplace" else "std"
    console.say(f"Noise: {size} on the sum / clip norm. S/N: {document['signal_to_noise']}.")
    console.say("What a paper says of the same noise is not proved.")
    for way in document["without_proof"]:
        console.say(f"Left out: {way}, where no proof is known for {question.noise} noise.")
    for warning in document["warnings"]:
        console.say(f"Warning: {warning}.")


def feasible_row(row: Row) -> list[str]:
    signal = [f"{value:.2g}" for value in (row.signal_to_noise, row.run_signal_to_noise)]
    risks = [at_most(value) for value in (row.epsilon_if_dropped, row.epsilon_if_colluding)]
    claim = "none" if row.claim is None else f"{row.claim.value:.2f}"
    noise = at_most(row.noise_multiplier)
    return [str(row.cohort), str(row.rounds), noise, *signal, *risks, claim]


def _advise(
    args: argparse.Namespace, tuner: Tuner, advised: Advice, document: dict[str, Any]
) -> dict[str, Any]:
    """Return what a search found beside the document; show and write what was asked for."""
    from fedveil.planning.assemble import is_protected, plan_of
    from fedveil.tune.advice import free_gains, recipe_of_option
    from fedveil.tune.proxy import with_look

    trials = tuner.trials
    chosen = with_look(recipe_of_option(trials.recipe, advised.recommended), advised.looked_at)
    guarantee = plan_of(chosen, trials.real.federation).guarantee
    theorem = _theorem(args, tuner, advised)
    gains = free_gains(trials.recipe, trials.real)
    remarks = [f"Note: {note}." for note in advised.notes]
    remarks += [f"Warning: {warning}." for warning in advised.warnings]
    remarks += [f"At no cost in privacy: {gain}." for gain in gains]
    if args.write is not None:
        source = f"Found by {advised.trials} simulated runs on {advised.proxy}."
        write_recipe(
            args.write, chosen, [source, f"Reason: {advised.recommended.reason}.", *remarks]
        )
    if not args.json:
        on_own_data = any(is_protected(chosen.data, name) for name in chosen.privacy.tuned_on)
        _show_advice(advised, theorem, own_data=on_own_data)
        if guarantee is not None:
            console.say(guarantee.summary, heading="Guarantee:")
        for line in remarks:
            console.say(line)
        if args.write is not None:
            console.say(f"Run it with: fedveil run {args.write}")
    return document | {
        **advised.to_dict(),
        "warnings": [*document.get("warnings", []), *advised.warnings],
        "recommended": advised.recommended.to_dict(),
        "theorem": None if theorem is None else theorem.to_dict(),
        "guarantee": None if guarantee is None else guarantee.to_dict(),
        "free_gains": [vars(gain) for gain in gains],
    }


def _theorem(args: argparse.Namespace, tuner: Tuner, advised: Advice) -> Any:
    """Return what a paper's theorem says about the options; None without the laboratory."""
    ask = extension("fedveil.papers", "theorem_of")
    if ask is None:
        return None
    trials, choices = tuner.trials, [option.candidate for option in advised.options]
    public = trials.proxy.federation
    records = args.records or max(1, round(len(public.train) / public.clients))
    try:
        pairs = [(choice.local_steps, choice.rounds) for choice in choices]
        return ask(trials.recipe, trials.real, public, pairs, records)
    except ConfigError:
        return None  # its conditions do not hold


def _show_advice(advised: Advice, theorem: Any, *, own_data: bool) -> None:
    """Show the options side by side, what to expect of each, and what a theorem says."""
    say, options = console.say, advised.options
    settings = [option.candidate.to_dict() for option in options]
    rows = [["epsilon", *(f"{option.epsilon:g}" for option in options)]]
    for name in dict.fromkeys(name for one in settings for name in one):
        rows.append([name.replace("_", " "), *(_short(one.get(name, "")) for one in settings)])
    rows.append(["uploads", *(f"{option.uploads:,}" for option in options)])
    rows.append(["expected", *(_result(option.expected) for option in options)])
    if theorem is not None:
        rows.append(["theorem's score", *(f"{times:.3g}x" for times in theorem.times_worse)])
    console.table("What to run", ["", *(option.name for option in options)], rows)
    trivial = f"loss {advised.trivial:.4g}"
    if advised.recommended.expected.accuracy is not None:
        trivial = f"accuracy {1 - advised.trivial:.1%}"
    say(f"An answer that looks at no input has {trivial}.")
    for option in options:
        say(f"{option.name.capitalize()}: {option.reason}.")
    if theorem is not None:
        best, limits = theorem.best, f" ({theorem.heuristic})" if theorem.heuristic else ""
        say(
            f"{theorem.theorem} likes {best.local_steps} local steps x {best.rounds} rounds best; "
            f"its score of each option is shown as a multiple of that. It did not decide{limits}."
        )
    whose = "no private data"
    if own_data:
        whose = "the recipe's own data: a protected run with these settings will not be certified"
    say(
        f"{advised.trials} simulated runs in {advised.seconds:.0f} s on {advised.proxy}, {whose}; "
        "expected: mean and spread over seeds that chose nothing."
    )
    if advised.interrupted:
        say("Interrupted: this is the best so far.")


def _result(expected: Expected) -> str:
    """Write what to expect: accuracy where there are classes, else the loss."""
    text, spread, digits = f"loss {expected.loss:.4g}", expected.loss_spread, ".2g"
    if expected.accuracy is not None:
        text, digits = f"accuracy {expected.accuracy:.1%}", ".1f"
        spread = 100 * (expected.accuracy_spread or math.nan)
    return text + (f" ± {spread:{digits}}" if math.isfinite(spread) else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_recipe(path: Path, recipe: Recipe, remarks: Sequence[str]) -> None:
    """Save a recipe for `fedveil run`.

    Args:
        path: The file.
        recipe: What was recommended.
        remarks: Where it comes from, as comments in the file.
    """
    import tomli_w

    from fedveil.planning import recipe as recipes

    lines = [f"# {remark}\n" for remark in ("Recommended by fedveil plan.", *remarks)]
    path.write_text("".join(lines) + tomli_w.dumps(recipes.to_table(recipe)), encoding="utf-8")
