"""Isolated clients: each trains in its own shape, whoever else is in the federation.

A client's contribution is a function of public settings, its own records in their order and its own
randomness, bit for bit. Two ways lead there:

* Engines with gradients written by hand train many clients together, in arithmetic that keeps them
  apart (`isolated_arithmetic`, `affine_gradients`), on one thread (`undisturbed`).
* For all others a client is a federation of its own (`isolated_federation`), with an engine,
  modules and buffers that nobody used before (`OneByOne`). Whatever a program does with such a
  federation, no other client can show in it: not in padding, chunks, step counts, rates, memory or
  rounding. An owner of data that takes part from its own machine has the same federation, and
  contributes the same numbers.

A client at whose records the module or the loss raises takes no step there (`gradients`); if
anything else raises, it contributes zero. No round ends by what somebody's records are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch

from fedveil.core.containment import contained, silence
from fedveil.data.examples import some
from fedveil.data.federation import Examples, Federation
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import (
    CohortTask,
    Engine,
    Job,
    RoundRequest,
    summed,
    task_of,
    threads_at,
)
from fedveil.training.engines.records import aligned
from fedveil.training.models.structure import drawing_from

_ONLY = np.zeros(1, dtype=np.int64)


def isolated_federation(federation: Federation, client: int) -> Federation:
    """Return a federation of this client alone.

    Its records are there as the model sees them, copied into memory that starts where the records
    of others do not decide.
    """
    own = slice(int(federation.offsets[client]), int(federation.offsets[client + 1]))
    train = federation.train
    inputs = aligned(federation.model_inputs(train.inputs[own]))
    targets = aligned(train.targets[own])
    persons = None if train.persons is None else train.persons[own]
    return Federation(
        Examples(inputs, targets, some(train.usable, own), persons),
        np.array([0, len(targets)]),
        Examples(inputs[:0], targets[:0]),
        federation.task,
        federation.classes,
        name=federation.name,
        unprotected=federation.unprotected,
        verified=True,
    )


def isolated_job(job: Job, client: int) -> Job:
    """Return the job for this client alone; it keeps its number in all that is drawn for it."""
    rule = job.rule
    if np.ndim(rule.own_rates) and not rule.per_person:
        rule = replace(rule, own_rates=rule.own_rates[client])
    return replace(
        job,
        rule=rule,
        federation=isolated_federation(job.federation, client),
        randomness=job.randomness.of_client(client),
        isolated=True,
    )


@contextmanager
def undisturbed(autograd: bool = True) -> Iterator[None]:
    """Compute on one thread, and show nothing.

    Without autograd where a step is many small operations, which are quicker then.
    """
    with silence(), threads_at(1), nullcontext() if autograd else torch.inference_mode():
        yield


class OneByOne:
    """Trains isolated clients one after the other.

    Args:
        job: The job of all clients.
        name: The engine's name.
        make: Makes an engine for the job of one client.
        device: Where it computes.
    """

    def __init__(
        self, job: Job, name: str, make: Callable[[Job], Engine], device: torch.device
    ) -> None:
        self.job, self.name, self.device, self._make = job, name, device, make

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, request)
        for place, client in enumerate(task.clients.tolist()):
            own = None
            # Not where noise belongs into the client's own steps: a zero would have none of it. Nor
            # where records or persons are protected: none of them may take all others along. What
            # raises there is nobody else's code: gradients are contained by themselves.
            rule = task.job.rule
            with nullcontext() if rule.gradient_noise or rule.per_example else contained():
                own = self._contribution(task, client)
            own = _nothing(task.job) if own is None else own
            yield replace(own, places=np.array([place]), updates=own.total[None])

    def _contribution(self, task: CohortTask, client: int) -> Block:
        """Return what one client contributes, as a block of its own.

        Whatever a module draws, and whenever (in a step, in its last gradient, in a vote), comes
        from a generator that no other client has touched.
        """
        own, number = isolated_job(task.job, client), task.round_number
        word = task.job.randomness.stream("module draws", number, client).words(1)[0]
        states = None if task.states is None else task.states.of_client(client)
        with drawing_from(int(word >> np.uint64(1)), self.device):
            request = RoundRequest(task.weights, _ONLY, number, states=states)
            return summed(self._make(own), own, request)

    def close(self) -> None:
        """Nothing to release."""


def _nothing(job: Job) -> Block:
    """Return the contribution of a client that contributes nothing."""
    kind = torch.float64 if job.pipeline.granularity is None else torch.int64
    none, update = torch.zeros(1), torch.zeros(job.pipeline.width(job.layout), dtype=kind)
    return Block(_ONLY, update, none, none, none, 1)
