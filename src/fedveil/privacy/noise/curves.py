"""The two shapes of noise, as unnormalised densities exp(-y(x)) whose exponent y is rational."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fedveil.privacy.noise.exponential import exp_bounds

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
