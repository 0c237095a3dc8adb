"""A guarantee: what is proved, for whom, against whom. Only accounting code can make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.units import Adjacency, Arithmetic, Entropy, Trust, Unit

_TOKEN = object()


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy with everything that the numbers depend on."""

    epsilon: float
    delta: float
    accountant: str
    alternatives: Mapping[str, float]
    theorem: str
    sampling: str
    rounds: int
    participations: int
    honest_shares: int | None
    noise_multiplier: float | None
    certified: bool
    reason: str
    releases: tuple[Release, ...]
    setting: Setting
    _token: object = field(repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self._token is not _TOKEN:
            raise TypeError("a Guarantee is made by fedveil.privacy.accounting.account only")

    @property
    def unit(self) -> Unit:
        return self.setting.unit

    @property
    def adjacency(self) -> Adjacency:
        return self.setting.adjacency

    @property
    def trust(self) -> Trust:
        return self.setting.trust

    @property
    def arithmetic(self) -> Arithmetic:
        return self.setting.arithmetic

    @property
    def entropy(self) -> Entropy:
        return self.setting.entropy

    @property
    def statement(self) -> str:
        return f"({self.epsilon:.4g}, {self.delta:.4g})-differential privacy for one {self.unit}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "releases": [release.to_dict() for release in self.releases],
            "setting": self.setting.to_dict(),
        }

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Guarantee:
        from fedveil.privacy.accounting import account

        releases = [Release.from_dict(item) for item in document["releases"]]
        setting = Setting.from_dict(document["setting"])
        return account(releases, setting=setting, delta=document["delta"])
