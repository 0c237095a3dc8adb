"""Slow samplers in pure integers (Canonne, Kamath, Steinke 2020): what the fast ones must equal.

They share no step with the table samplers: no table, no exponential is ever evaluated, only fair
coins are combined. Parameters may be any positive rational.
"""

from __future__ import annotations

from fractions import Fraction

from fedveil.core.randomness import Stream


def discrete_gaussian_reference(stream: Stream, std: Fraction) -> int:
    """One discrete Gaussian, by rejection from an integer-scale discrete Laplace (Algorithm 3)."""
    variance = std * std
    scale = int(std) + 1
    while True:
        value = discrete_laplace_reference(stream, Fraction(scale))
        excess = abs(value) - variance / scale
        if _coin_exp(stream, excess * excess / (2 * variance)):
            return value


def discrete_laplace_reference(stream: Stream, scale: Fraction) -> int:
    """One discrete Laplace, P(k) proportional to exp(-|k| / scale) (Algorithm 2)."""
    t, s = scale.numerator, scale.denominator
    while True:
        # remainder + t * quotient is geometric with ratio exp(-1/t).
        remainder = uniform_below(stream, t)
        if not _coin_exp(stream, Fraction(remainder, t)):
            continue
        quotient = 0
        while _coin_exp(stream, Fraction(1)):
            quotient += 1
        magnitude = (remainder + t * quotient) // s
        negative = uniform_below(stream, 2) == 1
        if not (negative and magnitude == 0):  # zero would otherwise be drawn twice as often
            return -magnitude if negative else magnitude


def uniform_below(stream: Stream, bound: int) -> int:
    """A uniform integer in [0, bound)."""
    bits = (bound - 1).bit_length()
    while True:
        value = 0
        for _ in range(-(-bits // 64)):
            value = (value << 64) | int(stream.words(1)[0])
        value >>= -bits % 64
        if value < bound:
            return value


def _coin_exp(stream: Stream, exponent: Fraction) -> bool:
    """Heads with probability exp(-exponent), for any rational exponent >= 0 (Algorithm 1)."""
    while exponent > 1:
        if not _coin_exp(stream, Fraction(1)):
            return False
        exponent -= 1
    # Von Neumann: the length of the first run of heads at odds exponent/1, exponent/2, ... is
    # even with probability exp(-exponent).
    length = 1
    while _coin(stream, exponent / length):
        length += 1
    return length % 2 == 1


def _coin(stream: Stream, probability: Fraction) -> bool:
    return uniform_below(stream, probability.denominator) < probability.numerator
