"""A mechanism described on the command line: its arguments, and the releases they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.privacy.shown import at_least, at_most

if TYPE_CHECKING:
    from fedveil.privacy.contract import Mechanism
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.releases import PrivacyModel, Release
    from fedveil.privacy.sampling import Sampling
    from fedveil.privacy.tuning import Tuning

LEVELS = ("noise_multiplier", "scale_multiplier", "rho", "share_std")
_PARAMETERS = (*LEVELS, "clip_norm", "granularity", "shares", "dimension", "rounding_beta")
SAMPLINGS = ("poisson", "fixed", "capped-poisson", "round-robin", "everyone", "balanced")

_SHOWN = (
    "epsilon", "delta", "noise_multiplier", "unit", "adjacency", "trust", "sampling", "rounds",
    "participations", "honest_shares", "accountant", "certified", "reason",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that `account` and `calibrate` share."""
    noise = parser.add_argument_group("the mechanism")
    noise.add_argument(
        "--mechanism",
        help="what adds the noise: gaussian (default), laplace, discrete-gaussian, "
        "discrete-gaussian-sum, noisy-votes, zcdp, or one of an installed package",
    )
    noise.add_argument(
        "--parameter", action="append", metavar="NAME=NUMBER", help="any other of its parameters"
    )
    noise.add_argument(
        "--noise-multiplier", type=float, help="noise std on the sum / L2 clip of one unit"
    )
    noise.add_argument(
        "--scale-multiplier", type=float, help="laplace: scale on the sum / L1 clip of one unit"
    )
    noise.add_argument("--rho", type=float, help="zcdp: of one participation")
    noise.add_argument("--clip-norm", type=float, help="discrete-gaussian-sum: L2 clip of one unit")
    noise.add_argument("--granularity", type=float, help="discrete-gaussian-sum: grid spacing")
    noise.add_argument("--share-std", type=float, help="discrete-gaussian-sum: of one client")
    noise.add_argument("--shares", type=int, help="discrete-gaussian-sum: noise shares in a sum")
    noise.add_argument("--dimension", type=int, help="discrete-gaussian-sum: padded coordinates")
    noise.add_argument(
        "--rounding-beta", type=float, help="discrete-gaussian-sum: rounding bound (exp(-1/2))"
    )
    who = parser.add_argument_group("who takes part")
    who.add_argument("--sampling", choices=SAMPLINGS, help="how cohorts are chosen")
    who.add_argument("--rate", type=float, help="poisson: probability of each client")
    who.add_argument("--clients", type=int, help="how many there are")
    who.add_argument("--cohort", type=int, help="clients in one round")
    who.add_argument("--cap", type=int, help="capped-poisson: most clients in one round")
    who.add_argument("--rounds", type=int, help="how many rounds")
    who.add_argument("--uses", type=int, default=1, help="releases in each participation (1)")
    who.add_argument(
        "--participations", type=int, help="enforced or counted maximum for one client: no credit"
    )
    what = parser.add_argument_group("what is promised, to whom")
    what.add_argument("--delta", type=float, help="default min(1e-5, population^-1.1) if known")
    what.add_argument("--unit", choices=("client", "record"), default="client")
    what.add_argument(
        "--adjacency",
        choices=("add-remove", "replace", "zero-out"),
        help="add-remove: only if rate and divisor are constants, not from the number of clients",
    )
    what.add_argument("--trust", choices=("central", "distributed", "local"), default="central")
    what.add_argument("--population", type=int, help="protected units (clients if unit is client)")
    what.add_argument("--colluders", type=int, default=0, help="clients that tell what they know")
    what.add_argument("--honest-shares", type=int, help="noise shares sure to be in every sum")
    what.add_argument("--arithmetic", choices=("exact", "idealised"), default="exact")
    what.add_argument("--entropy", choices=("system", "seeded"), default="system")
    runs = parser.add_argument_group("tuning on the same data")
    runs.add_argument("--tuning-runs", type=int, help="all these runs are charged")
    runs.add_argument("--tuning-mean", type=float, help="mean of a secret random number of runs")
    runs.add_argument(
        "--tuning-repeats", choices=("geometric", "logarithmic", "poisson"), default="geometric"
    )


def sampling_of(args: argparse.Namespace, rounds: int | None) -> Sampling:
    """The sampler of the arguments; without --sampling, what the other arguments suggest."""
    from fedveil.privacy import sampling as s

    kind = args.sampling
    if kind is None:
        kind = "everyone"
        if args.trust == "central" and args.cohort is not None:
            kind = "fixed"
        if args.rate is not None:
            kind = "poisson" if args.cap is None else "capped-poisson"
    if kind == "everyone":
        _unused(args, kind, "rate", "cohort", "cap")
        return s.Everyone(args.clients)
    if kind == "poisson":
        _unused(args, kind, "cap")
        return s.Poisson(_rate(args, kind), args.clients)
    if kind == "capped-poisson":
        clients, cap = _needed(args, kind, "clients"), _needed(args, kind, "cap")
        return s.CappedPoisson(clients, _rate(args, kind), cap)
    _unused(args, kind, "rate", "cap")
    clients, cohort = _needed(args, kind, "clients"), _needed(args, kind, "cohort")
    if kind == "fixed":
        return s.FixedSize(clients, cohort)
    if kind == "round-robin":
        return s.RoundRobin(clients, cohort)
    return s.Balanced(clients, cohort, _needed(args, kind, "rounds") if rounds is None else rounds)


def mechanism_of(args: argparse.Namespace, level: float | None = None) -> Mechanism:
    """The mechanism of the arguments; `level` stands in for its noise where that is looked for."""
    from dataclasses import MISSING, fields

    from fedveil.privacy.contract import mechanism_class

    kind = mechanism_kind(args)
    found = mechanism_class(kind)
    known = {field.name: field for field in fields(found)}  # type: ignore[arg-type]
    given = {name: getattr(args, name) for name in _PARAMETERS if getattr(args, name) is not None}
    _unused(args, kind, *(name for name in LEVELS if name not in known))
    named = dict(_parameter(text) for text in args.parameter or ())
    for name in named:
        if name not in known:
            raise ConfigError(f"--parameter: {kind} has no {name!r}, but {', '.join(known)}")
    values = {name: value for name, value in (given | named).items() if name in known}
    if level is not None and found.level is not None:
        values[found.level] = level
    for name, field in known.items():
        if name not in values and field.default is MISSING:
            option = name.replace("_", "-")
            option = f"--{option}" if name in _PARAMETERS else f"--parameter {name}=NUMBER"
            raise ConfigError(f"{option}: {kind} needs it")
    return found(**values)


def mechanism_kind(args: argparse.Namespace) -> str:
    """The named mechanism, or the one whose argument was given."""
    if args.mechanism is not None:
        return str(args.mechanism)
    if args.scale_multiplier is not None:
        return "laplace"
    return "zcdp" if args.rho is not None else "gaussian"


def privacy_model_of(args: argparse.Namespace, sampling: Sampling) -> PrivacyModel:
    """The privacy model of the arguments; by default the usual adjacency of trust and sampling."""
    from fedveil.privacy.contract import mechanism_class
    from fedveil.privacy.releases import PrivacyModel
    from fedveil.privacy.translation import usual_adjacency

    kind = mechanism_class(mechanism_kind(args))
    return PrivacyModel(
        unit=args.unit,
        adjacency=args.adjacency or usual_adjacency(Trust(args.trust), sampling, mechanism=kind),
        trust=args.trust,
        population=args.population,
        arithmetic=args.arithmetic,
        entropy=args.entropy,
        colluders=args.colluders,
        honest_shares=args.honest_shares,
    )


def delta_of(args: argparse.Namespace, release: Release, privacy_model: PrivacyModel) -> float:
    """--delta, or the default for a known population."""
    from fedveil.privacy.accounting import default_delta
    from fedveil.privacy.translation import population_of

    if args.delta is not None:
        return float(args.delta)
    population = population_of((release,), privacy_model)
    if population is None:
        raise ConfigError("--delta: needed, as the population is not known (--population)")
    return default_delta(population)


def tuning_of(args: argparse.Namespace) -> Tuning | None:
    """What tuning is charged, if any."""
    from fedveil.privacy.tuning import AllRuns, RandomRuns, Repeats

    if args.tuning_runs is not None and args.tuning_mean is not None:
        raise ConfigError("--tuning-runs and --tuning-mean exclude each other")
    if args.tuning_runs is not None:
        return AllRuns(args.tuning_runs)
    if args.tuning_mean is not None:
        return RandomRuns(args.tuning_mean, Repeats(args.tuning_repeats))
    return None


def show(guarantee: Guarantee, title: str) -> None:
    """A guarantee as a table, and its statement."""
    document = guarantee.to_dict()
    rows = [(name.replace("_", " "), _shown(name, document[name])) for name in _SHOWN]
    for name, value in guarantee.alternatives.items():
        rows.append((f"epsilon by {name}", at_most(value, 6)))
    console.table(title, ("", ""), [row for row in rows if row[1]])
    console.say(guarantee.statement)


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return (at_least if name == "noise_multiplier" else at_most)(value, 6)
    return "" if value is None else str(value)


def _rate(args: argparse.Namespace, kind: str) -> float:
    if args.rate is not None:
        if args.cohort is not None:
            raise ConfigError("--rate and --cohort exclude each other for Poisson sampling")
        return float(args.rate)
    if args.cohort is None or args.clients is None:
        raise ConfigError(f"--rate: {kind} sampling needs it (or --cohort and --clients)")
    if not 0 < args.cohort <= args.clients:
        raise ConfigError(f"--cohort: need 1 to {args.clients}, got {args.cohort}")
    return float(args.cohort / args.clients)


def _needed(args: argparse.Namespace, kind: str, name: str) -> Any:
    value = getattr(args, name)
    if value is None:
        raise ConfigError(f"--{name.replace('_', '-')}: {kind} needs it")
    return value


def _unused(args: argparse.Namespace, kind: str, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: {kind} takes no such thing")


def _parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value) if any(c in value for c in ".eE") else int(value)
    except ValueError:
        raise ConfigError(f"--parameter: need NAME=NUMBER, got {text!r}") from None
