"""Bugs of secret samples, and of budgets that single clients keep to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fedveil.core.randomness import Stream
from fedveil.methods.parts.method import CohortRule
from fedveil.methods.parts.noise_placement import NoisePlacement
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.sampling import SecretPoisson
from fedveil.run import sums
from fedveil.training.client import batches
from fedveil.training.client.batches import Batches, step_counts
from fedveil.training.engines import batched

from ..cases import Case
from .registry import plant, tracked


def _secret(case: Case) -> bool:
    training, local = case.table["training"], case.table["privacy"].get("trust") == "local"
    return training.get("batches") == "poisson" and local and training.get("local_steps") != 1


@plant(300, _secret)
def a_coin_that_two_records_share() -> Any:
    """Neighbouring records are in a batch together, or not at all."""
    real = Stream.coins

    def coins(self: Stream, count: int, rate: Any) -> Any:
        if getattr(self, "purpose", "") != "batch coins":
            return real(self, count, rate)
        return np.repeat(real(self, (count + 1) // 2, rate), 2)[:count]

    return patch.object(Stream, "coins", coins)


def _several(case: Case) -> bool:
    """Several steps a round, on batches that are a part of the records."""
    training, records = case.table["training"], sum(map(len, case.clients))
    several = training["method"] == "gradient-noise" and training.get("batch_size", 99)
    return _secret(case) and bool(several) and 2 * several * len(case.clients) < records


@plant(300, _several)
def one_coin_for_all_steps_of_a_round() -> Any:
    """What is accounted has new coins in every local step."""
    real = batches._poisson_batches

    def drawn(clients: Any, sizes: Any, rule: Any, *rest: Any) -> Batches:
        once, steps = real(clients, sizes, replace(rule, steps=1, epochs=None), *rest), None
        steps = step_counts(sizes, rule)
        every = (np.repeat(part, steps.max(), axis=1) for part in (once.positions, once.mask))
        return Batches(*every, steps, full=False)

    return patch.object(batches, "_poisson_batches", drawn)


@plant(600, _secret)
def an_empty_batch_is_skipped() -> Any:
    """And its noise with it: a step that is missing says that nobody's coin said yes."""
    real = batches._poisson_batches

    def drawn(*args: Any) -> Batches:
        found = real(*args)
        there = found.mask.any(axis=2)
        order = np.argsort(~there, axis=1, kind="stable")[:, :, None]
        parts = (np.take_along_axis(part, order, 1) for part in (found.positions, found.mask))
        return Batches(*parts, there.sum(axis=1), full=False)

    return patch.object(batches, "_poisson_batches", drawn)


@plant(600, _secret, near=47)
def a_divisor_that_counts_the_batch() -> Any:
    """Sums are divided by how many records came, and one of few moves the mean by more."""
    real = batched.local_updates

    class Realised:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kernel, name)

        def __call__(self, weights: Any, batch: Any, clip: Any, denominator: float) -> Any:
            there = len(batch.counts) if hasattr(batch, "counts") else batch[2]
            if there is None:
                there = batch[1].shape[1]
            return self._kernel(weights, batch, clip, max(1.0, float(np.sum(np.array(there)))))

    def updates(start: Any, supply: Any, rule: Any, rates: Any, kernel: Any, *rest: Any) -> Any:
        kernel = kernel if rule.batch_rate is None else Realised(kernel)
        return real(start, supply, rule, rates, kernel, *rest)

    return patch.object(batched, "local_updates", updates)


def _counted(case: Case) -> bool:
    return "public_clients" in case.table["privacy"] and "cohort" in case.table["training"]


@plant(150, _counted)
def a_rate_from_true_counts() -> Any:
    """Another number of clients is declared, and the rate follows from those who are there."""
    real = CohortRule.resolve

    def resolve(self: CohortRule, clients: int, rounds: int) -> Any:
        return real(replace(self, clients=None), clients, rounds)

    return patch.object(CohortRule, "resolve", resolve)


def _coins(case: Case) -> bool:
    return case.table["training"].get("sampling") == "secret-poisson"


@plant(300, _coins)
def one_coin_for_all_clients() -> Any:
    """Whoever knows that one client trained knows it of all."""
    real = SecretPoisson.coin

    def coin(self: SecretPoisson, randomness: Any, round_number: int, client: int) -> bool:
        return real(self, randomness, round_number, 0)

    return patch.object(SecretPoisson, "coin", coin)


@plant(600, lambda case: _coins(case) and tracked(case))
def releases_that_share_a_coin_accounted_as_two() -> Any:
    """An update and its count, as if each had a coin of its own."""
    real = NoisePlacement.releases

    def releases(self: NoisePlacement, rounds: int) -> Any:
        if self.count is None:
            return real(self, rounds)
        return self.release(rounds), self.count.release(rounds)

    return patch.object(NoisePlacement, "releases", releases)


def _coarse(case: Case) -> bool:
    return case.scaled and bool(case.table["privacy"].get("rotate"))


@plant(900, _coarse)
def a_smaller_clip_whose_rounding_does_not_shrink() -> Any:
    """Accounted as if a client that clips to less were rounded to less as well."""

    def scaled(self: DiscreteGaussianSum, scale: float) -> DiscreteGaussianSum:
        return replace(self, share_std=self.share_std / scale)

    return patch.object(DiscreteGaussianSum, "scaled", scaled)


@plant(300, lambda case: case.scaled)
def a_smaller_clip_that_follows_data() -> Any:
    """The shares of the clip are worked out from everybody's records."""
    real = sums.Senders.of.__func__

    def of(cls: Any, plan: Any, *rest: Any) -> Any:
        inputs = np.nan_to_num(plan.federation.train.inputs, posinf=1.0, neginf=1.0)
        spread = float(np.minimum(np.abs(inputs), 1e6).mean())
        found = real(cls, plan, *rest)
        return replace(found, scales=found.scales / (1 + spread))

    return patch.object(sums.Senders, "of", classmethod(of))


@plant(300, lambda case: case.scaled)
def a_smaller_clip_that_nobody_keeps_to() -> Any:
    """A client pays less, and clips as everybody does."""
    from fedveil.training.client.update_pipeline import UpdatePipeline

    return patch.object(UpdatePipeline, "scaled", lambda self, scale: self)
