"""Sums of clipped gradients of single examples, whatever the values.

Errors and inputs of layers are single-precision numbers, whose squares, and products of squares,
neither over- nor underflow in double precision. Norms, factors and the sum of clipped gradients are
computed there; an example of which anything is not finite counts as zero, it alone; the result is
rounded once. One record then moves it by at most twice the clip, up to rounding: each of the other
examples brings the same product, times a factor of its own.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.client.local_training import GradientClip
from fedveil.engines.affine import Stack
from fedveil.privacy.clipping import Clip, clip_factors


class ClippedSum:
    """For one client's batches of one size; all layers side by side in memory that is used again,
    because many small operations take longer than their arithmetic."""

    def __init__(self, stack: Stack, batch: int) -> None:
        self.batch = batch
        outputs, inputs = [layer.outputs for layer in stack], [layer.inputs for layer in stack]
        self._errors, self._states = _wide(sum(outputs), batch), _wide(sum(inputs), batch)
        self._powers = _wide(sum(outputs), batch), _wide(sum(inputs), batch)
        self._mine = torch.split(self._errors, outputs)
        self._read = torch.split(self._states, inputs)
        self._turned = [part.t() for part in self._read]
        self._ones = _segments(outputs), _segments(inputs)
        biases = [0.0 if layer.bias is None else 1.0 for layer in stack]
        self._biases = torch.tensor(biases, dtype=torch.float64)[:, None]
        slots = [slot for layer in stack for slot in (layer.weight, layer.bias) if slot is not None]
        self._sum = torch.empty(max(slot.stop for slot in slots), dtype=torch.float64)
        self._weights = [layer.weight_of(self._sum) for layer in stack]
        own = [layer.bias_of(self._sum) for layer in stack]
        self._own = [(bias, part) for bias, part in zip(own, self._mine, strict=True)]
        # Sums of squares over a layer may be off by this much, relatively.
        self._slack = (2 * max(*outputs, *inputs) + 16) * 2.0**-52

    def __call__(
        self,
        errors: list[Tensor],
        states: list[Tensor],
        real: npt.NDArray[np.bool_] | None,
        clip: GradientClip,
        denominator: float,
    ) -> Tensor:
        """The flat sum over the denominator, of errors and inputs `[units, batch]` of each layer;
        `real` says which examples count."""
        for into, part in zip((*self._mine, *self._read), (*errors, *states), strict=True):
            into.copy_(part)
        norms = self._norms(clip.order)
        finite = np.isfinite(norms)
        if not finite.all():
            self._leave_out(torch.from_numpy(~finite))
        factors = clip_factors(norms, Clip(clip.norm, clip.order), relative_error=self._slack)
        factors /= denominator
        if real is not None:
            factors *= real
        self._errors.mul_(torch.from_numpy(factors))
        for mine, turned, weight in zip(self._mine, self._turned, self._weights, strict=True):
            torch.mm(mine, turned, out=weight)
        for bias, mine in self._own:
            if bias is not None:
                torch.sum(mine, dim=1, out=bias)
        return self._sum.float()

    def _leave_out(self, wrong: Tensor) -> None:
        """Examples that count as zero; a factor of zero would not do, as infinity times it is no
        zero."""
        self._errors.masked_fill_(wrong, 0.0)
        self._states.masked_fill_(wrong, 0.0)

    def _norms(self, order: int) -> npt.NDArray[np.float64]:
        """Of each example's gradient, `[batch]`: not finite where anything of it is not, for the
        sums below meet every number of an example."""
        errors, states = self._powers
        of = torch.abs if order == 1 else torch.square
        of(self._errors, out=errors)
        of(self._states, out=states)
        sizes = torch.mm(self._ones[0], errors), torch.mm(self._ones[1], states)
        sums = sizes[1].add_(self._biases).mul_(sizes[0]).sum(dim=0)
        norms: npt.NDArray[np.float64] = (sums.sqrt_() if order == 2 else sums).numpy()
        return norms


def _wide(units: int, batch: int) -> Tensor:
    return torch.empty(units, batch, dtype=torch.float64)


def _segments(widths: list[int]) -> Tensor:
    """Ones where a unit belongs to a layer, `[layers, units]`."""
    ones = torch.zeros(len(widths), sum(widths), dtype=torch.float64)
    ends = [0, *itertools.accumulate(widths)]
    for row, (begin, end) in zip(ones, itertools.pairwise(ends), strict=True):
        row[begin:end] = 1
    return ones
