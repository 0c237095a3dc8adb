"""Softmax in which no column knows its neighbours: the exponential by sums and products alone.

Library exponentials are not rounded correctly, and may give other bits at the end of an array than
in its middle. This one takes one correctly rounded operation at a time (see `privacy.lanes`), so it
has the same bits everywhere. Off by at most two units in the last place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedveil.privacy.elementwise import tree_sum

_LEAST = -87.0  # of what is raised: below, the result is no normal number and counts as zero
# ln 2 in two parts, the first with few enough digits that k times it is exact (Cody and Waite).
_HIGH, _LOW = 0.693359375, -2.12194440e-4
# exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2) / 2, minimax in single precision (Cephes).
_SERIES = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def exp_below(x: Tensor) -> Tensor:
    """exp(x) for float32 x <= 0; NaN stays NaN."""
    held = x.clamp(min=_LEAST)
    whole = (held * (1 / math.log(2))).round_()
    rest = held.sub_(whole * _HIGH).sub_(whole * _LOW)
    series = rest * _SERIES[0]
    for coefficient in _SERIES[1:]:
        series.add_(coefficient).mul_(rest)
    series.mul_(rest).add_(rest).add_(1)
    power = (whole.to(torch.int32) + 127).bitwise_left_shift_(23).view(torch.float32)
    return series.mul_(power).masked_fill_(x < _LEAST, 0.0)


def softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of classes over the first axis of `scores [classes, ...]`, which become logarithms of
    shares up to a common term; and that term, `[...]`: the logarithm is `scores - term.log()`."""
    scores -= scores.amax(dim=0)  # exact, in whatever order
    raised = exp_below(scores)
    total = tree_sum(raised.clone())
    return raised.div_(total), total
