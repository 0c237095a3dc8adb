"""`fedveil plan RECIPE`: the feasible set around a recipe, and the steps and rounds to take."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli.plan_tables import (
    LOSS,
    answer_feasible,
    draw_advice,
    show_advice,
    ways,
    write_recipe,
)
from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes

if TYPE_CHECKING:
    from fedveil.planning.recipe import Recipe
    from fedveil.tune.constants import LossConstants
    from fedveil.tune.feasible import Question
    from fedveil.tune.free_gains import FreeGain
    from fedveil.tune.from_recipe import Proposal, Situation

_OWN = ("clients", "cohort", "dimension", "epsilon", "delta", "noise_constant", "growth", "noise")
OWN_DATA = "the recipe's own data: a protected run with these settings will not be certified"
NO_PROXY = (
    "the loss's constants must not be measured on private data; name public ones with --proxy, or "
    f"give {', '.join(map(console.flag, LOSS))}"
)


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe that was named, with its changes; what it says must not be said again."""
    for name in _OWN:
        if getattr(args, name) is not None:
            raise ConfigError(f"{console.flag(name)}: given by the recipe; change it with --set")
    table = recipes.DEFAULT_JOB if args.recipe is None else recipes.read(args.recipe)
    return recipes.with_defaults(recipes.parse(table, args.set))


def plan_recipe(args: argparse.Namespace) -> int:
    """Both questions unless one of --iterations and --feasible was asked for."""
    recipe = recipe_of(args)

    from fedveil.tune.free_gains import free_gains
    from fedveil.tune.from_recipe import check_whole_clients, situation_of

    by_records = args.score == "hu"  # Hu protects records, and the feasible set is about clients
    if by_records and args.feasible:
        raise ConfigError("--score hu: use it with --iterations; --feasible is about whole clients")
    both = args.iterations == args.feasible and not by_records
    args.feasible &= not both
    may_skip = both and args.write is None  # what cannot be answered: nobody asked for it alone
    situation = situation_of(
        recipe,
        args.spent_epsilon,
        args.spent_delta,
        args.records,
        whole_clients=not (by_records or may_skip),
    )
    gains = free_gains(recipe, situation.plan)
    document: dict[str, Any] = {"warnings": []}
    try:
        if may_skip:
            check_whole_clients(situation.plan)
        if both or args.feasible:
            document = answer_feasible(args, _question(args, situation), alone=args.feasible)
            if args.feasible:
                return 0
        if may_skip and not _may_measure(args, recipe):
            raise ConfigError(NO_PROXY)
        _iterations(args, situation, document, gains)
    except ConfigError as reason:
        if not may_skip:
            raise
        note = f"no local steps and rounds: {reason}"
        document["warnings"].append(note)
        if not args.json:
            console.say(f"Note: {note}.")
    document["free_gains"] = [vars(gain) for gain in gains]
    if args.json:
        console.emit(document)
    for gain in () if args.json else gains:
        console.say(f"At no cost in privacy: {gain}.")
    return 0


def _iterations(
    args: argparse.Namespace,
    situation: Situation,
    document: dict[str, Any],
    gains: tuple[FreeGain, ...],
) -> None:
    """Add the advice to the document, or show it; draw and write what was asked for."""
    from fedveil.tune.from_recipe import named_score, proposals, recipe_with, sizes_looked_at
    from fedveil.tune.proxy import with_look

    loss, looked_at = _loss(args, situation)
    looked_at += sizes_looked_at(situation.recipe, situation.plan, args.records)
    advice, offered = proposals(
        situation,
        lambda part: named_score(
            args.score, situation, loss, budget_factor=part, records=args.records
        ),
        total_steps=args.total_steps,
        local_steps=args.local_steps,
        max_steps=args.max_steps,
    )
    warnings = [*document.get("warnings", []), *advice.warnings]
    document |= {
        **advice.to_dict(),
        "constants": dict(zip(LOSS, loss.for_fu, strict=True)),
        "constants_from": loss.source,
        "looked_at": list(looked_at),
        "proposals": [vars(proposal) for proposal in offered],
        "warnings": warnings,
    }
    best = offered[0]
    chosen = with_look(recipe_with(situation, best), looked_at)
    draw_advice(args, advice)
    if args.write is not None:
        remark = f"{best.local_steps} local steps, {best.rounds} rounds: {best.reason}."
        free = [f"At no cost in privacy: {gain}." for gain in gains]
        write_recipe(args.write, chosen, [remark, *free])
    if not args.json:
        show_advice(advice)
        _show(offered, loss, chosen)


def _may_measure(args: argparse.Namespace, recipe: Recipe) -> bool:
    """Whether the loss's constants are given, or there are public data to measure them on."""
    given = any(getattr(args, name) is not None for name in LOSS)
    return given or args.proxy is not None or recipe.data.file is None


def _question(args: argparse.Namespace, situation: Situation) -> Question:
    from fedveil.tune.feasible import Question

    rounds = situation.rounds
    around = tuple(dict.fromkeys((max(1, rounds // 4), rounds, 4 * rounds)))
    return Question(
        situation.epsilon,
        situation.delta,
        situation.clients,
        situation.dimension,
        (situation.cohort,),
        args.rounds or around,
        noise=situation.recipe.privacy.noise,
        **ways(args),
    )


def _loss(args: argparse.Namespace, situation: Situation) -> tuple[LossConstants, tuple[str, ...]]:
    """The user's constants if all are given, else an estimate on public data, never a mixture."""
    from fedveil.tune.constants import LossConstants
    from fedveil.tune.from_recipe import public_constants

    given = {name: getattr(args, name) for name in LOSS}
    missing = [console.flag(name) for name in LOSS if given[name] is None]
    if len(missing) == len(LOSS):
        federation = situation.plan.federation
        return public_constants(situation.recipe, args.proxy, federation, args.records)
    if missing:
        raise ConfigError(f"the loss's constants: give all of them or none; missing {missing[0]}")
    gap, variance = args.initial_gap, args.gradient_variance
    if args.score == "hu" and (gap is None or variance is None):
        raise ConfigError(
            "--score hu needs --initial-gap and --gradient-variance beside the others"
        )
    constants = LossConstants(
        **given,
        initial_gap=math.nan if gap is None else gap,
        gradient_variance=math.nan if variance is None else variance,
        source="the user",
    )
    return constants, ()


def looks_at_itself(recipe: Recipe) -> bool:
    """Whether settings of the recipe were chosen on the data that it trains on."""
    from fedveil.planning.assemble import is_protected

    return any(is_protected(recipe.data, name) for name in recipe.privacy.tuned_on)


def _show(offered: tuple[Proposal, ...], loss: LossConstants, recipe: Recipe) -> None:
    console.table(
        "What to run",
        ["", "local steps", "rounds", "epsilon", "score"],
        [[p.name, str(p.local_steps), str(p.rounds), f"{p.epsilon:g}", f"{p.bound:.4g}"]
         for p in offered],
    )  # fmt: skip
    for proposal in offered:
        console.stdout().print(f"{proposal.name.capitalize()}: {proposal.reason}.")
    public = OWN_DATA if looks_at_itself(recipe) else "not from private data"
    console.say(f"The loss's constants come from {loss.source}, {public}.")
