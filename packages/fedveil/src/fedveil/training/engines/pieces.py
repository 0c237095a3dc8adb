"""Gradients of secret batches: an example's own does not depend on who else is in its batch.

A secret batch varies in size, and one more record moves the others to other places of it. Kernels
may round otherwise in another shape or place, and a record with huge values turns such a rounding
into another gradient. So a batch is cut into pieces of one public size, the last one filled up,
and a kernel is used in pieces only if it gives the same bits at every place of a piece, which is
tried on made-up examples. Kernels execute the same instructions whatever the values are, so what
holds for made-up examples holds for all. Sums of pieces are taken in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedveil.data.federation import Task
from fedveil.data.unusable import no_target
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.contract import Job
from fedveil.training.engines.local_sgd import Gradients
from fedveil.training.engines.records import Batch
from fedveil.training.models.check import token_limit
from fedveil.training.models.flat import flatten

Fill = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_SIZES = (64, 16, 4)  # of pieces, the fastest first; in a piece of one every place is the same
_KNOWN: WeakKeyDictionary[nn.Module, dict[type, int]] = WeakKeyDictionary()  # by kernel


class InPieces:
    """Clipped gradients of a client's secret batch, in pieces.

    Args:
        inner: Computes the sum of clipped gradients of one piece, in double precision inside.
        piece: Examples in a piece.
        unusable: Makes an example's inputs and target, `[...]`, such that its gradient is not
            finite and counts as zero: pieces are filled up with it.
    """

    def __init__(self, inner: Gradients, piece: int, unusable: Fill) -> None:
        self._inner, self._piece, self._unusable = inner, piece, unusable

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if clip is None:
            return self._inner(weights, batch, clip, denominator)
        inputs, targets, mask = batch
        total, losses = torch.zeros_like(weights, dtype=torch.float64), weights.new_zeros(1)
        real = inputs.shape[1] if mask is None else int(mask.sum())  # they come first
        for begin in range(0, real, self._piece):
            end = min(begin + self._piece, real)
            part = self._filled(inputs[0, begin:end], targets[0, begin:end])
            gradient, _ = self._inner(weights, part, clip, denominator)
            total += gradient
        return total.to(weights.dtype), losses

    def _filled(self, inputs: Tensor, targets: Tensor) -> Batch:
        missing = self._piece - len(inputs)
        if missing:
            filling = self._unusable(inputs[:1], targets[:1])
            inputs, targets = (
                torch.cat([part, one.expand(missing, *one.shape[1:])])
                for part, one in zip((inputs, targets), filling, strict=True)
            )
        return inputs[None].contiguous(), targets[None].contiguous(), None


def in_pieces(job: Job, inner: Gradients, *, autograd: bool) -> Gradients:
    """Return gradients for a job's batches: in pieces if these are secret, else as they are.

    Args:
        job: What is trained; in simulations nothing is certified, and batches stay whole.
        inner: Computes gradients of a batch of one client.
        autograd: Whether it runs the module itself (see `records.model_rows`).
    """
    if job.rule.batch_rate is None or not job.rule.per_example or not job.isolated:
        return inner

    def unusable(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if autograd:
            return inputs, torch.full_like(targets, no_target(job.federation.task))
        return torch.full_like(inputs, torch.nan), targets

    known = _KNOWN.setdefault(job.module, {})
    if type(inner) not in known:
        fits = (n for n in _SIZES if _same_at_every_place(job, InPieces(inner, n, unusable), n))
        known[type(inner)] = next(fits, 1)
    return InPieces(inner, known[type(inner)], unusable)


def _same_at_every_place(job: Job, gradients: InPieces, piece: int) -> bool:
    """Whether an example has the same gradient, bit for bit, at every place of a piece."""
    if job.rule.gradient_clip is None:
        return False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = flatten(job.module)
        weights = (weights + 0.1 * torch.randn_like(weights))[None]
        inputs, targets = _made_up(job)
        empty, none = gradients._unusable(inputs, targets)
        found = []
        for place in range(piece):
            around = torch.arange(piece) == place
            rows = torch.where(_as_wide(around, inputs), inputs, empty)
            wanted = torch.where(_as_wide(around, targets), targets, none)
            batch = rows[None].contiguous(), wanted[None].contiguous(), None
            found.append(gradients(weights, batch, job.rule.gradient_clip, 1.0)[0].clone())
    return all(torch.equal(one, found[0]) for one in found) and bool(found[0].any())


def _as_wide(choice: Tensor, values: Tensor) -> Tensor:
    return choice.view(-1, *(1,) * (values.ndim - 1))


def _made_up(job: Job) -> tuple[Tensor, Tensor]:
    """Return a random example `[1, ...]` of the shape and kind that the model sees."""
    federation, limit = job.federation, token_limit(job.module, job.federation)
    shape = (1, *federation.input_shape)
    inputs = torch.randn(shape) if limit is None else torch.randint(limit, shape)
    own = tuple(federation.train.targets.shape[1:])
    if federation.task is Task.REGRESSION:
        return inputs, torch.randn(1, *own)
    classes = 2 if federation.task is Task.MULTI_LABEL else federation.classes
    return inputs, torch.randint(classes, (1, *own))
