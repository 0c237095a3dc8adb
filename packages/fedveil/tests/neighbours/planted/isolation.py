"""Bugs by which a client shows in what others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fedveil.data import encoder
from fedveil.data.assignment import Assignment
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.run import run as run_module
from fedveil.run.run import Run
from fedveil.training.client.batches import step_counts
from fedveil.training.client.local_training import LearningRate
from fedveil.training.engines import isolated
from fedveil.training.engines.batched import RowEngine

from .. import worlds
from .registry import dealt, plant, tracked


@plant(150, dealt)
def one_lottery_for_all_rows() -> Any:
    """Hold-outs and caps drawn by one generator over all rows, not by each owner's name."""

    def words(self: Assignment, seed: int, purpose: str) -> Any:
        return np.random.default_rng(seed).integers(2**63, size=len(self.rows), dtype=np.uint64)

    return patch.object(Assignment, "row_words", words)


@plant(450, near=16)
def clients_train_together() -> Any:
    """Chunks and padding as in simulations: others show in the low-order bits."""
    real = run_module.job_of
    return patch.object(run_module, "job_of", lambda *args: replace(real(*args), isolated=False))


@plant(150, lambda case: case.table["training"]["schedule"] == "inverse")
@contextmanager
def rates_of_the_longest_client() -> Iterator[None]:
    """A decaying rate that counts the steps of the client that takes the most."""
    real, rates, longest = worlds.play_round, LearningRate.of_round, 0

    def training(run: Run, last: bool) -> Any:
        nonlocal longest
        longest = int(step_counts(run.plan.federation.sizes, run.plan.local).max())
        try:
            return real(run, last)
        finally:
            longest = 0

    def of_round(self: LearningRate, round_number: int, steps: int) -> list[float]:
        return rates(self, round_number, max(steps, longest))

    with (
        patch.object(worlds, "play_round", training),
        patch.object(LearningRate, "of_round", of_round),
    ):
        yield


@plant(150, tracked)
def bits_of_the_client_beside() -> Any:
    """A tracked clip's bits, each from another client's norm."""
    real = AdaptiveClipping.halves

    def halves(self: Any, at: Any, clip: Any, norms: Any) -> Any:
        return real(self, at, clip, norms.roll(1))

    return patch.object(AdaptiveClipping, "halves", halves)


@plant(300, lambda case: case.module == "dropout")
@contextmanager
def one_generator_for_all_modules() -> Iterator[None]:
    """Dropout from torch's own generator: what a client draws depends on who came before."""

    @contextmanager
    def nothing(*args: Any) -> Iterator[None]:
        yield

    with (
        patch.object(isolated, "drawing_from", nothing),
        patch.object(RowEngine, "_module_randomness", nothing),
    ):
        yield


@plant(150, lambda case: case.path == "csv")
def columns_centred_by_the_data() -> Any:
    """A schema is given, and yet the mean of all rows is taken off."""
    real = encoder.scaled

    def scaled(numbers: Any, column: Any) -> Any:
        found = real(numbers, column)
        return found - np.nanmean(found)

    return patch.object(encoder, "scaled", scaled)


@plant(150, lambda case: case.path == "csv")
def a_column_is_read_as_a_whole() -> Any:
    """One cell that is no number makes the numbers of its column missing."""
    real = encoder.encode

    def encode(values: Any, column: Any, out: Any) -> Any:
        gaps = real(values, column, out)
        if column.kind == "number" and gaps.any():
            out[:, 0] = 0.0
        return gaps

    return patch.object(encoder, "encode", encode)
