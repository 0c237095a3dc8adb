"""Clients that send a statistic of their records instead of an update."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fedveil.core.arrays import Ints
from fedveil.core.containment import silence
from fedveil.core.errors import ConfigError
from fedveil.core.units import Unit
from fedveil.data.federation import Examples
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import Cohort, Job, RoundRequest, task_of

_ROWS = 1 << 14  # records that are prepared together


def _groups(sizes: Cohort) -> Iterator[tuple[int, int]]:
    """Yield where groups of clients with about so many records begin and end."""
    start, held = 0, 0
    for place, size in enumerate(sizes.tolist()):
        if held and held + size > _ROWS:
            yield start, place
            start, held = place, 0
        held += size
    yield start, len(sizes)


def _spans(train: Examples, rows: Cohort) -> Ints:
    """Return where each person's records begin among a client's, and where the last ones end."""
    if train.persons is None:
        raise ConfigError("unit person: nobody has said which person each record is of")
    number = train.persons[rows]
    first = np.flatnonzero(np.diff(number, prepend=-1))  # a client's persons stand together
    return np.append(first, len(rows))


class StatisticEngine:
    """Computes `UpdatePipeline.statistic` for each client of a cohort.

    Clients are isolated by arithmetic: a client's vector is a sum of whole numbers that follow from
    its own records, one by one, and such sums do not depend on their order.
    """

    name = "statistic"

    def __init__(self, job: Job) -> None:
        self.job = job

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, request)
        if not len(task.clients):
            return
        federation, statistic = task.job.federation, task.job.pipeline.statistic
        if statistic is None:
            raise ValueError("this job has no statistic")
        train, none = federation.train, torch.zeros(1)
        for start, stop in _groups(task.sizes):
            clients = task.clients[start:stop]
            owned = [np.arange(*federation.offsets[client : client + 2]) for client in clients]
            if train.usable is not None:
                owned = [own[train.usable[own]] for own in owned]
            rows = np.concatenate(owned)
            with silence():
                inputs = federation.model_inputs(train.inputs[rows])
                records = statistic.prepare(inputs, train.targets[rows])
            ends = np.cumsum([len(own) for own in owned])[:-1]
            of_persons = [
                None if statistic.unit is not Unit.PERSON else _spans(train, own) for own in owned
            ]
            parts = zip(np.split(records, ends), of_persons, strict=True)
            for place, (own, persons) in enumerate(parts, start):
                whole = torch.from_numpy(statistic(own, persons))
                if task.job.pipeline.granularity is None:
                    whole = whole.double() * statistic.granularity
                yield Block(np.array([place]), whole[None], none, none, none)

    def close(self) -> None:
        """Nothing to release."""
