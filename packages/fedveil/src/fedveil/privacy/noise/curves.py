"""The two shapes of noise, as unnormalised densities exp(-y(x)) whose exponent y is rational.

The bounds on e^-y are rigorous: it is the only transcendental number the exact samplers need.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

_LN2_ABOVE = Fraction(7, 10)


@dataclass(frozen=True)
class Bell:
    """exp(-x^2 / (2 std^2)), `std` in grid units."""

    std: Fraction

    @property
    def width(self) -> Fraction:
        """The length over which the density changes noticeably."""
        return self.std

    @property
    def reach(self) -> Fraction:
        """How far a table goes: beyond lies less than 1e-10 of the mass."""
        return self.std * 13 / 2

    def halving(self, x: Fraction) -> Fraction:
        """A length over which the density at least halves, anywhere beyond `x > 0`."""
        return _LN2_ABOVE * self.std * self.std / x

    def exponent(self, x: Fraction) -> Fraction:
        return x * x * self.curvature

    def slope(self, x: Fraction) -> Fraction:
        """With `curvature`: y(x + d) - y(x) = d * (slope(x) + curvature * d) for x, d >= 0."""
        return 2 * x * self.curvature

    @cached_property
    def curvature(self) -> Fraction:
        return 1 / (2 * self.std * self.std)


@dataclass(frozen=True)
class Tent:
    """exp(-|x| / scale), `scale` in grid units. The methods are those of `Bell`."""

    scale: Fraction

    @property
    def width(self) -> Fraction:
        return self.scale

    @property
    def reach(self) -> Fraction:
        """Beyond lies less than 1e-6 of the mass."""
        return self.scale * 14

    def halving(self, x: Fraction) -> Fraction:
        return _LN2_ABOVE * self.scale

    def exponent(self, x: Fraction) -> Fraction:
        return abs(x) / self.scale

    def slope(self, x: Fraction) -> Fraction:
        return 1 / self.scale

    @property
    def curvature(self) -> Fraction:
        return Fraction(0)


Curve = Bell | Tent


def density_bounds(curve: Curve, x: Fraction, bits: int) -> tuple[int, int]:
    """Integers enclosing 2^bits times the density at `x`."""
    exponent = curve.exponent(x)
    return exp_bounds(exponent.numerator, exponent.denominator, bits)


def exp_bounds(numerator: int, denominator: int, bits: int) -> tuple[int, int]:
    """Integers with `low <= 2^bits * exp(-numerator/denominator) <= high`, a few units apart.

    Every operation is on Python integers and rounds outwards, so the bounds hold by construction:
    e^-y = (1 / e^(y/2^r))^(2^r), where the reduced exponential is a Taylor sum of positive terms
    whose remainder is below twice the next term (the reduced argument is below 1/32).
    """
    if numerator < 0 or denominator <= 0:
        raise ValueError(f"exponent: need a value >= 0, got {numerator}/{denominator}")
    if numerator == 0:
        return 1 << bits, 1 << bits
    if numerator > (bits + 1) * denominator:  # e^-y < 2^-bits
        return 0, 1
    halvings = (numerator // denominator).bit_length() + 6
    work = bits + halvings + 12
    one = 1 << work
    argument_low = (numerator << work) // (denominator << halvings)
    argument_high = argument_low + 1
    sum_low, sum_high = one, one
    term_low, term_high, order = one, one, 0
    while term_low:
        order += 1
        term_low = term_low * argument_low // (order << work)
        term_high = -(-term_high * argument_high // (order << work))
        sum_low += term_low
        sum_high += term_high
    sum_high += 2 * term_high
    low = (one << work) // sum_high
    high = -(-(one << work) // sum_low)
    for _ in range(halvings):
        low = low * low >> work
        high = -(-high * high >> work)
    return low >> (work - bits), -(-high >> (work - bits))
