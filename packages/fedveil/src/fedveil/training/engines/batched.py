"""Engines that keep their clients' weights as rows: gather, train, shape and sum, chunk by chunk.

They differ in how they compute gradients and in how many clients go into a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveil.core.randomness import Stream
from fedveil.training.client.batches import draw_batches, step_counts, unit_sizes
from fedveil.training.client.local_training import LocalStep, LocalTraining
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import (
    ClientStates,
    Cohort,
    CohortTask,
    Job,
    RoundRequest,
    task_of,
)
from fedveil.training.engines.local_sgd import Gradients, local_updates
from fedveil.training.engines.records import PersonRecords, Records
from fedveil.training.models.structure import drawing_from

CPU = torch.device("cpu")

_VALUES = 4_000_000  # input values in one chunk: 16 MB
_TOGETHER = 4_000_000  # numbers that isolated clients of one chunk hold


@dataclass(frozen=True)
class RowEngine:
    """Runs a job with the given gradients, at most `chunk` clients at a time, on a device."""

    name: str
    job: Job
    gradients: Gradients
    chunk: int
    device: torch.device = CPU
    draws: bool = False  # gradients run the module itself, which may draw random numbers of its own

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, request)
        return self.train(task, np.arange(len(task.sizes)))

    def close(self) -> None:
        """Nothing to release."""

    def train(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train the clients at these positions of the cohort, chunk by chunk."""
        job, number, start = task.job, task.round_number, task.weights.to(self.device)
        values = job.federation.train.inputs[:1].size
        chunks: Iterable[Cohort]
        if job.rule.per_person:
            chunks = np.arange(len(places))[:, None]
        elif job.isolated:
            chunks = isolated_chunks(task.sizes[places], values, job.layout.size, job.rule)
        else:
            chunks = chunks_of(task.sizes[places], values, self.chunk, job.rule)
        for chunk in chunks:
            where = places[chunk]
            records = self._records(task, where)
            clients = task.clients[where]
            rates = job.rule.learning_rate.of_round(number, records.most_steps)
            streams = noise_streams(job, clients, number)
            local_step = _Corrections.of(task, where, start)
            with self._module_randomness(int(clients[0]), number):
                updates, losses = local_updates(
                    start, records, job.rule, rates, self.gradients, streams, local_step
                )
                if local_step is not None:
                    local_step.keep(updates, records.steps, rates)
                gradient = None
                if job.pipeline.sparsity and isinstance(records, Records):
                    everything = records.everything()
                    gradient = self.gradients(start + updates, everything, None, 0.0)[0].cpu()
            yield task.block(where, updates.cpu(), losses, gradient)

    def _records(self, task: CohortTask, where: Cohort) -> Records | PersonRecords:
        """Draw the batches of some clients; where persons are protected, of one client."""
        job, clients, held = task.job, task.clients[where], task.sizes[where]
        if job.rule.per_person:
            held = unit_sizes(job.federation, job.rule)[clients]
        batches = draw_batches(
            clients, held, job.rule, task.round_number, job.randomness, job.federation
        )
        if job.rule.per_person:
            client = int(clients[0])
            return PersonRecords(job.federation, client, batches, self.device, autograd=self.draws)
        return Records(job.federation, clients, held, batches, self.device, autograd=self.draws)

    @contextmanager
    def _module_randomness(self, client: int, round_number: int) -> Iterator[None]:
        """What a module draws itself (dropout) follows the seed too, and the caller's generator
        stays where it was."""
        if not self.draws:
            yield
            return
        word = self.job.randomness.stream("module", round_number, client).words(1)[0]
        with drawing_from(int(word >> np.uint64(1)), self.device):
            yield


class _Corrections:
    """The local step of a rule, for the clients of one chunk."""

    def __init__(
        self, step: LocalStep, states: ClientStates, task: CohortTask, where: Cohort, start: Tensor
    ) -> None:
        self._step, self._states, self._clients = step, states, task.clients[where]
        self._broadcast = states.broadcast(step, start, task.round_number)
        self._state = states.of(self._clients, step, start)

    @classmethod
    def of(cls, task: CohortTask, where: Cohort, start: Tensor) -> _Corrections | None:
        step, states = task.job.rule.step, task.states
        return None if step is None or states is None else cls(step, states, task, where, start)

    def __call__(self, moved: Tensor) -> Tensor:
        return self._step.correction(moved, self._state[: len(moved)], self._broadcast)

    def keep(self, moved: Tensor, steps: Cohort, rates: list[float]) -> None:
        """Keep the clients' states after their last step."""
        path = np.concatenate([[0.0], np.cumsum(rates)])[steps]
        paths = torch.from_numpy(path).to(moved)[:, None]
        after = self._step.after(moved, self._state, self._broadcast, paths)
        self._states.put(self._clients, after)


def isolated_chunks(
    sizes: Cohort, values: int, parameters: int, rule: LocalTraining
) -> Iterator[Cohort]:
    """Cut isolated clients into chunks of one size each: their batches have the same shapes.

    A client holds eight vectors of weights and three copies of its records. A local step, which is
    somebody else's code, sees one client at a time.
    """
    for size in np.unique(sizes).tolist():
        alike = np.flatnonzero(sizes == size)
        most = max(1, _TOGETHER // (8 * parameters + 3 * size * values))
        most = 1 if rule.step is not None else most
        for begin in range(0, len(alike), most):
            yield alike[begin : begin + most]


def chunks_of(
    sizes: Cohort, values: int, most: int, rule: LocalTraining | None = None
) -> Iterator[Cohort]:
    """Cut clients into chunks of at most `most` and of bounded padded size, the largest first.

    Equal sizes side by side waste no padding; falling sizes mean falling step counts. `values` is
    how many numbers one record has. Under a rule whose rates count a client's own steps, those of
    a chunk take the same number of steps.
    """
    order = np.argsort(-sizes, kind="stable")
    steps = None
    if rule is not None and rule.learning_rate.counts_steps:
        steps = -step_counts(sizes, rule)[order]  # rising
    begin = 0
    while begin < len(order):
        fits = _VALUES // max(1, int(sizes[order[begin]]) * values)
        end = begin + max(1, min(most, fits))
        if steps is not None:
            end = min(end, int(np.searchsorted(steps, steps[begin], side="right")))
        yield order[begin:end]
        begin = end


def noise_streams(job: Job, clients: Cohort, round_number: int) -> list[Stream]:
    """The stream of each client's gradient noise; none if the rule adds no noise."""
    if not job.rule.gradient_noise:
        return []
    return [
        job.randomness.stream("gradient-noise", round_number, int(client)) for client in clients
    ]
