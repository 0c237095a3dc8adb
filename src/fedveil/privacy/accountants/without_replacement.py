"""Rényi curve of a Gaussian on a sample without replacement (Wang, Balle, Kasiviswanathan 2019).

Theorem 27, with the strengthened terms for Gaussian noise. dp-accounting has the same bound, but
takes the forward differences in double precision, where they cancel: with much noise the high ones
are rounding errors, some of them too small. Here they are taken with as many digits as it needs,
once for all orders.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Curve = npt.NDArray[np.float64]


def fixed_size_curve(noise: float, rate: float, orders: Curve) -> Curve:
    """Bound at whole orders >= 2 for one unit replaced; `noise` is std / (2 * clip), rate < 1."""
    from scipy.special import gammaln, logsumexp

    top = int(orders.max())
    j = np.arange(2, top + 1)
    differences = log_differences(noise, top)
    terms = math.log(4) + 0.5 * (differences[2 * (j // 2)] + differences[2 * ((j + 1) // 2)])
    terms = np.minimum(terms, math.log(2) + j * (j - 1) / (2 * noise**2))
    second = noise**-2  # Rényi divergence of order two
    terms[0] = min(math.log(4) + second + math.log(-math.expm1(-second)), math.log(2) + second)
    terms += j * math.log(rate)
    curve = np.empty(len(orders))
    for index, alpha in enumerate(orders):
        here = j[j <= alpha]
        choose = gammaln(alpha + 1) - gammaln(here + 1) - gammaln(alpha - here + 1)
        curve[index] = logsumexp(np.append(terms[: len(here)] + choose, 0.0)) / (alpha - 1)
    return curve


def log_differences(noise: float, top: int) -> Curve:
    """log of the forward differences at 0 of order 0 .. top + 1 of j -> exp(j (j-1) / (2 noise^2)).

    The difference of order l is E (p/q - 1)^l for the two Gaussians; even ones are positive.
    """
    from mpmath import mp

    # The difference of order l is about noise^-l: so many digits cancel.
    digits = 80 + math.ceil(1.2 * (top + 2) * max(0.0, math.log10(noise)))
    with mp.workdps(digits):
        curvature = 1 / (2 * mp.mpf(noise) ** 2)
        values = [mp.exp(curvature * j * (j - 1)) for j in range(top + 2)]
        logs = []
        while values:
            logs.append(float(mp.log(abs(values[0]))) if values[0] else -math.inf)
            values = [after - before for before, after in pairwise(values)]
    return np.array(logs)
