"""Sums of clipped gradients of single examples, of any module and in one pass over a batch.

Layers leave the factors of each example's gradient on a tape (`layer_gradients`). Per parameter,
whichever is least is computed:

    outer    a matrix that each example multiplies once: the norm is the product of two norms, and
             the clipped sum is one matrix product
    dense    the gradients of a piece of the batch themselves, once, for their norm and their sum
    gram     a matrix with few positions and many entries: squared norms from products of positions
             with positions; the sum is one more product. For L2 only; in protected runs for
             persons only, in double precision.

Parameters that no layer hands over get a copy for each example, whose gradient autograd computes.
Where persons are protected, a person is one example of several records: its loss is the mean of
theirs, and each layer sees its records as further positions of the example.
All of it runs in pieces of a batch whose size follows from shapes, so memory is bounded.

Formal guarantee, except for `gram` in simulations: let g_i be the gradient of example i as
computed, or what it is for `outer` and `gram` in exact arithmetic. It depends on the example, its
place, the batch's size, weights and what the module draws, never on the values of other examples
(`vmap`, and kernels whose instructions do not depend on values). An example of which anything is
not finite counts as zero. Norms are computed in double precision, where no square of a
single-precision number over- or
underflows, and factors f_i such that |f_i g_i| is at most the clip, rounding included. The f_i g_i
of b examples are added up in double precision and rounded once by the caller: the sum is off by at
most (b + 4) * 2^-53 * b * clip, and the rounding by 2^-24 * b * clip. In simulations they are added
up in single precision.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedveil.core.containment import contained
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.contract import Job
from fedveil.training.engines.kernels import is_known, tuned
from fedveil.training.engines.known_layers import hand_over
from fedveil.training.engines.layer_gradients import (
    Dense,
    Pair,
    Part,
    Tape,
)
from fedveil.training.models.flat import Slot, flatten
from fedveil.training.models.losses import ClassWeights, example_losses
from fedveil.training.models.structure import drawing_from
from fedveil.training.models.tensors import as_tensor

# Numbers that one piece of a batch may take: 32 MB, or 256 MB for a piece of 32 examples.
_VALUES, _VALUES_OF_FEW, _FEW = 8_000_000, 64_000_000, 32
_MOST_ROWS = 512  # examples in a piece
_FEW_POSITIONS = 64  # of products in double precision


@dataclass(frozen=True)
class ExampleWay:
    """How gradients of single examples of a job are computed.

    Attributes:
        layers: Whether known layers hand over their gradients; else all go through `vmap`.
        exact: Whether the formal guarantee must hold, so that nothing goes through `gram`.
        piece: Examples that are computed together.
    """

    layers: bool
    exact: bool
    piece: int = 2


class ExampleGradients:
    """Clipped gradients of a batch of one client.

    Args:
        job: What is trained. If it is isolated, an example at which the module or the loss raises
            counts as zero.
        device: Where.
        way: How, as `example_way` found.
    """

    def __init__(self, job: Job, device: torch.device, way: ExampleWay) -> None:
        self._layout, self._task, self._loss = job.layout, job.federation.task, job.rule.loss
        self._exact, self._piece = way.exact, way.piece
        self._contained = contained if job.isolated else nullcontext
        known = is_known(job.module)
        apart = self._loss is None or type(self._loss) is ClassWeights  # others may mix examples
        self._tape = Tape(self._eager, whole=way.layers and known and apart)
        self._module = tuned(job.module).train().to(device)
        self._rest = [slot.name for slot in job.layout]
        if way.layers:
            self._rest = hand_over(self._module, job.layout, self._tape, known)
        rest = set(self._rest)
        self._slots = [slot for slot in job.layout if slot.name in rest]
        named = dict(self._module.named_parameters())
        self._handed = [named[slot.name] for slot in job.layout if slot.name not in rest]
        self._order = 2

    def __call__(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        clip: GradientClip,
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the sum of clipped gradients.

        Args:
            weights: `[parameters]`.
            inputs: Any number of examples, also none, `[examples, ...]`; of persons
                `[persons, records, ...]`.
            targets: Theirs, alike.
            clip: The bound on each example's gradient, all parameters jointly.
            shares: What each record counts for in its person's loss, `[persons, records]`.

        Returns:
            The sum `[parameters]`, in double precision if it must be exact, and each example's loss
            `[examples]`.
        """
        self._tape.weights, self._order = weights, clip.order
        kind = torch.float64 if self._exact else weights.dtype
        total, losses = torch.zeros_like(weights, dtype=kind), weights.new_zeros(len(inputs))
        if shares is None:
            inputs, targets = inputs.unsqueeze(1), targets.unsqueeze(1)
            shares = weights.new_ones(len(inputs), 1)
        step = max(1, self._piece // shares.shape[1])
        for begin in range(0, len(inputs), step):
            part = slice(begin, begin + step)
            losses[part] = self._add(total, inputs[part], targets[part], shares[part], clip)
        return total, losses

    def numbers(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> float:
        """Count what one of these examples takes of memory, roughly; errors are raised."""
        self._tape.weights, self._tape.numbers = weights, 0
        self._backward(inputs.unsqueeze(1), targets.unsqueeze(1), weights.new_ones(len(inputs), 1))
        for _, part in self._merged():
            tensors = (one for one in vars(part).values() if isinstance(one, Tensor))
            self._tape.numbers += sum(tensor.numel() for tensor in tensors)
        return self._tape.numbers / len(inputs)

    def _add(
        self, total: Tensor, inputs: Tensor, targets: Tensor, shares: Tensor, clip: GradientClip
    ) -> Tensor:
        """Add a piece's clipped gradients; returns losses.

        If an isolated client's piece raises, each of its examples is tried by itself, in a piece of
        nothing but its copies. Those that raise give their places to copies of one that does not,
        so that the others are computed in the same shape, bit for bit, and count as zero.
        """

        def works(example: int) -> bool:
            with contained() as attempt:
                self._backward(*(c[example].expand_as(c) for c in (inputs, targets, shares)))
            return not attempt.failed

        counts = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
        with self._contained() as attempt:
            losses = self._backward(inputs, targets, shares)
        if attempt is not None and attempt.failed:
            found = [works(example) for example in range(len(inputs))]
            counts = torch.tensor(found, device=inputs.device)
            if not any(found):
                return self._tape.weights.new_zeros(len(inputs))
            order = torch.where(
                counts, torch.arange(len(inputs), device=inputs.device), found.index(True)
            )
            losses = self._backward(inputs[order], targets[order], shares[order])
            losses = losses * counts
        _add_clipped(total, self._merged(), counts, clip)
        return losses

    def _example_loss(
        self,
        inputs: Tensor,
        targets: Tensor,
        shares: Tensor,
        anchor: Tensor,
        rest: dict[str, Tensor],
    ) -> Tensor:
        self._tape.anchor = anchor
        outputs = functional_call(self._module, rest, (inputs,)) if rest else self._module(inputs)
        return (example_losses(self._task, outputs, targets, self._loss) * shares).sum()

    def _backward(self, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        """Leave what a piece's gradients are made of on the tape; returns losses.

        All arguments have axes for examples and for their records, `[examples, records, ...]`.
        """
        tape, count = self._tape, len(inputs)
        tape.parts, tape.records = {}, inputs.shape[1]
        anchor = tape.weights.new_zeros(count, requires_grad=True)
        rest = {
            slot.name: tape.value(slot).expand(count, *slot.shape).detach().requires_grad_()
            for slot in self._slots
        }
        if tape.whole:
            tape.anchor = anchor
            records, wanted = inputs.flatten(0, 1), targets.flatten(0, 1)
            found = example_losses(self._task, self._module(records), wanted, self._loss)
            losses = (found.view_as(shares) * shares).sum(1)
        else:
            each = vmap(self._example_loss, randomness="different")
            losses = each(inputs, targets, shares, anchor, rest)
        parameters = [anchor, *rest.values(), *self._handed]
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
        if any(one is not None for one in gradients[1 + len(rest) :]):
            raise NotImplementedError("a parameter is used outside of its layer")
        for slot, gradient in zip(self._slots, gradients[1:], strict=False):
            if gradient is not None:
                tape.add(slot, Dense(gradient))
        return losses.detach()

    def _eager(self, inputs: int, outputs: int, positions: int) -> bool:
        """Whether gradients of single examples are formed, rather than products of positions.

        Forming them takes `positions` multiplications for an entry, whose gradient is then written
        and read again: about 64 more. Products of positions leave the sum still to be computed,
        which takes `positions` as well, in one large product at twice the speed.
        """
        if self._exact or self._order == 1:
            return True
        dense = inputs * outputs * (2 * positions + 64)
        return dense <= positions**2 * (inputs + outputs) + inputs * outputs * positions

    def _merged(self) -> list[tuple[Slot, Part]]:
        """Return one part for each parameter."""
        return [(slot, self._merge(parts)) for slot, parts in self._tape.parts.values()]

    def _merge(self, parts: list[Part]) -> Part:
        """Join the parts of a parameter; a layer that is used twice has twice the positions."""
        part, pairs = parts[0], [one for one in parts if isinstance(one, Pair)]
        if len(parts) > 1 and len(pairs) == len(parts):
            states, errors = ([one.states for one in pairs], [one.errors for one in pairs])
            part = Pair(torch.cat(states, 1), torch.cat(errors, 1))
        elif len(parts) > 1:
            part = Dense(torch.stack([one.dense() for one in parts]).sum(0))
        if isinstance(part, Pair):
            positions, sizes = part.states.shape[1], (part.states.shape[2], part.errors.shape[2])
            formed = self._eager(*sizes, positions) and not self._wide(*sizes, positions)
            if positions != 1 and formed:
                return Dense(part.dense())
        return part

    def _wide(self, inputs: int, outputs: int, positions: int) -> bool:
        """Whether a person's gradient stays a product, which must be exact: in double precision."""
        few = positions <= _FEW_POSITIONS and 4 * positions * (inputs + outputs) < inputs * outputs
        return few and self._exact and self._order == 2 and self._tape.records > 1


@torch.no_grad()
def _add_clipped(
    total: Tensor, parts: list[tuple[Slot, Part]], counts: Tensor, clip: GradientClip
) -> None:
    """Clip the gradients of a piece of a batch, and add them to `total [parameters]`.

    Args:
        total: The sum, which is changed.
        parts: One for each parameter.
        counts: Which examples count, `[examples]`.
        clip: The bound.
    """
    order, size = clip.order, sum(slot.stop - slot.start for slot, _ in parts)
    powers = torch.zeros(len(counts), dtype=torch.float64, device=counts.device)
    for _, part in parts:
        powers += part.powers(order, len(counts), total.dtype)
    norms = (powers.sqrt() if order == 2 else powers).cpu()
    # Sums of squares are off by a rounding of doubles for each term, and a factor and its product
    # are rounded to single precision.
    slack = (size + 64) * 2.0**-52 + 2.0**-21
    factors = clip_factors(norms, Clip(clip.norm, order), relative_error=slack)
    factors = factors.to(counts.device) * counts
    for slot, part in parts:
        part.add(total[slot.start : slot.stop].view(slot.shape), factors)


# By module, and by what else decides: settings and shapes of the job.
_WAYS: WeakKeyDictionary[nn.Module, dict[object, tuple[Any, ExampleWay | str]]]
_WAYS = WeakKeyDictionary()


def example_way(job: Job) -> ExampleWay | str:
    """Decide how gradients of single examples are computed, by trying on zeros.

    Nobody's record decides it: only shapes are looked at.

    Args:
        job: What is to be trained.

    Returns:
        The way, or why neither layers nor `vmap` can do it, in one clause.
    """
    inputs, targets = zeros_like(job, 2)
    known, loss = _WAYS.setdefault(job.module, {}), job.rule.loss
    key = job.isolated, id(loss), job.layout, inputs.shape, inputs.dtype, targets.shape
    if key not in known:  # beside the loss itself, whose id is nobody else's as long as it lives
        known[key] = loss, _tried(job, inputs, targets)
    return known[key][1]


def _tried(job: Job, inputs: Tensor, targets: Tensor) -> ExampleWay | str:
    weights, reason = flatten(job.module), ""
    for layers in (True, False):
        way = ExampleWay(layers, job.isolated)
        try:
            gradients = ExampleGradients(replace(job, isolated=False), torch.device("cpu"), way)
            with drawing_from(0):
                numbers = int(gradients.numbers(weights, inputs, targets)) + 1
            few, many = min(_FEW, _VALUES_OF_FEW // numbers), min(_MOST_ROWS, _VALUES // numbers)
            return replace(way, piece=max(1, few, many))
        except Exception as error:  # whatever a user's module may raise under vmap
            reason = first_line(error)
    return f"torch.func cannot batch the model: {reason}"


def zeros_like(job: Job, count: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of so many examples, all zeros: nobody's record decides a way."""
    train = job.federation.train
    inputs = job.federation.model_inputs(
        np.zeros((count, *train.inputs.shape[1:]), train.inputs.dtype)
    )
    return as_tensor(inputs), as_tensor(
        np.zeros((count, *train.targets.shape[1:]), train.targets.dtype)
    )


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
