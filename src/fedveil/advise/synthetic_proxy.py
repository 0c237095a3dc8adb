"""Made-up data in the shape of a federation: nothing of it but what a released model shows anyway.

Inputs, classes and the number of clients are those of the federation; how many records a client has
is private where clients are protected, so it must be said by whoever knows it from elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import count
from fedveil.core.errors import ConfigError
from fedveil.data.assignment import generator
from fedveil.data.federation import Examples, Federation, Task

Floats = npt.NDArray[np.float32]

_MOST_CLIENTS = 2000  # more would not change an average; noise is scaled to the true number
_TEST = 4000  # examples
_SIGNAL = 3.0  # standard deviation of a class's score; of a target, beside a residual of 1
_OWN_MEAN = 0.5  # standard deviation of a client's own mean in a number's coordinate
_MISSING = 0.05


@dataclass(frozen=True)
class Shape:
    """What made-up data must look like.

    features: names of flat inputs; `name=value` inputs of one name exclude each other, and
        `name (missing)` marks gaps. Without names, inputs are standard normal.
    """

    clients: int
    records: int
    input_shape: tuple[int, ...]
    task: Task
    classes: int
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count("clients", self.clients)
        count("records", self.records)
        if self.task is Task.SEQUENCE:
            raise ConfigError("--proxy synthetic: there are no made-up sequences; name public data")


def shape_of(federation: Federation, records: int) -> Shape:
    """The public shape of a federation, with the number of records that somebody else knows."""
    size = federation.clients, records, federation.input_shape
    return Shape(*size, federation.task, federation.classes, federation.features)


def synthetic_proxy(shape: Shape, seed: int = 0) -> Federation:
    """Clients with made-up inputs and targets that a linear model can partly predict.

    Every client's numbers have a mean of their own, so clients disagree about the model.
    """
    clients = min(shape.clients, _MOST_CLIENTS)
    teacher = _teacher(shape, seed)
    train = _examples(shape, teacher, clients, shape.records, generator(seed, "synthetic train"))
    test = _examples(shape, teacher, _TEST, 1, generator(seed, "synthetic test"))
    return Federation(
        train=train,
        offsets=np.arange(0, len(train) + 1, shape.records, dtype=np.int64),
        test=test,
        task=shape.task,
        classes=shape.classes,
        name="synthetic",
        features=shape.features,
    )


def _teacher(shape: Shape, seed: int) -> Floats:
    outputs = 1 if shape.task is Task.REGRESSION else shape.classes
    width = math.prod(shape.input_shape)
    drawn = generator(seed, "synthetic weights").standard_normal((width, outputs))
    return (drawn * (_SIGNAL / math.sqrt(width))).astype(np.float32)


def _examples(
    shape: Shape, teacher: Floats, clients: int, each: int, draw: np.random.Generator
) -> Examples:
    inputs = _inputs(shape, clients, each, draw)
    scores = inputs @ teacher
    if shape.task is Task.REGRESSION:
        noisy = scores[:, 0] + draw.standard_normal(len(scores), dtype=np.float32)
        targets = noisy / np.float32(math.hypot(1.0, _SIGNAL))  # as tables' targets: deviation 1
        return Examples(inputs.reshape(-1, *shape.input_shape), targets)
    # The largest of score + Gumbel noise is a draw from the softmax of the scores.
    chosen = np.argmax(scores + draw.gumbel(size=scores.shape), axis=1).astype(np.int64)
    return Examples(inputs.reshape(-1, *shape.input_shape), chosen)


def _inputs(shape: Shape, clients: int, each: int, draw: np.random.Generator) -> Floats:
    """Inputs `[clients * each, features]`: numbers, categories of which one holds, rare gaps."""
    rows, width = clients * each, math.prod(shape.input_shape)
    inputs = draw.standard_normal((rows, width), dtype=np.float32)
    means = _OWN_MEAN * draw.standard_normal((clients, width), dtype=np.float32)
    inputs += np.repeat(means, each, axis=0)
    for columns in _groups(shape.features).values():
        inputs[:, columns] = 0
        inputs[np.arange(rows), draw.choice(columns, size=rows)] = 1
    for column, name in enumerate(shape.features):
        if name.endswith(" (missing)"):
            inputs[:, column] = draw.random(rows) < _MISSING
    return inputs


def _groups(features: tuple[str, ...]) -> dict[str, list[int]]:
    """Columns of the categories of one name."""
    found: dict[str, list[int]] = {}
    for column, name in enumerate(features):
        prefix, equals, _ = name.partition("=")
        if equals:
            found.setdefault(prefix, []).append(column)
    return found
