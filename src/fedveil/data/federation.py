"""A federation: all clients' examples in a few columns, and where each client's part begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.data.columns import (
    Array,
    first_not_finite,
    input_column,
    label_column,
    number_column,
    take,
)
from fedveil.data.holdout import Holdout, deal
from fedveil.data.partition import ByOwner, Partition
from fedveil.errors import BadInput

HELD_OUT_NOTE = (
    "Test or validation examples were held out from the clients' own data; figures measured on "
    "them are not covered by the guarantee."
)


class Task(StrEnum):
    CLASSIFICATION = "classification"  # targets are int64 in [0, classes)
    REGRESSION = "regression"  # targets are float32
    SEQUENCE = "sequence"  # inputs and targets are token ids in [0, classes), [examples, length]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Affine map from stored inputs to what a model sees: `(inputs - shift) * factor`, float32.

    Lets images stay uint8 in memory. Both parts broadcast against one example's shape.
    """

    shift: npt.NDArray[np.float32]
    factor: npt.NDArray[np.float32]

    def __call__(self, inputs: Array) -> npt.NDArray[np.float32]:
        scaled: npt.NDArray[np.float32] = inputs.astype(np.float32)
        scaled -= self.shift
        scaled *= self.factor
        return scaled


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs `[examples, ...]` and targets `[examples]` (sequences: `[examples, length]`)."""

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:  # never the data themselves: they end up in logs
        return f"Examples({len(self)}, inputs {self.inputs.dtype}{list(self.inputs.shape[1:])})"

    def take(self, rows: npt.NDArray[np.int64]) -> Examples:
        return Examples(take(self.inputs, rows), take(self.targets, rows))


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients' training examples, sorted by client, plus public test (and validation) examples.

    Client `i` owns rows `offsets[i]:offsets[i + 1]` of `train`. There is no object per client, so
    a million clients cost eight megabytes beyond their data. Columns may be memory-mapped.
    """

    train: Examples
    offsets: npt.NDArray[np.int64] = field(repr=False)
    test: Examples
    task: Task
    classes: int  # 0 for regression
    name: str = "arrays"
    validation: Examples | None = None
    scaling: Scaling | None = None
    notes: tuple[str, ...] = field(default=())  # what the user must know, one sentence each
    owners: Array | None = field(default=None, repr=False)  # [clients], where the data name them
    class_names: tuple[str, ...] = field(default=(), repr=False)
    features: tuple[str, ...] = field(default=(), repr=False)  # names of flat inputs' columns
    target_scaling: Scaling | None = field(default=None, repr=False)  # how regression targets were
    verified: bool = field(default=False, repr=False)  # values were checked when they were saved

    def __post_init__(self) -> None:
        offsets = self.offsets
        if len(offsets) < 2 or len(self.train) == 0:
            raise BadInput(f"federation {self.name!r} is empty: it needs clients with examples")
        if offsets[0] != 0 or offsets[-1] != len(self.train):
            raise BadInput(
                f"federation {self.name!r}: offsets must run from 0 to {len(self.train)}"
            )
        sizes = np.diff(offsets)
        if sizes.min() < 1:
            raise BadInput(
                f"federation {self.name!r}: client {int(sizes.argmin())} has no examples; "
                "leave it out or give it some"
            )
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        for part, examples in parts.items():
            if examples is not None:
                self._check_shapes(part, examples)
                if not self.verified:
                    self._check_values(part, examples)

    def _check_shapes(self, part: str, examples: Examples) -> None:
        where = f"federation {self.name!r}, {part} part"
        if len(examples.inputs) != len(examples.targets):
            raise BadInput(
                f"{where}: {len(examples.inputs)} inputs but {len(examples.targets)} targets"
            )
        if examples.inputs.shape[1:] != self.input_shape:
            raise BadInput(
                f"{where}: inputs of shape {examples.inputs.shape[1:]}, not {self.input_shape}"
            )
        if self.task is Task.REGRESSION and examples.targets.ndim != 1:
            raise BadInput(f"{where}: need one target an example, got {examples.targets.shape}")

    def _check_values(self, part: str, examples: Examples) -> None:
        where = f"federation {self.name!r}, {part} part"
        for what, column in (("inputs", examples.inputs), ("target", examples.targets)):
            if np.issubdtype(column.dtype, np.floating):
                bad = first_not_finite(column)
                if bad is not None:
                    raise BadInput(f"{where}: {what} of example {bad} hold NaN or infinity")
        if self.task is not Task.REGRESSION and len(examples):
            low, high = int(examples.targets.min()), int(examples.targets.max())
            if low < 0 or high >= self.classes:
                wrong = low if low < 0 else high
                row = int(np.argmax((examples.targets == wrong).reshape(len(examples), -1).any(1)))
                raise BadInput(
                    f"{where}: label {wrong} of example {row} is outside 0..{self.classes - 1}"
                )

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Examples of each client, `[clients]`."""
        return np.diff(self.offsets)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.inputs.shape[1:])

    def model_inputs(self, inputs: Array) -> Array:
        """What a model sees: float32, scaled if a scaling is set; token ids as int64."""
        if self.scaling is not None:
            return self.scaling(inputs)
        kind = np.int64 if self.task is Task.SEQUENCE else np.float32
        return inputs.astype(kind, copy=False)

    def save(self, directory: Path | str) -> Path:
        """Write every column as one `.npy` file; `Federation.open` maps them into memory."""
        from fedveil.data.storage import save

        return save(self, Path(directory))

    @classmethod
    def open(cls, directory: Path | str) -> Federation:
        """A saved federation with its columns on disk: data larger than memory are fine."""
        from fedveil.data.storage import load

        return load(Path(directory))

    @classmethod
    def from_arrays(
        cls,
        inputs: npt.ArrayLike,
        targets: npt.ArrayLike,
        owners: npt.ArrayLike | None = None,
        *,
        partition: Partition | None = None,
        test: Examples | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        validation: Examples | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        test_fraction: float | None = None,
        validation_fraction: float = 0.0,
        holdout: Holdout | str = Holdout.WITHIN,
        task: Task | str | None = None,
        classes: int | None = None,
        class_names: tuple[str, ...] = (),
        features: tuple[str, ...] = (),
        scaling: Scaling | None = None,
        name: str = "arrays",
        notes: tuple[str, ...] = (),
        seed: int = 0,
    ) -> Federation:
        """Deal examples `[examples, ...]` to clients: by the owner column, or by a partition.

        Clients stand in sorted order of their owners, each with its examples in the given order.
        Without a test part, `test_fraction` (default 0.2) is held out as `holdout` says, and no
        client is left empty; `POOLED` with a partition holds out before dealing. Unless `task` is
        given, floating-point targets mean regression and all others classification. `seed` deals
        and holds out; it is public. Columns that need no change are shared, not copied.
        """
        kind = _task(task, targets)
        pool, class_names = _examples(kind, inputs, targets, class_names, "")
        if not len(pool):
            raise BadInput(f"federation {name!r} is empty: no examples were given")
        parts = {
            part: _examples(kind, *_pair(given), class_names, f"{part} ")[0]
            for part, given in (("test", test), ("validation", validation))
            if given is not None
        }
        dealt = deal(
            pool.targets,
            owners,
            partition or ByOwner(),
            _holdout(holdout),
            test=0.0 if "test" in parts else 0.2 if test_fraction is None else test_fraction,
            validation=0.0 if "validation" in parts else validation_fraction,
            seed=seed,
        )
        parts.setdefault("test", pool.take(dealt.test))
        if dealt.validation.size:
            parts["validation"] = pool.take(dealt.validation)
        if classes is None and kind is not Task.REGRESSION:
            highest = max(int(part.targets.max(initial=0)) for part in (pool, *parts.values()))
            classes = len(class_names) or highest + 1
        return cls(
            train=pool.take(dealt.train.rows),
            offsets=dealt.train.offsets,
            test=parts["test"],
            task=kind,
            classes=classes or 0,
            name=name,
            validation=parts.get("validation"),
            scaling=scaling,
            notes=(*notes, HELD_OUT_NOTE) if dealt.from_clients else notes,
            owners=dealt.train.owners,
            class_names=class_names,
            features=features,
        )


def _task(task: Task | str | None, targets: npt.ArrayLike) -> Task:
    if task is None:
        is_float = np.asarray(targets).dtype.kind == "f"
        return Task.REGRESSION if is_float else Task.CLASSIFICATION
    if task not in list(Task):
        raise BadInput(f"task={task!r}: must be one of {', '.join(Task)}")
    return Task(task)


def _holdout(holdout: Holdout | str) -> Holdout:
    if holdout not in list(Holdout):
        raise BadInput(f"holdout={holdout!r}: must be one of {', '.join(Holdout)}")
    return Holdout(holdout)


def _pair(
    given: Examples | tuple[npt.ArrayLike, npt.ArrayLike],
) -> tuple[npt.ArrayLike, npt.ArrayLike]:
    return (given.inputs, given.targets) if isinstance(given, Examples) else given


def _examples(
    task: Task,
    inputs: npt.ArrayLike,
    targets: npt.ArrayLike,
    class_names: tuple[str, ...],
    part: str,
) -> tuple[Examples, tuple[str, ...]]:
    """Columns as a federation stores them, and the classes' names as far as known."""
    stored = input_column(inputs, f"{part}inputs", tokens=task is Task.SEQUENCE)
    wanted: Array
    if task is Task.REGRESSION:
        wanted = number_column(targets, f"{part}targets")
    elif task is Task.SEQUENCE:
        tokens = input_column(targets, f"{part}targets", tokens=True)
        wanted = tokens.astype(np.int64, copy=False)
    else:
        wanted, class_names = label_column(targets, f"{part}targets", class_names)
    if len(stored) != len(wanted):
        raise BadInput(f"{len(stored)} {part}inputs but {len(wanted)} {part}targets")
    return Examples(stored, wanted), class_names
