"""Samplers draw the law that the accountants assume.

Statistical tests use fixed seeds, so they never flicker; each states the probability with which
a correct sampler would have failed it (a new seed would, once in so many).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, chi2, hypergeom

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness, Stream, Words
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    Sampling,
    random_subset,
    sampling_from_dict,
)

FALSE_ALARM = 1e-6  # of each statistical test below
DRAWS = 4000


class Fixed(Stream):
    """A stream that gives prepared words."""

    def __init__(self, *batches: list[int]) -> None:
        self.batches = [np.array(batch, dtype=np.uint64) for batch in batches]

    def words(self, count: int) -> Words:
        batch = self.batches.pop(0)
        assert len(batch) == count
        return batch


def cohorts(sampling: Sampling, clients: int, draws: int = DRAWS) -> npt.NDArray[np.bool_]:
    """Membership [draws, clients] of seeded cohorts."""
    randomness = Randomness(20260727)
    members = np.zeros((draws, clients), dtype=bool)
    for round_number in range(draws):
        members[
            round_number, sampling.draw(round_number, randomness.stream("cohort", round_number))
        ] = True
    return members


def fits(observed: npt.ArrayLike, expected: npt.ArrayLike, least: float = 8.0) -> bool:
    """Chi-square goodness of fit; neighbouring cells are joined until each expects `least`."""
    cells: list[tuple[float, float]] = []
    seen = hoped = 0.0
    for o, e in zip(np.ravel(observed), np.ravel(expected), strict=True):
        seen, hoped = seen + float(o), hoped + float(e)
        if hoped >= least:
            cells.append((seen, hoped))
            seen = hoped = 0.0
    cells[-1] = (cells[-1][0] + seen, cells[-1][1] + hoped)
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return bool(statistic <= chi2.isf(FALSE_ALARM, len(cells) - 1))


def marginals_fit(members: npt.NDArray[np.bool_], rate: float) -> bool:
    """Every client equally often: standardised squares, `clients` degrees of freedom."""
    counts = members.sum(axis=0)
    draws, clients = members.shape
    scores = (counts - draws * rate) ** 2 / (draws * rate * (1 - rate))
    return bool(scores.sum() <= chi2.isf(FALSE_ALARM, clients))


def pairs_fit(members: npt.NDArray[np.bool_], together: float) -> bool:
    """Every pair equally often together: no pair is an outlier, and their mean is within 5 std."""
    draws, clients = members.shape
    counts = (members.T.astype(float) @ members)[np.triu_indices(clients, 1)]
    scores = (counts - draws * together) / np.sqrt(draws * together * (1 - together))
    worst = chi2.isf(FALSE_ALARM / len(scores), 1)  # Bonferroni
    return bool((scores**2).max() <= worst and abs(scores.mean()) <= 0.6)


def test_poisson_marginals_pairs_and_sizes():
    clients, rate = 40, 0.15
    members = cohorts(Poisson(rate, clients), clients)
    assert marginals_fit(members, rate)
    assert pairs_fit(members, rate**2)
    sizes = np.bincount(members.sum(axis=1), minlength=clients + 1)
    assert fits(sizes, DRAWS * binom.pmf(np.arange(clients + 1), clients, rate))
    assert (members.sum(axis=1) == 0).sum() > 0  # empty cohorts are drawn, not skipped


def test_poisson_rounds_are_independent():
    """Membership of one client in successive rounds: counts of the four transitions."""
    rate = 0.3
    member = cohorts(Poisson(rate, 5), 5)[:, 2].astype(int)
    transitions = np.bincount(2 * member[:-1:2] + member[1::2], minlength=4)
    expected = np.array([(1 - rate) ** 2, (1 - rate) * rate, rate * (1 - rate), rate**2])
    assert fits(transitions, transitions.sum() * expected)


def test_fixed_size_marginals_pairs_and_sizes():
    clients, cohort = 40, 7
    members = cohorts(FixedSize(clients, cohort), clients)
    assert np.all(members.sum(axis=1) == cohort)
    assert marginals_fit(members, cohort / clients)
    assert pairs_fit(members, cohort * (cohort - 1) / (clients * (clients - 1)))
    overlap = np.bincount((members[:-1:2] & members[1::2]).sum(axis=1), minlength=cohort + 1)
    expected = hypergeom.pmf(np.arange(cohort + 1), clients, cohort, cohort)
    assert fits(overlap, overlap.sum() * expected)


@pytest.mark.parametrize(("clients", "cohort", "subsets"), [(6, 3, 20), (9, 2, 36)])
def test_fixed_size_draws_every_subset_equally_often(clients, cohort, subsets):
    """All sets of a small and of a large part of the clients, which are drawn differently."""
    members = cohorts(FixedSize(clients, cohort), clients)
    codes, counts = np.unique(members @ (1 << np.arange(clients)), return_counts=True)
    assert len(codes) == subsets
    assert fits(counts, np.full(subsets, DRAWS / subsets))


def test_capped_poisson_is_a_poisson_cohort_cut_to_a_random_subset():
    clients, rate, cap = 30, 0.2, 6
    members = cohorts(CappedPoisson(clients, rate, cap), clients)
    sizes = np.bincount(members.sum(axis=1), minlength=cap + 1)
    law = binom.pmf(np.arange(cap), clients, rate)
    assert fits(sizes, DRAWS * np.append(law, binom.sf(cap - 1, clients, rate)))
    mean = CappedPoisson(clients, rate, cap).expected_cohort
    assert mean == pytest.approx(
        sum(min(k, cap) * binom.pmf(k, clients, rate) for k in range(clients + 1))
    )
    assert marginals_fit(members, mean / clients)
    full = members[members.sum(axis=1) == cap]
    scores = (full.sum(axis=0) - len(full) * cap / clients) ** 2
    scores = scores / (len(full) * (cap / clients) * (1 - cap / clients))
    assert scores.sum() <= chi2.isf(FALSE_ALARM, clients)  # whom the cut keeps is uniform


def test_a_wrong_sampler_would_be_noticed():
    """The tests above have power: a rate 15 % off, and a sampler that prefers low ids, fail."""
    members = cohorts(Poisson(0.15 * 1.15, 40), 40)
    assert not marginals_fit(members, 0.15)
    assert not pairs_fit(members, 0.15**2)
    biased = cohorts(FixedSize(40, 7), 40)
    biased[:, 0] |= biased[:, 1]
    assert not marginals_fit(biased, 7 / 40)


def test_poisson_compares_words_with_the_floor_of_the_rate():
    """Exactly rate * 2^64 of all words are in; at the boundary, strictly below."""
    threshold = 2**62
    stream = Fixed([0, threshold - 1, threshold, 2**64 - 1])
    assert Poisson(0.25, 4).draw(0, stream).tolist() == [0, 1]
    rate = 0.1  # a float: its 53 bits end above 2^-64
    exact = int(rate * 2.0**64)
    assert exact / 2**64 == rate
    stream = Fixed([exact - 1, exact])
    assert Poisson(rate, 2).draw(0, stream).tolist() == [0]


@pytest.mark.parametrize("rate", [1e-18, 2.0**-64, 3e-20, 1e-300])
def test_tiny_rates_are_never_drawn_more_often_than_accounted(rate):
    inside = int(rate * 2.0**64)
    assert inside / 2**64 <= rate
    drawn = Poisson(rate, 2).draw(0, Fixed([0, inside]))
    assert drawn.tolist() == ([0] if inside > 0 else [])


def test_rate_one_and_full_cohorts_take_everybody():
    stream = Randomness(1).stream("x")
    everyone = list(range(9))
    assert Poisson(1.0, 9).draw(0, stream).tolist() == everyone
    assert Poisson(np.nextafter(1.0, 0.0), 9).draw(0, stream).tolist() == everyone
    assert FixedSize(9, 9).draw(0, stream).tolist() == everyone
    assert Everyone(9).draw(5).tolist() == everyone
    assert RoundRobin(9, 9).draw(5).tolist() == everyone
    assert Balanced(9, 9, 6).draw(5).tolist() == everyone


def test_a_tie_at_the_boundary_is_drawn_again():
    stream = Fixed([5, 7, 7, 9], [4, 3, 2, 1])
    assert random_subset(4, 2, stream).tolist() == [2, 3]
    inside = Fixed([7, 7, 8, 9])  # a tie within the chosen ones is harmless
    assert random_subset(4, 2, inside).tolist() == [0, 1]


def test_round_robin_takes_turns_and_counts_them():
    sampling = RoundRobin(7, 3)
    counts = np.zeros(7, dtype=int)
    for round_number in range(30):
        cohort = sampling.draw(round_number)
        assert len(cohort) == 3
        counts[cohort] += 1
        assert counts.max() == sampling.max_participations(round_number + 1)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("clients", "cohort", "rounds"), [(16, 10, 20), (7, 3, 50), (5, 5, 4)])
def test_balanced_schedule_is_balanced_at_every_prefix(clients, cohort, rounds):
    sampling = Balanced(clients, cohort, rounds)
    counts = np.zeros(clients, dtype=int)
    for round_number in range(rounds):
        drawn = sampling.draw(round_number)
        assert len(np.unique(drawn)) == cohort
        counts[drawn] += 1
        # A round may span two shuffles: those who wait are at most one behind.
        assert counts.max() <= sampling.max_participations(round_number + 1)
    assert counts.sum() == cohort * rounds
    assert counts.max() - counts.min() <= 1
    assert counts.max() == sampling.max_participations(rounds)


def test_balanced_schedules_depend_on_their_key_alone():
    one, two = Balanced(30, 10, 9), Balanced(30, 10, 9, key=1)
    assert np.array_equal(one.draw(4), Balanced(30, 10, 9).draw(4))
    assert any(not np.array_equal(one.draw(r), two.draw(r)) for r in range(9))
    with pytest.raises(ConfigError, match="round"):
        one.draw(9)
    with pytest.raises(ConfigError, match="rounds"):
        one.max_participations(10)


def test_only_secret_random_cohorts_amplify():
    assert [s.amplifies for s in (Poisson(0.1), FixedSize(9, 3), CappedPoisson(9, 0.1, 3))] == [
        True
    ] * 3
    assert [s.amplifies for s in (RoundRobin(9, 3), Everyone(), Balanced(9, 3, 2))] == [False] * 3
    for sampling in (Poisson(0.1), FixedSize(9, 3), CappedPoisson(9, 0.1, 3), Everyone()):
        assert sampling.max_participations(12) == 12  # never the mean


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0.0),
        lambda: Poisson(float("nan")),
        lambda: Poisson("half"),
        lambda: Poisson(True),
        lambda: Poisson(0.1, 0),
        lambda: Poisson(0.1, 2.5),
        lambda: FixedSize(10, 11),
        lambda: FixedSize(10, 0),
        lambda: FixedSize(-1, 1),
        lambda: FixedSize(10**30, 1),
        lambda: CappedPoisson(10, 0.1, 11),
        lambda: RoundRobin(3, 4),
        lambda: Balanced(3, 4, 1),
        lambda: Balanced(3, 2, 0),
        lambda: Everyone(0),
        lambda: sampling_from_dict({"kind": "lottery"}),
        lambda: sampling_from_dict({"kind": "fixed", "clients": 3}),
    ],
)
def test_impossible_samplers_cannot_be_made(make):
    with pytest.raises(ConfigError):
        make()
