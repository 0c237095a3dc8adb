"""Charges for tuning: every run on private data costs, also those whose model is thrown away.

Clip norms, penalties, sparsity, smoothing and planner inputs chosen by looking at private results
all count. The score by which a run is chosen must be part of the private run or use public data,
and only the chosen run may be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from fedveil.core.arguments import check_fields, count, described, interval, one_of
from fedveil.core.errors import ConfigError


@dataclass(frozen=True)
class AllRuns:
    """`runs` runs, all of them charged in full; any of them may be looked at."""

    runs: int

    def __post_init__(self) -> None:
        check_fields(self, runs=count)


class Repeats(StrEnum):
    """Law of a random number of runs."""

    GEOMETRIC = "geometric"
    LOGARITHMIC = "logarithmic"
    POISSON = "poisson"

    @property
    def shape(self) -> float:
        """Its parameter in Papernot and Steinke 2022; infinity stands for Poisson."""
        return {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}[self.value]


@dataclass(frozen=True)
class RandomRuns:
    """A secret random number of runs with this mean; only the best one is ever seen.

    Papernot and Steinke 2022: costs two to three runs, however many are made.
    """

    mean: float
    repeats: Repeats = Repeats.GEOMETRIC

    def __post_init__(self) -> None:
        check_fields(self, mean=interval("[1, 1e100]"), repeats=one_of(Repeats))


Tuning = AllRuns | RandomRuns

_KINDS: dict[str, type[Tuning]] = {"all-runs": AllRuns, "random-runs": RandomRuns}


def tuning_to_dict(tuning: Tuning | None) -> dict[str, Any] | None:
    """A plain document from which `tuning_from_dict` rebuilds the charge."""
    if tuning is None:
        return None
    name = next((name for name, kind in _KINDS.items() if type(tuning) is kind), None)
    if name is None:
        raise ConfigError(f"tuning: {tuning!r} is none of {', '.join(_KINDS)}")
    return {"kind": name, **asdict(tuning)}


def tuning_from_dict(document: Mapping[str, Any] | None) -> Tuning | None:
    """The charge that `tuning_to_dict` described."""
    if document is None:
        return None
    tuning: Tuning = described(document, _KINDS, "tuning")
    return tuning
