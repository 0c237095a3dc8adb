"""A federation: the examples of all clients in a few columns, and where each client's part begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from fedveil.errors import BadInput

Array = npt.NDArray[np.generic]


class Task(StrEnum):
    CLASSIFICATION = "classification"  # targets are int64 in [0, classes)
    REGRESSION = "regression"  # targets are float32
    SEQUENCE = "sequence"  # inputs and targets are token ids in [0, classes), [examples, length]


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Examples:
    """Inputs `[examples, ...]` and targets `[examples]` (sequences: `[examples, length]`)."""

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Federation:
    """Clients' training examples, sorted by client, plus public test (and validation) examples.

    Client `i` owns rows `offsets[i]:offsets[i + 1]` of `train`. There is no object per client, so
    a million clients cost eight megabytes beyond their data. Columns may be memory-mapped.
    """

    train: Examples
    offsets: npt.NDArray[np.int64]
    test: Examples
    task: Task
    classes: int  # 0 for regression
    name: str = "arrays"
    validation: Examples | None = None
    scaling: Scaling | None = None
    notes: tuple[str, ...] = field(default=())  # what the user must know, one sentence each

    def __post_init__(self) -> None:
        offsets = self.offsets
        if len(offsets) < 2 or len(self.train) == 0:
            raise BadInput(f"federation {self.name!r} is empty: it needs clients with examples")
        if offsets[0] != 0 or offsets[-1] != len(self.train):
            raise BadInput(f"federation {self.name!r}: offsets must run from 0 to {len(self.train)}")
        sizes = np.diff(offsets)
        if sizes.min() < 1:
            raise BadInput(
                f"federation {self.name!r}: client {int(sizes.argmin())} has no examples; "
                "leave it out or give it some"
            )
        parts = {"train": self.train, "test": self.test, "validation": self.validation}
        for part, examples in parts.items():
            if examples is not None:
                self._check(part, examples)

    def _check(self, part: str, examples: Examples) -> None:
        where = f"federation {self.name!r}, {part} part"
        if len(examples.inputs) != len(examples.targets):
            raise BadInput(
                f"{where}: {len(examples.inputs)} inputs but {len(examples.targets)} targets"
            )
        if examples.inputs.shape[1:] != self.input_shape:
            raise BadInput(
                f"{where}: inputs of shape {examples.inputs.shape[1:]}, not {self.input_shape}"
            )
        for column in (examples.inputs, examples.targets):
            if np.issubdtype(column.dtype, np.floating):
                bad = _first_not_finite(column)
                if bad is not None:
                    raise BadInput(f"{where}: example {bad} holds NaN or infinity")
        if self.task is not Task.REGRESSION and len(examples):
            low, high = int(examples.targets.min()), int(examples.targets.max())
            if low < 0 or high >= self.classes:
                wrong = low if low < 0 else high
                raise BadInput(f"{where}: label {wrong} is outside 0..{self.classes - 1}")

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
        """What a model sees: scaled to float32 if a scaling is set, else as stored."""
        return inputs if self.scaling is None else self.scaling(inputs)


def _first_not_finite(column: Array, block: int = 1 << 16) -> int | None:
    """The first row with NaN or infinity, looking at a block of rows at a time."""
    for start in range(0, len(column), block):
        part = column[start : start + block]
        finite = np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            return start + int(np.argmin(finite))
    return None
