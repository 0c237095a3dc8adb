"""Arithmetic on many clients at once in which no client's numbers depend on another's.

`privacy.elementwise` has the rules. Here are the two operations of training that need more than
single correctly rounded operations:

* Matrix products (`products`). `numpy.matmul` calls one routine for every matrix of a stack, one
  after the other, always with the same shape and strides. With every matrix aligned alike
  (`aligned_stack`), a client's product is a function of its own two matrices, whoever else is
  there. (`torch.bmm` hands the whole stack to a library that may choose its kernel by the number of
  matrices.) Large products go through `torch.mm`, one client after the other: numpy's library would
  use several threads for them, and round differently with each number of threads.
* The exponential in `softmax`. Library exponentials are not rounded correctly, and may give other
  bits at the end of an array than in its middle. This one takes one correctly rounded operation
  at a time, and is off by at most two units in the last place.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.privacy.elementwise import tree_sum

_LINE = 64  # bytes at whose multiples a client's memory starts
# Multiplications up to which no library divides a product among threads, by matrix and by vector.
_SMALL_MATRIX, _SMALL_VECTOR = 50_000, 8_000

Floats = npt.NDArray[np.float32]

# Of what is raised: below, the result is no normal number and counts as zero.
_LEAST = np.float32(-87)
# ln 2 in two parts, the first with few enough digits that k times it is exact (Cody and Waite).
_PER_LN2, _HIGH, _LOW = np.array([1 / math.log(2), 0.693359375, -2.12194440e-4], np.float32)
# exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2) / 2, minimax in single precision (Cephes).
_SERIES = np.array(
    [
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ],
    np.float32,
)


def aligned_stack(
    clients: int, *shape: int, dtype: torch.dtype = torch.float32, fill: bool = True
) -> Tensor:
    """Return zeros `[clients, *shape]`, or without `fill` any numbers, in which every client's part
    is aligned alike."""
    count, line = math.prod(shape), _LINE // dtype.itemsize
    make = torch.zeros if fill else torch.empty
    memory = make(clients, -(-count // line) * line, dtype=dtype)
    return memory[:, :count].view(clients, *shape)


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of every client's two matrices, each as if it were computed alone.

    Args:
        left: Matrices `[clients, m, k]`; quickest if they are an `aligned_stack`, or one turned.
        right: Matrices `[clients, k, n]`, the same.

    Returns:
        A new `aligned_stack` `[clients, m, n]`.
    """
    (clients, m, k), n = left.shape, right.shape[-1]
    out = aligned_stack(clients, m, n, dtype=left.dtype, fill=False)
    left, right = aligned(left), aligned(right)
    if m * k * n <= (_SMALL_VECTOR if min(m, n) == 1 else _SMALL_MATRIX):
        with np.errstate(all="ignore"):  # what overflows shows in the result, and nowhere else
            np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    else:
        for own, other, into in zip(left, right, out, strict=True):
            torch.mm(own, other, out=into)
    return out


def aligned(matrices: Tensor) -> Tensor:
    """Return the matrices `[clients, m, n]`, copied to an `aligned_stack` if they are not one.

    Libraries round by the layout of a matrix. What comes out has its rows one after the other, or
    its columns if these came so, whether it was copied or not: that may depend on how many clients
    there are, for one client alone has no distance to the next.
    """
    clients, m, n = matrices.shape
    step, row, column = matrices.stride()
    by_rows = (column == 1 or n == 1) and (row == n or m == 1)
    if not by_rows and row == 1 and (column == m or n == 1):
        return aligned(matrices.mT).mT
    apart = clients == 1 or step * matrices.element_size() % _LINE == 0
    if by_rows and apart and matrices.data_ptr() % _LINE == 0:
        return matrices
    return aligned_stack(*matrices.shape, dtype=matrices.dtype).copy_(matrices)


def widened(matrices: Tensor) -> Tensor:
    """Return the matrices `[clients, m, n]` in double precision."""
    return aligned_stack(*matrices.shape, dtype=torch.float64).copy_(matrices)


def exp_below(x: Floats) -> Floats:
    """Return exp(x) for float32 x <= 0; NaN stays NaN.

    In numpy, whose operations on few numbers take half the time of torch's, and are the same.
    """
    rest = np.maximum(x, _LEAST)
    whole = np.rint(rest * _PER_LN2)
    rest -= whole * _HIGH
    rest -= whole * _LOW
    series: Floats = rest * _SERIES[0]
    for coefficient in _SERIES[1:]:
        series += coefficient
        series *= rest
    series *= rest
    series += rest
    series += 1
    # The bits of 2^whole: its exponent stands above 23 digits, and 0 is kept as 127.
    whole += 127
    whole *= 1 << 23
    with np.errstate(invalid="ignore"):  # where x is NaN, and so is the series
        series *= whole.astype(np.int32).view(np.float32)
    series[x < _LEAST] = 0
    return series


def softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of classes, and what turns scores into logarithms of shares.

    Args:
        scores: Scores `[classes, ...]`; the largest of each column is subtracted in place.

    Returns:
        Shares `[classes, ...]`, and a term `[...]`: the logarithm is `scores - term.log()`.
    """
    values = scores.numpy()
    with np.errstate(all="ignore"):
        values -= values.max(axis=0)  # exact, in whatever order
        raised = exp_below(values)
        total = tree_sum(raised.copy())
        raised /= total
    return torch.from_numpy(raised), torch.from_numpy(total)
