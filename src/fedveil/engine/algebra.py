"""Linear and softmax regression by algebra: moments, the dual, or plain rows, client by client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.engine.contract import Cohort, Job, RoundSum, RunningSum, Take
from fedveil.engine.courses import Courses
from fedveil.engine.dual import Dual, Span
from fedveil.engine.dual_steps import clip_whole, train
from fedveil.engine.grams import Grams
from fedveil.engine.moments import MomentGradients, Moments, MomentSupply
from fedveil.engine.rows import RowEngine, chunks_of, noise_streams
from fedveil.engine.stack import Affine, Stack
from fedveil.local.batches import draw_batches, step_counts
from fedveil.local.records import Records, client_sizes
from fedveil.local.shaping import Senders, Shaping
from fedveil.local.steps import local_updates

Train = Callable[[RunningSum, Tensor, Cohort, Cohort, Cohort, int], None]


class AlgebraEngine:
    """Runs a job whose model is one affine layer. `rows` trains the clients that neither the
    moments nor the dual make faster."""

    name = "algebra"

    def __init__(self, job: Job, stack: Stack, rows: RowEngine) -> None:
        self.job, self._rows = job, rows
        (self._layer,) = stack
        self._grams: Grams | None = None
        if dual_applies(job) and Grams.fit(job.federation):
            self._grams = Grams(job.federation, self._layer.inputs)
        self._ways: dict[int, Train] = {}  # by the size of clients
        self._moments: Moments | None = None
        if moments_apply(job):
            self._moments = Moments(
                job.federation, self._layer, Moments.fit(job.federation, self._layer)
            )
        self._courses: Courses | None = None
        if self._moments is not None and Courses.fit(job, self._moments):
            self._courses = Courses(job, self._moments)

    def round_sum(
        self,
        weights: Tensor,
        cohort: Cohort,
        round: int,
        shaping: Shaping | None = None,
        take: Take | None = None,
    ) -> RoundSum:
        job = self.job.shaped_by(shaping)
        sizes = client_sizes(job.federation, cohort)
        total = RunningSum(job, len(cohort), take)
        for places, add in self._groups(sizes):
            add(total, weights, cohort, sizes, places, round)
        return total.result()

    def close(self) -> None:
        """Nothing to release."""

    def _groups(self, sizes: Cohort) -> Iterator[tuple[Cohort, Train]]:
        """The places of the clients that go each way, and the way."""
        if not len(sizes):
            return
        alike = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
        if alike is not None and alike in self._ways:  # the common case, once and for all
            yield np.arange(len(sizes)), self._ways[alike]
            return
        by_moments, by_dual = self.divide(sizes)
        for group, add in (
            (by_moments, self._add_moments),
            (by_dual, self._add_dual),
            (~(by_moments | by_dual), self._rows.add_to),
        ):
            places = np.flatnonzero(group)
            if len(places):
                if alike is not None:
                    self._ways[alike] = add
                yield places, add

    def divide(self, sizes: Cohort) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which clients are cheapest by moments, and which by the dual.

        Costs are multiplications, with factors measured for narrow products and memory traffic.
        """
        rule, layer = self.job.rule, self._layer
        features, outputs = layer.inputs, layer.outputs
        steps = step_counts(sizes, rule)
        batch = sizes if rule.batch_size is None else np.minimum(sizes, rule.batch_size)
        by_rows = steps * features * outputs * (6 * batch + 12)
        by_dual = sizes * sizes * features + 2 * sizes * features * outputs
        by_dual = by_dual + steps * batch * sizes * outputs
        dual = (by_dual < by_rows) & dual_applies(self.job)
        if self._moments is None:
            return np.zeros(len(sizes), dtype=np.bool_), dual
        once = 0 if self._moments.kept else sizes * features * features
        moments = once + steps * features * features < np.where(dual, by_dual, by_rows)
        if rule.batch_size is not None:
            moments &= sizes <= rule.batch_size
        return moments, dual & ~moments

    def _add_moments(
        self,
        total: RunningSum,
        weights: Tensor,
        cohort: Cohort,
        sizes: Cohort,
        places: Cohort,
        round: int,
    ) -> None:
        job, rule = total.job, total.job.rule
        if self._moments is None:
            raise ValueError("no moments for this job")
        for begin in range(0, len(places), most := max(1, 2_000_000 // self._moments.width)):
            where, clients, held = places, cohort, sizes  # the usual case: all at once
            if len(where) < len(cohort) or len(where) > most:
                where = places[begin : begin + most]
                clients, held = cohort[where], sizes[where]
            senders = Senders(clients, held, weights, round, job.randomness)
            if self._courses is not None:
                updates, losses = self._courses(weights, clients, held)
                total.add_updates(where, updates, losses, senders)
                continue
            supply = MomentSupply(self._moments.of(clients, held), step_counts(held, rule))
            rates = rule.learning_rate.of_round(round, len(supply.active))
            streams = noise_streams(job, clients, round)
            gradients = MomentGradients()
            updates, losses = local_updates(weights, supply, rule, rates, gradients, streams)
            final = None
            if job.shaping.sparsity:
                final = gradients(weights + updates, *supply.batch(0), None, 0.0)[0]
            total.add_updates(where, updates, losses, senders, final)

    def _add_dual(
        self,
        total: RunningSum,
        weights: Tensor,
        cohort: Cohort,
        sizes: Cohort,
        places: Cohort,
        round: int,
    ) -> None:
        job, task = total.job, total.job.federation.task
        for chunk in chunks_of(sizes[places], self._layer.inputs, 10_000):
            where = places[chunk]
            clients, held = cohort[where], sizes[where]
            batches = draw_batches(clients, held, job.rule, round, job.randomness)
            records = Records(job.federation, clients, held, batches, padded=True)
            gram = None
            if self._grams is not None and self._grams.pay(held):
                gram = self._grams.of(clients, held, records.inputs.flatten(2))
            dual = Dual(self._layer, task, records.inputs, records.targets, weights, gram)
            rates = job.rule.learning_rate.of_round(round, records.most_steps)
            span, losses = train(dual, records, job.rule, rates)
            if sums_by_norms(job.shaping):
                _add_span(total, where, dual, span, losses, held)
                continue
            final = None
            if job.shaping.sparsity:
                final = dual.gradient_at(span, records.everything()[2])
            senders = Senders(clients, held, weights, round, job.randomness)
            total.add_updates(where, dual.rows(span), losses, senders, final)


def _add_span(
    total: RunningSum, where: Cohort, dual: Dual, span: Span, losses: Tensor, sizes: Cohort
) -> None:
    """Clip by the norms alone, and sum without forming any client's update."""
    norms = dual.norms(span)
    finite = torch.isfinite(norms)
    rejected = int((~finite).sum())
    if rejected:
        span.coefficients[~finite] = 0
        span.shift[~finite] = 0
        norms = torch.where(finite, norms, 0)
    factors = total.job.shaping.factors(norms, sizes)
    total.add(where, dual.sum(span, factors), norms, norms * factors, losses, rejected)


def sums_by_norms(shaping: Shaping) -> bool:
    """Whether L2 norms are all that shaping needs. Protected runs are on a grid and need more."""
    return shaping.only_clips and (shaping.clip is None or shaping.clip.order == 2)


def moments_apply(job: Job) -> bool:
    """Whether second moments can stand for the data: squared loss, no single examples needed."""
    return job.federation.task is Task.REGRESSION and not job.rule.per_example


def dual_applies(job: Job) -> bool:
    """Whether every step stays in the span of the data: no noise, and norms in L2."""
    whole = clip_whole(job.rule.gradient_clip)
    return job.rule.gradient_noise == 0 and (whole is None or whole.order == 2)


def one_layer(stack: Stack | str) -> Affine | str:
    """The only layer of a linear model, or one sentence on why it is none."""
    if isinstance(stack, str):
        return stack
    if len(stack) > 1:
        return f"it has {len(stack)} layers"
    if stack[0].activation != "none":
        return f"its output goes through {stack[0].activation}"
    return stack[0]
