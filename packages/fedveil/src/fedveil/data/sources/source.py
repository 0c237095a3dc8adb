"""What a data source is, and how it becomes a federation."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.core.origin import is_own
from fedveil.data.columns import Array
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.data.holdout import Holdout
from fedveil.data.partition import PARTITIONS, ByOwner, Partition, named
from fedveil.data.sources.files import Arrays, Copy, Decoder, open_source, published


@dataclass(frozen=True)
class Pool:
    """The examples in a source's files, before they are dealt to clients.

    owners: one for each training example, if the data know them. notes: what readers should know.
    unprotected: what was computed from the records themselves, one sentence each.
    """

    train: Examples
    test: Examples | None = None
    validation: Examples | None = None
    owners: Array | None = None  # of the train examples
    scaling: Scaling | None = None
    class_names: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()  # what `build` computed from the records themselves


@dataclass(frozen=True)
class Source:
    """A data set by name, with the partition its paper used as the default.

    `build(arrays, copy, **options)` makes the pool from the decoded files of the named copy.
    """

    name: str
    what: str
    licence: str
    task: Task
    classes: int
    examples: int  # train and test together, as published
    clients: int  # with the default partition of the published data
    partition: Partition
    build: Callable[..., Pool]
    copies: tuple[Copy, ...] = ()  # none: embedded
    options: tuple[str, ...] = ()
    holdout: Holdout = Holdout.POOLED
    test_fraction: float = 0.0  # held out when the files bring no test part
    validation_fraction: float = 0.0
    home: str = ""  # where people read about it
    advice: str = ""  # how to come by files that cannot be downloaded
    remarks: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def published(self) -> bool:
        """Whether it is one of fedveil's own, whose records are published, and not a copy."""
        module = sys.modules.get(self.build.__module__)
        return is_own(self.build) and any(one is self for one in vars(module).values())

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
        """Return the source as a federation.

        Args:
            partition: How to deal; None: as its paper did.
            data_dir: Local copies of the files.
            test_fraction: How much to hold out; a test part that the data bring is used as it is.
            validation_fraction: The same for validation.
            holdout: Which examples to hold out.
            seed: Deals; it is public.
            **settings: The partition's fields, or options of this source; None is left out.
        """
        settings = {key: value for key, value in settings.items() if value is not None}
        options = {key: settings.pop(key) for key in self.options if key in settings}
        chosen = self._partition(partition, settings)
        pool = self.pool(data_dir, **options)
        federation = Federation.from_arrays(
            pool.train.inputs,
            pool.train.targets,
            pool.owners if isinstance(chosen, ByOwner) else None,
            partition=chosen,
            test=pool.test,
            validation=pool.validation,
            test_fraction=self.test_fraction if test_fraction is None else test_fraction,
            validation_fraction=(
                self.validation_fraction if validation_fraction is None else validation_fraction
            ),
            holdout=self.holdout if holdout is None else holdout,
            task=self.task,
            classes=self.classes,
            class_names=pool.class_names or self.class_names,
            features=pool.features,
            scaling=pool.scaling,
            name=self.name,
            notes=pool.notes,
            # Fedveil's own sources are published; another package may bring anybody's records.
            public=self.published,
            seed=seed,
        )
        unprotected = (*federation.unprotected, *pool.unprotected)
        return replace(federation, unprotected=unprotected, verified=True)

    def pool(self, data_dir: Path | str | None = None, **options: Any) -> Pool:
        """Return the examples in the files, before they are dealt to clients."""
        where = None if data_dir is None else Path(data_dir)
        copy, arrays = "embedded", Arrays()
        if self.copies:
            found, arrays = open_source(self.name, self.copies, where, self.advice)
            copy = found.name
        return self.build(arrays, copy, **options)

    def _partition(self, partition: Partition | str | None, settings: dict[str, Any]) -> Partition:
        """Return the given partition, or the source's own, with some fields changed."""
        if isinstance(partition, Partition):
            return replace(partition, **settings)
        own = next(name for name, kind in PARTITIONS.items() if type(self.partition) is kind)
        partition = partition or own
        start: dict[str, Any] = {}
        if partition == own:
            start = {f.name: getattr(self.partition, f.name) for f in fields(self.partition)}
        elif partition in ("iid", "dirichlet"):
            start = {"clients": self.partition.clients}
        sizes = {"cap", "examples_per_client", "per_client"}
        if settings.keys() & {"clients", *sizes}:
            # Sizes that the default fixes must not contradict those asked for.
            start = {key: value for key, value in start.items() if key not in sizes}
        start = {key: value for key, value in start.items() if value is not None}
        try:
            return named(partition, **(start | settings))
        except ConfigError as error:
            options = f"; {self.name} has {', '.join(self.options)}" if self.options else ""
            raise ConfigError(f"{self.name}: {error}{options}") from None


@cache
def _descriptions() -> dict[str, Any]:
    text = resources("fedveil.data.sources").joinpath("sources.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def described(name: str, build: Callable[..., Pool], **decoders: Decoder) -> Source:
    """Return one of fedveil's own sources, as `sources.toml` describes it.

    Args:
        name: Its name.
        build: Makes the pool, as in `Source`.
        **decoders: Turns the files of each copy into arrays, by the copy's name.
    """
    entry = dict(_descriptions()[name])
    dealt = dict(entry.pop("partition"))
    copies = entry.pop("copies", {})
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    return Source(
        name=name,
        build=build,
        partition=named(dealt.pop("name"), **dealt),
        copies=tuple(Copy(key, published(*copies[key]), decoders[key]) for key in copies),
        **{
            **entry,
            **lists,
            "task": Task(entry.get("task", Task.CLASSIFICATION)),
            "holdout": Holdout(entry.get("holdout", Holdout.POOLED)),
        },
    )


def unit_pixels(brightest: float = 255.0) -> Scaling:
    """Stored integers 0..brightest become numbers in [0, 1]."""
    return Scaling(np.zeros((), np.float32), np.asarray(1 / brightest, np.float32))


def pixel_scaling(
    pixels: str, mean: float | tuple[float, ...], deviation: float | tuple[float, ...]
) -> Scaling:
    """How stored bytes become inputs: `unit` [0, 1], `standard` (by published channel means and
    deviations of the unit pixels) or `raw` 0..255."""
    if pixels == "unit":
        return unit_pixels()
    if pixels == "standard":
        factor = np.asarray(1 / (255 * np.asarray(deviation)), np.float32)
        return Scaling(np.asarray(255 * np.asarray(mean), np.float32), factor)
    if pixels == "raw":
        return Scaling(np.zeros((), np.float32), np.ones((), np.float32))
    raise ConfigError(f"pixels={pixels!r}: must be unit, standard or raw")


def labelled_pool(arrays: Arrays, **rest: Any) -> Pool:
    """A pool of the arrays `x_train`, `y_train` and of those of a test and validation part."""
    parts: dict[str, Any] = {
        part: Examples(arrays[f"x_{part}"], arrays[f"y_{part}"].astype(np.int64))
        for part in ("train", "test", "validation")
        if f"x_{part}" in arrays
    }
    return Pool(**parts, **rest)
