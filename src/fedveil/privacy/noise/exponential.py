"""Rigorous integer bounds on e^-y: the only transcendental number the exact samplers need."""

from __future__ import annotations


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
