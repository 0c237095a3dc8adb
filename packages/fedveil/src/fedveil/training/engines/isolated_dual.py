"""Linear models of isolated clients with few examples: products of each alone, steps side by side.

A client's Gram matrix, its outputs at the shared weights and its update are matrix products on its
own records in its own memory. The steps between, on the coefficients of its examples (see `dual`),
go through `privacy.lanes` with the clients in the last axis: no client's numbers depend on those
beside it. Shapes are rounded up by the client's own size, so that clients of about the same size
train together, and nothing of it depends on who they are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.privacy.elementwise import tree_sum
from fedveil.training.client.batches import draw_batches
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.dual_clients import costs, dual_applies
from fedveil.training.engines.gram_cache import GramCache
from fedveil.training.engines.isolated_softmax import softmax
from fedveil.training.engines.one_client import lone_rows
from fedveil.training.models.tensors import as_tensor

_STEP = 30_000  # products in a client's step above which it is faster alone, by a library's
_TOGETHER = 4_000_000  # numbers that clients of one group hold at once
_LARGEST = 1e30  # of squared inputs: far from overflow


def lone_dual_applies(job: Job, layer: Affine) -> bool:
    """Whether steps are plain ones on coefficients, and updates as short as they are wide."""
    plain = job.rule.plain and job.pipeline.sparsity == 0
    return plain and dual_applies(job, (layer,)) and layer.activation == "none"


class LoneDual:
    """Trains isolated clients of a job whose model is this layer."""

    def __init__(self, job: Job, layer: Affine) -> None:
        self._layer = layer
        federation = job.federation
        # Whether matrices are kept decides how fast, not what comes out.
        self._grams = GramCache(federation, layer.inputs) if GramCache.fit(federation) else None

    def takes(self, job: Job, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Which clients of these sizes are faster this way; by its own size each."""
        by_rows, by_dual = costs(job.rule, self._layer, sizes)
        places = rounded_up(sizes)
        batch = places if job.rule.batch_size is None else np.minimum(places, job.rule.batch_size)
        return (by_dual < by_rows) & (places * batch * self._layer.outputs <= _STEP)

    def train(self, task: CohortTask, places: Cohort) -> Generator[Block, None, Cohort]:
        """Train the clients at these positions of the cohort; returns the positions of those whose
        inputs are too large to be multiplied with each other."""
        left = []
        for where, width in self._groups(task.sizes, places):
            left.append((yield from self._group(task, where, width)))
        return np.concatenate(left)

    def _groups(self, sizes: Cohort, places: Cohort) -> Iterator[tuple[Cohort, int]]:
        """Places of clients whose shapes are alike, the largest first, and their width."""
        widths = rounded_up(sizes[places])
        for width in np.unique(widths).tolist():
            group = places[widths == width]
            group = group[np.argsort(-sizes[group], kind="stable")]
            most = max(1, _TOGETHER // (width * (self._layer.inputs + width)))
            for begin in range(0, len(group), most):
                yield group[begin : begin + most], width

    def _group(self, task: CohortTask, where: Cohort, width: int) -> Generator[Block, None, Cohort]:
        job, layer, weights = task.job, self._layer, task.weights
        inputs, targets, tame = [], [], np.ones(len(where), np.bool_)
        gram = torch.zeros(len(where), width, width)
        start = torch.zeros(len(where), width, layer.outputs)
        for place, client in enumerate(task.clients[where].tolist()):
            own_inputs, own_targets = map(as_tensor, lone_rows(job.federation, client))
            records = own_inputs.flatten(1)
            square = _own_gram(self._grams, client, records)
            tame[place] = bool(square.diagonal().amax() < _LARGEST)
            size = len(records)
            gram[place, :size, :size] = square
            start[place, :size] = torch.mm(records, layer.weight_of(weights).t())
            inputs.append(records)
            targets.append(own_targets)
        if not tame.all():
            if tame.any():
                yield from self._group(task, where[tame], width)
            return where[~tame]
        bias = layer.bias_of(weights)
        if bias is not None:
            gram += 1  # beyond a client's size it meets coefficients that stay zero
            start += bias
        steps = _Steps(job, task.part(where), width, layer.outputs)
        moved, shift, losses = steps.train(gram, start, targets)
        updates = torch.empty(len(where), len(weights))
        for place, records in enumerate(inputs):
            own_moves = moved[: len(records), :, place].t().contiguous()
            layer.weight_of(updates[place]).copy_(torch.mm(own_moves, records))
        own_bias = layer.bias_of(updates)
        if own_bias is not None:
            own_bias.copy_(tree_sum(moved).t())
        if job.rule.weight_decay:
            updates += weights * shift[:, None]
        yield task.block(where, updates, losses)
        return where[:0]


class _Steps:
    """The batches of a group of clients, in order of falling step counts, clients last."""

    def __init__(self, job: Job, clients: CohortTask, width: int, outputs: int) -> None:
        rule, number = job.rule, clients.round_number
        batches = draw_batches(clients.clients, clients.sizes, rule, number, job.randomness)
        self._width, self._outputs, self._rule = width, outputs, rule
        self._regression = job.federation.task is Task.REGRESSION
        self._count = int(batches.steps.max(initial=0))
        self._steps = batches.steps
        self._active = (batches.steps[:, None] > np.arange(self._count)).sum(axis=0).tolist()
        self._full = batches.full
        positions, mask = (a.transpose(1, 2, 0) for a in (batches.positions, batches.mask))
        self._positions = np.ascontiguousarray(np.where(mask, positions, 0))  # [steps, batch, c]
        self._mask = torch.from_numpy(np.ascontiguousarray(mask))
        rates = np.zeros((self._count, len(clients.clients)))
        for place, own in enumerate(batches.steps.tolist()):
            rates[:own, place] = rule.learning_rate.of_round(number, own)
        self._rates = rates

    def train(
        self, gram: Tensor, start: Tensor, targets: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients `[examples, outputs, clients]`, shifts and mean losses `[clients]`, from
        Gram matrices `[clients, examples, examples]` and outputs `[clients, examples, outputs]`."""
        count = len(gram)
        wanted = torch.zeros(count, self._width, dtype=targets[0].dtype)
        for place, own in enumerate(targets):
            wanted[place, : len(own)] = own
        moved = torch.zeros(self._width, self._outputs, count)
        shift, losses = torch.zeros(count), torch.zeros(count)
        stored = self._positions.shape[0]
        gathered = [self._gather(gram, start, wanted, step) for step in range(stored)]
        for step, active in enumerate(self._active):
            here, drift = moved[:, :, :active], shift[:active]
            rows, at_start, answers, mask = (
                part[..., :active] for part in gathered[0 if self._full else step]
            )
            where = torch.from_numpy(self._positions[0 if self._full else step][:, :active])
            # Outputs [outputs, batch, clients]: those of the start, and what the steps added.
            scores = tree_sum(rows[:, None] * here[:, :, None])
            scores += at_start * (drift + 1) if self._rule.weight_decay else at_start
            rate = torch.from_numpy(-self._rates[step, :active]).float()
            error, loss = self._errors(scores, answers)
            shares = mask / mask.sum(dim=0)
            losses[:active] += (loss * shares).sum(dim=0)
            error = (error * (shares * rate)).masked_fill_(~mask, 0.0)
            if self._rule.weight_decay:
                keep = rate * self._rule.weight_decay + 1
                here.mul_(keep)
                drift.copy_((drift + 1) * keep - 1)
            # No example comes twice, and places that are not real add zero.
            index = where[:, None].expand(-1, self._outputs, -1)
            here.scatter_add_(0, index, error.transpose(0, 1))
        return moved, shift, losses / torch.from_numpy(self._steps).clamp(min=1)

    def _gather(
        self, gram: Tensor, start: Tensor, wanted: Tensor, step: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A step's rows of the matrices `[examples, batch, clients]`, its outputs at the start
        `[outputs, batch, clients]`, its targets and which are real `[batch, clients]`."""
        where = torch.from_numpy(self._positions[step])
        first = torch.arange(len(gram)) * self._width
        flat = (where + first).t().reshape(-1)
        shape = (len(gram), -1)
        rows = gram.flatten(0, 1).index_select(0, flat).view(*shape, self._width)
        outputs = start.flatten(0, 1).index_select(0, flat).view(*shape, self._outputs)
        answers = wanted.flatten().index_select(0, flat).view(shape)
        return (
            rows.permute(2, 1, 0).contiguous(),
            outputs.permute(2, 1, 0).contiguous(),
            answers.t().contiguous(),
            self._mask[step],
        )

    def _errors(self, scores: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of each example's loss by its outputs, and the loss; overwrites scores."""
        if self._regression:
            error = scores.sub_(answers)
            return error, error[0].square() / 2
        share, total = softmax(scores)
        losses = total.log() - scores.gather(0, answers[None])[0]
        minus = share.new_full((), -1.0).expand(1, *answers.shape)
        return share.scatter_add_(0, answers[None], minus), losses


def _own_gram(kept: GramCache | None, client: int, records: Tensor) -> Tensor:
    """One client's products of records, from its own memory alone."""
    known = None if kept is None else kept.known(client, len(records))
    if known is not None:
        return known
    own = torch.mm(records, records.t())
    if kept is not None:
        kept.keep(client, own)
    return own


def rounded_up(sizes: Cohort) -> Cohort:
    """Each size rounded up to few binary digits: 1 to 8, 16, 24, ..., 64, 80, ..., 128, 160, ..."""
    exponents = np.frexp((sizes - 1).astype(np.float64))[1]  # digits of size - 1
    unit = np.int64(1) << np.maximum(3, exponents - 3).astype(np.int64)
    rounded: Cohort = -(-sizes // unit) * unit
    return rounded
