"""Made-up data in the shape of a federation, drawn without a look at its records.

Inputs, classes and the number of clients are those of the federation. What else is known for all to
know (records of a client, mean and deviation of a numeric target, the rule that deals records to
clients) is handed over by the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import count
from fedveil.core.errors import ConfigError
from fedveil.data.assignment import generator
from fedveil.data.federation import Examples, Federation, Task
from fedveil.data.partition import Partition

Floats = npt.NDArray[np.float32]

MOST_CLIENTS = 2000  # more would not change an average; noise is scaled to the true number
_TEST = 4000  # examples
_SCALED_ON = 1000  # of them, to give scores their size
_SIGNAL = 3.0  # standard deviation of a class's score; of a target, beside a residual of 1
_OWN_MEAN = 0.5  # standard deviation of a client's own mean in a number's coordinate
_SHARED = 0.3  # of a number's variance comes from something that all numbers have in common
_MISSING = 0.05


@dataclass(frozen=True)
class Scales:
    """Publicly known means and standard deviations of inputs and of a numeric target.

    Attributes:
        inputs: Means and deviations `[2, features]`, or None for standardised inputs.
        target: Mean and deviation.
    """

    inputs: npt.NDArray[np.float64] | None = None
    target: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def of(cls, public: Federation) -> Scales:
        """Measure the scales of a public federation."""
        rows = slice(0, min(len(public.train), _SCALED_ON * 5))
        seen = public.model_inputs(public.train.inputs[rows]).reshape(rows.stop, -1)
        inputs = np.stack([seen.mean(axis=0), seen.std(axis=0)]).astype(np.float64)
        if public.task is not Task.REGRESSION:
            return cls(inputs)
        targets = np.asarray(public.train.targets, dtype=np.float64)
        return cls(inputs, (float(targets.mean()), float(targets.std())))


def synthetic_proxy(
    like: Federation,
    records: int,
    seed: int = 0,
    signal: float = _SIGNAL,
    clients: int | None = None,
    *,
    scales: Scales | None = None,
    partition: Partition | None = None,
) -> Federation:
    """Draw clients with made-up inputs, and targets that a linear model can partly predict.

    As in real tables, numbers go together to some degree, `name=value` inputs of one name exclude
    each other, the first values of a category are the frequent ones, and `name (missing)` marks
    gaps. Unless a partition deals the records, the numbers of every client have a mean of their
    own, so clients disagree about the model.

    Args:
        like: The federation whose shape is taken: task, classes, inputs and their names.
        records: Records of every client.
        seed: Public seed of all draws.
        signal: How much of the targets can be predicted.
        clients: How many there are; by default as many as `like` has, up to 2,000.
        scales: Scales of inputs and of a numeric target; by default all are standardised.
        partition: Deals one pool of records to the clients, as the recipe deals its own.

    Returns:
        A federation with a test part of its own.

    Raises:
        ConfigError: The task has no made-up data.
    """
    count("records", records)
    if like.task is Task.SEQUENCE:
        raise ConfigError("--proxy synthetic: there are no made-up sequences; name public data")
    teacher = _teacher(like, seed, signal)
    clients = min(like.clients, MOST_CLIENTS) if clients is None else clients

    def examples(owners: int, each: int, purpose: str) -> Examples:
        own_mean = 0.0 if partition else _OWN_MEAN
        drawn = _examples(like, teacher, signal, owners, each, own_mean, generator(seed, purpose))
        return drawn if scales is None else _scaled(like, drawn, scales)

    train = examples(clients, records, "synthetic train")
    offsets = np.arange(0, len(train) + 1, records, dtype=np.int64)
    if partition is not None:
        dealt = partition.assign(train.targets, None, seed)
        train, offsets = train.take(dealt.rows), dealt.offsets
    if like.train.persons is not None:  # everybody has one record: how many there are is private
        train = replace(train, persons=np.arange(len(train)))
    return Federation(
        train=train,
        offsets=offsets,
        test=examples(_TEST, 1, "synthetic test"),
        task=like.task,
        classes=like.classes,
        name="synthetic",
        features=like.features,
    )


def _teacher(like: Federation, seed: int, signal: float) -> Floats:
    """Draw weights `[inputs, outputs]` by which scores have the deviation `signal`.

    For a numeric target, categories decide as much as numbers, however many there are of each: what
    rare values say is learned slowest.
    """
    outputs = 1 if like.task is Task.REGRESSION else like.classes
    draw = generator(seed, "synthetic weights")
    drawn = draw.standard_normal((math.prod(like.input_shape), outputs))
    inputs = _inputs(like, _SCALED_ON, 1, _OWN_MEAN, draw)
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
    own_mean: float,
    draw: np.random.Generator,
) -> Examples:
    inputs = _inputs(like, clients, each, own_mean, draw)
    scores = inputs @ teacher
    if like.task is Task.REGRESSION:
        noisy = scores[:, 0] + draw.standard_normal(len(scores), dtype=np.float32)
        targets = noisy / np.float32(math.hypot(1.0, signal))  # a deviation of 1
    elif like.task is Task.MULTI_LABEL:
        targets = (scores + draw.logistic(size=scores.shape) > 0).astype(np.int64)
    else:  # The largest of score + Gumbel noise is a draw from the softmax of the scores.
        targets = np.argmax(scores + draw.gumbel(size=scores.shape), axis=1).astype(np.int64)
    return Examples(inputs.reshape(-1, *like.input_shape), targets)


def _inputs(
    like: Federation, clients: int, each: int, own_mean: float, draw: np.random.Generator
) -> Floats:
    """Draw inputs `[clients * each, features]`: numbers, one-hot categories, rare gaps."""
    rows, width = clients * each, math.prod(like.input_shape)
    inputs = draw.standard_normal((rows, width), dtype=np.float32)
    inputs *= np.float32(math.sqrt(1 - _SHARED))
    inputs += np.float32(math.sqrt(_SHARED)) * draw.standard_normal((rows, 1), dtype=np.float32)
    means = own_mean * draw.standard_normal((clients, width), dtype=np.float32)
    inputs += np.repeat(means, each, axis=0)
    for columns in _groups(like.features).values():
        frequency = 1 / np.arange(1.0, len(columns) + 1)
        inputs[:, columns] = 0
        inputs[np.arange(rows), draw.choice(columns, rows, p=frequency / frequency.sum())] = 1
    for column, name in enumerate(like.features):
        if name.endswith(" (missing)"):
            inputs[:, column] = draw.random(rows) < _MISSING
    return inputs


def _scaled(like: Federation, drawn: Examples, scales: Scales) -> Examples:
    """Return examples whose numbers have the given scales; categories and gaps stay 0 or 1."""
    inputs = drawn.inputs.reshape(len(drawn), -1).astype(np.float32)
    if scales.inputs is not None:
        coded = [place for columns in _groups(like.features).values() for place in columns]
        coded += [i for i, name in enumerate(like.features) if name.endswith(" (missing)")]
        means, deviations = scales.inputs.copy()
        means[coded], deviations[coded] = 0.0, 1.0
        inputs = (inputs * deviations + means).astype(np.float32)
    targets = drawn.targets
    if like.task is Task.REGRESSION:
        mean, deviation = scales.target
        targets = np.asarray(targets, dtype=np.float32) * np.float32(deviation) + np.float32(mean)
    return Examples(inputs.reshape(drawn.inputs.shape), targets)


def _groups(features: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the columns of the categories of each name."""
    found: dict[str, list[int]] = {}
    for column, name in enumerate(features):
        prefix, equals, _ = name.partition("=")
        if equals:
            found.setdefault(prefix, []).append(column)
    return found
