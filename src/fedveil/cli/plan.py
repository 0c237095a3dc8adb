"""`fedveil plan`: what a privacy budget buys, and on how many steps and rounds to spend it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli.plan_tables import (
    LOSS,
    TRUSTS,
    answer_feasible,
    draw_advice,
    flag,
    show_advice,
    ways,
)
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.advise.bounds import FuBound, Score

SCORES = ("fu", "hu", "cheng")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", type=Path, help="plan this recipe's budget")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change it")
    parser.add_argument(
        "--proxy", metavar="NAME", help="public data to try things on: a source, a file, synthetic"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="save the recommended recipe")
    parser.add_argument("--iterations", action="store_true", help="best local steps and rounds")
    parser.add_argument("--feasible", action="store_true", help="noise by trust and sampling")
    parser.add_argument("--pilot", action="store_true", help="find settings by runs on the proxy")
    pilot = parser.add_argument_group("pilot")
    pilot.add_argument("--time", type=float, help="seconds to search (60)")
    pilot.add_argument("--journal", type=Path, metavar="FILE", help="keep trials, go on from them")
    private = parser.add_argument_group("tuning on private data, charged to the budget")
    private.add_argument(
        "--tune-on-private-data", action="store_true", help="train, and keep the best of some runs"
    )
    private.add_argument("--tuning-mean", type=float, default=10.0, help="runs on average (10)")
    private.add_argument(
        "--output", type=Path, metavar="DIR", help="where to keep the chosen model"
    )
    search = parser.add_argument_group("iterations: what is given and what is searched")
    search.add_argument("--total-steps", type=_whole, help="local steps x rounds, given")
    search.add_argument("--local-steps", type=_whole, help="steps in a round, given")
    search.add_argument("--max-steps", type=_whole, help="largest total to try (100000)")
    search.add_argument("--score", choices=SCORES, default="fu", help="what to make small (fu)")
    loss = parser.add_argument_group("the loss (from public or proxy data, never from private)")
    loss.add_argument("--strong-convexity", type=float, help="mu: least curvature of the loss")
    loss.add_argument("--smoothness", type=float, help="L: largest curvature of the loss")
    for old, name in (("--mu", "strong_convexity"), ("--lambda", "smoothness")):
        loss.add_argument(old, type=float, dest=name, help=argparse.SUPPRESS)  # an earlier spelling
    loss.add_argument("--gradient-bound", type=float, help="largest norm of a gradient (G)")
    loss.add_argument("--heterogeneity", type=float, help="Gamma: how far clients disagree")
    loss.add_argument("--initial-distance", type=float, help="squared distance to the optimum")
    loss.add_argument("--initial-gap", type=float, help="hu: loss at the start above the optimum")
    loss.add_argument("--gradient-variance", type=float, help="hu: of one record's gradient")
    run = parser.add_argument_group("the run")
    run.add_argument("--clients", type=_whole, help="owners of data")
    run.add_argument("--cohort", type=_wholes, help="clients in a round; feasible: or a list")
    run.add_argument("--dimension", type=_whole, help="weights of the model")
    run.add_argument("--learning-rate", type=float, help="hu, cheng: of the local steps")
    run.add_argument("--server-learning-rate", type=float, default=1.0, help="cheng (1)")
    run.add_argument("--batch-size", type=_whole, help="hu: records in a step")
    run.add_argument("--records", type=_whole, help="of a client, if publicly known")
    run.add_argument("--honest-shares", type=_whole, default=1, help="hu: shares to credit (1)")
    budget = parser.add_argument_group("feasible: what to tabulate")
    budget.add_argument("--rounds", type=_wholes, help="as 10,100,1000 (these)")
    budget.add_argument("--trust", choices=TRUSTS, action="append", help="only this; may repeat")
    budget.add_argument("--dropped", type=float, default=0.1, help="share of shares lost (0.1)")
    budget.add_argument("--colluders", type=_whole, default=1, help="colluding clients (1)")
    noise = parser.add_argument_group("the noise: a constant, or a budget")
    noise.add_argument("--noise-constant", type=float, help="C_M of the bound")
    noise.add_argument("--growth", type=float, help="z: its growth with rounds; 2 Laplace, 1 Gauss")
    noise.add_argument("--noise", choices=("laplace", "gaussian"), help="from a budget (gaussian)")
    noise.add_argument("--epsilon", type=float)
    noise.add_argument("--delta", type=float, help="default min(1e-5, clients^-1.1)")
    noise.add_argument("--clip-norm", type=float, help="of the whole gradient: L1 laplace, L2 else")
    noise.add_argument("--adjacency", choices=("replace", "zero-out"), default="replace")
    noise.add_argument("--imbalance", type=float, default=1.0, help="N*sum(n^2)/(sum n)^2 (1)")
    noise.add_argument("--spent-epsilon", type=float, default=0.0, help="used up before")
    noise.add_argument("--spent-delta", type=float, default=0.0)
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="draw it: .png, .pdf or .svg")


def execute(args: argparse.Namespace) -> int:
    asked = args.pilot + args.tune_on_private_data
    if asked > 1 or (asked and (args.iterations or args.feasible)):
        raise ConfigError(
            "plan: ask one question at a time, --pilot, --tune-on-private-data or the others"
        )
    if args.pilot:
        from fedveil.cli.plan_pilot import plan_pilot

        return plan_pilot(args)
    if args.tune_on_private_data:
        from fedveil.cli.plan_private import tune_privately

        return tune_privately(args)
    for name in ("journal", "time", "output"):
        if getattr(args, name) is not None:
            other = "--tune-on-private-data" if name == "output" else "--pilot"
            raise ConfigError(f"--{name}: goes with {other}")
    if args.recipe is not None or args.set:
        from fedveil.cli.plan_recipe import plan_recipe

        return plan_recipe(args)
    for name in ("proxy", "write"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name}: goes with a recipe")
    if args.iterations == args.feasible:
        raise ConfigError("plan: give a recipe, or say --iterations or --feasible")
    return _iterations(args) if args.iterations else _feasible(args)


def _feasible(args: argparse.Namespace) -> int:
    from fedveil.advise.feasible import ROUNDS, question_of

    _need(args, "--feasible", "epsilon", "clients", "dimension", "cohort")
    names = ("epsilon", "delta", "clients", "dimension", "spent_epsilon", "spent_delta")
    given = {name: getattr(args, name) for name in names}
    cohorts, rounds, noise = args.cohort, args.rounds or ROUNDS, args.noise or "gaussian"
    question = question_of(**given, cohorts=cohorts, rounds=rounds, noise=noise, **ways(args))
    answer_feasible(args, question)
    return 0


def _iterations(args: argparse.Namespace) -> int:
    from fedveil.advise.iterations import advise

    if args.cohort is not None:
        if len(args.cohort) > 1:
            raise ConfigError("--cohort: --iterations takes one number")
        args.cohort = args.cohort[0]
    limits = {name: getattr(args, name) for name in ("total_steps", "local_steps", "max_steps")}
    advice = advise(_score(args), **limits)
    draw_advice(args, advice)
    if args.json:
        console.emit(advice.to_dict())
    else:
        show_advice(advice)
    return 0


def _score(args: argparse.Namespace) -> Score:
    from fedveil.advise.bounds import ChengScore, HuScore

    if args.score == "fu":
        return _fu(args)
    epsilon, delta = _budget(args, f"--score {args.score}")
    kind = ChengScore if args.score == "cheng" else HuScore
    names = [field.name for field in fields(kind) if field.name not in ("epsilon", "delta")]
    return kind(**_need(args, f"--score {args.score}", *names), epsilon=epsilon, delta=delta)


def _fu(args: argparse.Namespace) -> FuBound:
    from fedveil.advise.bounds import FuBound

    given = _need(args, "--iterations", *LOSS, "clients", "cohort")
    if args.noise is None:
        noise = _need(args, "--iterations without --noise", "noise_constant", "growth")
        return FuBound(**given, **noise)
    if args.noise_constant is not None or args.growth is not None:
        raise ConfigError("--noise works the constant out; leave out --noise-constant and --growth")
    epsilon, delta = _budget(args, "--noise")
    _need(args, "--noise", "dimension", "clip_norm")
    from fedveil.advise.noise_constant import noise_constant_gaussian, noise_constant_laplace
    from fedveil.core.arguments import positive
    from fedveil.core.units import Adjacency

    factor = Adjacency(args.adjacency).sensitivity_factor
    names = ("dimension", "clients", "imbalance")
    known = {name: getattr(args, name) for name in names} | {"epsilon": epsilon}
    known["gradient_sensitivity"] = factor * positive("clip_norm", args.clip_norm)
    if args.noise == "laplace":
        growth, constant = 2.0, noise_constant_laplace(**known, cohort=args.cohort)
    else:
        growth, constant = 1.0, noise_constant_gaussian(**known, delta=delta)
    return FuBound(**given, noise_constant=constant, growth=growth, whole_participations=True)


def _budget(args: argparse.Namespace, what: str) -> tuple[float, float]:
    from fedveil.advise.spending import remaining
    from fedveil.core.arguments import count
    from fedveil.privacy.accounting import default_delta

    _need(args, what, "epsilon", "clients")
    delta = default_delta(count("clients", args.clients)) if args.delta is None else args.delta
    return remaining(args.epsilon, delta, args.spent_epsilon, args.spent_delta)


def _need(args: argparse.Namespace, what: str, *names: str) -> dict[str, Any]:
    """The values of these flags, all of which must be there."""
    given = {name: getattr(args, name) for name in names}
    missing = [flag(name) for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}")
    return given


def _picture(text: str) -> Path:
    """Refused before anything is worked out."""
    path = Path(text)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"{text}: use .png, .pdf or .svg")
    return path


def _whole(text: str) -> int:
    """A whole number; 1e6 and 1_000_000 are read too."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError from None
        return int(number)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))


_wholes.__name__ = "list of whole numbers"
_whole.__name__ = "whole number"  # argparse says "invalid whole number value"
