"""Linear models whose clients have few examples: vectors as combinations of a client's examples.

Every step of local SGD moves the weights inside the span of the start `w0` and the client's own
inputs X (with a column of ones if there is a bias):

    w - w0 = A'X + r w0         A [examples, outputs], r a number (weight decay alone moves it)

so a client is trained on A, with the Gram matrix K = XX' in the place of the data. The norm of an
update is tr(A'KA) + 2 r <A, Xw0> + r^2 |w0|^2, and the sum of all clipped updates is one matrix
product. Exact up to rounding; where rounding must not matter, on the grid of a protected run, the
updates are written out and clipped there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.training.engines.affine import Affine

# Norms come from products of single precision, whose error grows with cancellation: where the
# terms exceed the result by this factor (in squares), the update is formed and measured instead.
_CANCELLATION = 1e3
_LARGEST = 1e30  # of squared inputs: far from overflow


@dataclass(frozen=True)
class Span:
    """A vector `A'X + r w0` for each client of a chunk."""

    coefficients: Tensor  # A [clients, examples, outputs]
    shift: Tensor  # r [clients]

    def scale(self, factors: Tensor) -> None:
        """Multiply each client's vector by its factor, in place."""
        self.coefficients.mul_(factors[:, None, None])
        self.shift.mul_(factors)


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
        self.layer, self.task, self.start = layer, task, start
        self.inputs, self.targets = inputs.flatten(2), targets
        weight, bias = layer.weight_of(start), layer.bias_of(start)
        flat = self.inputs.flatten(0, 1)
        outputs = flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
        self.outputs = outputs.view(*targets.shape, -1)  # X w0, [clients, examples, outputs]
        if gram is None:
            gram = torch.bmm(self.inputs, self.inputs.transpose(1, 2))
        self.gram = gram if bias is None else gram.add_(1)
        self._start_square = float(start.square().sum(dtype=torch.float64))

    @property
    def tame(self) -> Tensor:
        """Which clients' inputs are small enough to be multiplied with each other, `[clients]`."""
        return self.gram.diagonal(dim1=1, dim2=2).amax(dim=1) < _LARGEST

    @cached_property
    def lengths(self) -> Tensor:
        """Euclidean lengths of the inputs, with the bias, in double precision: none underflows."""
        own: Tensor = torch.linalg.vector_norm(self.inputs, dim=2, dtype=torch.float64)
        return own if self.layer.bias is None else own.square().add_(1).sqrt_()

    def norms(self, vector: Span) -> Tensor:
        """L2 norms `[clients]` of the first so many clients' vectors."""
        active = len(vector.shift)
        images = torch.bmm(self.gram[:active], vector.coefficients)
        squares = _dot(vector.coefficients, images)
        if bool(vector.shift.any()):
            cross = _dot(vector.coefficients, self.outputs[:active])
            squares += vector.shift * (2 * cross + vector.shift * self._start_square)
        norms = squares.clamp(min=0).sqrt()
        doubtful = self._terms(vector) > _CANCELLATION * squares
        for client in torch.nonzero(doubtful).flatten().tolist():
            one = Span(vector.coefficients[client : client + 1], vector.shift[client : client + 1])
            norms[client] = self.rows(one, client).double().norm()
        return norms

    def rows(self, vector: Span, first: int = 0) -> Tensor:
        """The vectors written out, `[clients, parameters]`, for clients from `first` on."""
        inputs = self.inputs[first : first + len(vector.shift)]
        rows = self.start * vector.shift[:, None]
        self.layer.weight_of(rows).add_(torch.bmm(vector.coefficients.transpose(1, 2), inputs))
        bias = self.layer.bias_of(rows)
        if bias is not None:
            bias += vector.coefficients.sum(dim=1)
        return rows

    def sum(self, vector: Span, factors: Tensor) -> Tensor:
        """The sum of all clients' vectors, each times its factor, `[parameters]`."""
        weighted = (vector.coefficients * factors[:, None, None]).flatten(0, 1)
        total = self.start * (vector.shift * factors).sum()
        self.layer.weight_of(total).addmm_(weighted.t(), self.inputs.flatten(0, 1))
        bias = self.layer.bias_of(total)
        if bias is not None:
            bias += weighted.sum(dim=0)
        return total

    def _terms(self, vector: Span) -> Tensor:
        """Upper bound on the squared terms that a norm is made of, cancellation apart."""
        lengths = self.gram[: len(vector.shift)].diagonal(dim1=1, dim2=2).sqrt()
        spread = (vector.coefficients.square().sum(dim=2).sqrt() * lengths).sum(dim=1)
        return (spread + vector.shift.abs() * math.sqrt(self._start_square)).square()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.sum(a * b, dim=(1, 2))
