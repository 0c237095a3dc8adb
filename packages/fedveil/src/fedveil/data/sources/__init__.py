"""Data sets by name: `load("digits")`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.registry import Registry
from fedveil.data.federation import Federation
from fedveil.data.holdout import Holdout
from fedveil.data.partition import Partition
from fedveil.data.sources.source import Source
from fedveil.data.sources.synthetic import NAMES as SYNTHETIC
from fedveil.data.sources.synthetic import Synthetic

# Every `Source` in a file of this folder, and those of other packages' entry points.
SOURCES: Registry[Source] = Registry("data set", "fedveil.datasets", "fedveil.data.sources", Source)


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
    """Return the federation of a named source.

    Args:
        name: Of the source.
        partition: How examples are dealt to clients; None: the source's default, as for the others.
        data_dir: Where local copies of the files are.
        test_fraction: Share of each client's examples that is held out for tests.
        validation_fraction: Share that is set aside as public examples.
        holdout: Whether clients hold out examples, or whole clients are held out.
        seed: Deals the examples; it is public.
        settings: The partition's fields (`clients`, `alpha`, `examples_per_client`, `cap`, ...) or
            the source's options; those that are None are left out.

    >>> load("digits", clients=10).clients
    10
    """
    for task, synthetic in SYNTHETIC.items():
        if name == synthetic:
            if partition is not None:
                raise ConfigError(f"{name}: is drawn client by client and takes no partition")
            given = {key: value for key, value in settings.items() if value is not None}
            known = [field.name for field in fields(Synthetic)]
            if unknown := [key for key in given if key not in known]:
                raise ConfigError(f"{name} has no {unknown[0]!r}; it has {', '.join(known)}")
            return Synthetic(task=task, seed=seed, **given).federation()
    return find(name).load(
        partition,
        data_dir=data_dir,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        holdout=holdout,
        seed=seed,
        **settings,
    )


def same_data(one: str, other: str) -> bool:
    """Whether two names stand for the same files: MNIST's images are dealt by writers as well."""
    if one == other or one not in SOURCES or other not in SOURCES:
        return one == other
    return any(copy in SOURCES[other].copies for copy in SOURCES[one].copies)


def find(name: str) -> Source:
    return SOURCES.find(name, "data.source", also=tuple(SYNTHETIC.values()))
