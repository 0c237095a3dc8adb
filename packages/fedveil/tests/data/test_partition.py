"""Laws of every partition, and the distribution of the random ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedveil.core.errors import ConfigError
from fedveil.data.assignment import generator, group
from fedveil.data.partition import (
    IID,
    ByOwner,
    Dirichlet,
    Partition,
    SortedSlices,
    named,
)


def owners_of(assignment, examples):
    """A second, slow reading of an assignment: the owner of each row, -1 if nobody's."""
    owner = np.full(examples, -1)
    for client in range(assignment.clients):
        for row in assignment.rows[assignment.offsets[client] : assignment.offsets[client + 1]]:
            assert owner[row] == -1, "a row has two owners"
            owner[row] = client
    return owner


@st.composite
def pools(draw):
    clients = draw(st.integers(1, 12))
    examples = draw(st.integers(clients, 80))
    seed = draw(st.integers(0, 10**6))
    classes = draw(st.integers(1, 5))
    labels = np.random.default_rng(seed).integers(0, classes, examples)
    return clients, labels, seed


@given(pools(), st.sampled_from(["iid", "dirichlet", "sorted"]), st.floats(1e-3, 1e3))
@settings(max_examples=150, deadline=None)
def test_every_example_has_one_owner_and_every_client_an_example(pool, kind, alpha):
    clients, labels, seed = pool
    extra = {"alpha": alpha} if kind == "dirichlet" else {}
    assignment = named(kind, clients=clients, **extra).assign(labels, None, seed)
    owner = owners_of(assignment, len(labels))
    assert (owner >= 0).all()
    assert set(owner) == set(range(clients))


@given(pools(), st.sampled_from(["iid", "dirichlet", "sorted", "owner"]), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_a_fixed_number_is_met_exactly_and_a_cap_never_exceeded(pool, kind, limit):
    clients, labels, seed = pool
    extra = {"alpha": 0.3} if kind == "dirichlet" else {}
    count = {} if kind == "owner" else {"clients": clients}
    owners = np.random.default_rng(seed).integers(0, clients, len(labels))
    capped = named(kind, cap=limit, **count, **extra).assign(labels, owners, seed)
    assert capped.sizes.min() >= 1
    assert capped.sizes.max() <= limit
    owners_of(capped, len(labels))
    fixed = named(kind, examples_per_client=limit, **count, **extra)
    possible = (
        (np.bincount(owners) >= limit).any() if kind == "owner" else clients * limit <= len(labels)
    )
    if not possible:
        with pytest.raises(ConfigError):
            fixed.assign(labels, owners, seed)
        return
    dealt = fixed.assign(labels, owners, seed)
    owners_of(dealt, len(labels))
    assert set(dealt.sizes) == {limit}
    if kind != "owner":
        assert dealt.clients == clients


@pytest.mark.parametrize(
    "partition",
    [IID(7), Dirichlet(7, 0.5), Dirichlet(7, 0.5, examples_per_client=9), SortedSlices(7)],
)
def test_the_same_seed_deals_the_same_and_another_seed_another(partition: Partition):
    labels = np.arange(100) % 4
    deal = [partition.assign(labels, None, seed).rows for seed in (1, 1, 2)]
    np.testing.assert_array_equal(deal[0], deal[1])
    assert (deal[0] != deal[2]).any()


def test_iid_sizes_differ_by_at_most_one_and_labels_mix_like_independent_draws():
    labels = np.repeat(np.arange(10), 600)
    dealt = IID(59).assign(labels, None, 0)
    assert set(dealt.sizes) == {101, 102}
    client = np.repeat(np.arange(59), dealt.sizes)
    table = np.zeros((59, 10))
    np.add.at(table, (client, labels[dealt.rows]), 1)
    # Chi-square of independence; the seed is fixed, and fresh seeds would fail once in 10,000.
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_sorted_slices_never_overlap_in_their_targets():
    targets = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    dealt = SortedSlices(50).assign(targets, None, 0)
    slices = targets[dealt.rows].reshape(50, 20)
    assert (slices[:-1].max(axis=1) <= slices[1:].min(axis=1)).all()


def test_sorted_slices_of_a_fixed_size_take_as_many_clients_as_fit():
    targets = np.random.default_rng(0).normal(size=1003)
    dealt = SortedSlices(per_client=80).assign(targets, None, 0)
    assert dealt.clients == 12
    assert set(dealt.sizes) == {80}
    # What is left out is a random part, not the highest targets: mean rank near the middle.
    # (43 of 1003 uniform ranks: standard deviation of the mean 44, so 5 sigma is 220.)
    left = np.setdiff1d(np.arange(1003), dealt.rows)
    ranks = stats.rankdata(targets)[left]
    assert abs(ranks.mean() - 502) < 220


@pytest.mark.parametrize(
    ("alpha", "balanced"), [(0.1, False), (0.1, True), (5.0, False), (5.0, True)]
)
def test_dirichlet_mixes_have_the_moments_of_the_dirichlet_law(alpha, balanced):
    classes, clients, each = 10, 400, 100
    labels = np.repeat(np.arange(classes), 2 * clients * each // classes)  # half stays over
    partition = Dirichlet(clients, alpha, examples_per_client=each if balanced else None)
    dealt = partition.assign(labels, None, 3)
    client = np.repeat(np.arange(clients), dealt.sizes)
    table = np.zeros((clients, classes))
    np.add.at(table, (client, labels[dealt.rows]), 1)
    if balanced:  # each client's mix ~ Dir(alpha * 1_classes), then multinomial
        shares, parts, draws = table / each, classes, each
    else:  # each class's split ~ Dir(alpha * 1_clients), then multinomial
        shares, parts, draws = table.T / table.sum(axis=0)[:, None], clients, len(labels) / classes
    mean = 1 / parts
    variance = mean * (1 - mean) / (parts * alpha + 1)
    variance += (mean * (1 - mean) - variance) / draws  # of the multinomial on top
    # About 4,000 shares: relative deviation of their variance below 7 % for these laws (the
    # smallest alpha has the heaviest tails), so 30 % is beyond 4 sigma. Classes running out pull
    # the balanced mixes a little towards each other.
    assert shares.var() == pytest.approx(variance, rel=0.3)


@pytest.mark.parametrize(
    "owners",
    [
        ["b", "a", "b", "c", "a"],
        np.array([2.5, -1, 2.5, 7, -1]),
        np.array(["b", "a", "b", "c", "a"], dtype=object),
        np.array(["2020-02-02", "2020-01-01", "2020-02-02", "2021-01-01", "2020-01-01"], "M8[D]"),
        [True, False, True, True, False],
    ],
)
def test_owners_of_any_kind_become_clients_in_sorted_order_with_rows_in_given_order(owners):
    dealt = group(owners)
    if len(set(owners)) == 3:
        np.testing.assert_array_equal(dealt.rows, [1, 4, 0, 2, 3])
        np.testing.assert_array_equal(dealt.offsets, [0, 2, 4, 5])
    assert list(dealt.owners) == sorted(set(owners))


def test_owners_can_be_thinned_by_size_and_by_number():
    owners = np.repeat([10, 20, 30, 40], [1, 5, 2, 9])
    labels = np.zeros(17, int)
    kept = ByOwner(at_least=2).assign(labels, owners, 0)
    assert list(kept.owners) == [20, 30, 40]
    assert list(kept.sizes) == [5, 2, 9]
    some = ByOwner(clients=2, at_least=2).assign(labels, owners, 0)
    assert some.clients == 2
    assert 10 not in some.owners
    fixed = ByOwner(examples_per_client=4).assign(labels, owners, 0)
    assert list(fixed.owners) == [20, 40]


def test_a_cap_draws_every_example_of_an_owner_equally_often():
    owners = np.zeros(20, int)
    labels = np.zeros(20, int)
    seen = np.zeros(20)
    for seed in range(400):
        rows = ByOwner(cap=5).assign(labels, owners, seed).rows
        assert (np.diff(rows) > 0).all()  # old order
        seen[rows] += 1
    # Expected 100 each, standard deviation 8.7; 5 sigma in 20 cells: one fresh seed in 80,000.
    assert (abs(seen - 100) < 5 * 8.7).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: IID(0), "clients=0"),
        (lambda: IID(5, cap=0), "cap=0"),
        (lambda: IID(5, cap=1, examples_per_client=1), "only one"),
        (lambda: Dirichlet(5, 0.0), "alpha: need"),
        (lambda: Dirichlet(5, float("nan")), "alpha: need"),
        (lambda: SortedSlices(), "needs clients"),
        (lambda: named("diriclet", clients=3, alpha=1), "did you mean 'dirichlet'"),
        (lambda: named("dirichlet", clients=3), "needs alpha"),
        (lambda: named("iid", clients=3, alpha=1), "has no 'alpha'"),
        (lambda: IID(11).assign(np.arange(10), None, 0), "there are 10"),
        (lambda: Dirichlet(2, 1).assign(np.arange(9.0), None, 0), "SortedSlices"),
        (lambda: Dirichlet(2, 1).assign(np.ones((9, 2)), None, 0), "sequences"),
        (lambda: ByOwner().assign(np.arange(9), None, 0), "no owners"),
        (lambda: ByOwner().assign(np.arange(9), [1, 2], 0), "2 entries for 9"),
        (lambda: group([float("nan")] * 2), "no example has an owner"),
        (lambda: group(np.array([None, None], dtype=object)), "no example has an owner"),
        (lambda: group(np.array(["a", 3], dtype=object)), "mix int, str"),
        (lambda: generator(-1, "t"), "seed=-1"),
    ],
)
def test_impossible_partitions_are_refused_by_name_and_value(make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)
