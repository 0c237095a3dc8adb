"""Data sets by name: `load("digits")`."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.data.holdout import Holdout
from fedveil.data.partition import Partition
from fedveil.datasets.adult import ADULT
from fedveil.datasets.cifar10 import CIFAR10
from fedveil.datasets.digits import DIGITS
from fedveil.datasets.femnist import FEMNIST
from fedveil.datasets.lending_club import LENDING_CLUB
from fedveil.datasets.mnist import MNIST, MNIST_WRITERS
from fedveil.datasets.shakespeare import SHAKESPEARE
from fedveil.datasets.source import Source
from fedveil.datasets.svhn import SVHN, SVHN_EXTRA
from fedveil.datasets.synthetic import NAMES as SYNTHETIC
from fedveil.datasets.synthetic import Synthetic

_ALL = (
    *(DIGITS, MNIST, MNIST_WRITERS, FEMNIST, CIFAR10, SVHN, SVHN_EXTRA),
    *(SHAKESPEARE, ADULT, LENDING_CLUB),
)
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


def load(
    name: str,
    partition: Partition | str | None = None,
    *,
    data_dir: Path | str | None = None,
    test_fraction: float | None = None,
    validation_fraction: float | None = None,
    holdout: Holdout | str | None = None,
    seed: int = 0,
    **settings: Any,
) -> Federation:
    """The federation of a named source.

    Whatever is left out is the source's default. `settings` are the partition's fields (`clients`,
    `alpha`, `examples_per_client`, `cap`, ...) or the source's own options; those that are None are
    left out. `seed` deals the examples; it is public. `data_dir` holds local copies of the files.
    """
    settings = {key: value for key, value in settings.items() if value is not None}
    for task, synthetic in SYNTHETIC.items():
        if name == synthetic:
            return _made_up(task, partition, seed, settings)
    return find(name).load(
        partition,
        data_dir=data_dir,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        holdout=holdout,
        seed=seed,
        **settings,
    )


def find(name: str) -> Source:
    if name not in SOURCES:
        names = [*SOURCES, *SYNTHETIC.values()]
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise ConfigError(f"data source {name!r} is unknown: {hint}")
    return SOURCES[name]


def _made_up(
    task: Any, partition: Partition | str | None, seed: int, settings: dict[str, Any]
) -> Federation:
    if partition is not None:
        raise ConfigError(f"{SYNTHETIC[task]}: is drawn client by client and takes no partition")
    known = [field.name for field in fields(Synthetic) if field.name not in ("task", "seed")]
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"{SYNTHETIC[task]} has no {setting!r}; it has {', '.join(known)}")
    return Synthetic(task=task, seed=seed, **settings).federation()
