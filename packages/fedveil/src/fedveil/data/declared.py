"""What is publicly declared about labels, and sentences on what was taken from the rows instead.

Each sentence names one thing that enters the model or its size, came from private rows without
noise, and is therefore outside any guarantee (`Federation.unprotected`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.core.origin import is_own_object
from fedveil.data.examples import Task
from fedveil.data.partition import ByOwner, Dirichlet, Partition, SortedSlices

CLASSES = "the number of classes was taken from the labels"
CLASS_NAMES = "the classes, their names and order were taken from the labels"
AGAIN = "training examples are test or validation examples too, and figures on them have no noise"
VOCABULARY = "the size of the vocabulary was taken from the token ids"
TASK = "whether to predict classes or numbers was decided by the labels"
SHAPE = "the shape of the inputs was taken from the data"
DEALT_BY_LABEL = "rows were dealt to artificial clients by their labels"

DRAWN_OWNERS = "a fixed number of owners was drawn, so one owner more can take the place of another"


def dealing(partition: Partition) -> tuple[str, ...]:
    """Return sentences on what a partition takes from rows, or lets owners do to each other."""
    if not is_own_object(partition):
        name = type(partition).__name__
        return (f"rows were dealt to clients by {name}, which is none of fedveil's own parts",)
    if isinstance(partition, (Dirichlet, SortedSlices)):
        return (DEALT_BY_LABEL,)
    if not isinstance(partition, ByOwner):
        return ()
    least = max(partition.at_least, partition.examples_per_client or 1)
    said = (
        f"owners with fewer than {least} rows were left out, so rows decided who takes part",
        DRAWN_OWNERS,
    )
    happens = (least > 1, partition.clients is not None)
    return tuple(one for one, true in zip(said, happens, strict=True) if true)


def count_classes(
    task: Task,
    targets: npt.ArrayLike,
    seen: int,
    declared: int | None,
    given: tuple[str, ...],
    names: tuple[str, ...],
) -> tuple[int, tuple[str, ...]]:
    """How many classes there are, and what of it came from the labels.

    `seen` is one more than the largest code, `given` the classes' names as declared, `names` those
    in use, which are the labels themselves if none were given.
    """
    if task is Task.REGRESSION:
        return 0, ()
    if declared is not None and declared < 1:
        raise ConfigError(f"classes={declared}: must be at least 1")
    if declared is not None and given and declared != len(given):
        raise ConfigError(
            f"classes={declared}, but class_names holds {len(given)} names; make them agree"
        )
    if given or (declared is not None and not names):
        return len(given) or declared or 0, ()
    tokens = task is Task.SEQUENCE
    if names:
        return declared or len(names), (VOCABULARY if tokens else CLASS_NAMES,)
    if getattr(targets, "dtype", None) == np.bool_:
        return 2, ()
    return seen, (VOCABULARY if tokens else CLASSES,)


def used_again(inputs: npt.ArrayLike, *others: npt.ArrayLike | None) -> list[str]:
    """Whether other parts lie in the training examples' own memory; copies are not recognised."""
    own = np.asarray(inputs)
    held = (np.asarray(other) for other in others if other is not None)
    return [AGAIN] if any(np.may_share_memory(own, part) for part in held) else []
