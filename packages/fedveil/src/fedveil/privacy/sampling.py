"""Who takes part in a round. Each sampler draws the cohort and knows what may be proved of it.

`clients` is a public number. Where it was declared rather than counted, fewer may be there: a draw
of Poisson cohorts or of everyone takes the number of those `present`, which nothing else depends
on.

A draw uses 64-bit words of a `Stream` and no floating-point rounding, so that the law drawn is
the law accounted (or one with a smaller rate). `amplifies` says whether the cohort is a secret
random sample: only then may sampling lower epsilon, and only towards somebody who does not learn
the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import check_fields, count, described, fraction, natural, optional
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness, Stream, Words, system_stream
from fedveil.core.registry import Registry

Ids = npt.NDArray[np.int64]


class _Sampler:
    """The base of the samplers.

    Attributes:
        clients: How many there are; None: not known, which is enough to account.
        amplifies: Whether a cohort is a secret random sample.
        fewer: Whether clients may be missing: a draw is then among those present.
        separation: Rounds from one turn of a client to its next, at least.
        coin_rate: Probability with which a client that takes part adds an update.
    """

    clients: int | None
    amplifies: ClassVar[bool] = False
    fewer: ClassVar[bool] = False

    def draw(
        self, round_number: int, stream: Stream | None = None, present: int | None = None
    ) -> Ids:
        """Return a round's cohort.

        Args:
            round_number: The round, from 0.
            stream: Randomness; None: the operating system's.
            present: How many clients are there; None: all that were declared.

        Returns:
            Sorted ids of clients. There may be none, and then noise alone is released.
        """
        clients = self._known
        present = clients if present is None else present
        # A missing client would change the chances of the others, or their turns.
        if present > clients or (present < clients and not self.fewer):
            most = "at most" if self.fewer else "exactly"
            raise ConfigError(
                f"clients: this sampling is among {most} {clients} clients, got {present}"
            )
        return self._draw(round_number, system_stream() if stream is None else stream, present)

    def _draw(self, round_number: int, stream: Stream, clients: int) -> Ids:
        return np.arange(clients, dtype=np.int64)

    @property
    def _known(self) -> int:
        """The number of clients, where it is needed."""
        if self.clients is None:
            raise ConfigError(f"clients: {type(self).__name__} needs their number here, got none")
        return self.clients

    def max_participations(self, rounds: int) -> int:
        """Rounds in which one client may take part: in the worst case it is drawn every time."""
        return rounds

    @property
    def separation(self) -> int:
        return 1

    @property
    def coin_rate(self) -> float:
        return 1.0

    def coin(self, randomness: Randomness, round_number: int, client: int) -> bool:
        """Return whether a client that takes part in a round adds an update."""
        return True


@dataclass(frozen=True)
class _OfCohorts(_Sampler):
    """Cohorts of one size."""

    clients: int
    cohort: int

    def __post_init__(self) -> None:
        check_fields(self, clients=count, cohort=count)
        if self.cohort > self.clients:
            raise ConfigError(f"cohort: need at most clients={self.clients}, got {self.cohort}")

    @property
    def expected_cohort(self) -> float:
        return float(self.cohort)


@dataclass(frozen=True)
class Poisson(_Sampler):
    """Every client takes part independently with probability `rate`, in every round.

    If cohorts stay secret, epsilon is lower than without sampling. `clients` is how many there are;
    it is needed to draw cohorts, not to account.

    >>> fv.Poisson(0.05, clients=1000).expected_cohort
    50.0
    """

    rate: float
    clients: int | None = None
    amplifies = True
    fewer = True

    def __post_init__(self) -> None:
        check_fields(self, rate=fraction, clients=optional(count))

    def _draw(self, round_number: int, stream: Stream, clients: int) -> Ids:
        if self.rate == 1:
            return np.arange(clients, dtype=np.int64)
        return np.flatnonzero(stream.coins(clients, self.rate))

    @property
    def expected_cohort(self) -> float:
        return self.rate * self._known


@dataclass(frozen=True)
class FixedSize(_OfCohorts):
    """A uniformly random set of exactly `cohort` clients, drawn anew every round."""

    amplifies = True

    def _draw(self, round_number: int, stream: Stream, clients: int) -> Ids:
        return random_subset(clients, self.cohort, stream)


@dataclass(frozen=True)
class CappedPoisson(_Sampler):
    """Poisson sampling; a cohort above `cap` is cut to a uniformly random subset of `cap`."""

    clients: int
    rate: float
    cap: int
    amplifies = True

    def __post_init__(self) -> None:
        check_fields(self, clients=count, rate=fraction, cap=count)
        if self.cap > self.clients:
            raise ConfigError(f"cap: need at most clients={self.clients}, got {self.cap}")

    def _draw(self, round_number: int, stream: Stream, clients: int) -> Ids:
        drawn = Poisson(self.rate, clients).draw(round_number, stream)
        return drawn[random_subset(len(drawn), min(len(drawn), self.cap), stream)]

    @property
    def expected_cohort(self) -> float:
        """E min(B, cap) for a binomial B: the sum of P(B > k) over k below the cap."""
        from scipy.special import bdtrc

        if self.rate == 1:
            return float(self.cap)
        return float(np.sum(bdtrc(np.arange(self.cap), self.clients, self.rate)))


@dataclass(frozen=True)
class RoundRobin(_OfCohorts):
    """The next `cohort` clients in order, for ever. Public: never amplifies."""

    def _draw(self, round_number: int, stream: Stream, clients: int) -> Ids:
        first = round_number * self.cohort % clients
        return np.sort((first + np.arange(self.cohort, dtype=np.int64)) % clients)

    def max_participations(self, rounds: int) -> int:
        """ceil(rounds * cohort / clients): some client has already had its extra turn."""
        return -(-rounds * self.cohort // self.clients)

    @property
    def separation(self) -> int:
        """Everybody else's turn comes first: floor((x + clients) / cohort) - floor(x / cohort)."""
        return self.clients // self.cohort


@dataclass(frozen=True)
class Everyone(_Sampler):
    """All clients in every round. Nothing is sampled, so epsilon gains nothing from sampling."""

    clients: int | None = None
    fewer = True

    def __post_init__(self) -> None:
        check_fields(self, clients=optional(count))

    @property
    def expected_cohort(self) -> float:
        return float(self._known)


@dataclass(frozen=True)
class SecretPoisson(_Sampler):
    """All clients take part in every round; each adds an update by a secret coin of its own.

    A client whose coin says no adds zero, with its noise share, under a secure sum: nobody else can
    tell the two apart. Who takes part is public and never amplifies, so a release is of
    `takes_part(sampling)`; the credit for the coins belongs to its mechanism, `PoissonSampled`.

    >>> coins = SecretPoisson(0.05, clients=1000)
    >>> coins.expected_cohort, len(coins.draw(0))
    (50.0, 1000)
    """

    rate: float
    clients: int

    def __post_init__(self) -> None:
        check_fields(self, rate=fraction, clients=count)

    @property
    def expected_cohort(self) -> float:
        """How many updates are expected in a sum: a public number, whatever the coins say."""
        return self.rate * self.clients

    @property
    def coin_rate(self) -> float:
        return self.rate

    def coin(self, randomness: Randomness, round_number: int, client: int) -> bool:
        """Return whether a client adds an update in a round.

        Each client and each round has a coin of its own. Without a seed every call tosses it anew:
        whoever calls keeps the answer for the round.
        """
        return bool(randomness.stream("coin", round_number, client).coins(1, self.rate)[0])


@dataclass(frozen=True)
class Balanced(_OfCohorts):
    """A shuffled schedule in which participation counts never differ by more than one.

    The schedule is made from the public number `key`, independently of any data; since everybody
    may know it, it never amplifies.
    """

    rounds: int
    key: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, rounds=count, key=natural)

    def _draw(self, round_number: int, stream: Stream, clients: int) -> Ids:
        if not 0 <= round_number < self.rounds:
            raise ConfigError(f"round: the schedule has {self.rounds} rounds, got {round_number}")
        cohort: Ids = _schedule(self)[round_number]
        return cohort

    def max_participations(self, rounds: int) -> int:
        """ceil(rounds * cohort / clients), for any prefix of the schedule."""
        if rounds > self.rounds:
            raise ConfigError(f"rounds: the schedule has {self.rounds} rounds, got {rounds}")
        return -(-rounds * self.cohort // self.clients)

    @property
    def separation(self) -> int:
        """As this schedule has it: late in one shuffle and early in the next may be near."""
        cohorts = _schedule(self)
        order = np.argsort(cohorts, axis=None, kind="stable")  # by client, and then by round
        gaps = np.diff(order // self.cohort)[np.diff(cohorts.ravel()[order]) == 0]
        return int(gaps.min(initial=self.rounds))


Sampling = Poisson | FixedSize | CappedPoisson | RoundRobin | Everyone | Balanced | SecretPoisson

# By the name in `training.sampling`. A sampler of others is a frozen dataclass derived from
# `RoundRobin`, made from `clients` and `cohort`: a public schedule, for which no credit is claimed.
# What a secret cohort is worth is proved for the package's own alone.
SAMPLERS: Registry[type[Sampling]] = Registry("sampler", "fedveil.samplers", None, type)
for _name, _kind in {
    "poisson": Poisson,
    "fixed": FixedSize,
    "capped-poisson": CappedPoisson,
    "round-robin": RoundRobin,
    "everyone": Everyone,
    "balanced": Balanced,
}.items():
    SAMPLERS.add(_name, _kind, __name__)


def public_schedule(name: str) -> type[RoundRobin]:
    """Return a sampler of others by its name in `training.sampling`."""
    kind = SAMPLERS.find(name, "training.sampling")
    if not issubclass(kind, RoundRobin) or kind.amplifies:
        raise ConfigError(
            f"training.sampling: {name!r} is no public schedule. Derive its class from RoundRobin "
            "and leave amplifies false."
        )
    return kind


def sampling_kind(sampling: Sampling) -> str:
    """The name of a sampler's kind in documents and on the command line."""
    name = SAMPLERS.name_of(type(sampling))
    if name is None:
        raise ConfigError(f"sampling: {sampling!r} is none of {', '.join(SAMPLERS)}")
    return name


def sampling_to_dict(sampling: Sampling) -> dict[str, Any]:
    """A plain document from which `sampling_from_dict` rebuilds the sampler."""
    return {"kind": sampling_kind(sampling), **asdict(sampling)}


def sampling_from_dict(document: Mapping[str, Any]) -> Sampling:
    """The sampler that `sampling_to_dict` described."""
    sampling: Sampling = described(document, SAMPLERS, "sampling")
    return sampling


def takes_part(sampling: Sampling) -> Sampling:
    """Return who takes part in public: with secret coins, everyone."""
    return Everyone(sampling.clients) if isinstance(sampling, SecretPoisson) else sampling


def random_subset(population: int, size: int, stream: Stream) -> Ids:
    """A uniformly random set of `size` of the ids 0 .. population - 1, sorted."""
    if size == population:
        return np.arange(population, dtype=np.int64)
    draw = _first_distinct if 4 * size < population else _smallest
    return draw(population, size, stream)


def _first_distinct(population: int, size: int, stream: Stream) -> Ids:
    """The first `size` different ids in a sequence of independent uniform ones: by symmetry every
    set is as likely. It costs what the set costs, however large the population."""
    usable = np.uint64((1 << 64) // population * population - 1)  # above it, ids would be uneven
    drawn = np.empty(0, dtype=np.int64)
    while True:
        words = stream.words(size + size // 2 + 8)
        fresh = (words[words <= usable] % np.uint64(population)).astype(np.int64)
        drawn = np.concatenate([drawn, fresh])
        ids, first = np.unique(drawn, return_index=True)
        if len(ids) >= size:
            return np.sort(ids[np.argsort(first)[:size]])


def _smallest(population: int, size: int, stream: Stream) -> Ids:
    """The ids with the smallest of independent words. A tie across the boundary is redrawn: that
    event treats all ids alike, so what remains is exactly uniform."""
    while True:
        words: Words = stream.words(population)
        order = np.argpartition(words, (size - 1, size))
        if words[order[size - 1]] != words[order[size]]:
            return np.sort(order[:size])


@lru_cache(maxsize=8)
def _schedule(plan: Balanced) -> Ids:
    """All cohorts [rounds, cohort]: shuffles of all clients one after the other, cut into rounds.

    A round that spans two shuffles must not name a client twice: the second shuffle then lets
    those who stand in the first part of the round wait until the round is over.
    """
    stream = Stream(plan.key.to_bytes(32, "little"))
    slots = np.empty(plan.rounds * plan.cohort, dtype=np.int64)
    filled = 0
    while filled < len(slots):
        shuffle = np.argsort(stream.words(plan.clients), kind="stable").astype(np.int64)
        started = filled % plan.cohort
        if started:
            waiting = np.isin(shuffle, slots[filled - started : filled])
            head = shuffle[~waiting][: plan.cohort - started]
            shuffle = np.concatenate([head, shuffle[~np.isin(shuffle, head)]])
        taken = min(len(shuffle), len(slots) - filled)
        slots[filled : filled + taken] = shuffle[:taken]
        filled += taken
    schedule = np.sort(slots.reshape(plan.rounds, plan.cohort), axis=1)
    schedule.setflags(write=False)
    return schedule
