"""Batches are what the accounting assumes: fresh shuffles cut into disjoint pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.randomness import Randomness
from fedveil.training.client.batches import Batches, batches_per_epoch, draw_batches
from fedveil.training.client.local_training import LearningRate, LocalTraining

RATE = LearningRate(0.1)
sizes_of = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(np.array)


@st.composite
def rules(draw: st.DrawFn) -> LocalTraining:
    by_steps = draw(st.booleans())
    count = draw(st.integers(1, 7))
    return LocalTraining(
        RATE,
        steps=count if by_steps else None,
        epochs=None if by_steps else count,
        batch_size=draw(st.one_of(st.none(), st.integers(1, 45))),
        drop_last=draw(st.booleans()),
    )


def used(batches: Batches, client: int, step: int) -> list[int]:
    positions, mask = batches.at(step)
    return positions[client][mask[client]].tolist()


@settings(max_examples=150, deadline=None)
@given(sizes_of, rules(), st.integers(0, 1000))
def test_every_epoch_deals_every_record_once(
    sizes: np.ndarray, rule: LocalTraining, round_number: int
) -> None:
    clients = np.arange(len(sizes)) * 7 + 3
    batches = draw_batches(clients, sizes, rule, round_number, Randomness(1))
    per_epoch = batches_per_epoch(sizes, rule)
    for client, size in enumerate(sizes.tolist()):
        steps = int(batches.steps[client])
        assert steps == (rule.steps or rule.epochs * per_epoch[client])
        batch = min(rule.batch_size or size, size)
        for first in range(0, steps, int(per_epoch[client])):
            epoch = [
                used(batches, client, step)
                for step in range(first, min(steps, first + int(per_epoch[client])))
            ]
            seen = [record for step in epoch for record in step]
            assert len(set(seen)) == len(seen), "a record was used twice in an epoch"
            assert all(0 <= record < size for record in seen)
            assert all(len(step) == batch for step in epoch[:-1])
            whole = len(epoch) == per_epoch[client]
            if whole and not rule.drop_last:
                assert len(seen) == size
            if rule.drop_last and rule.batch_size and size >= rule.batch_size:
                assert all(len(step) == batch for step in epoch)


@settings(max_examples=60, deadline=None)
@given(sizes_of, rules())
def test_a_clients_batches_do_not_depend_on_its_company(
    sizes: np.ndarray, rule: LocalTraining
) -> None:
    clients = np.arange(len(sizes)) * 5
    together = draw_batches(clients, sizes, rule, 4, Randomness(9))
    for place in range(len(sizes)):
        one = slice(place, place + 1)
        alone = draw_batches(clients[one], sizes[one], rule, 4, Randomness(9))
        assert alone.steps[0] == together.steps[place]
        for step in range(int(alone.steps[0])):
            mine, theirs = used(alone, 0, step), used(together, place, step)
            full = alone.full or together.full  # all records: their order means nothing
            assert sorted(mine) == sorted(theirs) if full else mine == theirs


def test_rounds_epochs_clients_and_seeds_shuffle_differently() -> None:
    rule = LocalTraining(RATE, epochs=2, batch_size=30)
    sizes = np.array([60, 60])

    def order(seed: int, round_number: int, client: int, epoch: int) -> tuple[int, ...]:
        batches = draw_batches(np.array([4, 5]), sizes, rule, round_number, Randomness(seed))
        return tuple(used(batches, client, 2 * epoch) + used(batches, client, 2 * epoch + 1))

    orders = {
        order(seed, round_number, client, epoch)
        for seed in (1, 2)
        for round_number in (0, 1)
        for client in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 16
    assert order(1, 0, 0, 0) == order(1, 0, 0, 0)


def test_shuffles_are_uniform() -> None:
    """Each of four records comes first a quarter of the time: chi-square, 3 degrees of freedom,
    false alarm below 1e-5 (quantile 25.9)."""
    rule = LocalTraining(RATE, epochs=1, batch_size=1)
    clients = np.arange(40_000)
    batches = draw_batches(clients, np.full(40_000, 4), rule, 0, Randomness(3))
    for step in (0, 3):
        counts = np.bincount(batches.positions[:, step, 0], minlength=4)
        assert ((counts - 10_000) ** 2 / 10_000).sum() < 25.9


def test_no_clients_draw_no_batches() -> None:
    empty = np.array([], dtype=np.int64)
    for batch in (None, 4):
        batches = draw_batches(
            empty, empty, LocalTraining(RATE, steps=3, batch_size=batch), 0, Randomness(1)
        )
        assert len(batches.steps) == 0
        assert batches.most_steps == 0


@pytest.mark.parametrize("largest", [1, 2, 63, 64, 65, 1000])
def test_positions_survive_the_packing_of_shuffle_words(largest: int) -> None:
    rule = LocalTraining(RATE, epochs=1, batch_size=max(1, largest // 3))
    sizes = np.array([largest, max(1, largest // 2)])
    batches = draw_batches(np.array([0, 1]), sizes, rule, 0, Randomness(2))
    for client in (0, 1):
        records = [
            r for step in range(int(batches.steps[client])) for r in used(batches, client, step)
        ]
        assert sorted(records) == list(range(sizes[client]))


@pytest.mark.parametrize(
    ("batch", "drop", "full"),
    [(5, False, False), (6, False, True), (6, True, False), (None, False, True)],
)
def test_a_batch_that_holds_the_largest_client_is_its_whole_data(
    batch: int | None, drop: bool, full: bool
) -> None:
    """Then there is nothing to shuffle; but an epoch that drops a partial batch may be empty."""
    rule = LocalTraining(LearningRate(0.1), steps=2, batch_size=batch, drop_last=drop)
    sizes = np.array([6, 3])
    batches = draw_batches(np.arange(2), sizes, rule, 0, Randomness(1))
    assert batches.full is full
    if full:
        assert [used(batches, 0, step) for step in range(2)] == [[0, 1, 2, 3, 4, 5]] * 2
        assert used(batches, 1, 0) == [0, 1, 2]
