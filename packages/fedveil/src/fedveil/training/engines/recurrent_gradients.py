"""Recurrent layers that hand over the factors of each example's gradient (`layer_gradients`).

All weights of a recurrent layer are matrices that are multiplied once for each time. So a layer
runs forward and backward through time by hand, and what is left of it is two pairs of factors: the
inputs, and the states, with the derivatives by the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.engines.layer_gradients import Dense, Layer, Pair, Parameters, Tape


class _Moment(NamedTuple):
    """One time of a recurrence, as views, each `[rows, numbers]`.

    Gates begin as products with the inputs (and with states, except for a GRU, whose `products`
    are kept apart), become their activations, and on the way back the derivatives by both products.
    """

    gates: Tensor
    products: Tensor
    state: Tensor
    new_state: Tensor
    cell: Tensor
    new_cell: Tensor


def _tanh(at: _Moment) -> None:
    torch.tanh(at.gates, out=at.new_state)


def _tanh_back(at: _Moment, error: Tensor, cell: Tensor) -> tuple[Tensor | None, Tensor]:
    at.gates.copy_(error * (1 - at.new_state.square()))
    return None, cell


def _relu(at: _Moment) -> None:
    torch.clamp(at.gates, min=0, out=at.new_state)


def _relu_back(at: _Moment, error: Tensor, cell: Tensor) -> tuple[Tensor | None, Tensor]:
    at.gates.copy_(error * (at.new_state > 0))
    return None, cell


def _lstm(at: _Moment) -> None:
    into, forget, new, out = at.gates.chunk(4, 1)
    at.gates[:, : 2 * into.shape[1]].sigmoid_()
    new.tanh_()
    out.sigmoid_()
    torch.mul(forget, at.cell, out=at.new_cell)
    at.new_cell.addcmul_(into, new)
    torch.mul(out, torch.tanh(at.new_cell), out=at.new_state)


def _lstm_back(at: _Moment, error: Tensor, cell: Tensor) -> tuple[Tensor | None, Tensor]:
    into, forget, new, out = at.gates.chunk(4, 1)
    shown = torch.tanh(at.new_cell)
    cell = cell + error * out * (1 - shown.square())
    below = cell * forget
    of_into, of_new = cell * new * into * (1 - into), cell * into * (1 - new.square())
    forget.copy_(below * at.cell * (1 - forget))
    out.copy_(error * shown * out * (1 - out))
    into.copy_(of_into)
    new.copy_(of_new)
    return None, below


def _gru(at: _Moment) -> None:
    reset, update, new = at.gates.chunk(3, 1)
    of_reset, of_update, of_new = at.products.chunk(3, 1)
    reset.add_(of_reset).sigmoid_()
    update.add_(of_update).sigmoid_()
    new.addcmul_(reset, of_new).tanh_()
    at.new_state.copy_(torch.lerp(new, at.state, update))


def _gru_back(at: _Moment, error: Tensor, cell: Tensor) -> tuple[Tensor | None, Tensor]:
    reset, update, new = at.gates.chunk(3, 1)
    of_reset, of_update, of_new = at.products.chunk(3, 1)
    direct = error * update
    before = error * (1 - update) * (1 - new.square())  # of what tanh reads
    update.copy_(error * (at.state - new) * update * (1 - update))
    of_update.copy_(update)
    new.copy_(before)
    reset_before = before * of_new * reset * (1 - reset)
    of_new.copy_(before * reset)
    reset.copy_(reset_before)
    of_reset.copy_(reset_before)
    return direct, cell


# A step in place; and back, from derivatives by the new state and the new cell to those by the
# state (beside the product's) and by the cell.
_Back = Callable[[_Moment, Tensor, Tensor], tuple[Tensor | None, Tensor]]
_CELLS: dict[str, tuple[Callable[[_Moment], None], _Back]] = {
    "RNN_TANH": (_tanh, _tanh_back),
    "RNN_RELU": (_relu, _relu_back),
    "LSTM": (_lstm, _lstm_back),
    "GRU": (_gru, _gru_back),
}


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
        self._mode = cast(nn.RNNBase, module).mode
        self._step, self._step_back = _CELLS[self._mode]

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
        split = self._mode == "GRU"  # the new gate reads the product after a gate
        if not split and bias is not None and other is not None:
            bias = bias + other
        gates = functional.linear(steps, into, bias)
        products = torch.empty_like(gates) if split else gates
        states = gates.new_zeros(length + 1, gates.shape[1], size)
        cells = torch.zeros_like(states) if self._mode == "LSTM" else states
        for time in range(length):
            if split:
                products[time] = functional.linear(states[time], again, other)
            else:
                gates[time].addmm_(states[time], again.t())
            self._step(_moment(gates, products, states, cells, time))
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
            at = _moment(gates, products, states, cells, time)
            direct, cell = self._step_back(at, error, cell)
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


def _moment(gates: Tensor, products: Tensor, states: Tensor, cells: Tensor, time: int) -> _Moment:
    sides = states[time], states[time + 1], cells[time], cells[time + 1]
    return _Moment(gates[time], products[time], *sides)


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
