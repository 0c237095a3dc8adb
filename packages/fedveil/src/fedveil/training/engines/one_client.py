"""A client alone: a federation that holds nobody else.

Whatever a program does with such a federation, no other client can show in it: not in padding,
chunks, step counts, rates, memory or rounding. An owner of data that takes part from its own
machine has the same federation, and contributes the same numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.data.examples import some
from fedveil.data.federation import Examples, Federation
from fedveil.training.engines.contract import Job
from fedveil.training.engines.records import aligned, model_rows


def lone(federation: Federation, client: int) -> Federation:
    """This client's records as its model sees them, copied into memory that starts where the
    records of others do not decide."""
    own = slice(int(federation.offsets[client]), int(federation.offsets[client + 1]))
    inputs = aligned(federation.model_inputs(federation.train.inputs[own]))
    targets = aligned(federation.train.targets[own])
    return Federation(
        Examples(inputs, targets, some(federation.train.usable, own)),
        np.array([0, len(targets)]),
        Examples(inputs[:0], targets[:0]),
        federation.task,
        federation.classes,
        name=federation.name,
        unprotected=federation.unprotected,
        verified=True,
    )


def lone_rows(federation: Federation, client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return this client's inputs and targets for a gradient that is written by hand."""
    return model_rows(lone(federation, client), slice(None))


def lone_job(job: Job, client: int) -> Job:
    """The same job for this client alone; it keeps its number in all that is drawn for it."""
    return replace(
        job,
        federation=lone(job.federation, client),
        randomness=job.randomness.of_client(client),
        isolated=True,
    )
