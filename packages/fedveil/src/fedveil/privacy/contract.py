"""What a mechanism is to the accountants, and the registry that others can join.

A mechanism is a frozen dataclass: its fields are its parameters, and what is written to files. It
says what one participation releases about one unit, in units of that unit's clip. It knows nothing
of rounds; sampling, adjacency and honest shares reach it as a `Use`, from which it makes its step.
Whatever a class does not declare (a trust, an adjacency, amplification) is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedveil.core.arguments import check_fields, described, positive
from fedveil.core.errors import ConfigError
from fedveil.core.origin import is_own
from fedveil.core.registry import Registry
from fedveil.core.units import Adjacency, Trust
from fedveil.privacy.accountants.capped_poisson import (
    CappedPoissonGaussianStep,
    ZeroedCappedPoissonGaussianStep,
)
from fedveil.privacy.accountants.fixed_size import FixedSizeGaussianStep
from fedveil.privacy.accountants.gaussian import GaussianStep
from fedveil.privacy.accountants.poisson_gaussian import PoissonGaussianStep
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.refusals import MechanismRefused
from fedveil.privacy.rounding import at_least
from fedveil.privacy.sampling import CappedPoisson, FixedSize, Sampling

if TYPE_CHECKING:
    from fedveil.privacy.releases import PrivacyModel, Release

CONTINUOUS_SHARES = (
    "continuous noise shares do not survive the integers of a secure sum; discrete Gaussian shares "
    "would be certified"
)


@dataclass(frozen=True)
class Use:
    """All that the step of one release depends on beside its mechanism.

    sampling: the secret sample that gives credit; None: no credit.
    rate: probability of being in that sample; 1 without one.
    uses: releases from one and the same secret sample, to be composed inside it; 1 without one.
    honest_shares: noise shares in a sum that the adversary does not know; None: nobody splits it.
    honest_std: what they leave of the noise's standard deviation.
    """

    adjacency: Adjacency
    sampling: Sampling | None = None
    rate: float = 1.0
    uses: int = 1
    honest_shares: int | None = None
    honest_std: float = 1.0

    @property
    def factor(self) -> int:
        """How many clips one unit may move the sum: 2 under replace, 1 otherwise."""
        return self.adjacency.sensitivity_factor

    def gaussian(self, noise: float) -> Step:
        """The step of Gaussian noise with std / sensitivity = `noise`, under any sampling."""
        noise = noise * self.honest_std / math.sqrt(self.uses)
        if self.sampling is None or self.rate == 1:
            return GaussianStep(noise)
        if isinstance(self.sampling, CappedPoisson):
            zeroed = self.adjacency is Adjacency.ZERO_OUT
            kind = ZeroedCappedPoissonGaussianStep if zeroed else CappedPoissonGaussianStep
            return kind(noise, self.sampling.clients, self.rate, self.sampling.cap)
        if isinstance(self.sampling, FixedSize):
            return FixedSizeGaussianStep(noise, self.rate)
        return PoissonGaussianStep(noise, self.rate)


class Mechanism(ABC):
    """Base of all mechanisms; register a class with `@mechanism("name")`.

    law: the noise in words, for the statement.
    level: the field that calibration turns up, a positive number; None if there is nothing to turn.
    trusts, adjacencies, amplified_by: what the proof behind `step` covers.
    joint_uses: `step` charges `use.uses` releases from one secret sample.
    one_adjacency: the parameter that was found for one adjacency and says nothing of another.
    secret_coins: units take part by secret coins of their own; `check` decides on add-remove.
    """

    kind: ClassVar[str]
    law: ClassVar[str] = ""
    level: ClassVar[str | None] = None
    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.CENTRAL})
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ZERO_OUT})
    amplified_by: ClassVar[tuple[type[Sampling], ...]] = ()
    joint_uses: ClassVar[bool] = False
    one_adjacency: ClassVar[str] = ""
    secret_coins: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.level is not None:
            check_fields(self, **{self.level: positive})

    @abstractmethod
    def step(self, use: Use) -> Step:
        """One participation (one round, if amplified) as a step that accountants understand."""

    def check(self, release: Release, model: PrivacyModel) -> None:
        """Raise a PrivacyRefusal for what else the proof does not cover."""
        return

    @property
    def bands(self) -> int:
        """Rounds over which one participation shows, its own included."""
        return 1

    def noise_shares(self) -> int | None:
        """Equal independent shares that the noise on a sum consists of, if that is fixed."""
        return None

    def not_certified(self, model: PrivacyModel) -> str:
        """Why the proof does not cover what runs under this model; empty if it does."""
        return CONTINUOUS_SHARES if model.trust is Trust.DISTRIBUTED else ""

    def scaled(self, scale: float) -> Mechanism:
        """Return the mechanism towards a unit whose clip is `scale` times that of the others.

        Args:
            scale: Above 0 and at most 1, fixed before the first round without looking at data.

        Raises:
            MechanismRefused: No proof covers a smaller clip of one unit.
        """
        raise MechanismRefused(
            f"{self.kind} noise has no proof for a unit that scales its own clip",
            "use Gaussian or Laplace noise on clipped updates",
        )

    def rests_on(self) -> tuple[str, ...]:
        """Assumptions under which the mechanism's step is right, one sentence each."""
        return ()

    def describe(self) -> str:
        """The law of the noise, and its size beside the bound of one unit if that is a number."""
        law = self.law or f"{self.kind} noise"
        size = getattr(self, "noise_multiplier", getattr(self, "scale_multiplier", None))
        return law if size is None else f"{law}, multiplier {at_least(size, 6)}"

    @property
    def foreign(self) -> bool:
        """Whether somebody else wrote it, and vouches for its step."""
        return not is_own(type(self))

    def to_dict(self) -> dict[str, Any]:
        """A plain document from which `mechanism_from_dict` rebuilds the mechanism."""
        return {"kind": kind_of(self), **asdict(self)}  # type: ignore[call-overload]


MECHANISMS: Registry[type[Mechanism]] = Registry("mechanism", "fedveil.mechanisms", None)
_BUILT_IN = (
    "fedveil.privacy.mechanisms",
    "fedveil.privacy.gradient_perturbation",
    "fedveil.privacy.correlated",
    "fedveil.privacy.poisson_sampled",
)

Kind = TypeVar("Kind", bound=type[Mechanism])


def mechanism(kind: str) -> Callable[[Kind], Kind]:
    """Class decorator: register a frozen dataclass as the mechanism called `kind` in files."""

    def register(found: Kind) -> Kind:
        if not (isinstance(found, type) and issubclass(found, Mechanism)):
            raise ConfigError(f"mechanism {kind!r}: {found!r} is no subclass of Mechanism")
        if not (is_dataclass(found) and found.__dataclass_params__.frozen):
            raise ConfigError(f"mechanism {kind!r}: decorate it with @dataclass(frozen=True) first")
        if found.__module__ not in _BUILT_IN:
            _load_built_in()  # nobody takes one of their names by being first
        MECHANISMS.add(kind, found, f"{found.__module__}.{found.__qualname__}")
        found.kind = kind
        return found

    return register


def mechanism_class(kind: str) -> type[Mechanism]:
    """The class registered as `kind`, loaded by its entry point if need be."""
    _load_built_in()
    return MECHANISMS.find(kind, "mechanism")


def kind_of(found: object) -> str:
    """The name of a mechanism's kind in documents; refuses what was never registered."""
    kind = getattr(found, "kind", "")
    if not isinstance(found, Mechanism) or mechanism_class(kind) is not type(found):
        raise ConfigError(
            f'mechanism: {found!r} is of no registered class; @mechanism("name") registers one'
        )
    return kind


def mechanism_from_dict(document: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `Mechanism.to_dict` described."""
    kind = document.get("kind") if isinstance(document, Mapping) else None
    kinds = {kind: mechanism_class(kind)} if isinstance(kind, str) else {}
    made: Mechanism = described(document, kinds, "mechanism")
    return made


def _load_built_in() -> None:
    for module in _BUILT_IN:
        import_module(module)
