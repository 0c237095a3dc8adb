"""Sampled Gaussians as pairs of discretised privacy loss distributions, rounded upwards.

All points of a curve are one array operation. Fixed-size sampling needs care: under *replace* the
adversary may meet the add curve in one region of losses and the remove curve in another, so the
larger of both hockey-stick curves is taken at every point before anything is composed (Zhu, Dong,
Wang 2022, theorem on sampling without replacement).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Beyond this loss exp() would leave the range of floats; such noise protects nobody anyway.
LARGEST_LOSS = 600.0
_TAIL_STDS = 9.0  # the tail beyond holds 2e-19, a millionth of what `pld` asks of delta a round


def gaussian_loss(noise: float) -> float:
    """A bound on the losses that matter in one Gaussian."""
    return 1 / (2 * noise**2) + _TAIL_STDS / noise


def poisson(noise: float, rate: float, interval: float) -> Any:
    """One Poisson-sampled Gaussian; both directions of add-remove, each rounded upwards.

    dp-accounting builds the same pair point by point; here all points are one array operation.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    reach = _reach(noise, rate, interval)
    # One direction's loss never passes -log(1 - rate), the other's never falls below log(1 - rate).
    bound = -math.log1p(-rate) / interval if rate < 1 else math.inf
    short = reach if bound > reach else math.ceil(bound) + 1
    remove, add = _divergences(noise, rate, np.arange(reach + 1, dtype=np.float64) * interval)
    return PrivacyLossDistribution(
        _rounded_upwards(remove, add[: short + 1], interval),
        _rounded_upwards(add[: short + 1], remove, interval),
    )


def symmetrised(noise: float, rate: float, interval: float) -> Any:
    """One fixed-size step under replace; `noise` is std / (2 * clip)."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    reach = _reach(noise, rate, interval)
    remove, add = _divergences(noise, rate, np.arange(reach + 1, dtype=np.float64) * interval)
    either = np.maximum(remove, add)  # from loss 0 upwards it is `remove`; the rest is symmetry
    return PrivacyLossDistribution(_rounded_upwards(either, either, interval))


def capped(noise: float, clients: int, rate: float, cap: int, interval: float) -> Any:
    """One Gaussian on a Poisson sample that is cut to a random subset of `cap` (arXiv 2508.15089).

    Where nothing is cut it is a Poisson step. Where something is, a client that comes in pushes
    another one out: twice the sensitivity, bounded by replacement in a sample.
    """
    from scipy.stats import binom

    plain = poisson(noise, rate, interval)
    cut = float(binom.sf(cap - 1, clients - 1, rate))  # given that the client was drawn
    if cut == 0:
        return plain
    kept = float(binom.sf(cap, clients, rate)) * cap / (cut * clients)  # given that some are cut
    return _replaced(noise / 2, min(1.0, kept), interval).compute_mixture(plain, cut)


def zeroed_capped(noise: float, clients: int, rate: float, cap: int, interval: float) -> Any:
    """The same sampling when a client's contribution is zeroed, for at most `clients` clients.

    Given who else came, nobody is cut, and it is a Poisson step; or somebody is. Then the sums with
    the client and without its contribution are one clip apart, and neither is further than two
    clips from the sum without the client. By advanced joint convexity (Balle, Barthe, Gaboardi
    2018) neither direction's divergence exceeds that of a Poisson step with half the noise.
    """
    from scipy.stats import binom

    plain, cut = poisson(noise, rate, interval), float(binom.sf(cap - 1, clients - 1, rate))
    return plain if cut == 0 else symmetrised(noise / 2, rate, interval).compute_mixture(plain, cut)


def _replaced(noise: float, rate: float, interval: float) -> Any:
    """(1-q)N(0) + qN(1) against (1-q)N(0) + qN(-1): one client replaced, sampling independent."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from scipy.special import ndtr

    reach = _reach(noise / 2, rate, interval)
    losses = np.arange(reach + 1, dtype=np.float64) * interval
    # The loss exceeds `losses` to the right of `cut`, the root of a quadratic in exp(x / noise^2).
    half, shape = (1 - rate) * -np.expm1(-losses), rate * math.exp(-0.5 / noise**2)
    root = half + np.sqrt(half**2 + 4 * shape**2 * np.exp(-losses))
    cut = noise**2 * (np.log(root) + losses - math.log(2 * rate)) + 0.5
    outside = -(1 - rate) * np.expm1(losses) * ndtr(-cut / noise)
    inside = rate * (ndtr((1 - cut) / noise) - np.exp(losses) * ndtr((-1 - cut) / noise))
    divergence = np.maximum(outside + inside, 0.0)
    return PrivacyLossDistribution(_rounded_upwards(divergence, divergence, interval))


def _reach(noise: float, rate: float, interval: float) -> int:
    """Cells up to the largest loss that matters."""
    loss = min(LARGEST_LOSS, gaussian_loss(noise))
    return max(1, math.ceil(math.log1p(rate * math.expm1(loss)) / interval))


def _divergences(noise: float, rate: float, losses: Floats) -> tuple[Floats, Floats]:
    """Hockey-stick divergences of a sampled Gaussian at each loss >= 0: remove, then add."""
    from scipy.special import ndtr

    growth = np.exp(losses)
    # Remove: (1-q)N(0) + qN(1) against N(0); its loss exceeds log(growth) to the right of `cut`.
    cut = noise**2 * np.log((growth - 1 + rate) / rate) + 0.5
    remove = rate * ndtr((1 - cut) / noise) + (1 - rate - growth) * ndtr(-cut / noise)
    # Add: N(0) against (1-q)N(0) + qN(1), to the left of `cut`; never beyond -log(1-q).
    inside = (1 / growth - 1 + rate) / rate
    possible = inside > 0
    cut = noise**2 * np.log(np.where(possible, inside, 1.0)) + 0.5
    add = (1 - growth * (1 - rate)) * ndtr(cut / noise) - growth * rate * ndtr((cut - 1) / noise)
    return np.maximum(remove, 0.0), np.maximum(np.where(possible, add, 0.0), 0.0)


def _rounded_upwards(forward: Floats, backward: Floats, interval: float) -> Any:
    """Connect the dots (Doroshenko et al. 2022) through the divergences at every grid point.

    forward: H of (P, Q) at losses 0, 1, 2, ... cells; backward: H of (Q, P), which gives the
    negative losses by H_1/a(P, Q) = 1 - 1/a + H_a(Q, P)/a. Mass beyond the grid counts as
    infinite loss above, and as the lowest loss below.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    shrink = np.exp(-np.arange(len(backward) - 1, 0, -1) * interval)
    deltas = np.concatenate([1 - shrink + shrink * backward[:0:-1], forward])
    # Ironing out rounding, upwards only: the smallest non-increasing curve above.
    deltas = np.minimum(np.maximum.accumulate(deltas[::-1])[::-1], 1.0)
    falls, grow = np.diff(deltas), math.expm1(interval)
    mass = np.empty_like(deltas)
    mass[0] = 1 - deltas[0] + falls[0] / grow
    mass[1:-1] = (falls[1:] - falls[:-1] * math.exp(interval)) / grow
    mass[-1] = falls[-1] / math.expm1(-interval)
    lowest = 1 - len(backward)
    return DensePLDPmf(interval, lowest, np.maximum(mass, 0.0), float(deltas[-1]), True)
