"""Layers that hand over the factors of each example's gradient during one backward pass.

An example's gradient in a layer is a product of what the layer read and of the derivative of the
loss by what it returned. A network of such layers runs forward and backward once for a whole batch
without forming a gradient of any weight; each layer leaves its two factors on a `Tape`. From these
follow the norm of each example's gradient and, once all norms are known, the sum of the clipped
ones (`example_gradients`).

The network runs under `vmap`, as if each example were a batch of its own, so no layer and no code
between layers can mix two examples. Layers below compute all examples at once all the same: they
take over where `vmap` arrives at them, with examples in the first axis. Networks of nothing but
layers that are known to keep examples apart (`kernels.is_known`) run without `vmap`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedveil.training.engines.affine_gradients import LEAST_NORM
from fedveil.training.models.flat import Slot

Parameters = dict[str, Slot]  # of a layer's trained parameters, by their names in the layer

_BLOCK = 1 << 20  # numbers that are widened to double precision at once
_COLUMNS = 1 << 16  # the same, for a few columns of gradients
_TINY = 2.0**-60  # factors below are applied in double precision


def power_sums(rows: Tensor, order: int) -> Tensor:
    """Sum `|x|^order` over all axes but the first, in double precision, `[rows]`.

    Squares of single-precision numbers, and products of two such sums, neither over- nor underflow.
    """
    flat = rows.flatten(1)
    step = max(1, _BLOCK // max(1, flat.shape[1]))
    parts = [
        torch.linalg.vector_norm(part, ord=order, dim=1, dtype=torch.float64)
        for part in torch.split(flat, step)
    ]
    norms = torch.cat(parts) if len(parts) > 1 else parts[0]
    return norms.square() if order == 2 else norms


def _times(values: Tensor, factors: Tensor) -> Tensor:
    """Multiply the values of each example by a factor; where that is zero, they become zero."""
    apart = (...,) + (None,) * (values.dim() - 1)
    found = values if factors.dtype is torch.bool else (values * factors[apart]).to(values.dtype)
    zero = factors == 0
    return found.masked_fill(zero[apart], 0.0) if bool(zero.any()) else found


class Part(ABC):
    """The contributions of a batch's examples to the gradient of one parameter."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the gradient of each example, `[examples, *parameter]`."""

    def powers(self, order: int, count: int, kind: torch.dtype) -> Tensor:
        """Sum the absolute values or squares of each example's gradient, `[examples]`.

        Args:
            order: 1 or 2.
            count: How many examples there are.
            kind: The precision in which sums of clipped gradients are formed.
        """
        return power_sums(self.dense(), order)

    @abstractmethod
    def add(self, into: Tensor, factors: Tensor) -> None:
        """Add the examples' gradients, times factors `[examples]`, to a sum `[*parameter]`."""


@dataclass
class Dense(Part):
    """Gradients of single examples themselves."""

    gradients: Tensor

    def dense(self) -> Tensor:
        return self.gradients

    def add(self, into: Tensor, factors: Tensor) -> None:
        rows, single = self.gradients.flatten(1), factors.to(self.gradients.dtype)
        odd = factors < _TINY
        if bool(odd.any()):  # a tiny factor has few digits, and infinity times zero is no zero
            rows = torch.where(odd[:, None], _times(rows, factors), rows)
            single.masked_fill_(odd, 1.0)
        # Rows are widened a few columns at a time, in the cache.
        width = rows.shape[1] if into.dtype is rows.dtype else max(1, _COLUMNS // len(rows))
        columns = zip(torch.split(into.view(-1), width), torch.split(rows, width, 1), strict=True)
        for total, part in columns:
            total.addmv_(part.to(into.dtype).t(), single.to(into.dtype))


@dataclass
class Pair(Part):
    """Gradients of a matrix, each a sum over positions of outer products.

    Attributes:
        states: What the matrix was multiplied with, `[examples, positions, inputs]`.
        errors: Derivatives by the products, `[examples, positions, outputs]`.
    """

    states: Tensor
    errors: Tensor

    def dense(self) -> Tensor:
        return torch.bmm(self.errors.mT, self.states)

    def powers(self, order: int, count: int, kind: torch.dtype) -> Tensor:
        """Products of positions may cancel. In double precision, the norm counts as at least 2^-10
        of the sum of their norms, as in `affine_gradients`."""
        if self.states.shape[1] == 1:
            return power_sums(self.states, order) * power_sums(self.errors, order)
        # Of a sum of outer products: sum over two positions of the products of both factors.
        sides = (self.states.to(kind), self.errors.to(kind))
        products = torch.mul(*(torch.bmm(side, side.mT) for side in sides))
        squares = products.sum((1, 2), dtype=torch.float64).clamp_(min=0)
        if kind is not torch.float64:
            return squares
        lengths = products.diagonal(dim1=1, dim2=2).sqrt().sum(1)
        return squares + lengths.mul_(LEAST_NORM).square_()

    def add(self, into: Tensor, factors: Tensor) -> None:
        if self.states.shape[1] == 1:
            # States are scaled to a length between a half and one by a power of two, and errors the
            # other way, so that neither the scaled numbers nor their products over- or underflow.
            lengths = power_sums(self.states, 2).sqrt().nan_to_num_(1.0, 1.0)  # those count as zero
            scale = torch.ldexp(torch.ones_like(factors), -torch.frexp(lengths).exponent)
            errors = _times(self.errors, factors / scale).to(into.dtype)
            states = _times(self.states, torch.where(factors > 0, scale, 0.0)).to(into.dtype)
        else:
            errors = _times(self.errors.to(into.dtype), factors)
            states = _times(self.states.to(into.dtype), factors > 0)
        into.addmm_(errors.flatten(0, 1).t(), states.flatten(0, 1))


@dataclass
class TokenRows(Part):
    """Gradients of an embedding: rows of a table, each of one example and one token.

    Attributes:
        examples: Which example a row belongs to, `[rows]`.
        tokens: Which token, `[rows]`; no pair of both comes twice.
        values: The rows, `[rows, width]`.
        shape: Examples, tokens and width of all gradients.
    """

    examples: Tensor
    tokens: Tensor
    values: Tensor
    shape: tuple[int, int, int]

    def dense(self) -> Tensor:
        gradients = self.values.new_zeros(self.shape)
        gradients[self.examples, self.tokens] = self.values
        return gradients

    def powers(self, order: int, count: int, kind: torch.dtype) -> Tensor:
        sums = power_sums(self.values, order)
        return sums.new_zeros(count).index_add_(0, self.examples, sums)

    def add(self, into: Tensor, factors: Tensor) -> None:
        values = _times(self.values, factors[self.examples])
        into.index_add_(0, self.tokens, values.to(into.dtype))


@dataclass
class Patches(Part):
    """Gradients of a convolution's kernels, from its images and the derivatives by its outputs.

    Attributes:
        layer: The convolution.
        images: `[examples, images, channels, *size]`.
        errors: `[examples, images, channels, *size]`, after the convolution.
    """

    layer: ConvolutionLayer
    images: Tensor
    errors: Tensor

    def dense(self) -> Tensor:
        # A call for each example, channels first: torch has no faster kernel for all of them.
        pairs = zip(self.images.contiguous(), self.errors.contiguous(), strict=True)
        return torch.stack([self.layer.kernel_gradient(*pair) for pair in pairs])

    def powers(self, order: int, count: int, kind: torch.dtype) -> Tensor:
        """As of a matrix `[out, in * size]` of kernels, which was multiplied with patches."""
        own = cast(nn.Conv2d, self.layer.module)
        images = self.images.flatten(0, 1)
        geometry = own.kernel_size, own.dilation, self.layer.padding, own.stride
        patches = functional.unfold(images, *geometry)
        states = patches.mT.reshape(count, -1, patches.shape[1])
        errors = self.errors.flatten(3).movedim(2, -1).reshape(count, states.shape[1], -1)
        return Pair(states, errors).powers(order, count, kind)

    def add(self, into: Tensor, factors: Tensor) -> None:
        images, errors = _times(self.images, factors > 0), _times(self.errors, factors)
        into.add_(self.layer.kernel_gradient(images.flatten(0, 1), errors.flatten(0, 1)))


class Tape:
    """Where layers leave their parts during a backward pass, and find their weights.

    Attributes:
        weights: All trained parameters as one vector, in the order of the layout.
        anchor: A number for each example that needs a gradient, so that every layer takes part in
            the backward pass.
        parts: What was left for the parameter (or part of one) that starts at a place of the
            layout.
        eager: Whether a convolution of so many inputs, outputs and positions forms gradients of
            single examples as soon as it can.
        whole: Whether layers see whole batches, and `vmap` is left out.
        records: In whole batches, records that make up one example: several if it is a person.
        numbers: How many numbers layers have read and returned so far, and the derivatives of both.
    """

    def __init__(self, eager: Callable[[int, int, int], bool], whole: bool) -> None:
        self.eager, self.whole, self.records = eager, whole, 1
        self.weights, self.anchor = torch.empty(0), torch.empty(0)
        self.parts: dict[int, tuple[Slot, list[Part]]] = {}
        self.numbers = 0

    def value(self, slot: Slot) -> Tensor:
        """Return a parameter's present value."""
        return self.weights[slot.start : slot.stop].view(slot.shape)

    def add(self, slot: Slot, part: Part) -> None:
        """Leave a part; a layer that is used twice leaves two."""
        self.parts.setdefault(slot.start, (slot, []))[1].append(part)


class Layer(ABC):
    """A layer in the place of a module, for all examples of a batch at once."""

    def __init__(self, module: nn.Module, parameters: Parameters, tape: Tape) -> None:
        self.module, self.parameters, self.tape = module, parameters, tape

    def value(self, name: str) -> Tensor | None:
        """Return a parameter: trained, frozen, or None if the module has none of this name."""
        if name in self.parameters:
            return self.tape.value(self.parameters[name])
        frozen = getattr(self.module, name, None)
        return None if frozen is None else cast(Tensor, frozen).detach()

    def leave(self, name: str, part: Callable[[], Part]) -> None:
        """Leave a part for a parameter, if it is trained."""
        if name in self.parameters:
            self.tape.add(self.parameters[name], part())

    def __call__(self, inputs: Tensor) -> Tensor:
        """Stand in for the module's `forward`, under `vmap`."""
        return self.outputs(inputs)[0]

    def outputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the layer, under `vmap` or on a whole batch."""
        if not self.tape.whole:
            found: tuple[Tensor, ...] = _Vectorised.apply(inputs, self.tape.anchor, self)  # type: ignore[no-untyped-call]
            return found
        each = inputs.reshape(-1, self.tape.records, *inputs.shape[1:])
        batch = _Batched.apply(each, self.tape.anchor, self)  # type: ignore[no-untyped-call]
        return tuple(outputs.flatten(0, 1) for outputs in batch)

    @abstractmethod
    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Compute outputs from `inputs [examples, ...]`, and what `back` needs beside inputs."""

    @abstractmethod
    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        """Leave parts on the tape; return the derivative by the inputs if it is needed."""


class _Vectorised(torch.autograd.Function):
    """A layer as code under `vmap` sees it."""

    @staticmethod
    def forward(inputs: Tensor, anchor: Tensor, layer: Layer) -> tuple[Tensor, ...]:
        raise RuntimeError("layers that hand over gradients run under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept here."""

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], inputs: Tensor, anchor: Tensor, layer: Layer
    ) -> tuple[tuple[Tensor, ...], int]:
        if dims[0] is None:  # the same for all examples
            inputs = inputs.expand(info.batch_size, *inputs.shape)
        else:
            inputs = inputs.movedim(dims[0], 0)
        return _Batched.apply(inputs, anchor, layer), 0  # type: ignore[no-untyped-call]


class _Batched(torch.autograd.Function):
    """A layer as autograd sees it, below `vmap`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, layer: Layer) -> tuple[Tensor, ...]:
        outputs, ctx.kept = layer.run(inputs)
        ctx.layer = layer
        ctx.save_for_backward(inputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, None, None]:
        inputs = ctx.saved_tensors[0].detach()
        ctx.layer.tape.numbers += 2 * (inputs.numel() + sum(error.numel() for error in errors))
        return ctx.layer.back(inputs, ctx.kept, errors, ctx.needs_input_grad[0]), None, None


class AffineLayer(Layer):
    """`nn.Linear`, or a matrix and a bias of another module."""

    names = ("weight", "bias")

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        weight, bias = (self.value(name) for name in self.names)
        flat = inputs.reshape(-1, inputs.shape[-1])
        outputs = functional.linear(flat, cast(Tensor, weight), bias)
        return (outputs.view(*inputs.shape[:-1], -1),), ()

    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        count, error = len(inputs), errors[0]
        each = error.reshape(count, -1, error.shape[-1])
        states = inputs.reshape(count, -1, inputs.shape[-1])
        weight, bias = self.names
        self.leave(weight, lambda: Pair(states, each))
        self.leave(bias, lambda: Dense(each.sum(1)))
        if not needed:
            return None
        return (each.flatten(0, 1) @ cast(Tensor, self.value(weight))).view_as(inputs)


class ConvolutionLayer(Layer):
    """`nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d`."""

    def __init__(
        self, module: nn.Module, parameters: Parameters, tape: Tape, channels_last: bool
    ) -> None:
        super().__init__(module, parameters, tape)
        own = cast(nn.Conv2d, module)
        self._by_hand = own.padding_mode != "zeros"
        self.padding = tuple(0 for _ in own.kernel_size) if self._by_hand else _padding(own)
        self._memory = torch.contiguous_format
        if channels_last and isinstance(module, nn.Conv2d):
            self._memory = torch.channels_last

    def __call__(self, inputs: Tensor) -> Tensor:
        own = cast(nn.Conv2d, self.module)
        axes = len(own.kernel_size)
        images = inputs if inputs.dim() == axes + 2 else inputs[None]
        if self._by_hand:
            sides = own._reversed_padding_repeated_twice
            images = functional.pad(images, sides, mode=own.padding_mode)
        outputs = super().__call__(images)
        return outputs if inputs.dim() == axes + 2 else outputs[0]

    def _geometry(self) -> tuple[Any, ...]:
        own = cast(nn.Conv2d, self.module)
        return own.stride, self.padding, own.dilation, False, [0] * len(self.padding), own.groups

    def _arranged(self, images: Tensor) -> Tensor:
        """Return images or kernels in the layer's order of memory.

        Of one channel they count as being in any order, and torch then takes the slow one for the
        outputs: so their strides are set as well.
        """
        return images.contiguous(memory_format=self._memory).to(memory_format=self._memory)

    def _kernel(self) -> Tensor:
        return self._arranged(cast(Tensor, self.value("weight")))

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        images = self._arranged(inputs.flatten(0, 1))
        outputs = torch.convolution(images, self._kernel(), self.value("bias"), *self._geometry())
        return (_split(outputs, inputs),), ()

    def kernel_gradient(self, images: Tensor, errors: Tensor) -> Tensor:
        """Return the sum of the kernels' gradients over images `[n, channels, *size]`."""
        kernel = cast(Tensor, self.value("weight"))  # only its shape counts
        return self._backward(images, errors, kernel, 1)

    def _backward(self, images: Tensor, errors: Tensor, kernel: Tensor, which: int) -> Tensor:
        """Return the derivative by the images (0) or by the kernels (1)."""
        wanted = [which == place for place in range(3)]
        found = torch.ops.aten.convolution_backward(
            errors, images, kernel, None, *self._geometry(), wanted
        )
        return cast(Tensor, found[which])

    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        error, images = (self._arranged(one.flatten(0, 1)) for one in (errors[0], inputs))
        each = _split(error, inputs)

        def kernels() -> Part:
            part = Patches(self, _split(images, inputs), each)
            shape = self.parameters["weight"].shape
            positions = each[0, :, 0].numel()
            plain = len(shape) == 4 and cast(nn.Conv2d, self.module).groups == 1
            if not plain or self.tape.eager(math.prod(shape[1:]), shape[0], positions):
                return Dense(part.dense())
            return part

        self.leave("weight", kernels)
        self.leave("bias", lambda: Dense(each.flatten(3).sum((1, 3))))
        if not needed:
            return None
        return _split(self._backward(images, error, self._kernel(), 0), inputs)


class Scale(Layer):
    """The weight and bias of a normalisation, after `normalised`, which has none.

    Args:
        normalised: The same normalisation without parameters.
        behind: How many axes of the inputs follow those that a weight has.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Parameters,
        tape: Tape,
        normalised: Callable[[Tensor], Tensor],
        behind: Callable[[Tensor], int],
    ) -> None:
        super().__init__(module, parameters, tape)
        self._normalised, self._behind = normalised, behind

    def __call__(self, inputs: Tensor) -> Tensor:
        return super().__call__(self._normalised(inputs))

    def _spread(self, name: str, inputs: Tensor) -> Tensor | None:
        value = self.value(name)
        return None if value is None else value[(..., *[None] * self._behind(inputs[0]))]

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        outputs, bias = (
            inputs * cast(Tensor, self._spread("weight", inputs)),
            self._spread("bias", inputs),
        )
        return (outputs if bias is None else outputs.add_(bias),), ()

    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        error = errors[0]
        last = error.dim() - self._behind(inputs[0])
        axes = cast(nn.LayerNorm, self.module).weight.dim()
        others = [*range(1, last - axes), *range(last, error.dim())]

        def total(terms: Tensor) -> Part:
            return Dense(terms.sum(others) if others else terms)

        self.leave("weight", lambda: total(error * inputs))
        self.leave("bias", lambda: total(error))
        return error * cast(Tensor, self._spread("weight", inputs)) if needed else None


class Embedding(Layer):
    """`nn.Embedding`: an example's gradient has as many rows as the example has tokens."""

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return (functional.embedding(inputs, cast(Tensor, self.value("weight"))),), ()

    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        count, (size, width) = len(inputs), self.parameters["weight"].shape
        tokens = inputs.reshape(count, -1)
        values = errors[0].reshape(-1, width)
        places = torch.arange(count, device=inputs.device)[:, None] * size + tokens
        rows, where = torch.unique(places, return_inverse=True)
        sums = values.new_zeros(len(rows), width).index_add_(0, where.flatten(), values)
        examples, found = rows // size, rows % size
        skipped = cast(nn.Embedding, self.module).padding_idx
        if skipped is not None:
            kept_rows = found != skipped
            examples, found, sums = examples[kept_rows], found[kept_rows], sums[kept_rows]
        self.leave("weight", lambda: TokenRows(examples, found, sums, (count, size, width)))
        return None


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    """Return a convolution's padding on each side, in numbers."""
    if not isinstance(module.padding, str):
        return module.padding
    if module.padding == "valid":
        return tuple(0 for _ in module.kernel_size)
    sizes = zip(module.dilation, module.kernel_size, strict=True)
    return tuple(dilation * (size - 1) // 2 for dilation, size in sizes)


def _split(images: Tensor, inputs: Tensor) -> Tensor:
    """Return images `[examples * images, ...]` with the first two axes of the inputs."""
    return images.view(*inputs.shape[:2], *images.shape[1:])
