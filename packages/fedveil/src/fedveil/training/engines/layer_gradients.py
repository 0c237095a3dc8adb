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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedveil.training.engines import fourier
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.models.structure import as_written

Parameters = dict[str, Slot]  # of a layer's trained parameters, by their names in the layer

_BLOCK = 1 << 20  # numbers that are widened to double precision at once


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


class Part(ABC):
    """What a batch's examples contribute to the gradient of one parameter."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the gradient of each example, `[examples, *parameter]`."""


@dataclass
class Dense(Part):
    """Gradients of single examples themselves."""

    gradients: Tensor

    def dense(self) -> Tensor:
        return self.gradients


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


@dataclass
class Rows(Part):
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


@dataclass
class Patches(Part):
    """Gradients of a convolution's kernels, from its images and the derivatives by its outputs.

    Attributes:
        layer: The convolution.
        images: `[examples, images, channels, *size]`.
        errors: `[examples, images, channels, *size]`, after the convolution.
    """

    layer: Convolution
    images: Tensor
    errors: Tensor

    def dense(self) -> Tensor:
        # A call for each example, channels first: torch has no faster kernel for all of them.
        pairs = zip(self.images.contiguous(), self.errors.contiguous(), strict=True)
        return torch.stack([self.layer.kernel_gradient(*pair) for pair in pairs])

    def pair(self) -> Pair:
        """Return the same gradients, with kernels `[out, in * size]` as matrices."""
        count, module = len(self.images), cast(nn.Conv2d, self.layer.module)
        patches = functional.unfold(
            self.images.flatten(0, 1),
            module.kernel_size,
            module.dilation,
            self.layer.padding,
            module.stride,
        )
        states = patches.mT.reshape(count, -1, patches.shape[1])
        errors = self.errors.flatten(3).movedim(2, -1).reshape(count, states.shape[1], -1)
        return Pair(states, errors)


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
        numbers: How many numbers layers have read and returned so far, and the derivatives of both.
    """

    def __init__(self, eager: Callable[[int, int, int], bool], whole: bool) -> None:
        self.eager, self.whole = eager, whole
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
        batch = _Batched.apply(inputs.unsqueeze(1), self.tape.anchor, self)  # type: ignore[no-untyped-call]
        return tuple(outputs.squeeze(1) for outputs in batch)

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


class Affine(Layer):
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


class Convolution(Layer):
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

    def _kernel(self) -> Tensor:
        return cast(Tensor, self.value("weight")).contiguous(memory_format=self._memory)

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        images = inputs.flatten(0, 1).contiguous(memory_format=self._memory)
        outputs = torch.convolution(images, self._kernel(), self.value("bias"), *self._geometry())
        return (outputs.unflatten(0, inputs.shape[:2]),), ()

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
        error = errors[0].flatten(0, 1).contiguous(memory_format=self._memory)
        each = error.unflatten(0, inputs.shape[:2])
        images = inputs.flatten(0, 1).contiguous(memory_format=self._memory)

        def kernels() -> Part:
            part = Patches(self, images.unflatten(0, inputs.shape[:2]), each)
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
        return self._backward(images, error, self._kernel(), 0).unflatten(0, inputs.shape[:2])


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
        self.leave("weight", lambda: Rows(examples, found, sums, (count, size, width)))
        return None


class Recurrence(Layer):
    """One layer of `nn.RNN`, `nn.LSTM` or `nn.GRU` in one direction, over `[..., time, inputs]`.

    Returns all states and the last one of the cell (for others than `nn.LSTM`, the last state).
    """

    def __init__(
        self, module: nn.Module, parameters: Parameters, tape: Tape, suffix: str, backwards: bool
    ) -> None:
        super().__init__(module, parameters, tape)
        self.names = tuple(
            f"{kind}_{part}_{suffix}" for kind in ("weight", "bias") for part in ("ih", "hh")
        )
        self._backwards = backwards
        mode = cast(nn.RNNBase, module).mode
        self._cell: _Cell = {"LSTM": _Lstm, "GRU": _Gru}.get(mode, _Plain)(mode == "RNN_RELU")

    def outputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        states, last = super().outputs(inputs.flip(-2) if self._backwards else inputs)
        return states.flip(-2) if self._backwards else states, last

    def _weights(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        into, again, bias, other = (self.value(name) for name in self.names)
        return cast(Tensor, into), cast(Tensor, again), bias, other

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        into, again, bias, other = self._weights()
        length, size = inputs.shape[-2], again.shape[1]
        steps = inputs.reshape(-1, length, inputs.shape[-1]).transpose(0, 1).contiguous()
        split = isinstance(self._cell, _Gru)  # the new gate reads the product after a gate
        if not split and bias is not None and other is not None:
            bias = bias + other
        gates = functional.linear(steps, into, bias)
        products = torch.empty_like(gates) if split else gates
        states = gates.new_zeros(length + 1, gates.shape[1], size)
        cells = torch.zeros_like(states) if isinstance(self._cell, _Lstm) else states
        for time in range(length):
            if split:
                products[time] = functional.linear(states[time], again, other)
            else:
                gates[time].addmm_(states[time], again.t())
            self._cell.step(gates[time], products[time], states, cells, time)
        lead = inputs.shape[:-2]
        # A copy in any case: whoever changes it must not change what is kept.
        outputs = states[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        last = cells[-1].clone().view(*lead, size)
        return (outputs.view(*lead, length, size), last), (steps, products, states, cells, gates)

    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        into, again, _, _ = self._weights()
        steps, products, states, cells, gates = kept
        length, count = len(steps), len(inputs)
        above = errors[0].reshape(-1, length, again.shape[1]).transpose(0, 1)
        error, cell = torch.zeros_like(states[0]), errors[1].reshape(states[0].shape)
        if cells is states:
            error, cell = cell.clone(), torch.zeros_like(cell)
        for time in range(length - 1, -1, -1):
            error = error + above[time]
            # The derivatives of both products take the places of the gates and the products.
            direct, cell = self._cell.back(
                gates[time], products[time], states, cells, time, error, cell
            )
            error = products[time] @ again
            if direct is not None:
                error += direct

        def each(values: Tensor) -> Tensor:
            """`[time, rows, numbers]` as `[examples, positions, numbers]`."""
            return values.transpose(0, 1).reshape(count, -1, values.shape[-1])

        of_inputs = each(gates)
        of_states = of_inputs if products is gates else each(products)
        names = self.names
        self.leave(names[0], lambda: Pair(each(steps), of_inputs))
        self.leave(names[1], lambda: Pair(each(states[:-1]), of_states))
        self.leave(names[2], lambda: Dense(of_inputs.sum(1)))
        self.leave(names[3], lambda: Dense(of_states.sum(1)))
        if not needed:
            return None
        return (of_inputs.flatten(0, 1) @ into).view_as(inputs)


class _Cell(ABC):
    """One step of a recurrence, in place: gates become their activations, then derivatives."""

    def __init__(self, rectified: bool) -> None:
        self._rectified = rectified

    @abstractmethod
    def step(
        self, gates: Tensor, products: Tensor, states: Tensor, cells: Tensor, time: int
    ) -> None: ...

    @abstractmethod
    def back(
        self,
        gates: Tensor,
        products: Tensor,
        states: Tensor,
        cells: Tensor,
        time: int,
        error: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        """Return the derivative by the last state beside the product's, and that by the cell."""


class _Plain(_Cell):
    def step(
        self, gates: Tensor, products: Tensor, states: Tensor, cells: Tensor, time: int
    ) -> None:
        activation = torch.relu if self._rectified else torch.tanh
        states[time + 1] = activation(gates)

    def back(
        self,
        gates: Tensor,
        products: Tensor,
        states: Tensor,
        cells: Tensor,
        time: int,
        error: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        state = states[time + 1]
        gates.copy_(error * (state > 0) if self._rectified else error * (1 - state.square()))
        return None, cell


class _Lstm(_Cell):
    def step(
        self, gates: Tensor, products: Tensor, states: Tensor, cells: Tensor, time: int
    ) -> None:
        into, forget, new, out = gates.chunk(4, 1)
        gates[:, : 2 * into.shape[1]].sigmoid_()
        new.tanh_()
        out.sigmoid_()
        torch.mul(forget, cells[time], out=cells[time + 1])
        cells[time + 1].addcmul_(into, new)
        torch.mul(out, torch.tanh(cells[time + 1]), out=states[time + 1])

    def back(
        self,
        gates: Tensor,
        products: Tensor,
        states: Tensor,
        cells: Tensor,
        time: int,
        error: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        into, forget, new, out = gates.chunk(4, 1)
        shown = torch.tanh(cells[time + 1])
        cell = cell + error * out * (1 - shown.square())
        below = cell * forget
        of_into, of_new = cell * new * into * (1 - into), cell * into * (1 - new.square())
        forget.copy_(below * cells[time] * (1 - forget))
        out.copy_(error * shown * out * (1 - out))
        into.copy_(of_into)
        new.copy_(of_new)
        return None, below


class _Gru(_Cell):
    def step(
        self, gates: Tensor, products: Tensor, states: Tensor, cells: Tensor, time: int
    ) -> None:
        (reset, update, new), (of_reset, of_update, of_new) = (
            gates.chunk(3, 1),
            products.chunk(3, 1),
        )
        reset.add_(of_reset).sigmoid_()
        update.add_(of_update).sigmoid_()
        new.addcmul_(reset, of_new).tanh_()
        states[time + 1] = torch.lerp(new, states[time], update)

    def back(
        self,
        gates: Tensor,
        products: Tensor,
        states: Tensor,
        cells: Tensor,
        time: int,
        error: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        (reset, update, new), (of_reset, of_update, of_new) = (
            gates.chunk(3, 1),
            products.chunk(3, 1),
        )
        direct = error * update
        before = error * (1 - update) * (1 - new.square())  # of what tanh reads
        update.copy_(error * (states[time] - new) * update * (1 - update))
        new.copy_(before)
        of_update.copy_(update)
        slope = before * of_new * reset * (1 - reset)
        of_new.copy_(before * reset)
        reset.copy_(slope)
        of_reset.copy_(slope)
        return direct, cell


class Recurrent:
    """Stands in for the `forward` of `nn.RNN`, `nn.LSTM` and `nn.GRU`, without first states."""

    def __init__(self, module: nn.RNNBase, parameters: Parameters, tape: Tape) -> None:
        self._module = module
        ways = ("", "_reverse") if module.bidirectional else ("",)
        self._layers = [
            [Recurrence(module, parameters, tape, f"l{place}{way}", bool(way)) for way in ways]
            for place in range(module.num_layers)
        ]

    def __call__(self, inputs: Tensor, first: None = None) -> tuple[Tensor, Any]:
        module = self._module
        if first is not None or not isinstance(inputs, Tensor):
            raise NotImplementedError("recurrent layers take one tensor, and start from zero")
        batched = inputs.dim() == 3
        outputs = inputs if batched else inputs[None]
        turned = batched and not module.batch_first
        outputs = outputs.transpose(0, 1) if turned else outputs
        states, cells = [], []
        for place, layer in enumerate(self._layers):
            if place and module.dropout:
                outputs = functional.dropout(outputs, module.dropout, module.training)
            found = [direction.outputs(outputs) for direction in layer]
            for direction, (each, cell) in zip(layer, found, strict=True):
                states.append(each[:, 0 if direction._backwards else -1])
                cells.append(cell)
            outputs = torch.cat([each for each, _ in found], -1) if len(found) > 1 else found[0][0]
        last, cell = torch.stack(states), torch.stack(cells)
        outputs = outputs.transpose(0, 1) if turned else outputs
        if not batched:
            outputs, last, cell = outputs[0], last[:, 0], cell[:, 0]
        return outputs, (last, cell) if module.mode == "LSTM" else last


class Attention:
    """Stands in for the `forward` of `nn.MultiheadAttention`."""

    def __init__(self, module: nn.MultiheadAttention, parameters: Parameters, tape: Tape) -> None:
        self._module = module
        joint = module.in_proj_weight is not None
        self._into = [_Projection(module, parameters, tape, place, joint) for place in range(3)]
        inner = {n.removeprefix("out_proj."): s for n, s in parameters.items() if "out_proj" in n}
        self._out = Affine(module.out_proj, inner, tape)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        module, heads = self._module, self._module.num_heads
        batched = query.dim() == 3

        def split(part: Tensor, layer: Layer) -> Tensor:
            """`[n, heads, length, width]`."""
            part = part if batched else part[None]
            part = part.transpose(0, 1) if batched and not module.batch_first else part
            return layer(part).unflatten(-1, (heads, -1)).transpose(1, 2)

        parts = zip((query, key, value), self._into, strict=True)
        q, k, v = (split(part, layer) for part, layer in parts)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        for mask in (attn_mask, key_padding_mask):
            if mask is None:
                continue
            if mask is key_padding_mask:
                mask = (mask if batched else mask[None])[:, None, None]
            elif mask.dim() == 3:
                mask = mask.unflatten(0, (-1, heads))
            minus = torch.full_like(scores, -math.inf)
            scores = torch.where(mask, minus, scores) if mask.dtype is torch.bool else scores + mask
        shares = functional.dropout(scores.softmax(-1), module.dropout, module.training)
        outputs = self._out((shares @ v).transpose(1, 2).flatten(2))
        outputs = outputs.transpose(0, 1) if batched and not module.batch_first else outputs
        weights = None
        if need_weights:
            weights = shares.mean(1) if average_attn_weights else shares
            weights = weights if batched else weights[0]
        return outputs if batched else outputs[0], weights


class _Projection(Affine):
    """The matrix of queries, keys or values: one of three, or a third of one."""

    def __init__(
        self,
        module: nn.MultiheadAttention,
        parameters: Parameters,
        tape: Tape,
        place: int,
        joint: bool,
    ) -> None:
        self._third, self._joint = place, joint
        weight = "in_proj_weight" if joint else f"{'qkv'[place]}_proj_weight"
        self.names = (weight, "in_proj_bias")
        split = {"in_proj_bias"} | ({weight} if joint else set())
        own = {name: parameters[name] for name in self.names if name in parameters}
        own = {name: _third(slot, place) if name in split else slot for name, slot in own.items()}
        super().__init__(module, own, tape)
        self._split = split

    def value(self, name: str) -> Tensor | None:
        whole = super().value(name)
        if whole is None or name in self.parameters or name not in self._split:
            return whole
        return whole.chunk(3)[self._third]


def _third(slot: Slot, place: int) -> Slot:
    rows = slot.shape[0] // 3
    start = slot.start + place * rows * math.prod(slot.shape[1:])
    return Slot(slot.name, (rows, *slot.shape[1:]), start)


def _padding(module: nn.Conv2d) -> tuple[int, ...]:
    """Return a convolution's padding on each side, in numbers."""
    if not isinstance(module.padding, str):
        return module.padding
    if module.padding == "valid":
        return tuple(0 for _ in module.kernel_size)
    sizes = zip(module.dilation, module.kernel_size, strict=True)
    return tuple(dilation * (size - 1) // 2 for dilation, size in sizes)


def _even(module: nn.Conv2d) -> bool:
    """Whether padding is the same on both sides."""
    sizes = zip(module.dilation, module.kernel_size, strict=True)
    return module.padding != "same" or all(d * (k - 1) % 2 == 0 for d, k in sizes)


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, fourier.Conv2d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _stand_in(
    module: Any, own: Parameters, tape: Tape, channels_last: bool
) -> Callable[..., Any] | None:
    """Return a layer that hands over the gradients of this module's parameters, if one is known."""
    kind = type(module)
    if kind is nn.Linear:
        return Affine(module, own, tape)
    if kind in _CONVOLUTIONS and _even(module):
        return Convolution(module, own, tape, channels_last)
    if kind is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq:
        return Embedding(module, own, tape)
    if kind in (nn.RNN, nn.LSTM, nn.GRU) and not module.proj_size:
        return Recurrent(module, own, tape)
    if kind is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn:
        return Attention(module, own, tape)
    if getattr(module, "weight", None) is None:
        return None

    def scale(normalised: Callable[[Tensor], Tensor], behind: Callable[[Tensor], int]) -> Scale:
        return Scale(module, own, tape, normalised, behind)

    if kind is nn.LayerNorm:
        shape, tiny = module.normalized_shape, module.eps
        return scale(lambda x: functional.layer_norm(x, shape, None, None, tiny), lambda x: 0)
    if kind is nn.RMSNorm:
        shape, tiny = module.normalized_shape, module.eps
        return scale(lambda x: functional.rms_norm(x, shape, None, tiny), lambda x: 0)
    if kind is nn.GroupNorm:
        groups, tiny = module.num_groups, module.eps
        return scale(
            lambda x: functional.group_norm(x, groups, None, None, tiny), lambda x: x.dim() - 2
        )
    if kind in _INSTANCE_NORMS and not module.track_running_stats:
        axes, tiny, channels = _INSTANCE_NORMS.index(kind) + 1, module.eps, module.num_features

        def instances(x: Tensor) -> Tensor:
            images = x if x.dim() == axes + 2 else x[None]
            found = functional.group_norm(images, channels, None, None, tiny)
            return found if x.dim() == axes + 2 else found[0]

        return scale(instances, lambda x: axes)
    return None


def hand_over(module: nn.Module, layout: Layout, tape: Tape, channels_last: bool) -> list[str]:
    """Put layers in the place of modules that are known, in a module of one's own.

    A module is known if it is of a type above, nothing is attached to it, and none of its
    parameters is another module's as well.

    Args:
        module: A private copy; the `forward` of known modules in it is replaced.
        layout: Where trained parameters stand.
        tape: Where layers find weights and leave gradients.
        channels_last: Whether images are best kept with the channels of a pixel together.

    Returns:
        The names of trained parameters that no layer hands over.
    """
    slots = {slot.name: slot for slot in layout}
    owners: dict[int, int] = {}
    for child in module.modules():
        for parameter in child._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    rest = dict(slots)
    for path, child in list(module.named_modules()):
        lead = f"{path}." if path else ""
        own = {
            name: slots[lead + name]
            for name, parameter in child.named_parameters()
            if lead + name in slots and parameter.requires_grad
        }
        shared = any(owners[id(parameter)] > 1 for parameter in child.parameters())
        inner: Sequence[nn.Module] = list(child.modules())
        if not own or shared or not all(as_written(one) for one in inner):
            continue
        found = _stand_in(child, own, tape, channels_last)
        if found is None:
            continue
        child.forward = found
        for slot in own.values():
            rest.pop(slot.name, None)
    return list(rest)
