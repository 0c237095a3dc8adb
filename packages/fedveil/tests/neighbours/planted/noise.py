"""Bugs that draw less noise than was accounted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fedveil.methods.parts import central_noise
from fedveil.methods.parts.correlated_noise import CorrelatedNoise
from fedveil.methods.parts.distributed_noise import DistributedNoise
from fedveil.methods.parts.gradient_noise import (
    GradientNoise,
    OneStepNoise,
    SecretBatchNoise,
    SecretStepsNoise,
)
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.methods.parts.noisy_votes import VoteNoise
from fedveil.privacy.correlated import CorrelatedGaussian
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.sampling import RoundRobin

from ..cases import Case
from .registry import correlated, plant, tracked


@plant(1100, tracked, near=482)
def noise_of_the_first_clip() -> Any:
    """A tracked clip moves, and the noise stays."""
    real = central_noise.CentralNoise.protect

    def protect(self: Any, at: RoundNoise, total: Any) -> Any:
        first = replace(at, pipeline=replace(at.pipeline, clip=self.facts.clip))
        return real(self, first, total)

    return patch.object(central_noise.CentralNoise, "protect", protect)


@plant(150)
def a_share_that_is_missing() -> Any:
    """One client of a secure sum adds no noise, and is counted with all others."""
    real = RoundNoise.protect

    def protect(self: RoundNoise, total: Any, clients: Any) -> Any:
        return real(self, total, clients[: max(1, len(clients) - 1)])

    return patch.object(RoundNoise, "protect", protect)


def _less(kind: type[Any], share: float) -> Any:
    """A protection that draws this share of the noise that it is accounted with."""
    real = kind.protect

    def protect(self: Any, at: RoundNoise, *args: Any) -> Any:
        less = self.scaled(share * self.facts.noise_multiplier)
        return real(less, replace(at, noise=less), *args)

    return patch.object(kind, "protect", protect)


@plant(150, lambda case: case.table["privacy"].get("trust") == "central" and not correlated(case))
def a_thousandth_less_noise_in_sums() -> Any:
    return _less(central_noise.CentralNoise, 0.999)


@plant(400, lambda case: case.table["privacy"].get("trust") == "local" and not case.kind.by_record)
def a_tenth_less_noise_in_uploads() -> Any:
    return _less(LocalNoise, 0.9)


@plant(150, lambda case: case.table["privacy"].get("trust") == "distributed")
def a_hundredth_less_noise_in_shares() -> Any:
    real = DistributedNoise.integers

    def integers(self: DistributedNoise, *args: Any) -> Any:
        found = real(self, *args)
        return None if found is None else replace(found, share_std=0.99 * found.share_std)

    return patch.object(DistributedNoise, "integers", integers)


@contextmanager
def local_rule(changed: Callable[[Any], Any]) -> Iterator[None]:
    """Clients of gradient noise follow another rule than the one that is accounted."""
    with ExitStack() as stack:
        for kind in (GradientNoise, OneStepNoise):
            real: Any = kind.__dict__["local"]
            other = property(lambda self, real=real: changed(real.fget(self)))
            stack.enter_context(patch.object(kind, "local", other))
        yield


@plant(200, lambda case: case.kind.by_record)
def a_fifth_less_noise_in_gradients() -> Any:
    return local_rule(lambda rule: replace(rule, gradient_noise=0.8 * rule.gradient_noise))


@plant(150, lambda case: case.table["training"]["method"] == "ae-dpfl")
def half_of_the_noise_on_votes() -> Any:
    protect, std = VoteNoise.protect, VoteNoise._whole_std

    def halved(self: VoteNoise, at: RoundNoise, total: Any) -> Any:
        less = property(lambda self: std.fget(self) / 2)
        with patch.object(VoteNoise, "_whole_std", less):
            return protect(self, replace(at), total)  # a copy: it has worked nothing out yet

    return patch.object(VoteNoise, "protect", halved)


@plant(300, correlated, near=56)
def a_tenth_less_correlated_noise() -> Any:
    return _less(CorrelatedNoise, 0.9)


@plant(300, correlated, near=56)
def correlated_noise_without_its_factors_length() -> Any:
    """Accounted as if later rounds did not show an update again."""
    return patch.object(CorrelatedGaussian, "norm", 1.0)


@plant(300, correlated, near=116)
def a_schedule_that_overstates_its_gaps() -> Any:
    """Bands overlap, and a client's turns add up in one draw of noise."""
    return patch.object(RoundRobin, "separation", property(lambda self: self.clients))


@plant(300, correlated)
def past_noise_in_the_wrong_order() -> Any:
    """What is released is then no function of what was accounted."""
    real = NoiseMemory.draw

    def draw(self: NoiseMemory, *args: Any) -> Any:
        past = list(self._past)
        self._past.reverse()
        drawn = real(self, *args)
        self._past.clear()
        self._past.extend([drawn, *past][: len(args[-1]) - 1])
        return drawn

    return patch.object(NoiseMemory, "draw", draw)


def _dp_sgd(case: Case) -> bool:
    return bool(case.table["training"]["method"] == "dp-sgd")


@plant(2200, lambda case: _dp_sgd(case) and case.table["privacy"]["trust"] == "local", near=457)
def a_fifth_less_noise_on_secret_batches() -> Any:
    """Accounted with noise that nobody draws, behind coins that stay secret."""
    return _claimed(SecretStepsNoise, noise=1.25)


@plant(600, lambda case: _dp_sgd(case) and case.table["privacy"]["trust"] == "distributed")
def a_fifth_less_noise_in_shares_of_secret_batches() -> Any:
    return _claimed(SecretBatchNoise, noise=1.25)


@plant(300, lambda case: "batches" in case.table["training"], near=93)
def secret_steps_that_are_not_counted() -> Any:
    """Every local step has a batch of its own, and one of them is accounted."""
    return _claimed(SecretStepsNoise, noise=1.0, steps=1)


def _claimed(kind: type[Any], noise: float, steps: int | None = None) -> Any:
    """A proof that speaks of so many times the noise, and of so many steps."""
    real = kind.mechanism

    def mechanism(self: Any) -> PoissonSampled:
        found = real(self)
        parts = tuple(
            replace(one, **{one.level: noise * getattr(one, one.level)}) for one in found.mechanisms
        )
        return replace(found, mechanisms=parts, local_steps=steps or found.local_steps)

    return patch.object(kind, "mechanism", mechanism)
