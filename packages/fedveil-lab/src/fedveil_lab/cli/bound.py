"""`fedveil bound`: the local steps and rounds that a paper's convergence bound likes best."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli.plan import whole
from fedveil_lab.cli import needed

if TYPE_CHECKING:
    from fedveil_lab.theorems.bounds import Score
    from fedveil_lab.theorems.iterations import Advice

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
    "the noise": {
        "--noise-constant": (float, "fu: C_M of the bound"),
        "--growth": (float, "fu: z, its growth with rounds; 2 Laplace, 1 Gauss"),
        "--epsilon": (float, "hu, cheng: the budget"),
        "--delta": (float, "hu, cheng: default min(1e-5, clients^-1.1)"),
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
    from fedveil.core.arguments import count
    from fedveil.privacy.accounting import default_delta
    from fedveil.tune.feasible import remaining
    from fedveil_lab.theorems.bounds import ChengScore, FuBound, HuScore

    kind: Any = {"fu": FuBound, "hu": HuScore, "cheng": ChengScore}[args.score]
    names = [field.name for field in fields(kind) if field.name != "noise_curve"]
    if args.score != "fu" and args.delta is None and args.clients is not None:
        args.delta = default_delta(count("clients", args.clients))
    given = needed(args, f"--score {args.score}", *names)
    if args.score != "fu":
        given["epsilon"], given["delta"] = remaining(given["epsilon"], given["delta"])
    score: Score = kind(**given)
    return score


def _show(advice: Advice) -> None:
    """Show the best local steps and rounds beside what the paper's rule would have cost."""
    from fedveil_lab.theorems.iterations import every_divisor

    choices = every_divisor(advice.score, advice.chosen.total_steps)
    if len(choices) > 24:
        choices = sorted(choices, key=lambda choice: choice.bound)[:8]
    marks = {
        advice.chosen: "as given",
        advice.rule_of_thumb: "literal rule T^(z/(z+1))",
        advice.best: "best",
    }
    shown = {*choices, *(choice for choice in marks if choice)}
    rows = [
        [
            str(choice.local_steps),
            str(choice.rounds),
            f"{choice.bound:.6g}",
            f"{choice.bound / advice.best.bound:.3g}x",
            marks.get(choice, ""),
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
