"""What is found about one part of a configuration: its claim, and what is proved of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Arithmetic, Trust, Unit
from fedveil.privacy.accounting import account
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import Everyone, Sampling
from fedveil_lab.audit.check.source import Call, Unknown

FLOATING_POINT = (
    "noise is drawn and added in floating point: its low-order bits may tell what it hides, and "
    "no proof covers that"
)
NOT_FINITE = (
    "an update or gradient with a NaN or an infinity passes the clip and shows in the result: "
    "the proof needs all of them to be finite"
)


# What a call depends on, with other names for it; what it does not say has to be said.
ALSO = {"delta": "target_delta", "epochs": "n_epochs"}


@dataclass(frozen=True)
class Proved:
    """An epsilon with a proof, and what it is about. Infinite where there is none."""

    what: str
    epsilon: float


@dataclass(frozen=True)
class Finding:
    """One part of a configuration. The first of `proved` is what answers the claim.

    settings: what it was made of, each with where it comes from.
    claimed: the epsilon that the system states for it, None if it states none.
    why: what makes claim and proof differ. unproved: what no epsilon here covers.
    """

    system: str
    part: str
    where: str
    settings: tuple[tuple[str, Any, str], ...]
    claim: str
    claimed: float | None
    delta: float
    proved: tuple[Proved, ...]
    why: tuple[str, ...]
    unproved: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether what is claimed is proved; true of a part that claims no number."""
        if self.claimed is None:
            return True
        return self.claimed >= self.proved[0].epsilon * (1 - 1e-3)  # accountants round upwards

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"kept": self.kept}


class Settings:
    """The arguments of one call, with a note of where each came from."""

    def __init__(
        self,
        call: Call,
        names: tuple[str, ...],
        calls: Collection[Call],
        said: Mapping[str, Any],
    ):
        self._call, self._said = call, said
        self._made = [one.name for one in calls]
        self._given = dict(zip(names, call.positional, strict=False)) | dict(call.named)
        self.call, self.used = call.name, dict[str, tuple[Any, str]]()

    def value(self, name: str, default: Any = ...) -> Any:
        """Return a setting by name; what is said on the command line comes first.

        Args:
            name: The setting.
            default: What it is if nobody says; without one it has to be said.

        Raises:
            ConfigError: It is not known.
        """
        if name in self._said:
            return self._use(name, self._said[name], "said")
        call, word = self._call, name if name in self._given else ALSO.get(name, name)
        say = f"say --set {name}=VALUE"
        if word not in self._given:
            if call.hidden:
                raise ConfigError(f"{name}: it may be in {call.hidden} of {call.where}; {say}")
            if default is ...:
                raise ConfigError(f"{name}: {call.name} depends on it; {say}")
            return default if default is None else self._use(name, default, "its default")
        value, origin = self._given[word], call.where
        if isinstance(value, Unknown):
            raise ConfigError(f"{name}: {call.where} has {value.text!r}; {say}")
        if word in call.texts:
            origin += f": {call.texts[word]}"
        return self._use(name, value, origin)

    def number(self, name: str, default: Any = ...) -> float:
        """Return a setting that is a finite number."""
        value = self.value(name, default)
        given = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not given or not math.isfinite(value):
            raise ConfigError(f"{name}: need a number, got {value!r}")
        return float(value)

    def positive(self, name: str, default: Any = ..., most: float = math.inf) -> float:
        """Return a setting that is a number above zero."""
        value = self.number(name, default)
        if not 0 < value <= most:
            below = "" if most == math.inf else f" of at most {most:g}"
            raise ConfigError(f"{name}: need a positive number{below}, got {value:g}")
        return value

    def count(self, name: str, default: Any = ...) -> int:
        """Return a setting that is a whole number above zero."""
        value = self.positive(name, default)
        if value != int(value):
            raise ConfigError(f"{name}: need a whole number, got {value:g}")
        return int(value)

    def made(self, names: Collection[str]) -> str:
        """The first of these classes or functions that the file uses; empty if none."""
        return next((name for name in self._made if name in names), "")

    def table(self) -> tuple[tuple[str, Any, str], ...]:
        return tuple((name, value, origin) for name, (value, origin) in self.used.items())

    def _use(self, name: str, value: Any, origin: str) -> Any:
        self.used[name] = (value, origin)
        return value


def proved(
    what: str,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    *,
    unit: Unit,
    adjacency: Adjacency,
    trust: Trust = Trust.CENTRAL,
    sampling: Sampling | None = None,
    batch_rate: float | None = None,
    contributions: int | None = None,
) -> Proved:
    """Gaussian noise, `rounds` times; no credit for sampling unless a sampler is given, or the rate
    of records' own coins.

    A person makes up to `contributions` to a sum.
    """
    model = PrivacyModel(
        unit, adjacency, trust, arithmetic=Arithmetic.IDEALISED, contributions=contributions
    )
    mechanism: Mechanism = Gaussian(noise_multiplier)
    if batch_rate is not None:
        mechanism = PoissonSampled(batch_rate, (mechanism,))
    release = Release(mechanism, sampling or Everyone(), rounds)
    try:
        return Proved(what, account([release], privacy_model=model, delta=delta).epsilon)
    except PrivacyRefusal as refusal:
        return Proved(f"{what} (refused: {refusal.reason})", math.inf)
