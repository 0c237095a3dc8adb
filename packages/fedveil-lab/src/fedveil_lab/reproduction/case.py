"""A case: one training run of an experiment, decided to the last number but for its seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.data.sources import SOURCES, load
from fedveil.data.sources.files import available
from fedveil.tune.proxy import of_clients

Label = str | int | float
Measure = Literal["train_loss", "gradient_norm", "update_norms"]

_FORMAT = 3  # of stored outcomes; raised when older ones must not be read


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
    """A run, its labels, and the paper's number for it, if it has one.

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

    def described(self) -> str:
        """Return the labels in one line."""
        return ", ".join(f"{name} {value}" for name, value in self.labels)

    def __getitem__(self, label: str) -> Label:
        return self._label_of[label]

    def get(self, label: str) -> Label | None:
        return self._label_of.get(label)

    def settings(self) -> dict[str, Any]:
        """Return everything the case decides about its runs; labels and published numbers do not.

        Numbers have nine digits: the noise of a formula differs in the last ones by processor.
        Whether defaults or code have changed is seen by a probe (`run_case.probe_of`), not here.
        """
        kind = type(self.noise).__name__
        noise = {} if self.noise is None else {n: f"{v:.9g}" for n, v in asdict(self.noise).items()}
        return {
            "format": _FORMAT,
            "data": asdict(self.data),
            "recipe": dict(self.values),
            "noise": {"kind": kind, **noise},
            "every": self.every,
            "measures": self.measures,
        }

    def digest(self) -> str:
        """Return a digest of the case's settings and of the rows that its clients really hold.

        Code that deals or splits rows differently changes the digest, so that a result of other
        code is not taken for one of today's.
        """
        decided = [self.settings(), federation_digest(self.data)]
        text = json.dumps(decided, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def key(self, seed: int) -> str:
        """Return the name under which a run of this case is stored."""
        return f"{self.digest()}-{seed}"


def labelled(names: Sequence[str], known: Mapping[str, Any]) -> tuple[tuple[str, Label], ...]:
    """Return the labels of these names, in this order."""
    return tuple((name, known[name]) for name in names)


@lru_cache(maxsize=2)  # many cases share one federation
def federation_of(data: Data) -> Federation:
    """Load the federation that a case trains on. Who owns what is the same for every seed."""
    settings: dict[str, Any] = dict(data.settings)
    federation = load(data.source, data.partition, **settings)
    if not data.shuffled:
        return federation
    # In a random order, drawn once and for all.
    return of_clients(federation, np.random.default_rng(0).permutation(federation.clients))


def at_hand(data: Data) -> bool:
    """Tell whether the source's files are on this machine; made-up data always are."""
    source = SOURCES.get(data.source)
    if source is None or not source.copies:
        return True
    return available(source.name, source.copies) is not None


def clients_at_hand(data: Data, published: int) -> int:
    """Return how many clients the files hold; `published`, if they must be downloaded first."""
    return federation_of(data).clients if at_hand(data) else published


@cache
def federation_digest(data: Data) -> str:
    """Return a digest of every client's examples, and of the test and validation examples.

    Data that no source has (a page that makes up its own points) have their settings alone.
    """
    digest = hashlib.blake2b(digest_size=16)
    if data.source in SOURCES:
        federation = federation_of(data)
        parts = (federation.train, federation.test, federation.validation)
        columns = [c for one in parts if one is not None for c in (one.inputs, one.targets)]
        scaled = federation.model_inputs(np.asarray(federation.train.inputs[:64]))
        for column in (federation.offsets, scaled, *columns):
            digest.update(f"{column.dtype} {column.shape}".encode())
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def first_clients(federation: Federation, clients: int) -> Federation:
    """Return the federation of its first clients alone, with all its test examples."""
    return of_clients(federation, np.arange(min(clients, federation.clients)))
