"""Buying a table's statistics: how much noise, who draws it, and what it is accounted as."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.core.arguments import check_fields, one_of, plain_numbers
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness, Stream
from fedveil.core.units import Entropy, Trust, Unit
from fedveil.data.labels import MOST_CLASSES
from fedveil.data.schema import Column, Kind
from fedveil.data.statistics import (
    BINS,
    FINE,
    GRID,
    ROW,
    Floats,
    Voters,
    bought_columns,
    spread_votes,
    threshold,
)
from fedveil.privacy.mechanisms import DiscreteGaussianSum, NoisySelection, NoisyVotes
from fedveil.privacy.noise.grid import protect_sum
from fedveil.privacy.noise.integers import discrete_gaussian
from fedveil.privacy.releases import Release
from fedveil.privacy.sampling import Everyone

MOST_RELEASES = 3  # coarse votes, fine votes, names of classes
SHARE = 0.3  # of the budget's Gaussian parameter: leaves training 95 % of it
MISSED = 0.1  # of delta: for the names of classes that one unit alone has
_VISIBLE = 25.0  # times a vote's noise that the units' votes must be, to say anything


_OFFERED = ((Unit.CLIENT, Trust.CENTRAL), (Unit.RECORD, Trust.DISTRIBUTED))


@dataclass(frozen=True)
class Offer:
    """Terms under which statistics may be bought.

    noise: std on every vote / sensitivity of one unit, for each release.
    missed: probability with which the name of a class that one unit alone has is published.
    pay: is told what will be released, before anything of it is.
    shares: how many clients there are, for all to know. Under distributed trust each brings a
        share of the noise; under local trust there must be one alone, who has all rows.
    bins: into how many bins numbers are cut; None: they stay numbers.
    """

    unit: Unit
    trust: Trust
    noise: float
    missed: float
    shares: int = 1
    seed: int | None = None
    pay: Callable[[Bought], None] | None = field(default=None, compare=False)
    bins: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, unit=one_of(Unit), trust=one_of(Trust))
        plain_numbers(self)
        alone = self.trust is Trust.LOCAL and self.unit is Unit.RECORD and self.shares == 1
        if not alone and (self.unit, self.trust) not in _OFFERED:
            raise PrivacyRefusal(
                f"statistics for unit {self.unit} under {self.trust} trust are not offered",
                "give a schema (fedveil data schema writes a draft)",
            )


@dataclass(frozen=True)
class Bought:
    """What was paid: the releases, and for whom they were made. Part of every guarantee."""

    unit: Unit
    trust: Trust
    entropy: Entropy
    releases: tuple[Release, ...]

    def __post_init__(self) -> None:
        check_fields(self, unit=one_of(Unit), trust=one_of(Trust), entropy=one_of(Entropy))
        if not self.releases:
            raise ConfigError("bought statistics: nothing was paid, so nothing was bought")

    def check(self, unit: Unit, trust: Trust, entropy: Entropy) -> None:
        """Refuse a plan whose guarantee would be about somebody else, or about other noise."""
        if entropy is Entropy.SYSTEM and self.entropy is Entropy.SEEDED:
            raise PrivacyRefusal(
                "the columns' statistics were bought with noise from a seed, which whoever knows "
                "the seed can subtract",
                "read the table again for this run",
            )
        if (unit, trust) != (self.unit, self.trust):
            raise PrivacyRefusal(
                f"the columns' statistics were bought for unit {self.unit} under {self.trust} "
                f"trust, and this run is for {unit} under {trust}",
                "read the table again for this run",
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "unit": str(self.unit),
            "trust": str(self.trust),
            "entropy": str(self.entropy),
            "releases": [release.to_dict() for release in self.releases],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Bought:
        try:
            releases = tuple(Release.from_dict(release) for release in document["releases"])
            unit, trust = Unit(document["unit"]), Trust(document["trust"])
            return cls(unit, trust, Entropy(document["entropy"]), releases)
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"bought statistics: damaged description ({error})") from None


def affordable(offer: Offer, units: int, columns: int) -> bool:
    """Whether so many units' votes can be told from the noise."""
    return units >= _VISIBLE * offer.noise * math.sqrt(columns)


def buy(
    table: Mapping[str, Any],
    label: str,
    clients: Ints,
    offer: Offer,
    decimal: str,
    separator: str | None = None,
    quantity: bool = False,
) -> tuple[dict[str, Column], Bought]:
    """Columns of a table by name, the label included, from noisy votes alone.

    `clients` numbers every row's client. A label that is found to be classes becomes a category
    with names; where nobody may pick names (distributed trust) it is left out: somebody else must
    declare them. With a separator a cell of the label names any number of classes. A label that is
    declared to be a `quantity` is a number, however few values it has.
    """
    voters = Voters(None if offer.unit is Unit.RECORD else clients)
    randomness, width = Randomness(offer.seed), len(table)
    std = offer.noise * math.sqrt(width)
    releases: list[Release] = []
    if offer.pay is not None:
        most = _most(offer, width)
        offer.pay(Bought(offer.unit, offer.trust, randomness.entropy, most))

    def noisy(votes: Ints) -> Floats:
        purpose = f"statistics {len(releases)}"
        total, grid = votes.ravel(), 1.0 / voters.whole
        if offer.trust is Trust.DISTRIBUTED:
            share = std * voters.whole / math.sqrt(offer.shares)
            for client in range(offer.shares):
                stream = randomness.stream(purpose, 0, client)
                total = total + discrete_gaussian(stream, total.size, share)
        else:
            total = protect_sum(total, std, grid, randomness.stream(purpose))
        releases.append(_votes(offer, width, total.size))
        return total.reshape(votes.shape).astype(np.float64) * grid

    bins = {} if offer.bins is None else dict.fromkeys(set(table) - {label}, offer.bins)
    # How many clients there are is public, and stands in the offer; rows are not counted.
    units = None if offer.unit is Unit.RECORD else offer.shares
    columns, classes = bought_columns(table, voters, noisy, std, units, decimal, bins)
    if quantity:
        classes.discard(label)
    dated = label in columns and columns[label].kind is Kind.DATE
    if dated or (separator is not None and label in table):
        classes.add(label)  # a date is predicted as a class or not at all
    if offer.trust is not Trust.DISTRIBUTED and label in classes:
        stream = randomness.stream("statistics of the label")
        releases.append(_selection(offer))
        names = _selected(table[label], voters, offer, stream, separator)
        columns[label] = Column(Kind.CATEGORY, categories=names, separator=separator)
    elif label in classes:
        columns.pop(label, None)
    return columns, Bought(offer.unit, offer.trust, randomness.entropy, tuple(releases))


def _most(offer: Offer, width: int) -> tuple[Release, ...]:
    """All that a purchase of so many columns may release."""
    votes = (_votes(offer, width, BINS * width), _votes(offer, width, FINE * width))
    return votes if offer.trust is Trust.DISTRIBUTED else (*votes, _selection(offer))


def _votes(offer: Offer, width: int, size: int) -> Release:
    """Noisy votes; in a secure sum they are whole, and one record has one in each column."""
    if offer.trust is not Trust.DISTRIBUTED:
        return Release(NoisyVotes(offer.noise), Everyone(), 1)
    clip, std = math.sqrt(width), offer.noise * math.sqrt(width / offer.shares)
    mechanism = DiscreteGaussianSum(clip, 1.0 / ROW, std, offer.shares, size, rounding_beta=None)
    return Release(mechanism, Everyone(offer.shares), 1)


def _selection(offer: Offer) -> Release:
    return Release(NoisySelection(offer.noise, offer.missed), Everyone(), 1)


def _selected(
    values: Any, voters: Voters, offer: Offer, stream: Stream, separator: str | None
) -> tuple[str, ...]:
    """Values whose noisy votes exceed the threshold, sorted."""
    names, votes = spread_votes(values, voters, MOST_CLASSES, separator)
    # The order of values must not tell who brought them first.
    order = sorted(range(len(names)), key=lambda place: names[place])
    noisy = protect_sum(votes[order], offer.noise, 1.0 / GRID, stream) / GRID
    kept = noisy > threshold(MOST_CLASSES, offer.noise, offer.missed)
    return tuple(names[place] for place, keep in zip(order, kept, strict=True) if keep)
