"""Recurrent layers that hand over the factors of each example's gradient (`layer_gradients`).

All weights of a recurrent layer are matrices that are multiplied once for each time. So a layer
runs forward and backward through time by hand, and what is left of it is two pairs of factors: the
inputs, and the states, with the derivatives by the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.engines.layer_gradients import Dense, Layer, Pair, Parameters, Tape

# One time of a recurrence, all `[rows, numbers]`: from the products with the inputs and with the
# last state (biases included), that state and the last cell to the next state and cell.
_Cell = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _lstm(inputs: Tensor, states: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    into, forget, new, out = (inputs + states).chunk(4, 1)
    cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru(inputs: Tensor, states: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    pairs = zip(inputs.chunk(3, 1), states.chunk(3, 1), strict=True)
    (reset, other), (update, another), (new, last) = pairs
    new = (new + (reset + other).sigmoid() * last).tanh()
    return torch.lerp(new, state, (update + another).sigmoid()), cell


_CELLS: dict[str, _Cell] = {
    "RNN_TANH": lambda inputs, states, state, cell: ((inputs + states).tanh(), cell),
    "RNN_RELU": lambda inputs, states, state, cell: ((inputs + states).relu(), cell),
    "LSTM": _lstm,
    "GRU": _gru,
}


class Recurrence(Layer):
    """One layer of `nn.RNN`, `nn.LSTM` or `nn.GRU` in one direction, over `[..., time, inputs]`.

    Returns all states and the last one of the cell (zeros for others than `nn.LSTM`).
    """

    def __init__(
        self, module: nn.Module, parameters: Parameters, tape: Tape, suffix: str, backwards: bool
    ) -> None:
        super().__init__(module, parameters, tape)
        kinds = [(kind, part) for kind in ("weight", "bias") for part in ("ih", "hh")]
        self.names = tuple(f"{kind}_{part}_{suffix}" for kind, part in kinds)
        self.backwards = backwards
        self._cell = _CELLS[cast(nn.RNNBase, module).mode]

    def outputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        states, last = super().outputs(inputs.flip(-2) if self.backwards else inputs)
        return states.flip(-2) if self.backwards else states, last

    def run(self, inputs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        into, again, bias, other = (self.value(name) for name in self.names)
        lead, (length, width) = inputs.shape[:-2], inputs.shape[-2:]
        steps = inputs.reshape(-1, length, width).transpose(0, 1).contiguous()
        gates = functional.linear(steps, cast(Tensor, into), bias)
        size = cast(Tensor, again).shape[1]
        states, products = (
            gates.new_zeros(length + 1, gates.shape[1], size),
            torch.empty_like(gates),
        )
        cells = torch.zeros_like(states)
        for time in range(length):
            products[time] = functional.linear(states[time], cast(Tensor, again), other)
            known = gates[time], products[time], states[time], cells[time]
            states[time + 1], cells[time + 1] = self._cell(*known)
        # A copy in any case: whoever changes it must not change what is kept.
        outputs = states[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        last = cells[-1].clone().view(*lead, size)
        return (outputs.view(*lead, length, size), last), (steps, gates, products, states, cells)

    def back(
        self, inputs: Tensor, kept: tuple[Tensor, ...], errors: tuple[Tensor, ...], needed: bool
    ) -> Tensor | None:
        into, again = (cast(Tensor, self.value(name)) for name in self.names[:2])
        steps, gates, products, states, cells = kept
        length, count = len(steps), len(inputs)
        above = errors[0].reshape(-1, length, again.shape[1]).transpose(0, 1)
        error, cell = torch.zeros_like(states[0]), errors[1].reshape(states[0].shape)
        for time in range(length - 1, -1, -1):
            known = gates[time], products[time], states[time], cells[time]
            with torch.enable_grad():
                read = [one.detach().requires_grad_() for one in known]
                made = self._cell(*read)
                total = (made[0] * (error + above[time])).sum() + (made[1] * cell).sum()
            found = torch.autograd.grad(total, read, materialize_grads=True)
            # The derivatives by both products take the places of these.
            gates[time], products[time], direct, cell = found
            error = torch.addmm(direct, products[time], again)

        def each(values: Tensor) -> Tensor:
            """`[time, rows, numbers]` as `[examples, positions, numbers]`."""
            return values.transpose(0, 1).reshape(count, -1, values.shape[-1])

        of_inputs, of_states = each(gates), each(products)
        names = self.names
        self.leave(names[0], lambda: Pair(each(steps), of_inputs))
        self.leave(names[1], lambda: Pair(each(states[:-1]), of_states))
        self.leave(names[2], lambda: Dense(of_inputs.sum(1)))
        self.leave(names[3], lambda: Dense(of_states.sum(1)))
        if not needed:
            return None
        return (of_inputs.flatten(0, 1) @ into).view_as(inputs)


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
                states.append(each[:, 0 if direction.backwards else -1])
                cells.append(cell)
            outputs = torch.cat([each for each, _ in found], -1) if len(found) > 1 else found[0][0]
        last, cell = torch.stack(states), torch.stack(cells)
        outputs = outputs.transpose(0, 1) if turned else outputs
        if not batched:
            outputs, last, cell = outputs[0], last[:, 0], cell[:, 0]
        return outputs, (last, cell) if module.mode == "LSTM" else last
