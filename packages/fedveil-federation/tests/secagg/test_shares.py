"""Shamir's sharing against a plain implementation, pycryptodome, and the law of perfect secrecy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from sympy import GF, Poly, symbols

from fedveil_federation.secagg import shares
from fedveil_federation.secagg.shares import PRIME, draw_secret, split

X = symbols("x")


def elements(share: bytes) -> list[int]:
    return np.frombuffer(share, "<u2").tolist()


def combine(points: list[int], dealt: list[bytes]) -> bytes:
    rows = np.frombuffer(b"".join(dealt), np.uint8).reshape(len(points), 32)
    return shares.combine(np.array(points), rows)


def lagrange_at_zero(points: list[int], values: list[int]) -> int:
    """Textbook interpolation in Python integers."""
    total = 0
    for i, xi in enumerate(points):
        weight = 1
        for j, xj in enumerate(points):
            if i != j:
                weight = weight * xj * pow(xj - xi, -1, PRIME) % PRIME
        total += weight * values[i]
    return total % PRIME


@settings(max_examples=25, deadline=None)
@given(data=st.data(), holders=st.integers(1, 40))
def test_any_threshold_of_shares_recovers_both_secrets(data, holders):
    threshold = data.draw(st.integers(1, holders))
    secrets = [draw_secret(), draw_secret()]
    dealt = split(secrets, threshold, holders)
    points = data.draw(st.permutations(range(1, holders + 1)))[:threshold]
    for k, secret in enumerate(secrets):
        given = [dealt[p - 1, 32 * k : 32 * (k + 1)].tobytes() for p in points]
        assert combine(points, given) == secret
        for place in range(16):
            column = [elements(share)[place] for share in given]
            assert lagrange_at_zero(points, column) == elements(secret)[place]


def test_shares_are_values_of_a_polynomial_of_degree_threshold_minus_one():
    # The interpolating polynomial of all shares, by sympy, has the promised degree.
    dealt = split([draw_secret()], 4, 9)
    values = [elements(row.tobytes())[0] for row in dealt]
    total = Poly(0, X, domain=GF(PRIME))
    for i in range(9):
        term = Poly(values[i], X, domain=GF(PRIME))
        for j in range(9):
            if i != j:
                inverse = pow(i - j, -1, PRIME)
                term = term * Poly(inverse * (X - (j + 1)), X, domain=GF(PRIME))
        total = total + term
    assert total.degree() == 3  # fails by chance (leading coefficient zero) once in 65521


@pytest.mark.parametrize(("threshold", "holders"), [(2, 3), (5, 9), (7, 7)])
def test_the_same_subsets_recover_as_with_pycryptodome(threshold, holders):
    ours, theirs = draw_secret(), random.Random(1).randbytes(16)
    dealt = split([ours], threshold, holders)
    reference = Shamir.split(threshold, holders, theirs)
    for size in (threshold - 1, threshold):
        points = random.Random(size).sample(range(1, holders + 1), size)
        recovered = combine(points, [dealt[p - 1].tobytes() for p in points]) == ours
        expected = Shamir.combine([reference[p - 1] for p in points]) == theirs
        assert recovered == expected == (size == threshold)


def test_one_share_below_the_threshold_says_nothing_of_the_secret():
    # Threshold 2: one share of the zero secret and of the largest secret, 4000 dealings of 16
    # elements each, in 64 cells. False alarm: once in a million runs (both together).
    for value in (0, PRIME - 1):
        secret = np.full(16, value, dtype="<u2").tobytes()
        seen = np.concatenate([elements(split([secret], 2, 2)[0].tobytes()) for _ in range(4000)])
        counts = np.bincount(seen * 64 // PRIME, minlength=64)
        widths = np.bincount(np.arange(PRIME) * 64 // PRIME, minlength=64)
        assert chisquare(counts, widths * counts.sum() / PRIME).pvalue > 5e-7


def test_secrets_are_uniform_below_the_prime():
    # 3000 secrets, 16 elements each, against uniform cells; false alarm once in a million.
    seen = np.concatenate([elements(draw_secret()) for _ in range(3000)])
    assert seen.max() < PRIME
    counts = np.bincount(seen * 50 // PRIME, minlength=50)
    widths = np.bincount(np.arange(PRIME) * 50 // PRIME, minlength=50)
    assert chisquare(counts, widths * counts.sum() / PRIME).pvalue > 1e-6
