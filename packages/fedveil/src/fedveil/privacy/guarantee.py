"""A guarantee: what is proved, for whom, against whom. Only accounting code can make one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any

from fedveil.core.arguments import delta_value
from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
from fedveil.privacy import statement as wording
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.rounding import at_most
from fedveil.privacy.tuning import Tuning, tuning_from_dict, tuning_to_dict

VERSION = 3
_MAKER = object()  # held by `accounting`, which is the only one to make guarantees
_TOLERANCE = 1e-6  # by which epsilons of two machines may differ


@dataclass(frozen=True, slots=True, repr=False)
class Guarantee(Displayed):
    """(epsilon, delta)-differential privacy with everything that the numbers depend on.

    Attributes:
        accountant: The valid accountant with the smallest epsilon; `alternatives` has all.
        theorem: What proves it.
        participations: Rounds that were charged to one unit.
        honest_shares: Noise shares that must be in every sum; None if nobody splits the noise.
        noise_multiplier: Of the releases, if they have one and the same.
        certified: Whether the proof covers exactly this mechanism, arithmetic and randomness; else
            `reason` says what is missing, and epsilon is what the ideal mechanism would have.
    """

    epsilon: float
    delta: float
    accountant: str
    bounds: tuple[tuple[str, float], ...]
    theorem: str
    sampling: str
    rounds: int
    participations: int
    honest_shares: int | None
    noise_multiplier: float | None
    certified: bool
    reason: str
    releases: tuple[Release, ...]
    privacy_model: PrivacyModel
    tuning: Tuning | None = None
    maker: InitVar[object] = None

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise TypeError("a Guarantee is made by fedveil.privacy.account and nothing else")

    def __init_subclass__(cls) -> None:
        raise TypeError("a Guarantee is made by fedveil.privacy.account and nothing else")

    def __copy__(self) -> Guarantee:
        return self

    def __deepcopy__(self, memo: object) -> Guarantee:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds no numbers to be changed: they are computed again from the releases."""
        return _again, (self.releases, self.privacy_model, self.delta, self.tuning)

    def __setstate__(self, state: object) -> None:
        raise TypeError("a Guarantee is made by fedveil.privacy.account and nothing else")

    def _display(self) -> tuple[str, dict[str, object]]:
        return "", {
            "epsilon": at_most(self.epsilon),
            "delta": at_most(self.delta),
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "trust": str(self.trust),
            "certified": self.certified,
            "reason": self.reason,
        }

    @property
    def alternatives(self) -> dict[str, float]:
        """Epsilon by every valid accountant, the reported one included."""
        return dict(self.bounds)

    @property
    def unit(self) -> Unit:
        return self.privacy_model.unit

    @property
    def adjacency(self) -> Adjacency:
        return self.privacy_model.adjacency

    @property
    def trust(self) -> Trust:
        return self.privacy_model.trust

    @property
    def arithmetic(self) -> Arithmetic:
        return self.privacy_model.arithmetic

    @property
    def entropy(self) -> Entropy:
        return self.privacy_model.entropy

    @property
    def rests_on(self) -> tuple[str, ...]:
        """Assumptions under which the guarantee holds, one plain sentence each."""
        return wording.rests_on(self)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Limits of the guarantee, one plain sentence each."""
        return wording.not_covered(self)

    @property
    def statement(self) -> str:
        """The guarantee in plain English, with all that it rests on; the verdict comes first."""
        return wording.statement_of(self)

    @property
    def summary(self) -> str:
        """The guarantee in at most four plain lines."""
        return wording.summary_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values; JSON has no infinity, so an infinite epsilon is null."""
        return {
            "version": VERSION,
            "epsilon": _number(self.epsilon),
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "trust": str(self.trust),
            "sampling": self.sampling,
            "rounds": self.rounds,
            "participations": self.participations,
            "honest_shares": self.honest_shares,
            "accountant": self.accountant,
            "alternatives": {name: _number(value) for name, value in self.bounds},
            "theorem": self.theorem,
            "arithmetic": str(self.arithmetic),
            "entropy": str(self.entropy),
            "certified": self.certified,
            "reason": self.reason,
            "rests_on": list(self.rests_on),
            "not_covered": list(self.not_covered),
            "statement": self.statement,
            "releases": [release.to_dict() for release in self.releases],
            "privacy_model": self.privacy_model.to_dict(),
            "tuning": tuning_to_dict(self.tuning),
        }

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Guarantee:
        """The guarantee of a document, computed again from its releases.

        Nothing in the document is believed: one that says anything else than what its own
        releases, privacy model and delta prove is refused.
        """
        from fedveil.privacy.accounting import account

        if not isinstance(document, Mapping):
            raise ConfigError(f"guarantee: need an object, got {document!r}")
        if document.get("version") != VERSION:
            raise ConfigError(f"guarantee: version {document.get('version')!r} is not {VERSION}")
        missing = {"releases", "privacy_model", "delta"} - set(document)
        if missing or not isinstance(document["releases"], (list, tuple)):
            raise ConfigError("guarantee: need a list of releases, a privacy_model and a delta")
        found = account(
            [Release.from_dict(release) for release in document["releases"]],
            privacy_model=PrivacyModel.from_dict(document["privacy_model"]),
            delta=delta_value(document["delta"]),
            tuning=tuning_from_dict(document.get("tuning")),
        )
        # Through JSON, so that both sides have lists where there were tuples.
        said, proved = (json.loads(json.dumps(one)) for one in (dict(document), found.to_dict()))
        for name in sorted(set(said) | set(proved)):
            if not _same(said.get(name), proved.get(name)):
                raise ConfigError(
                    f"guarantee: {name} is {said.get(name)!r} in the document, but its releases "
                    f"prove {proved.get(name)!r}"
                )
        return found


def _again(
    releases: tuple[Release, ...], privacy_model: PrivacyModel, delta: float, tuning: Tuning | None
) -> Guarantee:
    from fedveil.privacy.accounting import account

    return account(releases, privacy_model=privacy_model, delta=delta, tuning=tuning)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _same(said: Any, proved: Any) -> bool:
    if isinstance(said, dict) and isinstance(proved, dict):
        return set(said) == set(proved) and all(_same(said[name], proved[name]) for name in said)
    if isinstance(said, float) or isinstance(proved, float):
        numbers = all(type(x) in (int, float) for x in (said, proved))
        return numbers and math.isclose(said, proved, rel_tol=_TOLERANCE, abs_tol=1e-12)
    return type(said) is type(proved) and bool(said == proved)
