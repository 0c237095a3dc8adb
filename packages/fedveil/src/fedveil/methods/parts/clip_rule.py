"""Clip rules: which bound on one update holds in a round, by public counters or released values.

A rule answers for itself: whether it follows the learning rate, whether it is tracked by a second
noisy sum, and how. `AdaptiveClipping` has a file of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedveil.core.errors import PrivacyRefusal
from fedveil.core.units import Trust
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.server.optimizers import State

if TYPE_CHECKING:
    from torch import Tensor

    from fedveil.methods.parts.noise_placement import NoiseContext, RoundNoise


class ClipRule(ABC):
    """The clip of every round.

    Attributes:
        follows_rate: The clip is in proportion to the learning rate.
        bounds_gradients: Its norm is that of one gradient, and not that of a whole update.
        tracked: The clip follows a quantile of the update norms. Then a noisy count of clients
            within the clip leaves every round, and the rule has `count_facts`, `halves`, `follow`
            and `state_at`.
    """

    follows_rate: ClassVar[bool] = False
    bounds_gradients: ClassVar[bool] = False
    tracked: ClassVar[bool] = False

    @abstractmethod
    def clip(self, local: LocalTraining, number: int, state: State) -> Clip | None:
        """Return the clip of round `number` (from 0), after the rounds that left this state."""

    def clips(self) -> Iterable[Clip]:
        """Return the clips that a tracked rule may ever come to."""
        return ()

    def count_facts(self, facts: NoiseContext, trust: Trust) -> NoiseContext:
        """Return what the noise on the count is fitted to."""
        raise NotImplementedError

    def halves(self, count: RoundNoise, clip: Clip, norms: Tensor) -> Tensor:
        """Return what each client adds to the count, `[clients, width]`: half, with its sign.

        Args:
            count: The round's sum of counts.
            clip: The clip of the round's updates.
            norms: The norms of the updates, `[clients]`.
        """
        raise NotImplementedError

    def follow(self, count: float, clients: float, clip: Clip, state: State) -> tuple[State, float]:
        """Return the next state, and the released share of norms within the present clip."""
        raise NotImplementedError

    def state_at(self, norm: float) -> State | None:
        """Return the state in which the clip is `norm`; None if it never comes to that."""
        return None


@dataclass(frozen=True)
class FixedClip(ClipRule):
    """A clip that stays the same in every round; None if updates are not clipped."""

    bound: Clip | None

    def clip(self, local: LocalTraining, number: int, state: State) -> Clip | None:
        return self.bound


@dataclass(frozen=True)
class StepBound(ClipRule):
    """An update of clipped steps is as long as its steps allow: norm * (sum of the round's rates).

    Every gradient is clipped to `norm`, so by the triangle inequality no update is longer; the
    clip makes that hold in floating point too. Rates and steps are public.
    """

    norm: float
    order: int = 2

    follows_rate = True
    bounds_gradients = True

    def clip(self, local: LocalTraining, number: int, state: State) -> Clip:
        if local.steps is None and local.batch_size is not None:
            raise PrivacyRefusal(
                "epochs over batches take as many steps as a client has data, and a bound on "
                "the update must not depend on private sizes",
                "set training.local_steps, or leave training.batch_size out",
            )
        if local.momentum or local.weight_decay or local.penalty:
            raise PrivacyRefusal(
                "momentum, weight decay and penalties lengthen an update beyond its clipped steps",
                "leave them out, or clip the whole update (method dp-fedavg)",
            )
        rates = local.learning_rate.of_round(number, local.steps or local.epochs or 1)
        return Clip(self.norm * math.fsum(rates), self.order)
