"""Correlated noise: its sensitivity by brute force, its arithmetic against the definition, and its
cost against the closed form."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from scipy import stats

import fedveil as fv
from fedveil.core.errors import ConfigError, FedveilError
from fedveil.core.randomness import Stream
from fedveil.privacy.calibration import calibrate_mechanism
from fedveil.privacy.correlated import (
    ONE,
    CorrelatedGaussian,
    Factor,
    FactorKind,
    factor_of,
    noise_ratio,
)
from fedveil.privacy.noise import correlated
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.refusals import AdjacencyRefused, MechanismRefused, SeparationRefused

CLIENT = fv.PrivacyModel(fv.Unit.CLIENT, fv.Adjacency.ZERO_OUT, fv.Trust.CENTRAL)
REPLACED = fv.PrivacyModel(fv.Unit.CLIENT, fv.Adjacency.REPLACE, fv.Trust.CENTRAL)
DELTA = 1e-5


def matrix(factor: Factor, rounds: int, starts: tuple[int, ...] = ()) -> np.ndarray:
    """The factor as a matrix; series of noise begin at round 0 and at `starts`."""
    found = np.zeros((rounds, rounds))
    for row, column in itertools.product(range(rounds), repeat=2):
        begun = max((start for start in (0, *starts) if start <= row), default=0)
        if begun <= column <= row < column + len(factor):
            found[row, column] = factor[row - column] / ONE
    return found


def turns(sampling: fv.RoundRobin | fv.Balanced, rounds: int) -> list[list[int]]:
    """The rounds of each client, as they are drawn."""
    cohorts = [set(sampling.draw(number).tolist()) for number in range(rounds)]
    return [
        [number for number, cohort in enumerate(cohorts) if client in cohort]
        for client in range(sampling.clients)
    ]


# --- separation ------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", range(1, 14))
def test_a_schedule_knows_how_far_apart_turns_are(clients):
    rounds = 40
    for cohort in range(1, clients + 1):
        for sampling in (fv.RoundRobin(clients, cohort), fv.Balanced(clients, cohort, rounds)):
            own = turns(sampling, rounds)
            gaps = [b - a for rounds_of in own for a, b in itertools.pairwise(rounds_of)]
            assert sampling.separation == min(gaps)
    assert fv.Everyone(clients).separation == fv.Poisson(0.1, clients).separation == 1


# --- sensitivity -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FactorKind)
@pytest.mark.parametrize(("clients", "cohort", "rounds"), [(6, 2, 9), (7, 2, 10), (5, 1, 11)])
def test_no_client_moves_the_mechanism_further_than_accounted(kind, clients, cohort, rounds):
    """All signs of updates of full length along one line, which is the worst a client can do (the
    norm is convex in each update), and random ones in three dimensions; with and without series
    that begin anew. One client does reach the bound."""
    sampling = fv.RoundRobin(clients, cohort)
    factor, largest = factor_of(kind, sampling.separation, rounds), 0.0
    law = CorrelatedGaussian(1.0, factor)
    allowed = math.sqrt(sampling.max_participations(rounds)) * law.norm
    draw = np.random.default_rng(1)
    for starts in ((), (4,), (3, 5)):
        mixing = matrix(factor, rounds, starts)
        for own in turns(sampling, rounds):
            for signs in itertools.product((-1.0, 1.0), repeat=len(own)):
                moved = float(np.linalg.norm(mixing[:, own] @ np.array(signs)))
                assert moved <= allowed * (1 + 1e-12)
                largest = max(largest, moved)
            updates = draw.standard_normal((len(own), 3))
            updates /= np.linalg.norm(updates, axis=1, keepdims=True)
            assert np.linalg.norm(mixing[:, own] @ updates) <= allowed * (1 + 1e-12)
    if rounds % sampling.separation == 0 and clients % cohort == 0:
        assert largest == pytest.approx(allowed, rel=1e-12)


def test_turns_that_are_too_near_do_move_it_further():
    """What the refusal is about: two turns in a row within the bands."""
    factor = factor_of(FactorKind.SQUARE_ROOT, 3, 9)
    moved = np.linalg.norm(matrix(factor, 9)[:, [0, 1, 2]].sum(axis=1))
    assert moved > 1.2 * math.sqrt(3) * CorrelatedGaussian(1.0, factor).norm


# --- cost ------------------------------------------------------------------------------------


def release(law: CorrelatedGaussian, sampling: object, rounds: int) -> fv.Release:
    return fv.Release(law, sampling, rounds)


@pytest.mark.parametrize(("model", "times"), [(CLIENT, 1), (REPLACED, 2)])
def test_epsilon_is_that_of_one_gaussian(model, times):
    factor = factor_of(FactorKind.OPTIMISED, 5, 32)
    norm = math.sqrt(sum((c / ONE) ** 2 for c in factor))
    for rounds, taken in ((1, 1), (5, 1), (6, 2), (32, 7)):
        law = CorrelatedGaussian(7.0, factor)
        found = fv.account(
            [release(law, fv.RoundRobin(50, 10), rounds)], privacy_model=model, delta=DELTA
        )
        expected = gaussian_mechanism.get_epsilon_gaussian(
            7.0 / (times * math.sqrt(taken) * norm), DELTA
        )
        assert found.epsilon == pytest.approx(expected, rel=1e-9)
        assert found.certified
        assert found.accountant == "exact"
        assert found.participations == taken


@pytest.mark.parametrize(
    ("epsilon", "independent", "banded"), [(2, 4.88, 2.23), (4, 2.65, 1.21), (8, 1.47, 0.67)]
)
def test_noise_equivalents_golden(epsilon, independent, banded):
    """Sixty rounds, cohorts of a tenth, delta 1e-5; independent computations gave these."""
    rounds, sampling = 60, fv.RoundRobin(100, 10)
    assert sampling.separation == 10

    def equivalent(factor):
        law = calibrate_mechanism(
            lambda noise: CorrelatedGaussian(noise, factor),
            epsilon=epsilon,
            delta=DELTA,
            sampling=sampling,
            rounds=rounds,
            privacy_model=CLIENT,
        )
        return law.noise_multiplier * noise_ratio(factor, rounds)

    assert equivalent((ONE,)) == pytest.approx(independent, abs=0.006)
    assert equivalent(factor_of(FactorKind.SQUARE_ROOT, 10, rounds)) == pytest.approx(
        banded, abs=0.006
    )
    better = equivalent(factor_of(FactorKind.OPTIMISED, 10, rounds))
    assert 0.98 * banded < better < banded


def test_the_length_of_a_column_is_rounded_up():
    for bands in (1, 2, 3, 10, 37):
        law = CorrelatedGaussian(1.0, factor_of(FactorKind.SQUARE_ROOT, bands, 50))
        exact = sum(Fraction(c, ONE) ** 2 for c in law.factor)
        assert exact <= Fraction(law.norm) ** 2 <= exact * (1 + Fraction(1, 2**50))


# --- factors ---------------------------------------------------------------------------------


def test_the_square_root_factor_is_the_root_of_prefix_sums():
    whole = np.array(factor_of(FactorKind.SQUARE_ROOT, 12, 12)) / ONE
    assert whole[:4] == pytest.approx([1, 1 / 2, 3 / 8, 5 / 16], abs=1 / ONE)
    root = matrix(factor_of(FactorKind.SQUARE_ROOT, 12, 12), 12)
    assert root @ root == pytest.approx(np.tril(np.ones((12, 12))), abs=12 / ONE)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_optimised_factor_beats_its_neighbours_and_the_definition_agrees(momentum):
    """The error by its definition: |A C^-1| |c| with the matrix A of the server's steps."""
    rounds, bands = 24, 6
    ages = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    steps = np.tril((1 - momentum ** np.abs(ages + 1.0)) / (1 - momentum))

    def cost(factor):
        error = float(np.linalg.norm(steps @ np.linalg.inv(matrix(factor, rounds))))
        assert noise_ratio(factor, rounds, momentum) == pytest.approx(
            error / np.linalg.norm(steps), rel=1e-9
        )
        return error * math.sqrt(sum((c / ONE) ** 2 for c in factor))

    best = factor_of(FactorKind.OPTIMISED, bands, rounds, momentum)
    least = cost(best)
    assert least < 0.7 * cost((ONE,))
    assert least <= cost(factor_of(FactorKind.SQUARE_ROOT, bands, rounds))
    draw = np.random.default_rng(2)
    for _ in range(200):
        tried = np.clip(np.array(best) + np.rint(draw.normal(0, 100, bands)), 0, ONE)
        tried = np.minimum.accumulate([ONE, *tried[1:]])
        assert cost(tuple(int(c) for c in tried)) > least * (1 - 1e-5)


@pytest.mark.parametrize(
    "factor", [(), (ONE, ONE + 1), (1,), (ONE, -1), (ONE, 3.0), (ONE, 2, 3), "4096", None]
)
def test_a_factor_that_might_grow_is_refused(factor):
    with pytest.raises(ConfigError, match="factor"):
        CorrelatedGaussian(1.0, factor)


# --- refusals --------------------------------------------------------------------------------

THREE = CorrelatedGaussian(2.0, factor_of(FactorKind.SQUARE_ROOT, 3, 12))
ONE_BAND, TURNS = CorrelatedGaussian(2.0, (ONE,)), fv.RoundRobin(30, 3)
SECRET = fv.Poisson(0.1, 100), fv.FixedSize(100, 10), fv.CappedPoisson(100, 0.1, 20)


@pytest.mark.parametrize(
    ("law", "sampling", "more", "model"),
    [
        *((THREE, one, None, CLIENT) for one in (fv.RoundRobin(10, 4), fv.Everyone(100))),
        (THREE, fv.Balanced(12, 3, 40), None, CLIENT),
        # How often somebody took part does not say how far apart.
        *((THREE, one, 2, CLIENT) for one in (TURNS, fv.Poisson(0.1, 100))),
        *((THREE, TURNS, None, replace(CLIENT, trust=one)) for one in ("local", "distributed")),
        *((law, one, None, m) for law in (ONE_BAND, THREE) for one in SECRET
          for m in (CLIENT, REPLACED)),
    ],
)  # fmt: skip
def test_what_keeps_no_distance_or_has_no_proof_is_refused(law, sampling, more, model):
    with pytest.raises((SeparationRefused, MechanismRefused, AdjacencyRefused)):
        fv.account([fv.Release(law, sampling, 12, 1, more)], privacy_model=model, delta=DELTA)


# --- noise -----------------------------------------------------------------------------------


def series(
    memory: NoiseMemory, rounds: int, count: int, std: float, grid: float | None, factor: Factor
) -> np.ndarray:
    streams = [Stream(number.to_bytes(32, "little")) for number in range(rounds)]
    return np.array([memory.draw(stream, count, std, grid, factor) for stream in streams])


def test_released_values_follow_from_the_accounted_mechanism_alone(monkeypatch):
    """Two worlds with other sums x and the same s = C x + g, in whole numbers: the released values
    are the same, bit for bit. So they are a function of s, whatever x is."""
    draw, rounds, count = np.random.default_rng(3), 17, 50
    factor = factor_of(FactorKind.OPTIMISED, 5, rounds)
    worlds = [draw.integers(-(2**30), 2**30, (rounds, count)) for _ in range(2)]
    fresh = draw.integers(-(2**44), 2**44, (rounds, count))

    def mixed(sums, number):
        back = range(min(len(factor), number + 1))
        return sum(factor[k] * sums[number - k] for k in back)

    released = []
    for sums in worlds:
        memory, found = NoiseMemory(), []
        for number in range(rounds):
            seen = mixed(worlds[0], number) + fresh[number]  # s, the same in both
            given = seen - mixed(sums, number)
            monkeypatch.setattr(correlated, "fresh_noise", lambda *_, given=given: given.copy())
            noise = memory.draw(Stream(bytes(32)), count, 1.0, 1.0, factor)
            found.append(sums[number] + noise)
        released.append(np.array(found))
    assert not np.array_equal(*worlds)
    assert np.array_equal(*released)


@pytest.mark.parametrize("grid", [None, 2.0**-20])
def test_drawn_noise_solves_the_equation_it_is_accounted_with(grid):
    """C w is fresh Gaussian noise of the stated std, independent between rounds: with fixed seeds
    a deterministic test, with a false-alarm rate of about 1e-6 before they were."""
    rounds, count, std = 30, 4000, 0.7
    factor = factor_of(FactorKind.SQUARE_ROOT, 6, rounds)
    noise = series(NoiseMemory(), rounds, count, std, grid, factor) * (grid or 1.0)
    fresh = matrix(factor, rounds) @ noise / std
    total = rounds * count
    alpha = 1e-7
    low, high = stats.chi2.ppf([alpha, 1 - alpha], total) / total
    assert low < np.mean(fresh**2) < high
    assert stats.kstest(fresh.ravel(), "norm").pvalue > alpha
    products = fresh @ fresh.T / count
    between = products[np.triu_indices(rounds, 1)]
    assert np.abs(between).max() < stats.norm.isf(alpha / len(between)) / math.sqrt(count)
    # Correlation is what it is for: the weights' error is as small as predicted.
    error = math.sqrt(np.mean(np.cumsum(noise, axis=0) ** 2) / np.mean(np.arange(1, rounds + 1)))
    assert error / std == pytest.approx(noise_ratio(factor, rounds), rel=0.03)


def test_a_new_series_remembers_nothing():
    factor = factor_of(FactorKind.OPTIMISED, 4, 9)
    used, new = NoiseMemory(), NoiseMemory()
    series(used, 5, 20, 1.0, 2.0**-20, factor)
    used.begin(5)
    new.begin(5)
    assert used.next_round == new.next_round == 5
    one, other = (series(each, 4, 20, 1.0, 2.0**-20, factor) for each in (used, new))
    assert np.array_equal(one, other)
    assert used.next_round == 9


def test_past_noise_is_neither_shown_nor_written():
    memory = NoiseMemory()
    noise = series(memory, 3, 4, 1.0, None, (ONE, ONE // 2, ONE // 4))
    assert not any(str(value)[:6] in repr(memory) for value in noise.ravel())
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(FedveilError, match="secret"):
            way(memory)


def test_noise_beyond_the_integers_is_refused(monkeypatch):
    monkeypatch.setattr(correlated, "fresh_noise", lambda *_: np.array([1 << 62]))
    with pytest.raises(FedveilError, match="64-bit"):
        NoiseMemory().draw(Stream(bytes(32)), 1, 1.0, 1.0, (ONE,) * 9)
