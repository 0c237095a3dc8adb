"""`fedveil calibrate`: the noise, the rounds or the rate that a privacy budget buys."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveil.cli import console
from fedveil.cli.mechanism_args import (
    LEVELS,
    Described,
    add_arguments,
    described,
    document_of,
    mechanism_kind,
    mechanism_of,
    refuse_beside,
    show,
)
from fedveil.core.errors import ConfigError
from fedveil.privacy.rounding import at_least, at_most

# What was found, and what is guaranteed with it.
Answer = tuple[dict[str, Any], Described]
_FOUND: dict[str, tuple[str, ...]] = {  # what each search finds, and so nobody gives
    "noise": LEVELS,
    "rounds": ("rounds", "participations"),
    "rate": ("rate", "cohort", "participations", "batch_rate"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", type=Path, help="a recipe, instead of a description")
    options: console.Options = {
        "--epsilon": (float, "the budget; by default the recipe's"),
        "--find": (("noise", "rounds", "rate"), "what to find; the rest is given (noise)", "noise"),
    }
    console.add_options(parser, options)
    add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if args.source is not None:
        refuse_beside(args)
        from fedveil.run.guarantees import guarantee_of

        planned, _ = guarantee_of(args.source, args.epsilon)
        title = f"For {args.source}"
        return console.answer(args, document_of(planned), lambda: show(planned, title))
    if args.epsilon is None:
        raise ConfigError("--epsilon: give the budget, or name a recipe")
    for name in _FOUND[args.find]:
        if getattr(args, name) is not None:
            raise ConfigError(f"{console.flag(name)}: leave it out with --find {args.find}")
    if args.rounds is None and args.find != "rounds":
        raise ConfigError("--rounds: give the number of rounds, or use --find rounds")
    values, described_release = {"noise": _noise, "rounds": _rounds, "rate": _rate}[args.find](args)
    guarantee, person = described_release.guarantees()
    document = {
        "target_epsilon": args.epsilon,
        "found": values,
        **document_of(guarantee, person),
    }
    answer = ", ".join(f"{name.replace('_', ' ')} {_shown(name, x)}" for name, x in values.items())
    title = f"For epsilon {args.epsilon:g}: {answer}"
    return console.answer(args, document, lambda: show(guarantee, title, person))


def _shown(name: str, value: float) -> str:
    """Round for the screen: no less noise than was found, and no more of anything else."""
    if isinstance(value, int):
        return str(value)
    return (at_least if name == "rate" else at_most)(value, 6)


def _noise(args: argparse.Namespace) -> Answer:
    from fedveil.privacy.calibration import calibrate_mechanism
    from fedveil.privacy.contract import mechanism_class
    from fedveil.privacy.poisson_sampled import PoissonSampled

    kind = mechanism_kind(args)
    level = mechanism_class(kind).level
    if level is None:
        raise ConfigError(f"--mechanism: {kind} has no noise to find; name the mechanism itself")
    start = described(args, args.rounds, level=1.0)  # it stands in for what is to be found
    mechanism = calibrate_mechanism(
        lambda noise: mechanism_of(args, noise),
        sampling=start.release.sampling,
        rounds=args.rounds,
        participations=args.participations,
        **_budget(args, start),
    )
    inner = mechanism.mechanisms[0] if isinstance(mechanism, PoissonSampled) else mechanism
    return {level: getattr(inner, level)}, _with(start, mechanism=mechanism)


def _rounds(args: argparse.Namespace) -> Answer:
    from fedveil.privacy.calibration import calibrate_rounds
    from fedveil.privacy.sampling import Balanced

    start = described(args, 1)
    sampling, mechanism = start.release.sampling, start.release.mechanism
    rounds = calibrate_rounds(sampling=sampling, mechanism=mechanism, **_budget(args, start))
    if isinstance(sampling, Balanced):
        sampling = replace(sampling, rounds=rounds)
    return {"rounds": rounds}, _with(start, sampling=sampling, rounds=rounds)


def _rate(args: argparse.Namespace) -> Answer:
    from fedveil.privacy.calibration import calibrate_rate
    from fedveil.privacy.sampling import CappedPoisson, Poisson

    if args.sampling in ("fixed", "round-robin", "balanced"):
        args.cohort = 1
    else:
        args.sampling = args.sampling or "poisson"
        args.rate = 0.5 if args.sampling != "everyone" else None
    start = described(args, args.rounds)
    sampling = calibrate_rate(
        sampling=start.release.sampling,
        rounds=args.rounds,
        mechanism=start.release.mechanism,
        **_budget(args, start),
    )
    if isinstance(sampling, (Poisson, CappedPoisson)):
        return {"rate": sampling.rate}, _with(start, sampling=sampling)
    return {"cohort": int(sampling.expected_cohort)}, _with(start, sampling=sampling)


def _with(described: Described, **changes: Any) -> Described:
    return replace(described, release=replace(described.release, **changes))


def _budget(args: argparse.Namespace, described: Described) -> dict[str, Any]:
    """Return what every calibration is told: the budget, and for whom it is."""
    same = {name: getattr(described, name) for name in ("delta", "privacy_model", "tuning")}
    return {"epsilon": args.epsilon, "uses": described.release.uses, **same}
