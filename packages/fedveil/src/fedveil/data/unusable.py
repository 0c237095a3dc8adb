"""Unusable examples: each keeps its place among its client's rows, and contributes nothing.

An example is unusable if a number in it is not finite, if its label is missing or none of the
declared classes, if a token is outside the vocabulary, or if its picture cannot be read. Stopping
there, or leaving the row out before rows are dealt, would tell everybody that it exists and would
move other rows to other places. So it is dealt, held out and counted like any other: zeros stand
for its values, and `Examples.usable` says that they mean nothing.

Where single records are protected, it stays in its batches with a gradient of zero. Where clients
are, it is dropped inside its own client before training (`without_unusable`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedveil.data.assignment import offsets_of
from fedveil.data.examples import Examples, Task

if TYPE_CHECKING:
    from fedveil.data.federation import Federation

Mask = npt.NDArray[np.bool_]

_BLOCK = 1 << 16  # rows looked at together


def no_target(task: Task) -> float:
    """Return the target that marks an unusable example: NaN for numbers, else a negative code."""
    return float("nan") if task is Task.REGRESSION else -1


def marked(examples: Examples, task: Task, codes: int) -> Examples:
    """Mark unusable examples and put zeros in their place.

    Args:
        examples: Columns of the right shapes, with any values.
        task: What is predicted; it says whether targets are numbers or codes.
        codes: How many values a target (and a token) may have; unused for regression.

    Returns:
        The same examples if all are usable. Otherwise copies in which unusable rows hold zeros.
    """
    return with_marks(
        examples,
        _wrong(examples.inputs, codes if task is Task.SEQUENCE else None)
        | _wrong(examples.targets, None if task is Task.REGRESSION else codes),
    )


def with_tokens_below(examples: Examples, limit: int) -> Examples:
    """Mark examples whose inputs are not all token ids below `limit`."""
    return with_marks(examples, _wrong(examples.inputs, limit))


def with_marks(examples: Examples, wrong: Mask) -> Examples:
    """Return the examples with the rows in `wrong` marked as unusable, and zeros for them."""
    if not wrong.any():
        return examples
    inputs, targets = np.array(examples.inputs), np.array(examples.targets)
    inputs[wrong], targets[wrong] = 0, 0
    usable = ~wrong if examples.usable is None else examples.usable & ~wrong
    return Examples(inputs, targets, usable, examples.persons)


def without_unusable(federation: Federation) -> Federation:
    """Drop unusable training examples, each inside its own client.

    A client that has no others keeps one of them: it is still a client, and contributes nothing.
    """
    usable, starts = federation.train.usable, federation.offsets[:-1]
    if usable is None:
        return federation
    counts = np.add.reduceat(usable.astype(np.int64), starts)
    kept = usable.copy()
    kept[starts[counts == 0]] = True
    if kept.all():  # they were dropped before
        return federation
    return replace(
        federation,
        train=federation.train.take(np.flatnonzero(kept)),
        offsets=offsets_of(np.maximum(counts, 1)),
        verified=True,
    )


def _wrong(column: npt.NDArray[Any], below: int | None) -> Mask:
    """Rows with a value that is not finite, or, with `below`, no code from 0 to `below - 1`."""
    wrong = np.zeros(len(column), dtype=np.bool_)
    for start in range(0, len(column), _BLOCK):
        rows = slice(start, start + _BLOCK)
        part = column[rows]
        if part.size and not _valid(np.array([part.min(), part.max()]), below).all():
            wrong[rows] = ~_valid(part, below).reshape(len(part), -1).all(axis=1)
    return wrong


def _valid(part: npt.NDArray[Any], below: int | None) -> Mask:
    found: Mask = np.isfinite(part) if below is None else (part >= 0) & (part < below)
    return found
