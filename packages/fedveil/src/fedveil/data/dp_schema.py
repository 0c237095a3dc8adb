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
from fedveil.data.draft import MOST_CLASSES
from fedveil.data.schema import Column, Kind
from fedveil.data.statistics import (
    BINS,
    FINE,
    GRID,
    ROW,
    Floats,
    Summary,
    Voters,
    spread_votes,
    summaries,
    threshold,
)
from fedveil.privacy.mechanisms import DiscreteGaussianSum, NoisySelection, NoisyVotes
from fedveil.privacy.noise.grid import protect_sum
from fedveil.privacy.noise.integers import discrete_gaussian
from fedveil.privacy.releases import Release
from fedveil.privacy.sampling import Everyone

FEW = 30  # clients: fewer than these cannot hide one of them, so records are protected instead
MOST_RELEASES = 3  # coarse votes, fine votes, names of classes
SHARE = 0.3  # of the budget's Gaussian parameter: leaves training 95 % of it
MISSED = 0.1  # of delta: for the names of classes that one unit alone has
_VISIBLE = 25.0  # times a vote's noise that the units' votes must be, to say anything


@dataclass(frozen=True)
class Offer:
    """Terms under which statistics may be bought.

    noise: std on every vote / sensitivity of one unit, for each release.
    missed: probability with which the name of a class that one unit alone has is published.
    pay: is told what will be released, before anything of it is.
    labels_read: whether a label's classes that nobody declared are read in the open afterwards.
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
    labels_read: bool = False
    bins: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, unit=one_of(Unit), trust=one_of(Trust))
        plain_numbers(self)
        if self.trust is Trust.LOCAL and (self.unit is Unit.CLIENT or self.shares > 1):
            raise PrivacyRefusal(
                f"statistics for unit {self.unit} under {self.trust} trust are not offered",
                "give a schema (fedveil data schema writes a draft)",
            )


@dataclass(frozen=True)
class Bought:
    """Statistics that were paid for: the releases, and whom they protect. Part of every guarantee.

    Attributes:
        unit: Who is protected.
        trust: By whom.
        entropy: Where the noise is from.
        releases: What was released.
        named_by: The column that named the protected clients or persons; None: nobody noted it.
        labels_read: Whether the label's classes, if it turns out to hold any, are read in the open
            afterwards: the purchase by itself is then no whole account. A run lists it itself.
    """

    unit: Unit
    trust: Trust
    entropy: Entropy
    releases: tuple[Release, ...]
    named_by: str | None = None
    labels_read: bool = field(default=False, compare=False)

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

    def check_names(self, client: str | None, person: str | None) -> None:
        """Refuse a table with other units, of which one may have had the votes of many."""
        column = person if self.unit is Unit.PERSON else client
        if self.unit is not Unit.RECORD and self.named_by not in (None, column):
            raise PrivacyRefusal(
                f"the columns' statistics protect {self.unit}s as column {self.named_by!r} names "
                f"them, and this run has other {self.unit}s",
                f"name that column as --{self.unit}-column, or write a schema of what is public",
            )

    def to_dict(self) -> dict[str, Any]:
        noted = {} if self.named_by is None else {"named_by": self.named_by}
        return {
            "unit": str(self.unit),
            "trust": str(self.trust),
            "entropy": str(self.entropy),
            "releases": [_exchanged(one.to_dict(), None, _UNSET) for one in self.releases],
            **noted,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Bought:
        try:
            said = (_exchanged(one, _UNSET, None) for one in document["releases"])
            releases = tuple(Release.from_dict(release) for release in said)
            unit, trust = Unit(document["unit"]), Trust(document["trust"])
            named = document.get("named_by")
            return cls(unit, trust, Entropy(document["entropy"]), releases, named)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"bought statistics: damaged description ({error})") from None


_UNSET = "none"  # as recipes write it: TOML has no word for it


def _exchanged(facts: Mapping[str, Any], this: object, other: object) -> dict[str, Any]:
    """Replace one value by another, also within."""
    return {
        name: _exchanged(one, this, other)
        if isinstance(one, Mapping)
        else (other if one == this else one)
        for name, one in facts.items()
    }


@dataclass(frozen=True)
class Statistics:
    """Statistics of a table that were bought.

    Attributes:
        columns: How to encode the columns that can be told from noise, the label included.
        summaries: What the votes say, by column.
        std: The noise on every count.
        bought: What they have cost.
    """

    columns: dict[str, Column]
    summaries: dict[str, Summary]
    std: float
    bought: Bought


def affordable(offer: Offer, units: int, columns: int) -> bool:
    """Whether so many units' votes can be told from the noise."""
    return units >= _VISIBLE * offer.noise * math.sqrt(columns)


def buy(
    table: Mapping[str, Any],
    label: str,
    units: Ints,
    offer: Offer,
    decimal: str,
    separator: str | None = None,
    quantity: bool = False,
) -> Statistics:
    """Buy a description of a table's columns from noisy votes alone.

    Args:
        table: The values of every column, by name.
        label: The column to predict, whose classes are named; where nobody may pick names
            (distributed trust) it is left out if it holds classes: somebody else must declare them.
            Empty, or not in the table: none.
        units: Every row's client or person, `[rows]`; not looked at where rows are protected.
        offer: The terms.
        decimal: The decimal mark of numbers in text.
        separator: What stands between the classes of a cell of the label.
        quantity: Whether the label is declared to be a number, however few values it has.

    Returns:
        The columns that can be told from noise, what their votes say, and the cost.
    """
    voters = Voters(None if offer.unit is Unit.RECORD else units)
    randomness, width = Randomness(offer.seed), len(table)
    std = offer.noise * math.sqrt(width)
    names_classes = offer.trust is not Trust.DISTRIBUTED and label in table
    names_classes &= separator is not None or not quantity
    releases = releases_of(offer, width, names_classes=names_classes)
    bought = Bought(
        offer.unit,
        offer.trust,
        randomness.entropy,
        releases,
        labels_read=offer.labels_read,
    )
    if offer.pay is not None:
        offer.pay(bought)
    purposes = iter(("statistics 0", "statistics 1"))

    def noisy(votes: Ints) -> Floats:
        purpose = next(purposes)
        total, grid = votes.ravel(), 1.0 / voters.whole
        if offer.trust is Trust.DISTRIBUTED:
            share = std * voters.whole / math.sqrt(offer.shares)
            for client in range(offer.shares):
                stream = randomness.stream(purpose, 0, client)
                total = total + discrete_gaussian(stream, total.size, share)
        else:
            total = protect_sum(total, std, grid, randomness.stream(purpose))
        return total.reshape(votes.shape).astype(np.float64) * grid

    bins = {} if offer.bins is None else dict.fromkeys(set(table) - {label}, offer.bins)
    # How many clients there are is public, and stands in the offer; nothing else is counted.
    known = offer.shares if offer.unit is Unit.CLIENT else None
    found = summaries(table, voters, noisy, std, known, decimal, bins)
    columns = {name: one.column for name, one in found.items() if one.column is not None}
    dated = label in columns and columns[label].kind is Kind.DATE
    named = label in table and found[label].classes and not quantity
    # A date is predicted as a class or not at all.
    named = named or dated or (separator is not None and label in table)
    if names_classes and named:
        stream = randomness.stream("statistics of the label")
        names = _selected(table[label], voters, offer, stream, separator)
        columns[label] = Column(Kind.CATEGORY, categories=names, separator=separator)
    elif named:
        columns.pop(label, None)
    return Statistics(columns, found, std, bought)


def releases_of(offer: Offer, width: int, *, names_classes: bool) -> tuple[Release, ...]:
    """Return what a purchase of so many columns releases, decided by public facts alone.

    Whether the names of classes are asked for in the end follows from noisy votes; so it counts
    wherever it may be (`names_classes`).
    """
    votes = (_votes(offer, width, BINS * width), _votes(offer, width, FINE * width))
    if not names_classes:
        return votes
    return (*votes, Release(NoisySelection(offer.noise, offer.missed), Everyone(), 1))


def _votes(offer: Offer, width: int, size: int) -> Release:
    """Noisy votes; in a secure sum they are whole numbers, and a unit has one in each column."""
    if offer.trust is not Trust.DISTRIBUTED:
        return Release(NoisyVotes(offer.noise), Everyone(), 1)
    clip, std = math.sqrt(width), offer.noise * math.sqrt(width / offer.shares)
    mechanism = DiscreteGaussianSum(
        clip,
        1.0 / (ROW if offer.unit is Unit.RECORD else GRID),
        std,
        offer.shares,
        size,
        rounding_beta=None,
    )
    return Release(mechanism, Everyone(offer.shares), 1)


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
