"""Local SGD on the coefficients of a client's examples, for a chunk of clients at once.

Layers above the one whose weights are such combinations are trained as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.engines.affine import Affine, Parts, Stack
from fedveil.training.engines.dual import Dual, Span
from fedveil.training.engines.dual_block import StepBlock
from fedveil.training.engines.mlp import output_error
from fedveil.training.engines.records import Records

_LARGEST = torch.finfo(torch.float32).max
_GATHERED = 1_000_000  # numbers that the steps of one block take: 4 MB


@dataclass(frozen=True)
class Upper:
    """The layers above the dual's, each client with weights of its own, which training changes."""

    layers: Stack
    parts: Parts


def train(
    dual: Dual, records: Records, rule: LocalTraining, rates: Sequence[float], upper: Upper
) -> tuple[Span, Tensor]:
    """Updates of the dual's layer and mean losses `[clients]`; `records` hold the dual's padded
    inputs. With layers above, the rule is plain SGD with weight decay."""
    if rule.plain:
        updates, losses = _descend(dual, records, rule, rates, upper)
    elif upper.layers:
        raise ValueError("networks go through the dual by plain SGD alone")
    else:
        updates, losses = _walk(dual, records, rule, rates)
    return updates, losses / torch.from_numpy(records.steps).clamp(min=1)


def clip_whole(clip: GradientClip | None) -> Clip | None:
    """The clip of whole gradients, if that is what a rule asks for."""
    return None if clip is None or clip.per_example else Clip(clip.norm, clip.order)


def _descend(
    dual: Dual, records: Records, rule: LocalTraining, rates: Sequence[float], upper: Upper
) -> tuple[Span, Tensor]:
    """Plain SGD with weight decay, in as few operations as it takes."""
    moved, shift = torch.zeros_like(dual.outputs), dual.outputs.new_zeros(len(dual.outputs))
    losses = torch.zeros_like(shift)
    drift = 0.0  # the shift of everybody still training: all had the same rates
    outputs = upper.layers[-1].outputs if upper.layers else dual.layer.outputs
    for steps, active in _blocks(dual, records):
        block = StepBlock(dual, records, steps, active, outputs)
        here = moved[:active]
        above: Parts = [(w[:active], None if b is None else b[:active]) for w, b in upper.parts]
        for place, step in enumerate(steps):
            state = torch.baddbmm(block.start[place], block.gram[place], here, beta=1 + drift)
            states = _rise(state, dual.layer, upper.layers, above)
            error = states[-1]
            block.differentiate(place, error, -rates[step])
            keep = 1 - rates[step] * rule.weight_decay
            if above:
                error = _fall(states, dual.layer, upper.layers, above, keep)
            if rule.weight_decay:
                here.mul_(keep)
                drift = (1 + drift) * keep - 1
                if abs(drift) > _LARGEST:  # as weights overflow: torch takes no such number
                    drift = math.copysign(math.inf, drift)
                shift[:active] = drift
            _scatter(here, block.rows[place], error)
        losses[:active] += block.losses()
    return Span(moved, shift), losses


def _rise(state: Tensor, first: Affine, layers: Stack, parts: Parts) -> list[Tensor]:
    """What each layer above the first reads, and the network's output, `[clients, batch, units]`.

    `state` is what the first layer gives before its activation; it is overwritten.
    """
    states = [first.activate(state)]
    for layer, (weight, bias) in zip(layers, parts, strict=True):
        if bias is None:
            state = torch.bmm(states[-1], weight.mT)
        else:
            state = torch.baddbmm(bias[:, None], states[-1], weight.mT)
        states.append(layer.activate(state))
    return states


def _fall(states: list[Tensor], first: Affine, layers: Stack, parts: Parts, keep: float) -> Tensor:
    """Move every layer above the first: `weights = keep * weights + error' state`, where the last
    of `states` is the network's error by now. Returns the error before the first activation."""
    error = states[-1]
    for index in range(len(layers) - 1, -1, -1):
        (weight, bias), state = parts[index], states[index]
        below = torch.bmm(error, weight)
        weight.baddbmm_(error.mT, state, beta=keep)
        if bias is not None:
            bias.mul_(keep).add_(error.sum(dim=1))
        error = (layers[index - 1] if index else first).before_activation(below, state)
    return error


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
    dual: Dual, records: Records, rule: LocalTraining, rates: Sequence[float]
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
    dual: Dual, here: Span, rows: Tensor | None, mask: Tensor | None, rule: LocalTraining
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
        error = torch.nan_to_num(error, 0.0, 0.0, 0.0)  # where its factor is zero
    return error * weight[:, :, None], loss


def _example_factors(dual: Dual, error: Tensor, rows: Tensor | None, clip: GradientClip) -> Tensor:
    """Clipping factors of single examples, whose gradients are outer products."""
    lengths = dual.lengths
    if clip.order == 1:
        lengths = dual.inputs.double().abs().sum(dim=2) + (dual.layer.bias is not None)
    norms = torch.linalg.vector_norm(error, ord=clip.order, dim=2, dtype=torch.float64)
    norms *= _select(lengths, len(error), rows)
    # Factors are rounded to single precision, and so is what they are multiplied by.
    slack = 2.0**-22 + (2 * dual.inputs.shape[2] + 16) * 2.0**-52
    bound = Clip(clip.norm, clip.order)
    factors: Tensor = clip_factors(norms.flatten(), bound, relative_error=slack)
    return factors.view(norms.shape).to(error.dtype)


def _penalty(dual: Dual, here: Span, rule: LocalTraining) -> Tensor:
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
