"""`fedveil calibrate`: the noise, the rounds or the rate that a privacy budget buys."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.cli import mechanism_args as described
from fedveil.core.errors import ConfigError
from fedveil.privacy.shown import at_least, at_most

if TYPE_CHECKING:
    from fedveil.privacy.releases import PrivacyModel, Release
    from fedveil.privacy.tuning import Tuning


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", type=Path, help="a recipe, instead of a description")
    parser.add_argument("--epsilon", type=float, help="the budget; by default the recipe's")
    parser.add_argument(
        "--find",
        choices=("noise", "rounds", "rate"),
        default="noise",
        help="what to find; everything else is given (noise)",
    )
    described.add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    from fedveil.privacy.accounting import account

    if args.source is not None:
        from fedveil.cli import load_guarantee as stored

        planned, _ = stored.guarantee_of(args.source, args.epsilon)
        if args.json:
            console.emit(planned.to_dict())
        else:
            described.show(planned, f"For {args.source}")
        return 0
    if args.epsilon is None:
        raise ConfigError("--epsilon: needed")
    found, release, privacy_model, delta, tuning = _FINDERS[args.find](args)
    guarantee = account([release], privacy_model=privacy_model, delta=delta, tuning=tuning)
    if args.json:
        console.emit({"target_epsilon": args.epsilon, "found": found, **guarantee.to_dict()})
        return 0
    answer = ", ".join(
        f"{name.replace('_', ' ')} {_shown(name, value)}" for name, value in found.items()
    )
    described.show(guarantee, f"For epsilon {args.epsilon:g}: {answer}")
    return 0


def _shown(name: str, value: float) -> str:
    """To be copied from the screen: no less noise than was found, no more of anything else."""
    if isinstance(value, int):
        return str(value)
    return (at_least if name == "rate" else at_most)(value, 6)


Answer = tuple[dict[str, Any], "Release", "PrivacyModel", float, "Tuning | None"]


def _noise(args: argparse.Namespace) -> Answer:
    from fedveil.privacy.calibration import calibrate_mechanism
    from fedveil.privacy.contract import mechanism_class
    from fedveil.privacy.releases import Release

    rounds = _rounds(args)
    for name in described.LEVELS:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: given, so there is no noise to find")
    kind = described.mechanism_kind(args)
    level = mechanism_class(kind).level
    if level is None:
        raise ConfigError(f"--mechanism: {kind} has no noise to find; name the mechanism itself")
    sampling = described.sampling_of(args, rounds)
    privacy_model = described.privacy_model_of(args, sampling)
    often = rounds, args.uses, args.participations
    probe = Release(described.mechanism_of(args, 1.0), sampling, *often)
    delta, tuning = described.delta_of(args, probe, privacy_model), described.tuning_of(args)
    mechanism = calibrate_mechanism(
        lambda noise: described.mechanism_of(args, noise),
        epsilon=args.epsilon,
        delta=delta,
        sampling=sampling,
        rounds=rounds,
        privacy_model=privacy_model,
        uses=args.uses,
        participations=args.participations,
        tuning=tuning,
    )
    release = Release(mechanism, sampling, *often)
    return {level: getattr(mechanism, level)}, release, privacy_model, delta, tuning


def _find_rounds(args: argparse.Namespace) -> Answer:
    from dataclasses import replace

    from fedveil.privacy.calibration import calibrate_rounds
    from fedveil.privacy.releases import Release
    from fedveil.privacy.sampling import Balanced

    _not_given(args, "rounds", "participations")
    mechanism, sampling = described.mechanism_of(args), described.sampling_of(args, 1)
    privacy_model, tuning = described.privacy_model_of(args, sampling), described.tuning_of(args)
    delta = described.delta_of(args, Release(mechanism, sampling, 1, args.uses), privacy_model)
    rounds = calibrate_rounds(
        epsilon=args.epsilon,
        delta=delta,
        sampling=sampling,
        mechanism=mechanism,
        privacy_model=privacy_model,
        uses=args.uses,
        tuning=tuning,
    )
    if isinstance(sampling, Balanced):
        sampling = replace(sampling, rounds=rounds)
    release = Release(mechanism, sampling, rounds, args.uses)
    return {"rounds": rounds}, release, privacy_model, delta, tuning


def _find_rate(args: argparse.Namespace) -> Answer:
    from fedveil.privacy.calibration import calibrate_rate
    from fedveil.privacy.releases import Release
    from fedveil.privacy.sampling import CappedPoisson, Poisson

    _not_given(args, "rate", "cohort", "participations")
    rounds = _rounds(args)
    if args.sampling in ("fixed", "round-robin", "balanced"):
        args.cohort = 1
    else:
        args.sampling = args.sampling or "poisson"
        args.rate = 0.5 if args.sampling != "everyone" else None
    mechanism, sampling = described.mechanism_of(args), described.sampling_of(args, rounds)
    privacy_model, tuning = described.privacy_model_of(args, sampling), described.tuning_of(args)
    delta = described.delta_of(args, Release(mechanism, sampling, rounds, args.uses), privacy_model)
    sampling = calibrate_rate(
        epsilon=args.epsilon,
        delta=delta,
        sampling=sampling,
        rounds=rounds,
        mechanism=mechanism,
        privacy_model=privacy_model,
        uses=args.uses,
        tuning=tuning,
    )
    if isinstance(sampling, (Poisson, CappedPoisson)):
        found: dict[str, Any] = {"rate": sampling.rate}
    else:
        found = {"cohort": int(sampling.expected_cohort)}
    release = Release(mechanism, sampling, rounds, args.uses)
    return found, release, privacy_model, delta, tuning


_FINDERS = {"noise": _noise, "rounds": _find_rounds, "rate": _find_rate}


def _rounds(args: argparse.Namespace) -> int:
    if args.rounds is None:
        raise ConfigError("--rounds: needed (or --find rounds)")
    return int(args.rounds)


def _not_given(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')}: given, so --find {args.find} has no use"
            )
