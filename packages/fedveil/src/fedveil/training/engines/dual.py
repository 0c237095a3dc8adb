"""Models whose clients have few examples: the first layer as combinations of a client's examples.

Every step of local SGD moves the weights of a linear model inside the span of the start `w0` and
the client's own inputs X (with a column of ones if there is a bias):

    w - w0 = A'X + r w0         A [examples, outputs], r a number (weight decay alone moves it)

so a client is trained on A, with the Gram matrix K = XX' in the place of the data
(`dual_kernel`), and the update is written out at the end. The norm of a vector, where a rule asks
for it on the way, is tr(A'KA) + 2 r <A, Xw0> + r^2 |w0|^2.

In a protected run clients of one size class train together, in arithmetic that keeps them apart
(`isolated_arithmetic`): whatever has a shape, has one that follows from the client's own size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fedveil.data.federation import Federation, Task
from fedveil.privacy.elementwise import tree_sum
from fedveil.training.client.batches import Batches, draw_batches, step_counts
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine, Parts, Stack, parts_of, rows_of
from fedveil.training.engines.batched import RowEngine, chunks_of
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.dual_kernel import DualKernel, DualSupply, Upper
from fedveil.training.engines.isolated_arithmetic import aligned, aligned_stack, products
from fedveil.training.engines.local_sgd import local_updates
from fedveil.training.engines.records import model_rows
from fedveil.training.models.tensors import as_tensor

# Norms come from products of single precision, whose error grows with cancellation: where the
# terms exceed the result by this factor (in squares), the update is formed and measured instead.
_CANCELLATION = 1e3
_LARGEST = 1e30  # of squared inputs: far from overflow
_CHUNK = 2_000_000  # numbers that the clients of a chunk keep beside their records: 8 MB
_ISOLATED_CHUNK = 4_000_000  # numbers that isolated clients of a chunk hold
_WORTH = 300_000  # multiplications above which a Gram matrix is kept


def dual_applies(job: Job, stack: Stack) -> bool:
    """Return whether every step stays in the span of the data: no noise, and norms in L2.

    With more layers than one, there must be no norms at all. Isolated records do not come here: in
    a product of two records each meets the rounding of the other.
    """
    rule = job.rule
    if job.federation.task is Task.MULTI_LABEL or rule.step is not None:
        return False
    if rule.per_person or (job.isolated and rule.per_example):
        return False
    if len(stack) > 1:
        return rule.plain
    clip = rule.gradient_clip
    return rule.gradient_noise == 0 and (clip is None or clip.per_example or clip.order == 2)


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


@dataclass(frozen=True)
class Span:
    """A vector `A'X + r w0` for each client of a chunk."""

    coefficients: Tensor  # A [clients, examples, outputs]
    shift: Tensor  # r [clients]


class Dual:
    """A chunk of clients.

    Args:
        layer: The layer, in a flat vector of its own.
        task: What is predicted.
        inputs: Inputs `[clients, most, features]`, beyond a client's size anything.
        targets: Targets `[clients, most]`.
        sizes: How many examples each client has, `[clients]`.
        width: Places for examples, at least `most`; those beyond a client's size get coefficient 0.
        start: The layer's shared weights.
        gram: XX' without the bias, `[clients, width, width]`, zero beyond a size; overwritten.
        isolated: Whether no client's numbers may depend on another's.
    """

    def __init__(
        self,
        layer: Affine,
        task: Task,
        inputs: Tensor,
        targets: Tensor,
        sizes: Cohort,
        width: int,
        start: Tensor,
        gram: Tensor,
        isolated: bool = False,
    ) -> None:
        self.layer, self.task, self.start, self.inputs = layer, task, start, inputs
        clients, most = targets.shape
        self._most, self._isolated = most, isolated
        weight, bias = layer.weight_of(start), layer.bias_of(start)
        self.targets = functional.pad(targets, (0, width - most))
        # X w0, [clients, width, outputs]
        if isolated:
            self.outputs = inputs.new_zeros(clients, width, layer.outputs)
            turned = weight.t()
            for own, into, size in zip(inputs, self.outputs, sizes.tolist(), strict=True):
                torch.mm(own[:size], turned, out=into[:size])
            self.outputs += 0 if bias is None else bias
        else:
            flat, none = inputs.flatten(0, 1), start.new_zeros(layer.outputs)
            outputs = torch.addmm(none if bias is None else bias, flat, weight.t())
            self.outputs = functional.pad(outputs.view(clients, most, -1), (0, 0, 0, width - most))
        # Beyond a client's size, ones in the matrix meet coefficients that stay zero.
        self.gram = gram if bias is None else gram.add_(1)
        self._sizes = sizes
        self._start_square = float(start.square().sum(dtype=torch.float64))

    @property
    def tame(self) -> npt.NDArray[np.bool_]:
        """Which clients' inputs are small enough to be multiplied with each other, `[clients]`."""
        largest = self.gram.diagonal(dim1=1, dim2=2).amax(dim=1)
        tame: npt.NDArray[np.bool_] = (largest < _LARGEST).numpy()
        return tame

    @cached_property
    def lengths(self) -> Tensor:
        """Euclidean lengths of the inputs, with the bias, in double precision: none underflows."""
        own: Tensor = torch.linalg.vector_norm(self.inputs, dim=2, dtype=torch.float64)
        return self._widened(own if self.layer.bias is None else own.square().add_(1).sqrt_())

    @cached_property
    def absolute_sums(self) -> Tensor:
        """Sums of the inputs' absolute values, with the bias, in double precision."""
        sums = self.inputs.double().abs().sum(dim=2) + (self.layer.bias is not None)
        return self._widened(sums)

    def _widened(self, values: Tensor) -> Tensor:
        """Values of examples `[clients, most]` with ones up to the width."""
        wide = values.new_ones(self.targets.shape)
        wide[:, : self._most] = values
        return wide

    def norms(self, vector: Span) -> Tensor:
        """Return L2 norms `[clients]` of the first so many clients' vectors."""
        active = len(vector.shift)
        images = torch.bmm(self.gram[:active], vector.coefficients)
        squares = _dot(vector.coefficients, images)
        if bool(vector.shift.any()):
            cross = _dot(vector.coefficients, self.outputs[:active])
            squares += vector.shift * (2 * cross + vector.shift * self._start_square)
        norms = squares.clamp(min=0).sqrt()
        doubtful = self._terms(vector) > _CANCELLATION * squares
        for client in torch.nonzero(doubtful).flatten().tolist():
            one = Span(vector.coefficients[client : client + 1], vector.shift[client : client + 1])
            norms[client] = self.rows(one, client).double().norm()
        return norms

    def rows(self, vector: Span, first: int = 0) -> Tensor:
        """Return the vectors written out, `[clients, parameters]`, of clients from `first` on."""
        count = len(vector.shift)
        inputs, sizes = self.inputs[first : first + count], self._sizes[first : first + count]
        rows = self.start * vector.shift[:, None]
        weight, turned = self.layer.weight_of(rows), vector.coefficients.mT.contiguous()
        if self._isolated:
            moved = aligned_stack(*weight.shape, fill=False)
            for into, own, records, size in zip(moved, turned, inputs, sizes.tolist(), strict=True):
                torch.mm(own[:, :size], records[:size], out=into)
            weight.add_(moved)
        else:
            weight.add_(torch.bmm(turned[:, :, : self._most], inputs))
        bias = self.layer.bias_of(rows)
        if bias is not None:
            bias += tree_sum(vector.coefficients.transpose(0, 1).clone())
        return rows

    def _terms(self, vector: Span) -> Tensor:
        """Return an upper bound on the squared terms of a norm, as if none cancelled another."""
        lengths = self.gram[: len(vector.shift)].diagonal(dim1=1, dim2=2).sqrt()
        spread = (vector.coefficients.square().sum(dim=2).sqrt() * lengths).sum(dim=1)
        return (spread + vector.shift.abs() * math.sqrt(self._start_square)).square()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.sum(a * b, dim=(1, 2))


class DualClients:
    """Trains clients of a job whose model is a stack of affine layers.

    `rows` trains clients whose inputs are so large that products of two would overflow, and knows
    the gradients of the whole network, for LUS.
    """

    def __init__(self, job: Job, stack: Stack, rows: RowEngine) -> None:
        self._stack, self._rows_engine, self._job = stack, rows, job
        first = stack[0]
        weight = replace(first.weight, start=0)
        bias = None if first.bias is None else replace(first.bias, start=weight.stop)
        self._first = Affine(weight, bias, first.activation)  # in a vector of its own
        self._grams = GramCache(job.federation, first.inputs)
        self._others = job.layout.size - (weight.stop if bias is None else bias.stop)

    def train(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train the clients at these positions of the cohort, chunk by chunk."""
        sizes = task.sizes[places]
        for chunk in self._isolated(sizes) if task.job.isolated else self._together(sizes):
            yield from self._chunk(task, places[chunk])

    def _together(self, sizes: Cohort) -> Iterator[Cohort]:
        most = int(sizes.max())
        kept = self._others + most * (most + 2 * self._first.outputs)
        yield from chunks_of(sizes, self._first.inputs, max(1, _CHUNK // kept), self._job.rule)

    def _isolated(self, sizes: Cohort) -> Iterator[Cohort]:
        """Yield positions of clients whose batches, steps and padded shapes are alike.

        Only plain steps of one layer keep clients apart; for others each client has a chunk.
        """
        rule, widths = self._job.rule, size_class(sizes)
        if not rule.plain or len(self._stack) > 1 or self._job.pipeline.sparsity:
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
            most = max(1, _ISOLATED_CHUNK // int(kind[0] * (self._first.inputs + kind[0])))
            for begin in range(0, len(group), most):
                yield group[begin : begin + most]

    def _chunk(self, task: CohortTask, where: Cohort) -> Iterator[Block]:
        job, layers, weights = task.job, self._stack[1:], task.weights
        clients, held = task.clients[where], task.sizes[where]
        inputs, targets = _padded_records(job.federation, clients, held)
        start, width = first_of(self._stack, weights), int(held.max(initial=1))
        if job.isolated:
            width = int(size_class(held).max())
        gram = self._grams.of(clients, held, inputs, width)
        kind = job.federation.task
        dual = Dual(self._first, kind, inputs, targets, held, width, start, gram, job.isolated)
        tame = dual.tame
        if not tame.all():
            yield from self._rows_engine.train(task, where[~tame])
            if tame.any():
                yield from self._chunk(task, where[tame])
            return
        batches = draw_batches(clients, held, job.rule, task.round_number, job.randomness)
        rates = job.rule.learning_rate.of_round(task.round_number, batches.most_steps)
        upper = Upper(layers, parts_of(layers, weights, len(clients)))
        kernel = DualKernel(dual, upper, job.isolated)
        supply = DualSupply(dual, batches, self._batch_width(batches, width))
        moved, losses = local_updates(kernel.origin, supply, job.rule, rates, kernel, ())
        span = kernel.span(moved)
        _subtract(layers, upper.parts, weights)
        rows = self._rows(dual.rows(span), upper.parts)
        final = None
        if job.pipeline.sparsity:
            mask = torch.from_numpy(np.arange(inputs.shape[1]) < held[:, None])
            everything = inputs, targets, mask
            final = self._rows_engine.gradients(weights + rows, everything, None, 0.0)[0]
        yield task.block(where, rows, losses, final)

    def _batch_width(self, batches: Batches, width: int) -> int:
        """Return how many places a batch has: in an isolated chunk by the class of its sizes."""
        if batches.full:
            return width
        limit = self._job.rule.batch_size or width
        return min(limit, width) if self._job.isolated else batches.positions.shape[2]

    def _rows(self, lower: Tensor, parts: Parts) -> Tensor:
        """Return whole vectors `[clients, parameters]` from the first layer's and the others'."""
        if self._first == self._stack[0] and not parts:
            return lower
        weight, bias = self._first.weight_of(lower), self._first.bias_of(lower)
        return rows_of(self._stack, [(weight, bias), *parts])


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


def _subtract(layers: Stack, parts: Parts, start: Tensor) -> None:
    """Turn weights into updates, in place."""
    for layer, (weight, bias) in zip(layers, parts, strict=True):
        weight.sub_(layer.weight_of(start))
        before = layer.bias_of(start)
        if bias is not None and before is not None:
            bias.sub_(before)


def first_of(stack: Stack, vector: Tensor) -> Tensor:
    """Return the first layer's weights and bias in a vector of their own."""
    first = stack[0]
    bias = first.bias_of(vector)
    weight = vector[first.weight.start : first.weight.stop]
    return weight if bias is None else torch.cat([weight, bias])
