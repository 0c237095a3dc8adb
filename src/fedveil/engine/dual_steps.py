"""Local SGD on the coefficients of a client's examples, for a chunk of clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.engine.dual import Dual, Span
from fedveil.engine.mlp import output_error
from fedveil.local.records import Records
from fedveil.local.rule import GradientClip, LocalRule
from fedveil.privacy.clipping import Clip, clip_factors


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
    outputs = dual.outputs.shape[2]
    drift = 0.0  # the shift of everybody still training: all had the same rates
    for step, active in enumerate(records.active):
        rows, mask = records.places(step)
        gram, start, targets = (
            _select(part, active, rows) for part in (dual.gram, dual.outputs, dual.targets)
        )
        error = torch.baddbmm(start, gram, moved[:active], beta=1 + drift)
        loss = _error_rows(dual.task, error.view(-1, outputs), targets.reshape(-1))
        loss = loss.view(active, -1)
        rate = rates[step]
        if mask is None:
            losses[:active] += loss.mean(dim=1)
            error.mul_(-rate / loss.shape[1])
        else:
            share = mask / mask.sum(dim=1, keepdim=True)
            losses[:active] += (loss * share).sum(dim=1)
            error.mul_((share * -rate)[:, :, None])
        if rule.weight_decay:
            keep = 1 - rate * rule.weight_decay
            moved[:active].mul_(keep)
            drift = (1 + drift) * keep - 1
            shift[:active] = drift
        _scatter(moved[:active], rows, error)
    return Span(moved, shift), losses


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


def _error_rows(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Turn `outputs [examples, outputs]` into derivatives of the losses, which are returned."""
    if task is Task.REGRESSION:
        outputs.sub_(targets[:, None])
        return outputs[:, 0].square().mul_(0.5)
    count, classes = outputs.shape
    wanted = torch.arange(0, count * classes, classes).add_(targets)
    outputs.sub_(outputs.amax(dim=1, keepdim=True))
    flat = outputs.view(-1)
    chosen = flat.index_select(0, wanted)
    outputs.exp_()
    total = outputs.sum(dim=1, keepdim=True)
    outputs.div_(total)
    flat.index_add_(0, wanted, flat.new_full((count,), -1.0))
    return total[:, 0].log_().sub_(chosen)


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
