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

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedveil.core.containment import contained
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.contract import Job
from fedveil.training.engines.isolated_gradients import LEAST_NORM
from fedveil.training.engines.kernels import is_known, tuned
from fedveil.training.engines.known_layers import hand_over
from fedveil.training.engines.layer_gradients import (
    Dense,
    Pair,
    Part,
    Patches,
    Tape,
    TokenRows,
    power_sums,
)
from fedveil.training.models.flat import Slot, flatten
from fedveil.training.models.losses import ClassWeights, example_losses
from fedveil.training.models.structure import drawing_from
from fedveil.training.models.tensors import as_tensor

# Numbers that one piece of a batch may take: 32 MB, or 256 MB for a piece of 32 examples.
_VALUES, _VALUES_OF_FEW, _FEW = 8_000_000, 64_000_000, 32
_MOST_ROWS = 512  # examples whose outer products are added up in one product
_BLOCK = 1 << 16  # numbers that are widened to double precision at once
_TINY = 2.0**-60  # factors below are applied in double precision
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
        total, losses = _Sum(torch.zeros_like(weights, dtype=kind)), weights.new_zeros(len(inputs))
        if shares is None:
            inputs, targets = inputs.unsqueeze(1), targets.unsqueeze(1)
            shares = weights.new_ones(len(inputs), 1)
        step = max(1, self._piece // shares.shape[1])
        for begin in range(0, len(inputs), step):
            part = slice(begin, begin + step)
            losses[part] = self._add(total, inputs[part], targets[part], shares[part], clip)
        return total.result(), losses

    def numbers(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> float:
        """Count what one of these examples takes of memory, roughly; errors are raised."""
        self._tape.weights, self._tape.numbers = weights, 0
        self._backward(inputs.unsqueeze(1), targets.unsqueeze(1), weights.new_ones(len(inputs), 1))
        for _, part in self._merged():
            tensors = (one for one in vars(part).values() if isinstance(one, Tensor))
            self._tape.numbers += sum(tensor.numel() for tensor in tensors)
        return self._tape.numbers / len(inputs)

    def _add(
        self, total: _Sum, inputs: Tensor, targets: Tensor, shares: Tensor, clip: GradientClip
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
        total.add(self._merged(), counts, clip)
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


class _Sum:
    """A sum of clipped gradients, `[parameters]`."""

    def __init__(self, total: Tensor) -> None:
        self._total = total
        self._outer: dict[int, tuple[Slot, list[Tensor], list[Tensor]]] = {}
        self._rows = 0

    @torch.no_grad()
    def add(self, parts: list[tuple[Slot, Part]], counts: Tensor, clip: GradientClip) -> None:
        """Clip the gradients of a piece of a batch, and add them.

        Args:
            parts: One for each parameter.
            counts: Which examples count, `[examples]`.
            clip: The bound.
        """
        order, size = clip.order, sum(slot.stop - slot.start for slot, _ in parts)
        powers = torch.zeros(len(counts), dtype=torch.float64, device=counts.device)
        for _, part in parts:
            powers += _powers(part, order, len(counts), self._total.dtype)
        norms = (powers.sqrt() if order == 2 else powers).cpu()
        # Sums of squares are off by a rounding of doubles for each term, and a factor and its
        # product are rounded to single precision.
        slack = (size + 64) * 2.0**-52 + 2.0**-21
        factors = clip_factors(norms, Clip(clip.norm, order), relative_error=slack)
        factors = factors.to(counts.device) * counts
        for slot, part in parts:
            self._add(slot, part, factors)
        self._rows += len(counts)
        if self._rows >= _MOST_ROWS:
            self._flush()

    def _add(self, slot: Slot, part: Part, factors: Tensor) -> None:
        into = self._total[slot.start : slot.stop]
        if isinstance(part, TokenRows):
            values = _times(part.values, factors[part.examples])
            into.view(slot.shape).index_add_(0, part.tokens, values.to(into.dtype))
        elif isinstance(part, Dense):
            rows, single = part.gradients.flatten(1), factors.to(part.gradients.dtype)
            odd = factors < _TINY
            if bool(odd.any()):  # a tiny factor has few digits, and infinity times zero is no zero
                rows = torch.where(odd[:, None], _times(rows, factors), rows)
                single.masked_fill_(odd, 1.0)
            self._add_rows(into, rows, single)
        elif isinstance(part, Pair) and part.states.shape[1] == 1:
            self._add_outer(slot, part, factors)
        elif isinstance(part, Pair):
            wide = (part.errors.to(into.dtype), part.states.to(into.dtype))
            errors, states = _times(wide[0], factors), _times(wide[1], factors > 0)
            into.view(slot.shape).addmm_(errors.flatten(0, 1).t(), states.flatten(0, 1))
        elif isinstance(part, Patches):
            images, errors = _times(part.images, factors > 0), _times(part.errors, factors)
            gradient = part.layer.kernel_gradient(images.flatten(0, 1), errors.flatten(0, 1))
            into.view(slot.shape).add_(gradient)

    def _add_rows(self, into: Tensor, rows: Tensor, factors: Tensor) -> None:
        """Add rows times factors; they are widened a few columns at a time, in the cache."""
        width = rows.shape[1] if into.dtype is rows.dtype else max(1, _BLOCK // len(rows))
        columns = zip(torch.split(into, width), torch.split(rows, width, 1), strict=True)
        for total, part in columns:
            total.addmv_(part.to(into.dtype).t(), factors.to(into.dtype))

    def _add_outer(self, slot: Slot, part: Pair, factors: Tensor) -> None:
        """Keep both sides of outer products until there are many.

        States are scaled to a length between a half and one by a power of two, and errors the other
        way, so that neither the scaled numbers nor their products over- or underflow.
        """
        states, errors = part.states[:, 0], part.errors[:, 0]
        lengths = power_sums(states, 2).sqrt().nan_to_num_(1.0, 1.0)  # those count as zero
        scale = torch.ldexp(torch.ones_like(factors), -torch.frexp(lengths).exponent)
        _, lefts, rights = self._outer.setdefault(slot.start, (slot, [], []))
        lefts.append(_times(errors, factors / scale))
        rights.append(_times(states, torch.where(factors > 0, scale, 0.0)))

    def _flush(self) -> None:
        for slot, errors, states in self._outer.values():
            into = self._total[slot.start : slot.stop].view(slot.shape)
            left, right = (torch.cat(side).to(into.dtype) for side in (errors, states))
            into.addmm_(left.t(), right)
        self._outer, self._rows = {}, 0

    def result(self) -> Tensor:
        """Return the sum."""
        self._flush()
        return self._total


def _times(values: Tensor, factors: Tensor) -> Tensor:
    """Multiply the values of each example by a factor; where that is zero, they become zero."""
    apart = (...,) + (None,) * (values.dim() - 1)
    found = values if factors.dtype is torch.bool else (values * factors[apart]).to(values.dtype)
    zero = factors == 0
    return found.masked_fill(zero[apart], 0.0) if bool(zero.any()) else found


def _powers(part: Part, order: int, count: int, kind: torch.dtype) -> Tensor:
    """Sum the absolute values or squares of each example's gradient, `[examples]`.

    Products of positions may cancel. In double precision, the norm counts as at least 2^-10 of the
    sum of their norms, as in `isolated_gradients`.
    """
    if isinstance(part, Patches):
        part = part.pair()
    if isinstance(part, TokenRows):
        sums = power_sums(part.values, order)
        return sums.new_zeros(count).index_add_(0, part.examples, sums)
    if not isinstance(part, Pair):
        return power_sums(part.dense(), order)
    if part.states.shape[1] == 1:
        return power_sums(part.states, order) * power_sums(part.errors, order)
    # Of a sum of outer products: sum over two positions of the products of both factors.
    sides = (part.states.to(kind), part.errors.to(kind))
    products = torch.mul(*(torch.bmm(side, side.mT) for side in sides))
    squares = products.sum((1, 2), dtype=torch.float64).clamp_(min=0)
    if kind is not torch.float64:
        return squares
    lengths = products.diagonal(dim1=1, dim2=2).sqrt().sum(1)
    return squares + lengths.mul_(LEAST_NORM).square_()


def example_way(job: Job) -> ExampleWay | str:
    """Decide how gradients of single examples are computed, by trying on zeros.

    Nobody's record decides it: only shapes are looked at.

    Args:
        job: What is to be trained.

    Returns:
        The way, or why neither layers nor `vmap` can do it, in one clause.
    """
    inputs, targets = zeros_like(job, 2)
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
