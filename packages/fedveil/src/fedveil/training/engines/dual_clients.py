"""Clients that train the first layer of their network through the dual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.training.client.batches import draw_batches, step_counts
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines.affine import Affine, Parts, Stack, parts_of, rows_of
from fedveil.training.engines.batched import RowEngine, chunks_of
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.dual import Dual, Span
from fedveil.training.engines.dual_steps import Upper, clip_whole, train
from fedveil.training.engines.gram_cache import GramCache
from fedveil.training.engines.records import Records

_CHUNK = 2_000_000  # numbers that the clients of a chunk keep beside their records: 8 MB


class DualClients:
    """Trains clients of a job whose model is a stack of affine layers.

    `rows` trains clients whose inputs are so large that products of two would overflow, and knows
    the gradients of the whole network, for LUS.
    """

    def __init__(self, job: Job, stack: Stack, rows: RowEngine) -> None:
        self._stack, self._rows_engine = stack, rows
        first = stack[0]
        weight = replace(first.weight, start=0)
        bias = None if first.bias is None else replace(first.bias, start=weight.stop)
        self._first = Affine(weight, bias, first.activation)  # in a vector of its own
        self._grams: GramCache | None = None
        if GramCache.fit(job.federation):
            self._grams = GramCache(job.federation, first.inputs)
        self._others = job.layout.size - (weight.stop if bias is None else bias.stop)

    def train(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train the clients at these positions of the cohort, chunk by chunk."""
        first, rule = self._first, task.job.rule
        sizes = task.sizes[places]
        most = int(sizes.max())
        kept = self._others + most * (most + 2 * first.outputs)
        for chunk in chunks_of(sizes, first.inputs, max(1, _CHUNK // kept), rule):
            yield from self._chunk(task, places[chunk])

    def _chunk(self, task: CohortTask, where: Cohort) -> Iterator[Block]:
        job, layers, weights = task.job, self._stack[1:], task.weights
        clients, held = task.clients[where], task.sizes[where]
        batches = draw_batches(clients, held, job.rule, task.round_number, job.randomness)
        records = Records(job.federation, clients, held, batches, padded=True)
        gram = None
        if self._grams is not None and self._grams.pay(held):
            gram = self._grams.of(clients, held, records.inputs.flatten(2))
        start, kind = first_of(self._stack, weights), job.federation.task
        dual = Dual(self._first, kind, records.inputs, records.targets, start, gram)
        tame = dual.tame.numpy()
        if not tame.all():
            yield from self._rows_engine.train(task, where[~tame])
            if tame.any():
                yield from self._chunk(task, where[tame])
            return
        rates = job.rule.learning_rate.of_round(task.round_number, records.most_steps)
        upper = Upper(layers, parts_of(layers, weights, len(clients)))
        span, losses = train(dual, records, job.rule, rates, upper)
        _subtract(layers, upper.parts, weights)
        if sums_by_norms(job.pipeline):
            yield self._span(task, where, dual, span, upper.parts, losses, held)
            return
        rows = self._rows(dual.rows(span), upper.parts)
        final = None
        if job.pipeline.sparsity:
            everything = records.everything()
            final = self._rows_engine.gradients(weights + rows, everything, None, 0.0)[0]
        yield task.block(where, rows, losses, final)

    def _rows(self, lower: Tensor, parts: Parts) -> Tensor:
        """Whole vectors `[clients, parameters]` from the first layer's and the parts above."""
        weight, bias = self._first.weight_of(lower), self._first.bias_of(lower)
        return rows_of(self._stack, [(weight, bias), *parts])

    def _span(
        self,
        task: CohortTask,
        where: Cohort,
        dual: Dual,
        span: Span,
        parts: Parts,
        losses: Tensor,
        sizes: Cohort,
    ) -> Block:
        """Clip by the norms alone, and sum without forming any client's update."""
        norms, tensors = (
            dual.norms(span),
            [part for pair in parts for part in pair if part is not None],
        )
        if tensors:
            squares = norms.double().square()
            for tensor in tensors:
                squares += tensor.flatten(1).square().sum(dim=1, dtype=torch.float64)
            norms = squares.sqrt().float()
        finite = torch.isfinite(norms)
        rejected = int((~finite).sum())
        if rejected:
            for tensor in (span.coefficients, span.shift, *tensors):
                tensor[~finite] = 0
            norms = torch.where(finite, norms, 0)
        factors = task.job.pipeline.factors(norms, sizes)
        sums: Parts = [
            (_weighted(weight, factors), bias if bias is None else _weighted(bias, factors))
            for weight, bias in parts
        ]
        summed = self._rows(dual.sum(span, factors)[None], sums)[0]
        return Block(where, summed, norms, norms * factors, losses, rejected)


def _subtract(layers: Stack, parts: Parts, start: Tensor) -> None:
    """Turn weights into updates, in place."""
    for layer, (weight, bias) in zip(layers, parts, strict=True):
        weight.sub_(layer.weight_of(start))
        before = layer.bias_of(start)
        if bias is not None and before is not None:
            bias.sub_(before)


def _weighted(part: Tensor, factors: Tensor) -> Tensor:
    """The sum of all clients' parts, each times its factor, `[1, ...]`."""
    return torch.mv(part.flatten(1).t(), factors).view(1, *part.shape[1:])


def first_of(stack: Stack, vector: Tensor) -> Tensor:
    """The first layer's weights and bias in a vector of their own."""
    first = stack[0]
    bias = first.bias_of(vector)
    weight = vector[first.weight.start : first.weight.stop]
    return weight if bias is None else torch.cat([weight, bias])


def sums_by_norms(pipeline: UpdatePipeline) -> bool:
    """Whether L2 norms are all that shaping needs. Protected runs are on a grid and need more."""
    return pipeline.only_clips and (pipeline.clip is None or pipeline.clip.order == 2)


def dual_applies(job: Job, stack: Stack) -> bool:
    """Whether every step stays in the span of the data: no noise, and norms in L2; and with more
    layers than one, no norms at all. Isolated records keep away: in products of two records each
    meets the rounding of the other. Several labels are left to rows of weights."""
    rule = job.rule
    if job.federation.task is Task.MULTI_LABEL:
        return False
    if job.isolated and rule.per_example:
        return False
    if len(stack) > 1:
        return rule.plain
    whole = clip_whole(rule.gradient_clip)
    return rule.gradient_noise == 0 and (whole is None or whole.order == 2)


def costs(rule: LocalTraining, layer: Affine, sizes: Cohort) -> tuple[npt.NDArray[np.int64], ...]:
    """What the layer costs clients of these sizes as rows of weights, and through the dual.

    In multiplications, with factors measured for narrow products and memory traffic.
    """
    features, outputs = layer.inputs, layer.outputs
    steps = step_counts(sizes, rule)
    batch = sizes if rule.batch_size is None else np.minimum(sizes, rule.batch_size)
    by_rows = steps * features * outputs * (6 * batch + 12)
    once = sizes * sizes * features + 2 * sizes * features * outputs
    return by_rows, once + steps * batch * sizes * outputs
