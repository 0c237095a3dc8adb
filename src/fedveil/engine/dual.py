"""Linear models whose clients have few examples: SGD on the examples' coefficients.

Every step moves the weights inside the span of the start `w0` and the client's own inputs X:

    w - w0 = A'X + r w0         A [examples, outputs], r a number (weight decay alone moves it)

so a client is trained on A, with the Gram matrix K = XX' (one more if there is a bias) in the place
of the data. The norm of an update is tr(A'KA) + 2 r <A, Xw0> + r^2 |w0|^2, and the sum of all
clipped updates is one matrix product. Exact up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.engine.mlp import output_error
from fedveil.engine.stack import Affine
from fedveil.local.records import Records
from fedveil.local.rule import GradientClip, LocalRule
from fedveil.privacy.clipping import Clip, clip_factors

# Norms come from products of single precision, whose error grows with cancellation: where the
# terms exceed the result by this factor (in squares), the update is formed and measured instead.
_CANCELLATION = 1e3


@dataclass(frozen=True)
class Span:
    """A vector `A'X + r w0` for each client of a chunk."""

    coefficients: Tensor  # A [clients, examples, outputs]
    shift: Tensor  # r [clients]


class Dual:
    """A chunk of clients: inputs `[clients, examples, features]`, padded ones get coefficient 0.

    `gram` is `[clients, examples, examples]` without the bias, if it is known; it is overwritten.
    """

    def __init__(
        self,
        layer: Affine,
        task: Task,
        inputs: Tensor,
        targets: Tensor,
        start: Tensor,
        gram: Tensor | None = None,
    ) -> None:
        self._layer, self._task = layer, task
        self._inputs, self._targets = inputs.flatten(2), targets
        self._start = start
        weight, bias = layer.weight_of(start), layer.bias_of(start)
        flat = self._inputs.flatten(0, 1)
        outputs = flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
        self._outputs = outputs.view(*targets.shape, -1)  # X w0
        if gram is None:
            gram = torch.bmm(self._inputs, self._inputs.transpose(1, 2))
        self._gram = gram if bias is None else gram.add_(1)
        self._start_square = float(start.square().sum(dtype=torch.float64))

    def train(
        self, records: Records, rule: LocalRule, rates: Sequence[float]
    ) -> tuple[Span, Tensor]:
        """Updates and mean losses `[clients]`; `records` hold the same padded inputs."""
        count, most, outputs = self._outputs.shape
        moved = self._outputs.new_zeros(count, most, outputs)
        shift = moved.new_zeros(count)
        velocity = torch.zeros_like(moved) if rule.momentum else None
        velocity_shift = torch.zeros_like(shift)
        losses = torch.zeros_like(shift)
        clip = rule.gradient_clip
        for step, active in enumerate(records.active):
            rate, here = rates[step], Span(moved[:active], shift[:active])
            rows, mask = records.places(step)
            error, loss = self._errors(here, rows, mask, rule)
            losses[:active] += loss
            if velocity is None and clip_whole(clip) is None:
                pull = rule.weight_decay + self._pull(here, rule)
                if rule.weight_decay or rule.penalty:
                    here.coefficients.mul_(_column(1 - rate * pull))
                    here.shift.mul_(1 - rate * pull).sub_(rate * rule.weight_decay)
                self._scatter(here.coefficients, rows, error, -rate)
            else:
                gradient = self._gradient(here, rows, error, rule)
                whole = clip_whole(clip)
                if whole is not None:
                    factors = clip_factors(self.norms(gradient), whole)
                    gradient.coefficients.mul_(_column(factors))
                    gradient.shift.mul_(factors)
                if velocity is not None:
                    held = Span(velocity[:active], velocity_shift[:active])
                    held.coefficients.mul_(rule.momentum).add_(gradient.coefficients)
                    held.shift.mul_(rule.momentum).add_(gradient.shift)
                    gradient = held
                here.coefficients.sub_(gradient.coefficients, alpha=rate)
                here.shift.sub_(gradient.shift, alpha=rate)
            if rule.projection_radius is not None:
                factors = clip_factors(self.norms(here), Clip(rule.projection_radius))
                here.coefficients.mul_(_column(factors))
                here.shift.mul_(factors)
        return Span(moved, shift), losses / torch.from_numpy(records.steps).clamp(min=1)

    def norms(self, vector: Span) -> Tensor:
        """L2 norms `[clients]` of the first so many clients' vectors."""
        active = len(vector.shift)
        images = torch.bmm(self._gram[:active], vector.coefficients)
        squares = _dot(vector.coefficients, images)
        terms = self._sizes(vector)
        if bool(vector.shift.any()):
            cross = _dot(vector.coefficients, self._outputs[:active])
            squares += vector.shift * (2 * cross + vector.shift * self._start_square)
        norms = squares.clamp(min=0).sqrt()
        for client in torch.nonzero(terms > _CANCELLATION * squares).flatten().tolist():
            one = Span(vector.coefficients[client : client + 1], vector.shift[client : client + 1])
            norms[client] = self.rows(one, client).double().norm()
        return norms

    def rows(self, vector: Span, first: int = 0) -> Tensor:
        """The vectors written out, `[clients, parameters]`, for clients from `first` on."""
        count = len(vector.shift)
        inputs = self._inputs[first : first + count]
        rows = self._start * vector.shift[:, None]
        self._layer.weight_of(rows).add_(torch.bmm(vector.coefficients.transpose(1, 2), inputs))
        bias = self._layer.bias_of(rows)
        if bias is not None:
            bias += vector.coefficients.sum(dim=1)
        return rows

    def sum(self, vector: Span, factors: Tensor) -> Tensor:
        """The sum of all clients' vectors, each times its factor, `[parameters]`."""
        weighted = vector.coefficients * _column(factors)
        total = self._start * (vector.shift * factors).sum()
        flat = weighted.flatten(0, 1)
        self._layer.weight_of(total).addmm_(flat.t(), self._inputs.flatten(0, 1))
        bias = self._layer.bias_of(total)
        if bias is not None:
            bias += flat.sum(dim=0)
        return total

    def final_gradient(self, vector: Span, records: Records) -> Tensor:
        """Gradients over all examples at `w0 + vector`, `[clients, parameters]`."""
        outputs = torch.baddbmm(
            self._outputs * _column(1 + vector.shift), self._gram, vector.coefficients
        )
        error, _ = output_error(self._task, outputs.transpose(1, 2), self._targets)
        mask = records.everything()[2]
        share = torch.ones_like(outputs[:, :, 0]) if mask is None else mask.to(outputs.dtype)
        share /= share.sum(dim=1, keepdim=True)
        coefficients = error.transpose(1, 2) * share[:, :, None]
        return self.rows(Span(coefficients, torch.zeros_like(vector.shift)))

    def _errors(
        self, here: Span, rows: Tensor | None, mask: Tensor | None, rule: LocalRule
    ) -> tuple[Tensor, Tensor]:
        """Coefficients of the step's data gradient `[clients, batch, outputs]`, and its loss."""
        active = len(here.shift)
        gram, outputs, targets = (
            _select(part, active, rows) for part in (self._gram, self._outputs, self._targets)
        )
        if rule.weight_decay:
            outputs = outputs * _column(1 + here.shift)
        outputs = torch.baddbmm(outputs, gram, here.coefficients)
        error, losses = output_error(self._task, outputs.transpose(1, 2), targets)
        error = error.transpose(1, 2)
        share = losses.new_full((), 1 / losses.shape[1]).expand(losses.shape)
        if mask is not None:
            real = mask.to(losses.dtype)
            share = real / real.sum(dim=1, keepdim=True)
        loss = (losses * share).sum(dim=1)
        if rule.gradient_clip is not None and rule.per_example:
            share = self._example_factors(error, rows, rule.gradient_clip)
            share /= float(rule.batch_size or 0)
            share = share if mask is None else share * mask
        return error * share[:, :, None], loss

    def _example_factors(self, error: Tensor, rows: Tensor | None, clip: GradientClip) -> Tensor:
        """Clipping factors of single examples, whose gradients are outer products."""
        if clip.order == 2:
            inputs = self._gram.diagonal(dim1=1, dim2=2).sqrt()
        else:
            inputs = self._inputs.abs().sum(dim=2) + (self._layer.bias is not None)
        picked = _select(inputs, len(error), rows)
        norms = torch.linalg.vector_norm(error, ord=clip.order, dim=2) * picked
        bound = Clip(clip.norm, clip.order)
        slack = (2 * self._inputs.shape[2] + 16) * 2.0**-24
        factors: Tensor = clip_factors(norms.flatten(), bound, relative_error=slack)
        return factors.view(norms.shape)

    def _pull(self, here: Span, rule: LocalRule) -> Tensor:
        """Strength of the penalty's pull on each client: none inside the radius."""
        if not rule.penalty:
            return torch.zeros_like(here.shift)
        if rule.penalty_radius == 0:
            return torch.full_like(here.shift, rule.penalty)
        return (self.norms(here) > rule.penalty_radius).to(here.shift.dtype).mul_(rule.penalty)

    def _gradient(self, here: Span, rows: Tensor | None, error: Tensor, rule: LocalRule) -> Span:
        """The step's whole gradient: data, decay and penalty."""
        pull = rule.weight_decay + self._pull(here, rule)
        coefficients = here.coefficients * _column(pull)
        self._scatter(coefficients, rows, error, 1.0)
        return Span(coefficients, here.shift * pull + rule.weight_decay)

    def _scatter(self, into: Tensor, rows: Tensor | None, error: Tensor, scale: float) -> None:
        if rows is None:
            into.add_(error, alpha=scale)
        else:
            into.flatten(0, 1).index_add_(0, rows, error.flatten(0, 1), alpha=scale)

    def _sizes(self, vector: Span) -> Tensor:
        """Upper bound on the squared terms that a norm is made of, cancellation apart."""
        lengths = self._gram[: len(vector.shift)].diagonal(dim1=1, dim2=2).sqrt()
        spread = (vector.coefficients.square().sum(dim=2).sqrt() * lengths).sum(dim=1)
        return (spread + vector.shift.abs() * math.sqrt(self._start_square)).square()


def clip_whole(clip: GradientClip | None) -> Clip | None:
    """The clip of whole gradients, if that is what the rule asks for."""
    return None if clip is None or clip.per_example else Clip(clip.norm, clip.order)


def _select(part: Tensor, active: int, rows: Tensor | None) -> Tensor:
    """The batch's rows of `[clients, examples, ...]`; `rows` index clients and examples at once."""
    if rows is None:
        return part[:active]
    picked = part.flatten(0, 1).index_select(0, rows)
    return picked.view(active, -1, *part.shape[2:])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.sum(a * b, dim=(1, 2))


def _column(numbers: Tensor) -> Tensor:
    return numbers[:, None, None]
