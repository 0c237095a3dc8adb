"""`fedveil bound`: the local steps and rounds that a paper's convergence bound likes best."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli.plan import whole
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil_lab.theorems.bounds import FuBound, Score
    from fedveil_lab.theorems.iterations import Advice

_LOSS = (
    "strong_convexity",
    "smoothness",
    "gradient_bound",
    "heterogeneity",
    "initial_distance",
)  # what Fu's bound asks about a loss

_OPTIONS: dict[str, console.Options] = {
    "what is given and what is searched": {
        "--total-steps": (whole, "local steps x rounds, given"),
        "--local-steps": (whole, "steps in a round, given"),
        "--max-steps": (whole, "largest total to try (100000)"),
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
        "--clients": (whole, "owners of data"),
        "--cohort": (whole, "clients in a round"),
        "--dimension": (whole, "weights of the model"),
        "--learning-rate": (float, "hu, cheng: of the local steps"),
        "--server-learning-rate": (float, "cheng (1)", 1.0),
        "--batch-size": (whole, "hu: records in a step"),
        "--records": (whole, "hu: of a client"),
        "--honest-shares": (whole, "hu: shares to credit (1)", 1),
    },
    "the noise: a constant, or a budget": {
        "--noise-constant": (float, "C_M of the bound"),
        "--growth": (float, "z: its growth with rounds; 2 Laplace, 1 Gauss"),
        "--noise": (("laplace", "gaussian"), "from a budget"),
        "--epsilon": (float, "the budget"),
        "--delta": (float, "default min(1e-5, clients^-1.1)"),
        "--clip-norm": (float, "of the whole gradient: L1 laplace, L2 else"),
        "--adjacency": (("replace", "zero-out"), "what is hidden of a client", "replace"),
        "--imbalance": (float, "N*sum(n^2)/(sum n)^2 (1)", 1.0),
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    for title, options in _OPTIONS.items():
        console.add_options(parser, options, title)


def execute(args: argparse.Namespace) -> int:
    """Search a bound, and show the best choice beside the papers' rules of thumb."""
    from fedveil_lab.theorems.iterations import advise

    limits = {name: getattr(args, name) for name in ("total_steps", "local_steps", "max_steps")}
    advice = advise(_score(args), **limits)
    return console.answer(args, advice.to_dict(), lambda: _show(advice))


def _score(args: argparse.Namespace) -> Score:
    from fedveil_lab.theorems.bounds import ChengScore, HuScore

    if args.score == "fu":
        return _fu(args)
    epsilon, delta = _budget(args, f"--score {args.score}")
    kind = ChengScore if args.score == "cheng" else HuScore
    names = [field.name for field in fields(kind) if field.name not in ("epsilon", "delta")]
    return kind(**_need(args, f"--score {args.score}", *names), epsilon=epsilon, delta=delta)


def _fu(args: argparse.Namespace) -> FuBound:
    from fedveil.core.arguments import positive
    from fedveil.core.units import Adjacency
    from fedveil_lab.theorems.bounds import (
        FuBound,
        noise_constant_gaussian,
        noise_constant_laplace,
    )

    given = _need(args, "fedveil bound", *_LOSS, "clients", "cohort")
    if args.noise is None:
        noise = _need(args, "fedveil bound without --noise", "noise_constant", "growth")
        return FuBound(**given, **noise)
    if args.noise_constant is not None or args.growth is not None:
        raise ConfigError("--noise works the constant out; leave out --noise-constant and --growth")
    epsilon, delta = _budget(args, "--noise")
    known = _need(args, "--noise", "dimension", "clients", "imbalance", "clip_norm")
    factor = Adjacency(args.adjacency).sensitivity_factor
    known["gradient_sensitivity"] = factor * positive("clip_norm", known.pop("clip_norm"))
    if args.noise == "laplace":
        growth = 2.0
        constant = noise_constant_laplace(**known, epsilon=epsilon, cohort=args.cohort)
    else:
        growth, constant = 1.0, noise_constant_gaussian(**known, epsilon=epsilon, delta=delta)
    return FuBound(**given, noise_constant=constant, growth=growth, whole_participations=True)


def _budget(args: argparse.Namespace, what: str) -> tuple[float, float]:
    from fedveil.core.arguments import count
    from fedveil.privacy.accounting import default_delta
    from fedveil.tune.feasible import remaining

    _need(args, what, "epsilon", "clients")
    delta = default_delta(count("clients", args.clients)) if args.delta is None else args.delta
    return remaining(args.epsilon, delta)


def _need(args: argparse.Namespace, what: str, *names: str) -> dict[str, Any]:
    """Return the values of these flags, all of which must be there."""
    given = {name: getattr(args, name) for name in names}
    missing = [console.flag(name) for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}")
    return given


def _show(advice: Advice) -> None:
    """Show the best local steps and rounds beside what the rules would have cost."""
    from fedveil_lab.theorems.iterations import every_divisor

    marks = {
        advice.rule_of_thumb: "literal rule T^(z/(z+1))",
        advice.asymptotic: "asymptotic rule",
        advice.best: "best",
    }
    choices = every_divisor(advice.score, advice.chosen.total_steps)
    ranked = choices if len(choices) <= 24 else sorted(choices, key=lambda c: c.bound)[:8]
    shown = {*ranked, *(c for c in marks if c), advice.one_step, advice.chosen}
    rows = [
        [
            str(choice.local_steps),
            str(choice.rounds),
            f"{choice.bound:.6g}",
            f"{choice.bound / advice.best.bound:.3g}x",
            marks.get(choice, "as given" if choice == advice.chosen else ""),
        ]
        for choice in sorted(shown, key=lambda c: c.local_steps)
    ]
    console.table(
        f"{advice.chosen.total_steps} steps in all, score {advice.score.name}",
        ["local steps", "rounds", "score", "of best", ""],
        rows,
    )
    console.stdout().print(advice.sentence)
    for note in (advice.score.heuristic, *advice.warnings):
        if note:
            console.stdout().print(f"Note: {note}.")
