"""A mechanism described on the command line: its options, and what they describe."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.rounding import at_least, at_most

if TYPE_CHECKING:
    from fedveil.privacy.contract import Mechanism
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.releases import PrivacyModel, Release
    from fedveil.privacy.sampling import Sampling
    from fedveil.privacy.tuning import Tuning

SAMPLINGS = ("poisson", "fixed", "capped-poisson", "round-robin", "everyone", "balanced")
LEVELS = ("noise_multiplier", "scale_multiplier", "rho", "share_std")  # how much noise
_PARAMETERS = (*LEVELS, "clip_norm", "granularity", "shares", "dimension", "rounding_beta")

_OPTIONS: dict[str, console.Options] = {
    "the mechanism": {
        "--mechanism": (
            str,
            "gaussian (default), laplace, discrete-gaussian, discrete-gaussian-sum, noisy-votes, "
            "zcdp",
        ),
        "--parameter NAME=NUMBER": (list, "any other of its parameters"),
        "--noise-multiplier": (float, "noise std on the sum / L2 clip of one unit"),
        "--scale-multiplier": (float, "laplace: scale on the sum / L1 clip of one unit"),
        "--rho": (float, "zcdp: rho of one participation"),
        "--clip-norm": (float, "discrete-gaussian-sum: L2 clip of one unit"),
        "--granularity": (float, "discrete-gaussian-sum: grid spacing"),
        "--share-std": (float, "discrete-gaussian-sum: noise std of one client's share"),
        "--shares": (int, "discrete-gaussian-sum: noise shares in a sum"),
        "--dimension": (int, "discrete-gaussian-sum: coordinates, padding included"),
        "--rounding-beta": (float, "discrete-gaussian-sum: rounding bound (exp(-1/2))"),
    },
    "who takes part": {
        "--sampling": (SAMPLINGS, "how cohorts are chosen"),
        "--rate": (float, "poisson: probability of each client"),
        "--clients": (int, "how many there are"),
        "--cohort": (int, "clients in one round"),
        "--cap": (int, "capped-poisson: most clients in one round"),
        "--batch-rate": (float, "each record is in a batch by its own secret coin of this bias"),
        "--rounds": (int, "how many rounds (with --batch-rate: steps)"),
        "--uses": (int, "releases in each participation (1)", 1),
        "--participations": (int, "enforced or counted maximum for one client: no credit"),
    },
    "what is promised, to whom": {
        "--delta": (float, "default min(1e-5, population^-1.1) if known"),
        "--unit": (
            ("client", "person", "record"),
            "protected: all data of a client, all records of a person, or one record",
        ),
        "--sites-per-person": (int, "unit person: sites at which one person may be (1)"),
        "--records-per-person": (int, "also show the epsilon of a person with so many records"),
        "--adjacency": (
            ("add-remove", "replace", "zero-out"),
            "add-remove: only if rate and divisor are constants, not from the number of clients",
        ),
        "--trust": (("central", "distributed", "local"), "who adds the noise", "central"),
        "--population": (int, "protected units (clients if unit is client)"),
        "--colluders": (int, "clients that tell what they know", 0),
        "--honest-shares": (int, "noise shares sure to be in every sum"),
        "--arithmetic": (
            ("exact", "idealised"),
            "of the noise: on a grid, or with reals",
            "exact",
        ),
        "--entropy": (("system", "seeded"), "where the noise comes from", "system"),
    },
    "tuning on the same data": {
        "--tuning-runs": (int, "all these runs are charged"),
        "--tuning-mean": (float, "mean of a secret random number of runs"),
        "--tuning-repeats": (
            ("geometric", "logarithmic", "poisson"),
            "the law of that number",
            "geometric",
        ),
    },
}

_SHOWN = (
    "epsilon", "delta", "noise_multiplier", "unit", "adjacency", "trust", "sampling", "rounds",
    "participations", "honest_shares", "accountant", "certified", "reason",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that `account` and `calibrate` share."""
    for title, options in _OPTIONS.items():
        console.add_options(parser, options, title)


@dataclass(frozen=True)
class Described:
    """What the options describe: releases of one mechanism, and what is promised to whom."""

    release: Release
    privacy_model: PrivacyModel
    delta: float
    tuning: Tuning | None

    records_per_person: int | None = None

    def guarantee(self, release: Release | None = None) -> Guarantee:
        """What is guaranteed, if `release` is made instead."""
        from fedveil.privacy.accounting import account

        releases = [release or self.release]
        return account(
            releases, privacy_model=self.privacy_model, delta=self.delta, tuning=self.tuning
        )

    def person(self, release: Release | None = None) -> Guarantee | None:
        """Return the guarantee of a person with several records, each with its own contribution."""
        from fedveil.privacy.accounting import person_guarantee

        records = self.records_per_person
        return None if records is None else person_guarantee(self.guarantee(release), records)


def described(args: argparse.Namespace, rounds: int, level: float | None = None) -> Described:
    """What the options describe; `level` stands in for a noise that is looked for."""
    from fedveil.privacy.contract import mechanism_class
    from fedveil.privacy.releases import PrivacyModel, Release
    from fedveil.privacy.translation import usual_adjacency

    mechanism, sampling = mechanism_of(args, level), sampling_of(args, rounds)
    # Releases of one secret batch share its coins: the mechanism holds them all.
    uses = args.uses if args.batch_rate is None else 1
    release = Release(mechanism, sampling, rounds, uses, args.participations)
    kind, unit = mechanism_class(mechanism_kind(args)), _unit(args)
    adjacency = usual_adjacency(Trust(args.trust), sampling, mechanism=kind)
    if args.batch_rate is not None:
        adjacency = Adjacency.ZERO_OUT
    privacy_model = PrivacyModel(
        unit=unit,
        adjacency=args.adjacency or adjacency,
        contributions=args.sites_per_person or (1 if unit is Unit.PERSON else None),
        trust=args.trust,
        population=args.population,
        arithmetic=args.arithmetic,
        entropy=args.entropy,
        colluders=args.colluders,
        honest_shares=args.honest_shares,
    )
    delta = _delta(args, release, privacy_model)
    return Described(release, privacy_model, delta, _tuning(args), args.records_per_person)


def _unit(args: argparse.Namespace) -> Unit:
    """Return the unit: as given, or as the other options suggest."""
    suggested = Unit.CLIENT
    if args.batch_rate is not None or args.records_per_person is not None:
        suggested = Unit.RECORD
    if args.sites_per_person is not None:
        suggested = Unit.PERSON
    unit = suggested if args.unit is None else Unit(args.unit)
    if args.sites_per_person is not None and unit is not Unit.PERSON:
        raise ConfigError(f"--sites-per-person: unit {unit} has none. Use --unit person.")
    if args.records_per_person is not None and unit is not Unit.RECORD:
        raise ConfigError(
            f"--records-per-person: unit {unit} covers them together. Use it with --unit record."
        )
    return unit


def sampling_of(args: argparse.Namespace, rounds: int) -> Sampling:
    """The sampler of the options; without --sampling, what the other options suggest."""
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
    size = _needed(args, kind, "clients"), _needed(args, kind, "cohort")
    if kind == "balanced":
        return s.Balanced(*size, rounds)
    return s.FixedSize(*size) if kind == "fixed" else s.RoundRobin(*size)


def mechanism_kind(args: argparse.Namespace) -> str:
    """The named mechanism, or the one whose option was given."""
    if args.mechanism is not None:
        return str(args.mechanism)
    if args.scale_multiplier is not None:
        return "laplace"
    return "zcdp" if args.rho is not None else "gaussian"


def mechanism_of(args: argparse.Namespace, level: float | None = None) -> Mechanism:
    """The mechanism of the options; `level` stands in for its noise where that is looked for."""
    from fedveil.privacy.contract import mechanism_class

    kind = mechanism_kind(args)
    found = mechanism_class(kind)
    known = {field.name: field for field in fields(found)}  # type: ignore[arg-type]
    given = {name: getattr(args, name) for name in _PARAMETERS if getattr(args, name) is not None}
    _unused(args, kind, *(name for name in LEVELS if name not in known))
    named = dict(_parameter(text) for text in args.parameter)
    for name in named:
        if name not in known:
            raise ConfigError(f"--parameter: {kind} has no {name!r}, but {', '.join(known)}")
    values = {name: value for name, value in (given | named).items() if name in known}
    if level is not None and found.level is not None:
        values[found.level] = level
    for name, field in known.items():
        if name not in values and field.default is MISSING:
            option = console.flag(name) if name in _PARAMETERS else f"--parameter {name}=NUMBER"
            raise ConfigError(f"{option}: {kind} needs it")
    inner = found(**values)
    if args.batch_rate is None:
        return inner
    from fedveil.privacy.poisson_sampled import PoissonSampled

    return PoissonSampled(args.batch_rate, (inner,) * args.uses)


def _parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value) if any(c in value for c in ".eE") else int(value)
    except ValueError:
        raise ConfigError(f"--parameter: write NAME=NUMBER, got {text!r}") from None


def person_document(person: Guarantee | None) -> dict[str, Any]:
    """Return the person's epsilon for a JSON answer, beside that of one record."""
    if person is None:
        return {}
    model = person.privacy_model
    return {"person": {"records": model.contributions, "epsilon": person.epsilon}}


def show(guarantee: Guarantee, title: str, person: Guarantee | None = None) -> None:
    """Print a guarantee as a table, and its statement.

    Args:
        guarantee: What to print.
        title: Heading of the table.
        person: The guarantee of a person with several records, shown beside that of one.
    """
    document = guarantee.to_dict()
    rows = [(name.replace("_", " "), _shown(name, document[name])) for name in _SHOWN]
    for name, value in guarantee.alternatives.items():
        rows.append((f"epsilon by {name}", at_most(value, 6)))
    if person is not None:
        records = person.privacy_model.contributions
        rows.insert(
            1, (f"epsilon of a person with up to {records} records", at_most(person.epsilon, 6))
        )
    console.table(title, ("", ""), [row for row in rows if row[1]])
    console.say(guarantee.statement)


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return (at_least if name == "noise_multiplier" else at_most)(value, 6)
    return "" if value is None else str(value)


def _delta(args: argparse.Namespace, release: Release, privacy_model: PrivacyModel) -> float:
    """--delta, or the default for a known population."""
    from fedveil.privacy.accounting import default_delta
    from fedveil.privacy.translation import population_of

    if args.delta is not None:
        return float(args.delta)
    population = population_of((release,), privacy_model)
    if population is None:
        raise ConfigError("--delta: give it, or --population for the default")
    return default_delta(population)


def _tuning(args: argparse.Namespace) -> Tuning | None:
    """What tuning is charged, if any."""
    from fedveil.privacy.tuning import AllRuns, RandomRuns, Repeats

    if args.tuning_runs is not None and args.tuning_mean is not None:
        raise ConfigError("--tuning-runs and --tuning-mean: give only one of them")
    if args.tuning_runs is not None:
        return AllRuns(args.tuning_runs)
    if args.tuning_mean is not None:
        return RandomRuns(args.tuning_mean, Repeats(args.tuning_repeats))
    return None


def _rate(args: argparse.Namespace, kind: str) -> float:
    if args.rate is not None:
        if args.cohort is not None:
            raise ConfigError("--rate and --cohort: for Poisson sampling give only one of them")
        return float(args.rate)
    if args.cohort is None or args.clients is None:
        raise ConfigError(f"--rate: {kind} sampling needs it (or --cohort and --clients)")
    if not 0 < args.cohort <= args.clients:
        raise ConfigError(f"--cohort: must be between 1 and {args.clients}, got {args.cohort}")
    return float(args.cohort / args.clients)


def _needed(args: argparse.Namespace, kind: str, name: str) -> Any:
    value = getattr(args, name)
    if value is None:
        raise ConfigError(f"{console.flag(name)}: {kind} needs it")
    return value


def _unused(args: argparse.Namespace, kind: str, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigError(f"{console.flag(name)}: {kind} does not use it; leave it out")
