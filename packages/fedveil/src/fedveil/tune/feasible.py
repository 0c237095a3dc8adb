"""The feasible set: for a budget, how much noise every choice of trust, sampling and rounds costs.

Signal and noise are compared in units of the clip norm. If all clients of a cohort send the same
update of full norm, their average has norm 1; the noise on that average has norm
`noise_multiplier * sqrt(dimension) / cohort` (times `sqrt(cohort)` if every client adds the noise
by itself, LOCAL). `signal_to_noise` is the ratio, for one round; over T rounds that all pull the
same way it grows to sqrt(T) times this. Real updates agree less, so the true ratio is lower:
below 1 over the run, nothing can be learnt.

Laplace noise goes with a clip in L1: there the update of full norm is spread evenly over the
weights, so its L2 norm is `1 / sqrt(dimension)`, and the noise has twice the variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Protocol

from fedveil.core.arguments import check_fields, count, delta_value, not_negative, one_of, positive
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.methods.parts.noise_placement import Noise
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.calibration import calibrate_mechanism
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import Gaussian, Laplace
from fedveil.privacy.refusals import MechanismRefused
from fedveil.privacy.sampling import FixedSize, Poisson, RoundRobin, Sampling, sampling_kind
from fedveil.privacy.translation import usual_adjacency

ROUNDS = (10, 100, 1000)
SIGNAL_TO_NOISE = (
    "norm of the average of a cohort that agrees fully, over the norm of the noise on it; "
    "over a run sqrt(rounds) times this"
)


def remaining(
    epsilon: float, delta: float, spent_epsilon: float = 0.0, spent_delta: float = 0.0
) -> tuple[float, float]:
    """Return the (epsilon, delta) that may still be spent on the same units.

    Both add up: basic composition holds whatever the earlier releases were, adaptive ones included.

    Raises:
        ConfigError: Nothing is left.
    """
    positive("epsilon", epsilon)
    delta_value(delta)
    not_negative("spent_epsilon", spent_epsilon)
    delta_value(spent_delta)
    if spent_epsilon >= epsilon or (spent_delta > 0 and spent_delta >= delta):
        raise ConfigError(
            f"the budget ({epsilon:g}, {delta:g}) is already spent: ({spent_epsilon:g}, "
            f"{spent_delta:g}) went before; nothing can be trained on these units under it"
        )
    return epsilon - spent_epsilon, delta - spent_delta


def about(number: int) -> str:
    """Write a count with two significant digits, rounded up."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return f"about {-(-number // unit) * unit}"


@dataclass(frozen=True)
class Way:
    """A trust with a sampler."""

    trust: Trust
    sampling: Callable[[int, int], Sampling]  # from (clients, cohort)

    @property
    def adjacency(self) -> Adjacency:
        return usual_adjacency(self.trust, self.sampling(1, 1))


class PaperClaim(Protocol):
    """A paper's claim about the same noise: shown beside what is proved, never instead."""

    paper: str
    value: float

    def to_dict(self) -> dict[str, Any]: ...


# From a way, the question, cohort, rounds and noise multiplier.
ClaimOf = Callable[["Way", "Question", int, int, float], PaperClaim | None]

WAYS = (
    Way(Trust.CENTRAL, lambda n, b: Poisson(b / n, n)),
    Way(Trust.CENTRAL, FixedSize),
    Way(Trust.DISTRIBUTED, RoundRobin),
    Way(Trust.LOCAL, RoundRobin),
)


@dataclass(frozen=True)
class Question:
    """A budget for protecting whole clients, and what is to be done with it.

    dropped: share of a cohort's noise shares that fail to arrive, for `epsilon_if_dropped`.
    colluders: clients that tell the adversary what they know, for `epsilon_if_colluding`.
    noise: gaussian, beside a clip in L2, or laplace, beside one in L1, which needs no delta.
    """

    epsilon: float
    delta: float
    clients: int
    dimension: int
    cohorts: tuple[int, ...]
    rounds: tuple[int, ...] = ROUNDS
    trusts: tuple[Trust, ...] = tuple(Trust)
    dropped: float = 0.1
    colluders: int = 1
    noise: str = Noise.GAUSSIAN

    def __post_init__(self) -> None:
        remaining(self.epsilon, self.delta)
        check_fields(self, noise=one_of(Noise), clients=count, dimension=count)
        if self.noise == Noise.GAUSSIAN and self.delta == 0:
            raise ConfigError("delta: must be above 0 for Gaussian noise; use laplace noise for 0")
        if not (self.cohorts and self.rounds and self.trusts):
            raise ConfigError("cohorts, rounds and trusts: give at least one of each")
        for rounds in self.rounds:
            count("rounds", rounds)
        for cohort in self.cohorts:
            if count("cohort", cohort) > self.clients:
                raise ConfigError(f"cohort: must be at most clients={self.clients}, got {cohort}")
        if not_negative("dropped", self.dropped) >= 1:
            raise ConfigError(f"dropped: must be a share below 1, got {self.dropped:g}")
        if count("colluders", self.colluders, least=0) >= self.clients:
            raise ConfigError(f"colluders: must be fewer than clients={self.clients}")


@dataclass(frozen=True)
class Row:
    """One way to spend the budget."""

    trust: Trust
    sampling: str
    adjacency: Adjacency
    cohort: int
    rounds: int
    participations: int
    noise_multiplier: float
    epsilon: float
    signal_to_noise: float
    run_signal_to_noise: float
    clients_needed: int
    epsilon_if_dropped: float
    epsilon_if_colluding: float
    claim: PaperClaim | None  # of the paper whose setting this is; None if no paper has it

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        claim = None if self.claim is None else self.claim.to_dict()
        words = {"trust": str(self.trust), "adjacency": str(self.adjacency)}
        return {**vars(self), **words, "claim": claim}


def feasible(question: Question, claim_of: ClaimOf | None = None) -> list[Row]:
    """Find the least noise for every way, cohort and number of rounds asked for.

    Args:
        question: What is asked.
        claim_of: Adds what a paper would have claimed.

    Returns:
        Rows; ways without a proof for this noise are left out, and `without_proof` names them.
    """
    found, refusals = list[Row](), list[PrivacyRefusal]()
    for way in _asked(question):
        try:
            for cohort, rounds in product(question.cohorts, question.rounds):
                found.append(_row(question, way, cohort, rounds, claim_of))
        except MechanismRefused as refused:
            refusals.append(refused)
    if refusals and not found:
        raise refusals[0]
    return found


def without_proof(question: Question, rows: Sequence[Row]) -> list[str]:
    """Return the ways that were asked for and have no row, as trust and sampling."""
    known = {(row.trust, row.adjacency) for row in rows}
    return [
        f"{way.trust} trust with {sampling_kind(way.sampling(1, 1))} sampling"
        for way in _asked(question)
        if (way.trust, way.adjacency) not in known
    ]


def _asked(question: Question) -> list[Way]:
    return [way for way in WAYS if way.trust in question.trusts]


def warnings(rows: Sequence[Row]) -> list[str]:
    """Return, for every trust whose best row still drowns in noise, that it does, and the cure."""
    found = []
    for trust in dict.fromkeys(row.trust for row in rows):
        best = max((r for r in rows if r.trust is trust), key=lambda r: r.run_signal_to_noise)
        if best.run_signal_to_noise < 1:
            found.append(
                f"{trust}: even {best.rounds} rounds of cohorts of {best.cohort} drown in noise "
                f"(run signal-to-noise {best.run_signal_to_noise:.2g}): the model will not learn; "
                f"at the same rate it takes {about(best.clients_needed)} clients"
            )
    return found


def _row(question: Question, way: Way, cohort: int, rounds: int, claim_of: ClaimOf | None) -> Row:
    sampling, laplace = way.sampling(question.clients, cohort), question.noise == Noise.LAPLACE
    exact: dict[str, Any] = {
        "population": question.clients,
        "arithmetic": Arithmetic.IDEALISED,
    }
    privacy_model = PrivacyModel(Unit.CLIENT, way.adjacency, way.trust, **exact)
    make: Callable[[float], Laplace | Gaussian] = Laplace if laplace else Gaussian
    budget: dict[str, Any] = {"epsilon": question.epsilon, "delta": question.delta}
    mechanism = calibrate_mechanism(
        make, sampling=sampling, rounds=rounds, privacy_model=privacy_model, **budget
    )
    noise = float(getattr(mechanism, "scale_multiplier" if laplace else "noise_multiplier"))

    def guarantee(**changed: Any) -> Guarantee:
        release, model = Release(mechanism, sampling, rounds), replace(privacy_model, **changed)
        return account([release], privacy_model=model, delta=question.delta)

    def cost(**changed: Any) -> float:
        try:
            return guarantee(**changed).epsilon
        except PrivacyRefusal:
            return math.inf  # not one honest share is sure to be left

    alone, promised = way.trust is Trust.LOCAL, guarantee()
    spread = math.sqrt(2) * question.dimension if laplace else math.sqrt(question.dimension)
    ratio = (math.sqrt(cohort) if alone else cohort) / (noise * spread)
    over_run = ratio * math.sqrt(rounds)
    dropped: dict[str, Any] = {}
    if way.trust is Trust.DISTRIBUTED:
        dropped["honest_shares"] = cohort - math.ceil(question.dropped * cohort)
    return Row(
        trust=way.trust,
        sampling=sampling_kind(sampling),
        adjacency=way.adjacency,
        cohort=cohort,
        rounds=rounds,
        participations=promised.participations,
        noise_multiplier=noise,
        epsilon=promised.epsilon,
        signal_to_noise=ratio,
        run_signal_to_noise=over_run,
        clients_needed=math.ceil(question.clients * max(1.0, over_run ** (-2 if alone else -1))),
        epsilon_if_dropped=cost(**dropped),
        epsilon_if_colluding=cost(colluders=question.colluders),
        claim=None if claim_of is None else claim_of(way, question, cohort, rounds, noise),
    )
