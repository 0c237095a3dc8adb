"""Linear and softmax regression by algebra: moments, the dual, or plain rows, client by client."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedveil.data.federation import Task
from fedveil.training.client.batches import step_counts
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine, Stack
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.contract import Cohort, CohortTask, GroupedEngine, Job, Train
from fedveil.training.engines.dual_clients import DualClients, costs, dual_applies
from fedveil.training.engines.moments import (
    MomentGradients,
    Moments,
    MomentSupply,
    train_by_moments,
)
from fedveil.training.engines.unrolled_affine_steps import UnrolledAffineSteps


class AlgebraEngine(GroupedEngine):
    """Runs a job whose model is one affine layer. `rows` trains the clients that neither the
    moments nor the dual make faster."""

    name = "algebra"

    def __init__(self, job: Job, stack: Stack, rows: RowEngine) -> None:
        self.job, self._rows = job, rows
        (self._layer,) = stack
        self._dual: DualClients | None = None
        if dual_applies(job, stack):
            self._dual = DualClients(job, stack, rows)
        self._ways: dict[int, Train] = {}  # by the size of clients
        self._moments: Moments | None = None
        if moments_apply(job):
            self._moments = Moments(
                job.federation, self._layer, Moments.fit(job.federation, self._layer)
            )
        self._courses: UnrolledAffineSteps | None = None
        if self._moments is not None and UnrolledAffineSteps.fit(job, self._moments):
            self._courses = UnrolledAffineSteps(job, self._moments)

    def groups(self, sizes: Cohort) -> Iterator[tuple[Cohort, Train]]:
        if not len(sizes):
            return
        alike = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
        if alike is not None and alike in self._ways:  # the common case, once and for all
            yield np.arange(len(sizes)), self._ways[alike]
            return
        by_moments, by_dual = self.divide(sizes)
        for group, add in (
            (by_moments, self._by_moments),
            (by_dual, None if self._dual is None else self._dual.train),
            (~(by_moments | by_dual), self._rows.train),
        ):
            places = np.flatnonzero(group)
            if len(places) and add is not None:
                if alike is not None:
                    self._ways[alike] = add
                yield places, add

    def divide(self, sizes: Cohort) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which clients are cheapest by moments, and which by the dual."""
        rule, features = self.job.rule, self._layer.inputs
        by_rows, by_dual = costs(rule, self._layer, sizes)
        dual = (by_dual < by_rows) & (self._dual is not None)
        if self._moments is None:
            return np.zeros(len(sizes), dtype=np.bool_), dual
        once = 0 if self._moments.kept else sizes * features * features
        steps = step_counts(sizes, rule)
        moments = once + steps * features * features < np.where(dual, by_dual, by_rows)
        if rule.batch_size is not None:
            moments &= sizes <= rule.batch_size
        return moments, dual & ~moments

    def _by_moments(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        rule, weights = task.job.rule, task.weights
        if self._moments is None:
            raise ValueError("no moments for this job")
        for begin in range(0, len(places), most := max(1, 2_000_000 // self._moments.width)):
            where, clients, held = places, task.clients, task.sizes  # the usual case: all at once
            if len(where) < len(clients) or len(where) > most:
                where = places[begin : begin + most]
                clients, held = clients[where], held[where]
            if self._courses is not None:
                updates, losses = self._courses(weights, clients, held)
                yield task.block(where, updates, losses)
                continue
            supply = MomentSupply(self._moments.of(clients, held), step_counts(held, rule))
            yield train_by_moments(task, where, weights, supply, MomentGradients())


def moments_apply(job: Job) -> bool:
    """Whether second moments can stand for the data: squared loss, no single examples needed."""
    return job.federation.task is Task.REGRESSION and not job.rule.per_example


def one_layer(stack: Stack | str) -> Affine | str:
    """The only layer of a linear model, or one sentence on why it is none."""
    if isinstance(stack, str):
        return stack
    if len(stack) > 1:
        return f"it has {len(stack)} layers"
    if stack[0].activation != "none":
        return f"its output goes through {stack[0].activation}"
    return stack[0]
