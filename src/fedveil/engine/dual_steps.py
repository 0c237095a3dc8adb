"""Local SGD on the coefficients of a client's examples, for a chunk of clients at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedveil.engine.dual import Dual, Span
from fedveil.engine.dual_block import Block
from fedveil.engine.mlp import output_error
from fedveil.local.records import Records
from fedveil.local.rule import GradientClip, LocalRule
from fedveil.privacy.clipping import Clip, clip_factors

_GATHERED = 1_000_000  # numbers that the steps of one block take: 4 MB


def train(
    dual: Dual, records: Records, rule: LocalRule, rates: Sequence[float]
) -> tuple[Span, Tensor]:
    """Updates and mean losses `[clients]`; `records` hold the dual's padded inputs."""
    way = _descend if rule.plain else _walk
    updates, losses = way(dual, records, rule, rates)
    return updates, losses / torch.from_numpy(records.steps).clamp(min=1)


def clip_whole(clip: GradientClip | None) -> Clip | None:
    """The clip of whole gradients, if that is what a rule asks for."""
    return None if clip is None or clip.per_example else Clip(clip.norm, clip.order)


def _descend(
    dual: Dual, records: Records, rule: LocalRule, rates: Sequence[float]
) -> tuple[Span, Tensor]:
    """Plain SGD with weight decay, in as few operations as it takes."""
    moved, shift = torch.zeros_like(dual.outputs), dual.outputs.new_zeros(len(dual.outputs))
    losses = torch.zeros_like(shift)
    drift = 0.0  # the shift of everybody still training: all had the same rates
    for steps, active in _blocks(dual, records):
        block = Block(dual, records, steps, active)
        here = moved[:active]
        for place, step in enumerate(steps):
            error = torch.baddbmm(block.start[place], block.gram[place], here, beta=1 + drift)
            block.differentiate(place, error)
            error.mul_(block.shares[place] * -rates[step])  # index_add_ is slow with a factor
            if rule.weight_decay:
                keep = 1 - rates[step] * rule.weight_decay
                here.mul_(keep)
                drift = (1 + drift) * keep - 1
                shift[:active] = drift
            _scatter(here, block.rows[place], error)
        losses[:active] += block.losses()
    return Span(moved, shift), losses


def _blocks(dual: Dual, records: Records) -> Iterator[tuple[range, int]]:
    """Steps that the same clients take, as many together as are gathered in one go."""
    width = dual.gram.shape[2] + 2 * dual.outputs.shape[2]
    begin = 0
    for active, group in itertools.groupby(records.active):
        end = begin + len(list(group))
        most = max(1, _GATHERED // max(1, active * records.width * width))
        for first in range(begin, end, most):
            yield range(first, min(end, first + most)), active
        begin = end


def _walk(
    dual: Dual, records: Records, rule: LocalRule, rates: Sequence[float]
) -> tuple[Span, Tensor]:
    """The whole rule, line by line."""
    moved = Span(torch.zeros_like(dual.outputs), dual.outputs.new_zeros(len(dual.outputs)))
    velocity = Span(torch.zeros_like(moved.coefficients), torch.zeros_like(moved.shift))
    losses = torch.zeros_like(moved.shift)
    whole = clip_whole(rule.gradient_clip)
    for step, active in enumerate(records.active):
        here = Span(moved.coefficients[:active], moved.shift[:active])
        rows, mask = records.places(step)
        error, loss = _errors(dual, here, rows, mask, rule)
        losses[:active] += loss
        pull = rule.weight_decay + _penalty(dual, here, rule)
        coefficients = here.coefficients * pull[:, None, None]
        _scatter(coefficients, rows, error)
        gradient = Span(coefficients, here.shift * pull + rule.weight_decay)
        if whole is not None:
            gradient.scale(clip_factors(dual.norms(gradient), whole))
        if rule.momentum:
            held = Span(velocity.coefficients[:active], velocity.shift[:active])
            held.coefficients.mul_(rule.momentum).add_(gradient.coefficients)
            held.shift.mul_(rule.momentum).add_(gradient.shift)
            gradient = held
        here.coefficients.sub_(gradient.coefficients, alpha=rates[step])
        here.shift.sub_(gradient.shift, alpha=rates[step])
        if rule.projection_radius is not None:
            here.scale(clip_factors(dual.norms(here), Clip(rule.projection_radius)))
    return moved, losses


def _errors(
    dual: Dual, here: Span, rows: Tensor | None, mask: Tensor | None, rule: LocalRule
) -> tuple[Tensor, Tensor]:
    """Coefficients of the step's data gradient `[clients, batch, outputs]`, and its loss."""
    active = len(here.shift)
    gram, start, targets = (
        _select(part, active, rows) for part in (dual.gram, dual.outputs, dual.targets)
    )
    outputs = torch.baddbmm(start * (1 + here.shift)[:, None, None], gram, here.coefficients)
    error, losses = output_error(dual.task, outputs.transpose(1, 2), targets)
    error = error.transpose(1, 2)
    share = torch.ones_like(losses) if mask is None else mask.to(losses.dtype)
    weight = share / share.sum(dim=1, keepdim=True)
    loss = (losses * weight).sum(dim=1)
    if rule.gradient_clip is not None and rule.per_example:
        factors = _example_factors(dual, error, rows, rule.gradient_clip)
        weight = share * factors / float(rule.batch_size or 0)
    return error * weight[:, :, None], loss


def _example_factors(dual: Dual, error: Tensor, rows: Tensor | None, clip: GradientClip) -> Tensor:
    """Clipping factors of single examples, whose gradients are outer products."""
    if clip.order == 2:
        lengths = dual.gram.diagonal(dim1=1, dim2=2).sqrt()
    else:
        lengths = dual.inputs.abs().sum(dim=2) + (dual.layer.bias is not None)
    norms = torch.linalg.vector_norm(error, ord=clip.order, dim=2)
    norms *= _select(lengths, len(error), rows)
    slack = (2 * dual.inputs.shape[2] + 16) * 2.0**-24
    bound = Clip(clip.norm, clip.order)
    factors: Tensor = clip_factors(norms.flatten(), bound, relative_error=slack)
    return factors.view(norms.shape)


def _penalty(dual: Dual, here: Span, rule: LocalRule) -> Tensor:
    """Strength of the penalty's pull on each client: none inside the radius."""
    if not rule.penalty:
        return torch.zeros_like(here.shift)
    if rule.penalty_radius == 0:
        return torch.full_like(here.shift, rule.penalty)
    outside = dual.norms(here) > rule.penalty_radius
    return outside.to(here.shift.dtype).mul_(rule.penalty)


def _select(part: Tensor, active: int, rows: Tensor | None) -> Tensor:
    """The batch's rows of `[clients, examples, ...]`; `rows` index clients and examples at once."""
    if rows is None:
        return part[:active]
    return part.flatten(0, 1).index_select(0, rows).view(active, -1, *part.shape[2:])


def _scatter(into: Tensor, rows: Tensor | None, values: Tensor) -> None:
    """Add the batch's rows to `[clients, examples, outputs]`; none of them comes twice."""
    if rows is None:
        into.add_(values)
    else:
        into.flatten(0, 1).index_add_(0, rows, values.flatten(0, 1))
