"""What a data source is, and how it becomes a federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.columns import Array
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.data.holdout import Holdout
from fedveil.data.partition import PARTITIONS, ByOwner, Partition, named
from fedveil.errors import BadInput


@dataclass(frozen=True)
class Pool:
    """What a source's files hold, before anything is dealt to clients."""

    train: Examples
    task: Task
    classes: int
    test: Examples | None = None
    validation: Examples | None = None
    owners: Array | None = None  # of the train examples
    scaling: Scaling | None = None
    class_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A data set by name, with the partition its paper used as the default.

    `read(data_dir)` gives the pool; options of a source are keyword arguments of `read`.
    """

    name: str
    what: str
    licence: str
    task: Task
    classes: int
    examples: int  # train and test together, as published
    partition: Partition
    read: Callable[..., Pool]
    options: tuple[str, ...] = ()
    holdout: Holdout = Holdout.POOLED
    test_fraction: float = 0.0  # held out when the files bring no test part
    validation_fraction: float = 0.0
    remarks: tuple[str, ...] = ()

    def load(
        self,
        partition: Partition | str | None = None,
        *,
        data_dir: Path | str | None = None,
        test_fraction: float | None = None,
        validation_fraction: float | None = None,
        holdout: Holdout | str | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Federation:
        """The source as a federation; settings are the partition's (`clients`, `alpha`, `cap`,
        `examples_per_client`, ...) or options of this source."""
        options = {key: settings.pop(key) for key in self.options if key in settings}
        chosen = self._partition(partition, settings)
        where = None if data_dir is None else Path(data_dir)
        pool = self.read(where, seed=seed, **options)
        return Federation.from_arrays(
            pool.train.inputs,
            pool.train.targets,
            pool.owners if isinstance(chosen, ByOwner) else None,
            partition=chosen,
            test=pool.test if not test_fraction else None,
            validation=pool.validation,
            test_fraction=self.test_fraction if test_fraction is None else test_fraction,
            validation_fraction=(
                self.validation_fraction if validation_fraction is None else validation_fraction
            ),
            holdout=self.holdout if holdout is None else holdout,
            task=pool.task,
            classes=pool.classes,
            class_names=pool.class_names,
            features=pool.features,
            scaling=pool.scaling,
            name=self.name,
            notes=pool.notes,
            seed=seed,
        )

    def _partition(self, partition: Partition | str | None, settings: dict[str, Any]) -> Partition:
        """The given partition, or the source's own, with some fields changed."""
        settings = {key: value for key, value in settings.items() if value is not None}
        default = self.partition
        if partition is None:
            partition = next(name for name, kind in PARTITIONS.items() if type(default) is kind)
        if isinstance(partition, str):
            if partition in PARTITIONS and PARTITIONS[partition] is type(default):
                start = {f.name: getattr(default, f.name) for f in fields(default)}
            else:
                start = {"clients": default.clients} if partition in ("iid", "dirichlet") else {}
            # A fixed number replaces a cap and the other way round.
            if "cap" in settings or "examples_per_client" in settings:
                start |= {"cap": None, "examples_per_client": None}
            return named(partition, **(start | settings))
        try:
            return replace(partition, **settings)
        except TypeError:
            raise BadInput(f"{partition}: cannot take {', '.join(settings)}") from None


def unit_pixels(brightest: float = 255.0) -> Scaling:
    """Stored integers 0..brightest become numbers in [0, 1]."""
    return Scaling(np.zeros((), np.float32), np.asarray(1 / brightest, np.float32))
