"""Made-up data in the shape of a federation: nothing of it but what a released model shows anyway.

Inputs, classes and the number of clients are those of the federation; how many records a client has
is private where clients are protected, so it must be said by whoever knows it from elsewhere.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import count
from fedveil.core.errors import ConfigError
from fedveil.data.assignment import generator
from fedveil.data.federation import Examples, Federation, Task

Floats = npt.NDArray[np.float32]

_MOST_CLIENTS = 2000  # more would not change an average; noise is scaled to the true number
_TEST = 4000  # examples
_SCALED_ON = 1000  # of them, to give scores their size
_SIGNAL = 3.0  # standard deviation of a class's score; of a target, beside a residual of 1
_OWN_MEAN = 0.5  # standard deviation of a client's own mean in a number's coordinate
_SHARED = 0.3  # of a number's variance comes from something that all numbers have in common
_MISSING = 0.05


def synthetic_proxy(
    like: Federation,
    records: int,
    seed: int = 0,
    signal: float = _SIGNAL,
    clients: int | None = None,
) -> Federation:
    """Clients with made-up inputs and targets that a linear model can partly predict.

    They have the shape of `like`: its clients (or as many as `clients` says), inputs, classes and
    names of inputs, of which `name=value` inputs of one name exclude each other and `name
    (missing)` marks gaps. As in real tables, numbers go together to some degree, and the first
    values of a category are the frequent ones. Every client has `records` examples, and numbers
    with a mean of their own, so clients disagree about the model. `signal` is how much of the
    targets can be predicted.
    """
    count("records", records)
    if like.task is Task.SEQUENCE:
        raise ConfigError("--proxy synthetic: there are no made-up sequences; name public data")
    teacher = _teacher(like, seed, signal)
    clients = min(like.clients, _MOST_CLIENTS) if clients is None else clients
    made = like, teacher, signal
    train = _examples(*made, clients, records, generator(seed, "synthetic train"))
    return Federation(
        train=train,
        offsets=np.arange(0, len(train) + 1, records, dtype=np.int64),
        test=_examples(*made, _TEST, 1, generator(seed, "synthetic test")),
        task=like.task,
        classes=like.classes,
        name="synthetic",
        features=like.features,
    )


def _teacher(like: Federation, seed: int, signal: float) -> Floats:
    """Weights `[inputs, outputs]` by which scores have the deviation `signal`. Where a number is to
    be predicted, categories decide as much as numbers, however many there are of each: what rare
    values say is learned slowest."""
    outputs = 1 if like.task is Task.REGRESSION else like.classes
    draw = generator(seed, "synthetic weights")
    drawn = draw.standard_normal((math.prod(like.input_shape), outputs))
    inputs = _inputs(like, _SCALED_ON, 1, draw)
    named = np.zeros(len(drawn), dtype=np.bool_)
    named[[place for columns in _groups(like.features).values() for place in columns]] = True
    for part in (named, ~named) if like.task is Task.REGRESSION else ():
        own = (inputs[:, part] @ drawn[part]).std()
        drawn[part] /= own if own > 0 else 1.0
    scores = inputs @ drawn
    scaled: Floats = (drawn * (signal / scores.std())).astype(np.float32)
    return scaled


def _examples(
    like: Federation,
    teacher: Floats,
    signal: float,
    clients: int,
    each: int,
    draw: np.random.Generator,
) -> Examples:
    inputs = _inputs(like, clients, each, draw)
    scores = inputs @ teacher
    if like.task is Task.REGRESSION:
        noisy = scores[:, 0] + draw.standard_normal(len(scores), dtype=np.float32)
        targets = noisy / np.float32(math.hypot(1.0, signal))  # as tables' targets: deviation 1
        return Examples(inputs.reshape(-1, *like.input_shape), targets)
    if like.task is Task.MULTI_LABEL:
        holds = scores + draw.logistic(size=scores.shape) > 0
        return Examples(inputs.reshape(-1, *like.input_shape), holds.astype(np.int64))
    # The largest of score + Gumbel noise is a draw from the softmax of the scores.
    chosen = np.argmax(scores + draw.gumbel(size=scores.shape), axis=1).astype(np.int64)
    return Examples(inputs.reshape(-1, *like.input_shape), chosen)


def _inputs(like: Federation, clients: int, each: int, draw: np.random.Generator) -> Floats:
    """Inputs `[clients * each, features]`: numbers, categories of which one holds, rare gaps."""
    rows, width = clients * each, math.prod(like.input_shape)
    inputs = draw.standard_normal((rows, width), dtype=np.float32)
    inputs *= np.float32(math.sqrt(1 - _SHARED))
    inputs += np.float32(math.sqrt(_SHARED)) * draw.standard_normal((rows, 1), dtype=np.float32)
    means = _OWN_MEAN * draw.standard_normal((clients, width), dtype=np.float32)
    inputs += np.repeat(means, each, axis=0)
    for columns in _groups(like.features).values():
        frequency = 1 / np.arange(1.0, len(columns) + 1)
        inputs[:, columns] = 0
        inputs[np.arange(rows), draw.choice(columns, rows, p=frequency / frequency.sum())] = 1
    for column, name in enumerate(like.features):
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
