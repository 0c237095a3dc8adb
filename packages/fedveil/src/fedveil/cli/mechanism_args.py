"""A mechanism described on the command line: its options, and what they describe."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
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
    """Add the options that `account` and `calibrate` share."""
    for title, options in _OPTIONS.items():
        console.add_options(parser, options, title)


def refuse_beside(args: argparse.Namespace) -> None:
    """Refuse options that describe a mechanism where a run or a recipe is named, which has its own.

    Raises:
        ConfigError: One of them is given.
    """
    for options in _OPTIONS.values():
        for option, (kind, _, *default) in options.items():
            flag = option.partition(" ")[0]
            usual = [] if kind is list else default[0] if default else None
            if getattr(args, flag[2:].replace("-", "_")) != usual:
                raise ConfigError(f"{flag}: {args.source} says it itself. Leave the option out.")


@dataclass(frozen=True)
class Described:
    """Releases of one mechanism, and whom they protect, as the options describe them."""

    release: Release
    privacy_model: PrivacyModel
    delta: float
    tuning: Tuning | None
    records_per_person: int | None

    def guarantees(self) -> tuple[Guarantee, Guarantee | None]:
        """Return the guarantee, and that of a person with several records if it was asked for."""
        from fedveil.privacy.accounting import account, person_guarantee

        guarantee = account(
            [self.release],
            privacy_model=self.privacy_model,
            delta=self.delta,
            tuning=self.tuning,
        )
        records = self.records_per_person
        return guarantee, None if records is None else person_guarantee(guarantee, records)


def described(args: argparse.Namespace, rounds: int, level: float | None = None) -> Described:
    """Return the release that the options describe, and whom it protects.

    Args:
        args: The parsed options.
        rounds: How many rounds.
        level: Stands in for a noise that is searched for.
    """
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
    same = ("trust", "population", "arithmetic", "entropy", "colluders", "honest_shares")
    privacy_model = PrivacyModel(
        unit=unit,
        adjacency=args.adjacency or adjacency,
        contributions=args.sites_per_person or (1 if unit is Unit.PERSON else None),
        **{name: getattr(args, name) for name in same},
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
    """Return the sampler that the options describe.

    Args:
        args: The parsed options. Without --sampling, the others suggest one.
        rounds: How many rounds.
    """
    from fedveil.privacy.sampling import SAMPLERS

    kind = args.sampling
    if kind is None:
        kind = "everyone"
        if args.trust == "central" and args.cohort is not None:
            kind = "fixed"
        if args.rate is not None:
            kind = "poisson" if args.cap is None else "capped-poisson"
    options = _given(args, ("clients", "cohort", "rate", "cap"))
    if kind in ("poisson", "capped-poisson") and {"cohort", "clients"} <= set(options):
        if "rate" in options:
            raise ConfigError("--rate and --cohort: for Poisson sampling give only one of them")
        if not 0 < args.cohort <= args.clients:
            raise ConfigError(f"--cohort: must be between 1 and {args.clients}, got {args.cohort}")
        options["rate"] = options.pop("cohort") / args.clients
    if kind == "balanced":
        options["rounds"] = rounds
    sampling: Sampling = _built(kind, SAMPLERS[kind], options)
    return sampling


def mechanism_kind(args: argparse.Namespace) -> str:
    """Return the named mechanism, or the one whose option was given."""
    if args.mechanism is not None:
        return str(args.mechanism)
    if args.scale_multiplier is not None:
        return "laplace"
    return "zcdp" if args.rho is not None else "gaussian"


def mechanism_of(args: argparse.Namespace, level: float | None = None) -> Mechanism:
    """Return the mechanism of the options; `level` stands in for a noise that is looked for."""
    from fedveil.privacy.contract import mechanism_class
    from fedveil.privacy.poisson_sampled import PoissonSampled

    kind = mechanism_kind(args)
    mechanism_type = mechanism_class(kind)
    options = _given(args, _PARAMETERS) | dict(map(_parameter, args.parameter))
    if level is not None and mechanism_type.level is not None:
        options[mechanism_type.level] = level
    mechanism: Mechanism = _built(kind, mechanism_type, options)
    if args.batch_rate is None:
        return mechanism
    return PoissonSampled(args.batch_rate, (mechanism,) * args.uses)


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _built(kind: str, kind_class: type[Any], options: Mapping[str, Any]) -> Any:
    """Make a mechanism or a sampler; refuse options that it does not use, and name those it lacks.

    Raises:
        ConfigError: One option too many, or too few.
    """
    parameters = {field.name: field for field in fields(kind_class)}
    for name in options:
        if name not in parameters:
            raise ConfigError(
                f"{_option(name)}: {kind} does not use it. Leave it out; there are "
                f"{', '.join(parameters)}."
            )
    for name, field in parameters.items():
        if name not in options and field.default is MISSING:
            raise ConfigError(f"{_option(name)}: {kind} needs it")
    return kind_class(**options)


def _option(name: str) -> str:
    has_option = any(console.flag(name) in options for options in _OPTIONS.values())
    return console.flag(name) if has_option else f"--parameter {name}=NUMBER"


def _parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value) if any(c in value for c in ".eE") else int(value)
    except ValueError:
        raise ConfigError(f"--parameter: write NAME=NUMBER, got {text!r}") from None


def _delta(args: argparse.Namespace, release: Release, privacy_model: PrivacyModel) -> float:
    """Return --delta, or the default for a known population."""
    from fedveil.privacy.accounting import default_delta
    from fedveil.privacy.translation import population_of

    if args.delta is not None:
        return float(args.delta)
    population = population_of((release,), privacy_model)
    if population is None:
        raise ConfigError("--delta: give it, or --population for the default")
    return default_delta(population)


def _tuning(args: argparse.Namespace) -> Tuning | None:
    """Return what is charged for tuning, if anything."""
    from fedveil.privacy.tuning import AllRuns, RandomRuns, Repeats

    if args.tuning_runs is not None and args.tuning_mean is not None:
        raise ConfigError("--tuning-runs and --tuning-mean: give only one of them")
    if args.tuning_runs is not None:
        return AllRuns(args.tuning_runs)
    if args.tuning_mean is not None:
        return RandomRuns(args.tuning_mean, Repeats(args.tuning_repeats))
    return None


def document_of(guarantee: Guarantee, person: Guarantee | None = None) -> dict[str, Any]:
    """Return the JSON answer about a guarantee, and about a person with several records."""
    document = guarantee.to_dict()
    if person is not None:
        records = person.privacy_model.contributions
        document["person"] = {"records": records, "epsilon": person.epsilon}
    return document


def show(guarantee: Guarantee, title: str, person: Guarantee | None = None) -> None:
    """Print a guarantee as a table, and its statement.

    Args:
        guarantee: What to print.
        title: Heading of the table.
        person: The guarantee of a person with several records, shown beside that of one.
    """
    doubt = "" if guarantee.certified else ", if this were certified"
    document = document_of(guarantee, person)
    named = {name: name.replace("_", " ") for name in _SHOWN} | {"epsilon": f"epsilon{doubt}"}
    if len(guarantee.releases) > 1:  # statistics of columns are released in no round
        named["rounds"] = "releases"
    rows = [(named[name], _shown(name, document[name])) for name in _SHOWN]
    for name, value in guarantee.alternatives.items():
        rows.append((f"epsilon by {name}{doubt}", at_most(value, 6)))
    if person is not None:
        whose = f"epsilon of a person with up to {document['person']['records']} records{doubt}"
        rows.insert(1, (whose, at_most(person.epsilon, 6)))
    console.table(title, ("", ""), [row for row in rows if row[1]])
    console.say(guarantee.statement)


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return (at_least if name == "noise_multiplier" else at_most)(value, 6)
    return "" if value is None else str(value)
