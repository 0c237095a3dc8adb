"""`fedveil plan`: what a privacy budget buys, and on how many steps and rounds to spend it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console, own_data
from fedveil.cli.plan_tables import (
    LOSS,
    TRUSTS,
    answer_feasible,
    draw_advice,
    show_advice,
    ways,
)
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.tune.bounds import FuBound, Score


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

_OPTIONS: dict[str, console.Options] = {
    "": {
        "--set KEY=VALUE": (list, "change the recipe"),
        "--proxy NAME": (str, "public data to try things on: a source, a file, synthetic"),
        "--write FILE": (Path, "save the recommended recipe"),
        "--iterations": (bool, "best local steps and rounds"),
        "--feasible": (bool, "noise by trust and sampling"),
        "--pilot": (bool, "find settings by runs on the proxy"),
        "--plot FILE": (_picture, "draw it: .png, .pdf or .svg"),
    },
    "a table of your own: what fedveil run would choose": own_data.OPTIONS,
    "pilot": {
        "--time": (float, "seconds to search (60)"),
        "--journal FILE": (Path, "keep trials, go on from them"),
    },
    "tuning on private data, charged to the budget": {
        "--tune-on-private-data": (bool, "train, and keep the best of some runs"),
        "--tuning-mean": (float, "runs on average (10)", 10.0),
        "--output DIR": (Path, "where to keep the chosen model"),
    },
    "iterations: what is given and what is searched": {
        "--total-steps": (_whole, "local steps x rounds, given"),
        "--local-steps": (_whole, "steps in a round, given"),
        "--max-steps": (_whole, "largest total to try (100000)"),
        "--score": (("fu", "hu", "cheng"), "what to make small (fu)", "fu"),
    },
    "the loss (from public or proxy data, never from private)": {
        "--strong-convexity": (float, "mu: least curvature of the loss"),
        "--smoothness": (float, "L: largest curvature of the loss"),
        "--gradient-bound": (float, "largest norm of a gradient (G)"),
        "--heterogeneity": (float, "Gamma: how far clients disagree"),
        "--initial-distance": (float, "squared distance to the optimum"),
        "--initial-gap": (float, "hu: loss at the start above the optimum"),
        "--gradient-variance": (float, "hu: of one record's gradient"),
    },
    "the run": {
        "--clients": (_whole, "owners of data"),
        "--cohort": (_wholes, "clients in a round; feasible: or a list"),
        "--dimension": (_whole, "weights of the model"),
        "--learning-rate": (float, "hu, cheng: of the local steps"),
        "--server-learning-rate": (float, "cheng (1)", 1.0),
        "--batch-size": (_whole, "hu: records in a step"),
        "--records": (_whole, "of a client, if publicly known"),
        "--honest-shares": (_whole, "hu: shares to credit (1)", 1),
    },
    "feasible: what to tabulate": {
        "--rounds": (_wholes, "as 10,100,1000 (these)"),
        "--trust": (list(TRUSTS), "only this; may be repeated"),
        "--dropped": (float, "share of shares lost (0.1)", 0.1),
        "--colluders": (_whole, "colluding clients (1)", 1),
    },
    "the noise: a constant, or a budget": {
        "--noise-constant": (float, "C_M of the bound"),
        "--growth": (float, "z: its growth with rounds; 2 Laplace, 1 Gauss"),
        "--noise": (("laplace", "gaussian"), "from a budget (gaussian)"),
        "--epsilon": (float, "the budget"),
        "--delta": (float, "default min(1e-5, clients^-1.1)"),
        "--clip-norm": (float, "of the whole gradient: L1 laplace, L2 else"),
        "--adjacency": (("replace", "zero-out"), "what is hidden of a client", "replace"),
        "--imbalance": (float, "N*sum(n^2)/(sum n)^2 (1)", 1.0),
        "--spent-epsilon": (float, "used up before", 0.0),
        "--spent-delta": (float, "used up before", 0.0),
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", type=Path, help="plan this recipe's budget")
    for title, options in _OPTIONS.items():
        console.add_options(parser, options, title)
    for old, name in (("--mu", "strong_convexity"), ("--lambda", "smoothness")):
        parser.add_argument(old, type=float, dest=name, help=argparse.SUPPRESS)  # earlier spellings


def execute(args: argparse.Namespace) -> int:
    asked = args.pilot + args.tune_on_private_data
    if asked > 1 or (asked and (args.iterations or args.feasible)):
        raise ConfigError(
            "plan: choose one of --pilot, --tune-on-private-data, and --iterations or --feasible"
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
            raise ConfigError(f"--{name}: can only be used with {other}")
    if args.data is not None and args.recipe is None:
        return own_data.plan_table(args)
    if args.recipe is not None or args.set:
        from fedveil.cli.plan_recipe import plan_recipe

        return plan_recipe(args)
    for name in ("proxy", "write"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name}: can only be used with a recipe")
    if args.iterations == args.feasible:
        raise ConfigError("plan: name a recipe, or use --iterations or --feasible")
    return _iterations(args) if args.iterations else _feasible(args)


def _feasible(args: argparse.Namespace) -> int:
    from fedveil.tune.feasible import ROUNDS, question_of

    _need(args, "--feasible", "epsilon", "clients", "dimension", "cohort")
    names = ("epsilon", "delta", "clients", "dimension", "spent_epsilon", "spent_delta")
    given = {name: getattr(args, name) for name in names}
    cohorts, rounds, noise = args.cohort, args.rounds or ROUNDS, args.noise or "gaussian"
    question = question_of(**given, cohorts=cohorts, rounds=rounds, noise=noise, **ways(args))
    answer_feasible(args, question)
    return 0


def _iterations(args: argparse.Namespace) -> int:
    from fedveil.tune.iterations import advise

    if args.cohort is not None:
        if len(args.cohort) > 1:
            raise ConfigError("--cohort: give a single number with --iterations")
        args.cohort = args.cohort[0]
    limits = {name: getattr(args, name) for name in ("total_steps", "local_steps", "max_steps")}
    advice = advise(_score(args), **limits)
    draw_advice(args, advice)
    return console.answer(args, advice.to_dict(), lambda: show_advice(advice))


def _score(args: argparse.Namespace) -> Score:
    from fedveil.tune.bounds import ChengScore, HuScore

    if args.score == "fu":
        return _fu(args)
    epsilon, delta = _budget(args, f"--score {args.score}")
    kind = ChengScore if args.score == "cheng" else HuScore
    names = [field.name for field in fields(kind) if field.name not in ("epsilon", "delta")]
    return kind(**_need(args, f"--score {args.score}", *names), epsilon=epsilon, delta=delta)


def _fu(args: argparse.Namespace) -> FuBound:
    from fedveil.tune.bounds import FuBound

    given = _need(args, "--iterations", *LOSS, "clients", "cohort")
    if args.noise is None:
        noise = _need(args, "--iterations without --noise", "noise_constant", "growth")
        return FuBound(**given, **noise)
    if args.noise_constant is not None or args.growth is not None:
        raise ConfigError("--noise works the constant out; leave out --noise-constant and --growth")
    epsilon, delta = _budget(args, "--noise")
    _need(args, "--noise", "dimension", "clip_norm")
    from fedveil.core.arguments import positive
    from fedveil.core.units import Adjacency
    from fedveil.tune.bounds import noise_constant_gaussian, noise_constant_laplace

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
    from fedveil.core.arguments import count
    from fedveil.privacy.accounting import default_delta
    from fedveil.tune.spending import remaining

    _need(args, what, "epsilon", "clients")
    delta = default_delta(count("clients", args.clients)) if args.delta is None else args.delta
    return remaining(args.epsilon, delta, args.spent_epsilon, args.spent_delta)


def _need(args: argparse.Namespace, what: str, *names: str) -> dict[str, Any]:
    """The values of these flags, all of which must be there."""
    given = {name: getattr(args, name) for name in names}
    missing = [console.flag(name) for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}")
    return given
