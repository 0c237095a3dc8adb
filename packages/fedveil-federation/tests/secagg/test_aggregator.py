"""The seam: sums in the open and masked sums release the same, or refuse the same rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from fedveil.core.randomness import Randomness
from fedveil.privacy.secure_sums.aggregation import COUNT, UPDATE, Aggregation
from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.run.aggregator import (
    Aggregator,
    OpenAggregator,
    build_aggregator,
)
from fedveil.training.client.update_pipeline import Block
from fedveil_federation.secagg.masked import MaskedAggregator

COHORT = np.arange(3, 15)


@dataclass
class Vectors:
    """Integers of clients, each with `client` for its noise."""

    round_number: int = 4
    purpose: str = UPDATE
    width: int = 5
    integer: bool = True
    word: int = 64
    asked: list[int] = field(default_factory=list)

    def row(self, client: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng(client).integers(-(2**40), 2**40, self.width))

    def upload(self, client, row):
        self.asked.append(client)
        return row + client

    def decode(self, whole):
        return torch.from_numpy(whole)

    def protect(self, total, clients):
        return total + int(clients.sum())


def aggregator(mode: str, **more) -> Aggregator:
    return build_aggregator(Aggregation(SecureMode(mode), **more).resolve("t", len(COHORT), 0))


def released(by: Aggregator, vectors: Vectors, dropouts: Dropouts) -> tuple[list[int], list[int]]:
    opened = by.open(vectors, COHORT, dropouts)
    rows = torch.stack([vectors.row(int(client)) for client in opened.clients])
    for places in np.array_split(np.arange(len(rows)), 3):  # as engines do, chunk by chunk
        none = torch.zeros(len(places))
        opened.add(Block(places, rows[places], none, none, none))
    return opened.clients.tolist(), opened.release().tolist()


@pytest.mark.parametrize("purpose", [UPDATE, COUNT])
@pytest.mark.parametrize("lost", [(), (4, 9), (3, 14)])
def test_both_ways_release_the_same_sum_of_whoever_is_left(purpose, lost):
    dropouts = Dropouts(before_upload=frozenset(lost))
    found = [
        released(aggregator(mode, max_dropout=0.25), Vectors(purpose=purpose), dropouts)
        for mode in ("masked", "ideal")
    ]
    here = [client for client in COHORT.tolist() if client not in lost]
    by_hand = sum(Vectors().row(client).numpy() for client in here) + sum(here)
    assert found == [(here, by_hand.tolist())] * 2


@pytest.mark.parametrize("mode", ["masked", "ideal"])
@pytest.mark.parametrize("leg", ["before_sharing", "before_upload", "before_confirming"])
def test_both_ways_refuse_a_sum_of_too_few(mode, leg):
    vectors, lost = Vectors(), frozenset(COHORT[:7].tolist())
    with pytest.raises(NotReleased, match="of 12 devices"):
        released(aggregator(mode, max_dropout=0.25), vectors, Dropouts(**{leg: lost}))
    if leg != "before_confirming":
        assert not vectors.asked  # refused before anybody has sent anything


def test_without_a_secure_sum_everybody_is_there_and_nothing_is_refused():
    by = build_aggregator(None)
    assert isinstance(by, OpenAggregator)
    assert by.dropouts(COHORT, Randomness(1), 0) == Dropouts()
    clients, total = released(by, Vectors(), Dropouts())
    assert clients == COHORT.tolist()
    assert total == (sum(Vectors().row(c).numpy() for c in clients) + sum(clients)).tolist()


def test_words_of_earlier_recipes_mean_the_same_modes():
    assert SecureMode("full") is SecureMode.MASKED
    assert SecureMode("modelled") is SecureMode.IDEAL
    with pytest.raises(ValueError, match="maybe"):
        SecureMode("maybe")
    assert isinstance(aggregator("full"), MaskedAggregator)


def test_the_outer_phase_stands_still_while_an_inner_one_runs():
    watch = Stopwatch(clock=iter([0.0, 1.0, 3.0, 10.0]).__next__)
    with watch.phase("train"), watch.phase("mask"):
        pass
    assert watch.seconds == {"mask": 2.0, "train": 8.0}


def test_what_a_round_added_is_the_time_since_its_beginning():
    watch = Stopwatch({"mask": 5.0, "train": 2.0, "sum": 0.5})
    assert watch.since({"mask": 5.0, "train": 0.5}) == {"train": 1.5, "sum": 0.5}
