"""What is to be accounted: releases, and the privacy model that they are made under."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedveil.core.arguments import built, check_fields, count, natural, one_of, optional, sentences
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
from fedveil.privacy.contract import Mechanism, kind_of, mechanism_from_dict
from fedveil.privacy.sampling import (
    Sampling,
    sampling_from_dict,
    sampling_kind,
    sampling_to_dict,
)


@dataclass(frozen=True)
class Release:
    """Rounds of one mechanism on cohorts of one sampler.

    Attributes:
        mechanism: Of each release.
        sampling: Who takes part.
        rounds: How many rounds.
        uses: Releases about a unit in each round in which it takes part, all from the same cohort.
        participations: The most rounds in which any one unit took part, if a hard cap on it was
            enforced or it was counted afterwards. Then participations are charged one by one and
            sampling gets no credit (amplified epsilon and known counts exclude each other).
    """

    mechanism: Mechanism
    sampling: Sampling
    rounds: int
    uses: int = 1
    participations: int | None = None

    def __post_init__(self) -> None:
        kind_of(self.mechanism)
        sampling_kind(self.sampling)
        check_fields(self, rounds=natural, uses=count, participations=optional(natural))
        if self.participations is not None and self.participations > self.rounds:
            raise ConfigError(
                f"participations: need at most rounds={self.rounds}, got {self.participations}"
            )

    @property
    def amplified(self) -> bool:
        """Whether credit is claimed for a secret random cohort."""
        return self.sampling.amplifies and self.participations is None

    @property
    def counted_participations(self) -> int:
        """Rounds in which one unit may take part, at most."""
        if self.participations is not None:
            return self.participations
        return self.sampling.max_participations(self.rounds) if self.rounds else 0

    def to_dict(self) -> dict[str, Any]:
        parts = {
            "mechanism": self.mechanism.to_dict(),
            "sampling": sampling_to_dict(self.sampling),
        }
        return {**vars(self), **parts}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Release:
        if not (isinstance(document, Mapping) and {"mechanism", "sampling"} <= set(document)):
            raise ConfigError(
                f"release: need an object with mechanism and sampling, got {document!r}"
            )
        parts = {
            "mechanism": mechanism_from_dict(document["mechanism"]),
            "sampling": sampling_from_dict(document["sampling"]),
        }
        return built(Release, {**document, **parts}, "release")


@dataclass(frozen=True)
class PrivacyModel:
    """Who is protected from whom, and how the noise is made.

    Attributes:
        unit: Whose data are protected.
        adjacency: Which change of a unit is hidden.
        trust: Who may see data before noise is added.
        population: Number of protected units, if known; delta must stay below 1 / population.
        arithmetic: The numbers in which noisy sums are computed.
        entropy: The source of the noise.
        colluders: Clients that tell the adversary what they know: their own noise shares
            (distributed trust), whether they were drawn (fixed-size sampling).
        honest_shares: Noise shares that are sure to be in every sum, if fewer than the expected
            cohort without the colluders. A Gaussian's noise multiplier always counts *all* shares
            of the expected cohort; what is missing is taken off here.
        unprotected: What entered the model or its size from private data without noise, one
            sentence each. The guarantee is then not certified, and each sentence is a reason.
        declared: What somebody declared to be public; the guarantee rests on it.
        not_covered: What else the guarantee is not about, such as figures on test examples.
        contributions: For unit person, the most contributions that one person makes to one sum, a
            declared number: sites at which the person may be, or records of a person where each
            record is clipped by itself. A cap enforces it where one party holds all data.
    """

    unit: Unit
    adjacency: Adjacency
    trust: Trust
    population: int | None = None
    arithmetic: Arithmetic = Arithmetic.EXACT
    entropy: Entropy = Entropy.SYSTEM
    colluders: int = 0
    honest_shares: int | None = None
    unprotected: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    contributions: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, **{name: one_of(kind) for name, kind in _ENUMS.items()})
        check_fields(self, colluders=natural, honest_shares=optional(natural))
        check_fields(self, population=optional(count), contributions=optional(count))
        if (self.contributions is not None) != (self.unit is Unit.PERSON):
            raise ConfigError(
                f"contributions: {self.contributions!r} with unit {self.unit}. State how many "
                "contributions one person makes to a sum for unit person, and only there."
            )
        check_fields(self, **dict.fromkeys(_LISTS, sentences))

    def to_dict(self) -> dict[str, Any]:
        document = {name: list(x) if name in _LISTS else x for name, x in vars(self).items()}
        if self.contributions is None:
            del document["contributions"]
        return document

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> PrivacyModel:
        return built(PrivacyModel, document, "privacy_model")


_ENUMS: dict[str, type[StrEnum]] = {
    "unit": Unit,
    "adjacency": Adjacency,
    "trust": Trust,
    "arithmetic": Arithmetic,
    "entropy": Entropy,
}
_LISTS = ("unprotected", "declared", "not_covered")
