"""A case: one training run of an experiment, decided to the last number but for its seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedveil.core.errors import ConfigError

Label = str | int | float
Measure = Literal["train_loss", "gradient_norm", "update_norms"]

_FORMAT = 1  # of what is stored; raised when older stored runs must not be read
# Runs were stored under their methods' earlier names, and are still the same runs.
_STORED_AS = {
    "bounded-sparse": "cheng",
    "client-noise": "fu",
    "gradient-noise": "hu",
    "laplacian-smoothing": "dp-fed-ls",
}


@dataclass(frozen=True)
class Data:
    """A named source with its settings (`fedveil.load`).

    `shuffled` deals the clients new places: a round-robin then meets them in random order.
    """

    source: str
    settings: tuple[tuple[str, Label | None], ...] = ()
    partition: str | None = None
    shuffled: bool = False


@dataclass(frozen=True)
class Claimed:
    """Noise as a paper sets it, and what the paper says it is worth."""

    epsilon: float
    delta: float
    noise_multiplier: float


@dataclass(frozen=True)
class Certified:
    """The least noise with which this epsilon is proved."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Without:
    """The private method with its noise left out; clipping and all else stay."""


Noise = Claimed | Certified | Without | None  # None: the method itself is not private


@dataclass(frozen=True)
class Case:
    """What runs, under which labels it is shown, and the paper's number for it, if it has one.

    `values` are recipe keys by dotted name, exactly as for `fedveil run --set`. `measures` are
    looked at beside test and validation metrics whenever the run is evaluated. `seeds` is for cases
    beside the point: no more than so many, however many the others get.
    """

    labels: tuple[tuple[str, Label], ...]
    data: Data
    values: tuple[tuple[str, Any], ...]
    noise: Noise = None
    published: float | None = None
    every: int | None = None  # rounds between evaluations; None: at the end only
    measures: tuple[Measure, ...] = ()
    seeds: int | None = None
    _label_of: Mapping[str, Label] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        by_name = dict(self.labels)
        if len(by_name) != len(self.labels):
            raise ConfigError(f"case {self.labels}: a label is given twice")
        object.__setattr__(self, "_label_of", by_name)

    def __getitem__(self, label: str) -> Label:
        return self._label_of[label]

    def get(self, label: str) -> Label | None:
        return self._label_of.get(label)

    def key(self, seed: int) -> str:
        """Names the run by all that decides its outcome: labels and published numbers do not."""
        kind = type(self.noise).__name__
        decided = {
            "format": _FORMAT,
            "data": asdict(self.data),
            "values": sorted(
                (name, _STORED_AS.get(value, value) if name == "training.method" else value)
                for name, value in self.values
            ),
            "noise": None if self.noise is None else {"kind": kind, **asdict(self.noise)},
            "every": self.every,
            "measures": self.measures,
            "seed": seed,
        }
        text = json.dumps(decided, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]
