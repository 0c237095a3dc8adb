"""Arithmetic in which no row knows its neighbours.

Rows of different clients may share an array and still come out as if each had been alone, bit for
bit, if everything done to them is

* a sum, difference, product, quotient, square root, comparison, rounding or selection, element by
  element: IEEE 754 fixes every bit of its result, whatever instructions compute it, so neither the
  place in an array nor its alignment, stride or neighbours can show; and
* a sum along a row that is a fixed tree of such additions (`tree_sum`): its shape depends on the
  number of terms alone.

Library products and reductions (matmul, einsum, sum, norm), functions that are not rounded
correctly (exp, log, tanh, power) and two operations in one call (`add` with a factor, `addcmul`,
which may or may not round in between) keep no such promise: where clients must not reach each
other they are applied to one client's own arrays alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

Terms = TypeVar("Terms", bound=Any)  # numpy.ndarray or torch.Tensor


def tree_sum(context: Terms) -> Terms:
    """The sum over the first axis of `terms [n, ...]`, n >= 1, which are overwritten.

    Halves are added to each other until one term is left; with b terms, each sum is off by at most
    ceil(log2 b) roundings.
    """
    count = len(context)
    while count > 1:
        half = count // 2
        context[:half] += context[count - half : count]
        count -= half
    whole: Terms = context[0]
    return whole
