"""Linear models whose clients have few examples: weights as combinations of a client's examples.

Every step of plain local SGD moves the weights of a linear model inside the span of the start `w0`
and the client's own inputs X (with a column of ones if there is a bias):

    w = A'X + r w0         A [examples, outputs], r a number (weight decay alone moves it)

so a client is trained on A, with the Gram matrix K = XX' in the place of the data, and the update
is written out at the end: a step neither reads nor writes weights.

In a protected run clients of one size class train together, in arithmetic that keeps them apart
(`isolated_arithmetic`): whatever has a shape, has one that follows from the client's own size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedveil.data.federation import Federation
from fedveil.privacy.elementwise import tree_sum
from fedveil.training.client.batches import Batches, draw_batches, step_counts
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.affine_gradients import output_error
from fedveil.training.engines.batched import RowEngine, chunks_of
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.isolated_arithmetic import aligned, aligned_stack, products
from fedveil.training.engines.local_sgd import local_updates
from fedveil.training.engines.records import model_rows
from fedveil.training.models.tensors import as_tensor

_LARGEST = 1e30  # of squared inputs: far from overflow
_CHUNK = 2_000_000  # numbers that the clients of a chunk keep beside their records: 8 MB
_ISOLATED_CHUNK = 4_000_000  # numbers that isolated clients of a chunk hold
_WORTH = 300_000  # multiplications above which a Gram matrix is kept
_GATHERED = 1_000_000  # numbers that the steps of one block take: 4 MB


def costs(rule: LocalTraining, layer: Affine, sizes: Cohort) -> tuple[npt.NDArray[np.int64], ...]:
    """Return what a layer costs clients of these sizes as rows of weights, and through the dual.

    In multiplications, with factors measured for narrow products and memory traffic.
    """
    features, outputs = layer.inputs, layer.outputs
    steps = step_counts(sizes, rule)
    batch = sizes if rule.batch_size is None else np.minimum(sizes, rule.batch_size)
    by_rows = steps * features * outputs * (6 * batch + 12)
    once = sizes * sizes * features + 2 * sizes * features * outputs
    return by_rows, once + steps * batch * sizes * outputs


class DualClients:
    """Trains clients of a job whose model is one affine layer and whose rule is plain SGD.

    `rows` trains clients whose inputs are so large that products of two would overflow, and knows
    the gradients of weights, for LUS.
    """

    def __init__(self, job: Job, layer: Affine, rows: RowEngine) -> None:
        self._layer, self._rows_engine, self._job = layer, rows, job
        self._grams = GramCache(job.federation, layer.inputs)

    def train(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train the clients at these positions of the cohort, chunk by chunk."""
        sizes = task.sizes[places]
        for chunk in self._isolated(sizes) if task.job.isolated else self._together(sizes):
            yield from self._chunk(task, places[chunk])

    def _together(self, sizes: Cohort) -> Iterator[Cohort]:
        most = int(sizes.max())
        kept = most * (most + 2 * self._layer.outputs)
        yield from chunks_of(sizes, self._layer.inputs, max(1, _CHUNK // kept), self._job.rule)

    def _isolated(self, sizes: Cohort) -> Iterator[Cohort]:
        """Yield positions of clients whose batches, steps and padded shapes are alike."""
        rule, widths = self._job.rule, size_class(sizes)
        if self._job.pipeline.sparsity:
            yield from (np.array([place]) for place in range(len(sizes)))
            return
        whole = np.zeros_like(sizes)
        if rule.batch_size is not None:  # a batch that is no whole holds records in another order
            whole += sizes <= rule.batch_size
        counted = step_counts(sizes, rule) if rule.learning_rate.counts_steps else whole
        kinds = np.stack([widths, whole, counted])
        for kind in np.unique(kinds, axis=1).T:
            group = np.flatnonzero((kinds == kind[:, None]).all(axis=0))
            group = group[np.argsort(-sizes[group], kind="stable")]
            most = max(1, _ISOLATED_CHUNK // int(kind[0] * (self._layer.inputs + kind[0])))
            for begin in range(0, len(group), most):
                yield group[begin : begin + most]

    def _chunk(self, task: CohortTask, where: Cohort) -> Iterator[Block]:
        job, rule, start = task.job, task.job.rule, task.weights
        clients, sizes = task.clients[where], task.sizes[where]
        inputs, targets = _padded_records(job.federation, clients, sizes)
        width = int(size_class(sizes).max() if job.isolated else sizes.max(initial=1))
        gram = self._grams.of(clients, sizes, inputs, width)
        tame = (gram.diagonal(dim1=1, dim2=2).amax(dim=1) < _LARGEST).numpy()
        if not tame.all():
            yield from self._rows_engine.train(task, where[~tame])
            if tame.any():
                yield from self._chunk(task, where[tame])
            return
        batches = draw_batches(clients, sizes, rule, task.round_number, job.randomness)
        rates = rule.learning_rate.of_round(task.round_number, batches.most_steps)
        drawn = batches.positions.shape[2]  # places in a batch; if isolated, by the class of sizes
        if job.isolated or batches.full:
            drawn = width if batches.full else min(rule.batch_size or width, width)
        dual = Dual(job, self._layer, start, (inputs, targets), sizes, gram)
        supply = _Supply(dual, batches, drawn)
        updates, losses = local_updates(start, supply, rule, rates, dual, ())
        final = None
        if job.pipeline.sparsity:
            mask = torch.from_numpy(np.arange(inputs.shape[1]) < sizes[:, None])
            everything = inputs, targets, mask
            final = self._rows_engine.gradients(start + updates, everything, None, 0.0)[0]
        yield task.block(where, updates, losses, final)


class StepBatch(NamedTuple):
    """The batch of one step, for the clients that take it."""

    places: Tensor | None  # in the padded chunk, [clients * batch]; None: all examples in order
    gram: Tensor  # rows of XX', [clients, batch, examples]
    start: Tensor  # outputs at the shared weights, [clients, batch, outputs]
    targets: Tensor  # [clients, batch]
    shares: Tensor  # of each example in its client's mean, [clients, batch, 1]
    even: float | None  # the share of every example, if all are real


class Dual:
    """The kernel: plain descent of a chunk of clients on the coefficients of their examples.

    Args:
        job: What is trained.
        layer: The layer, in a flat vector.
        start: The layer's shared weights.
        records: Inputs `[clients, most, features]` and targets `[clients, most]`, beyond a client's
            size anything.
        sizes: How many examples each client has, `[clients]`.
        gram: XX' without the bias, `[clients, width, width]`, zero beyond a size; overwritten.
    """

    def __init__(
        self,
        job: Job,
        layer: Affine,
        start: Tensor,
        records: tuple[Tensor, Tensor],
        sizes: Cohort,
        gram: Tensor,
    ) -> None:
        (inputs, targets), (clients, width) = records, gram.shape[:2]
        self._task, self._isolated = job.federation.task, job.isolated
        self._inputs, self._layer, self._sizes = inputs, layer, sizes.tolist()
        missing = width - inputs.shape[1]
        self.targets = functional.pad(targets, (0, missing))
        weight, bias = layer.weight_of(start), layer.bias_of(start)
        if self._isolated:  # outputs at the shared weights, [clients, width, outputs]
            self.outputs = inputs.new_zeros(clients, width, layer.outputs)
            for own, into, size in zip(inputs, self.outputs, self._sizes, strict=True):
                torch.mm(own[:size], weight.t(), out=into[:size])
            self.outputs += 0 if bias is None else bias
        else:
            none = start.new_zeros(layer.outputs)
            outputs = torch.addmm(none if bias is None else bias, inputs.flatten(0, 1), weight.t())
            self.outputs = functional.pad(outputs.view(*targets.shape, -1), (0, 0, 0, missing))
        # Beyond a client's size, ones in the matrix meet coefficients that stay zero.
        self.gram = gram if bias is None else gram.add_(1)
        self._moved = torch.zeros_like(self.outputs)  # A [clients, examples, outputs]
        self._scale, self._scales = 1.0, gram.new_ones(clients)  # r, and where clients stopped

    def begin(self, start: Tensor, clients: int) -> None:
        """Clients have not moved yet."""

    def descend(self, batch: StepBatch, rate: float, keep: float) -> Tensor:
        here = self._moved[: len(batch.gram)]
        if self._isolated:
            scores = products(batch.gram, here)
            scores += batch.start if self._scale == 1 else batch.start * self._scale
        else:
            scores = torch.baddbmm(batch.start, batch.gram, here, beta=self._scale)
        turned = scores.permute(2, 0, 1).contiguous()
        error, losses = output_error(self._task, turned, batch.targets, self._isolated)
        shares: Tensor | float = batch.shares  # others decide whether all examples are real
        if batch.even is not None and not self._isolated:
            shares = batch.even
        error = error.permute(1, 2, 0) * (shares * -rate)
        if keep != 1:
            here.mul_(keep)
            self._scale *= keep
            if abs(self._scale) > torch.finfo(torch.float32).max:  # as weights overflow
                self._scale = math.copysign(math.inf, self._scale)
            self._scales[: len(here)] = self._scale
        if batch.places is None:
            here.add_(error)
        else:  # no real example comes twice
            here.flatten(0, 1).index_add_(0, batch.places, error.flatten(0, 1))
        loss: Tensor = torch.linalg.vecdot(losses, batch.shares[..., 0])
        return loss

    def finish(self, start: Tensor) -> Tensor:
        """Return updates `[clients, parameters]`: r - 1 times the shared weights, and A'X."""
        rows = start * (self._scales - 1)[:, None]
        weight, turned = self._layer.weight_of(rows), self._moved.mT.contiguous()
        if self._isolated:
            moved = aligned_stack(*weight.shape, fill=False)
            pairs = zip(moved, turned, self._inputs, self._sizes, strict=True)
            for into, own, records, size in pairs:
                torch.mm(own[:, :size], records[:size], out=into)
            weight.add_(moved)
        else:
            weight.add_(torch.bmm(turned[:, :, : self._inputs.shape[1]], self._inputs))
        bias = self._layer.bias_of(rows)
        if bias is not None:
            bias += tree_sum(self._moved.transpose(0, 1).clone())
        return rows


class _Supply:
    """The batches of a chunk of clients, gathered for many steps at once."""

    def __init__(self, dual: Dual, batches: Batches, width: int) -> None:
        """`width` is how many places a batch has, at least as many as are drawn."""
        self._dual, self.steps, self._full = dual, batches.steps, batches.full
        self.active: list[int] = (
            (batches.steps[:, None] > np.arange(batches.most_steps)).sum(axis=0).tolist()
        )
        clients, steps, drawn = batches.mask.shape
        mask = np.zeros((steps, clients, width), np.float32)
        mask[:, :, :drawn] = batches.mask.transpose(1, 0, 2)
        if not batches.full:
            # Places that are not real read the client's first example, and add zero to it.
            places = np.zeros((steps, clients, width), np.int64)
            places[:, :, :drawn] = (batches.positions * batches.mask).transpose(1, 0, 2)
            places += np.arange(clients)[:, None] * dual.gram.shape[1]
            self._places = torch.from_numpy(places)
        counts = np.maximum(1, batches.mask.sum(axis=2)).T[:, :, None]
        self._shares = torch.from_numpy(mask / counts.astype(np.float32))[..., None]
        own = np.arange(steps) < batches.steps[:, None]
        taken = batches.mask if batches.full else batches.mask[own]
        self._even = 1 / width if drawn == width and bool(taken.all()) else None
        self._width, self._block = width, range(0)
        self._gathered: list[StepBatch] = []

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> StepBatch:
        if step not in self._block:
            self._gather(step)
        return self._gathered[step - self._block.start]

    def _gather(self, first: int) -> None:
        """Gather this step and those after it that the same clients take, as many as fit."""
        active, dual = self.active[first], self._dual
        alike = itertools.takewhile(lambda count: count == active, self.active[first:])
        numbers = active * self._width * (dual.gram.shape[2] + 2 * dual.outputs.shape[2])
        count = min(sum(1 for _ in alike), max(1, _GATHERED // max(1, numbers)))
        self._block = range(first, first + count)
        parts = (dual.gram, dual.outputs, dual.targets)
        if self._full:
            gram, start, targets = (part[:active] for part in parts)
            whole = StepBatch(None, gram, start, targets, self._shares[0, :active], self._even)
            self._gathered = [whole] * count
            return
        steps = slice(first, first + count)
        places = self._places[steps, :active]
        gram, start, targets = (
            part.flatten(0, 1)
            .index_select(0, places.reshape(-1))
            .view(*places.shape, *part.shape[2:])
            for part in parts
        )
        lists = places.flatten(1), gram, start, targets, self._shares[steps, :active]
        self._gathered = [StepBatch(*each, self._even) for each in zip(*lists, strict=True)]


def _padded_records(
    federation: Federation, clients: Cohort, sizes: Cohort
) -> tuple[Tensor, Tensor]:
    """Return inputs `[clients, most, features]`, each client's aligned, and targets; padding
    repeats a client's last record."""
    places = np.minimum(np.arange(int(sizes.max(initial=1))), sizes[:, None] - 1)
    rows = federation.offsets[clients][:, None] + places
    inputs, targets = map(as_tensor, model_rows(federation, rows))
    return aligned(inputs.flatten(2)), targets


class GramCache:
    """XX' of each client. Large ones are kept from round to round while they are small beside the
    data.

    A large matrix is computed from its client's records alone, never together with others, so that
    it has the same bits whenever that happens. Small ones are computed anew in every round.
    """

    def __init__(self, federation: Federation, features: int) -> None:
        self._features, self._keeps = features, self.fit(federation)
        self._kept: dict[int, Tensor] = {}

    @staticmethod
    def fit(federation: Federation) -> bool:
        """Return whether all clients' matrices take at most a quarter of the data's memory."""
        squares = float(np.square(federation.sizes, dtype=np.float64).sum())
        return 4 * 4 * squares <= federation.train.inputs.nbytes

    def of(self, clients: Cohort, sizes: Cohort, inputs: Tensor, width: int) -> Tensor:
        """Return `[clients, width, width]` of `inputs [clients, most, features]`, where zero stands
        beyond a client's size."""
        grams = inputs.new_zeros(len(clients), width, width)
        for size in np.unique(sizes).tolist():
            places = np.flatnonzero(sizes == size)
            squares = self._alike(clients[places], inputs, places, size)
            if len(places) == len(sizes):
                return functional.pad(squares, (0, width - size, 0, width - size))
            grams[torch.from_numpy(places), :size, :size] = squares
        return grams

    def _alike(self, clients: Cohort, inputs: Tensor, places: Cohort, size: int) -> Tensor:
        """Return the matrices of clients of one size, at these places of `inputs`."""
        if size * size * self._features < _WORTH:
            own = inputs if len(places) == len(inputs) else inputs[torch.from_numpy(places)]
            own = aligned(own[:, :size])
            return products(own, own.mT)
        found = []
        for client, place in zip(clients.tolist(), places.tolist(), strict=True):
            gram = self._kept.get(client)
            if gram is None:
                records = inputs[place, :size]  # where it is aligned, whoever else is there
                gram = torch.mm(records, records.t())
                if self._keeps:
                    self._kept[client] = gram
            found.append(gram)
        return torch.stack(found)


def size_class(sizes: Cohort) -> Cohort:
    """Return each size rounded up to few binary digits: 16, 32, 48, ..., 128, 144, 160, ..., 256,
    288, ..., always a multiple of 16, so that rows of a matrix are aligned."""
    exponents = np.frexp(np.maximum(sizes - 1, 0).astype(np.float64))[1]  # digits of size - 1
    unit = np.int64(1) << np.maximum(4, exponents - 3).astype(np.int64)
    rounded: Cohort = np.maximum(1, -(-sizes // unit)) * unit
    return rounded
