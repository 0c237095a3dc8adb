"""A Plan: a Method resolved against a federation, a model and a budget.

Every number is decided here and the guarantee is known before the first step. Whatever cannot be
proved cannot be planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from fedveil.data.federation import Federation
from fedveil.errors import BadInput, Refused
from fedveil.local.shaping import Shaping
from fedveil.methods.method import Method
from fedveil.models.flat import Layout, flatten, layout_of
from fedveil.privacy.accounting import Release, Setting, account
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.sampling import Sampling
from fedveil.privacy.units import Arithmetic, Entropy, Unit
from fedveil.randomness import Randomness


@dataclass(frozen=True)
class Budget:
    """How much privacy may be spent: epsilon (the noise follows) or the noise (epsilon follows).

    `delta=None` stands for min(1e-5, units^-1.1).
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise BadInput("privacy: set exactly one of epsilon and noise_multiplier")
        for name in ("epsilon", "noise_multiplier"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadInput(f"privacy.{name}: must be positive and finite, got {value}")

    def resolved_delta(self, units: int) -> float:
        """The delta to use for this many protected units; at or above 1/units it is refused."""
        if self.delta is None:
            return min(1e-5, math.pow(units, -1.1))
        if not 0 < self.delta < 1 / units:
            raise BadInput(
                f"privacy.delta: must be above 0 and below one over the {units} protected "
                f"units, got {self.delta}"
            )
        return self.delta


@dataclass(frozen=True)
class Plan:
    """What will run, decided to the last number. Build one with `plan`."""

    method: Method
    federation: Federation = field(repr=False)
    module: nn.Module = field(repr=False)
    layout: Layout = field(repr=False)
    start: Tensor = field(repr=False)  # initial weights [parameters]
    sampling: Sampling
    shaping: Shaping
    seed: int | None
    noise_multiplier: float | None = None
    setting: Setting | None = None
    guarantee: Guarantee | None = None

    @property
    def protected(self) -> bool:
        """No seed and some noise: only released values may be shown or kept."""
        return self.seed is None and self.method.protection is not None

    @property
    def randomness(self) -> Randomness:
        return Randomness(self.seed)

    def releases(self, rounds: int) -> tuple[Release, ...]:
        """What leaves in the first `rounds` rounds."""
        if self.method.protection is None or self.noise_multiplier is None or rounds == 0:
            return ()
        return self.method.protection.releases(self.noise_multiplier, self.sampling, rounds)

    def spent(self, rounds: int) -> float | None:
        """Epsilon after `rounds` rounds; None if the method gives no guarantee."""
        if self.guarantee is None or self.setting is None:
            return None
        if rounds == 0:
            return 0.0
        releases, delta = self.releases(rounds), self.guarantee.delta
        return account(releases, setting=self.setting, delta=delta).epsilon


def plan(
    method: Method,
    federation: Federation,
    model: nn.Module,
    *,
    budget: Budget | None = None,
    seed: int | None = None,
    arithmetic: Arithmetic | None = None,
) -> Plan:
    """Resolve a method against data, a model and a budget.

    With a seed the run is a simulation: its guarantee says what the same plan would certify.
    `arithmetic=None` is exact without a seed and idealised (faster) with one.
    """
    layout = layout_of(model)
    sampling = method.cohort.resolve(federation.clients, method.rounds)
    undecided = Plan(
        method, federation, model, layout, flatten(model), sampling, method.shaping, seed
    )
    protection = method.protection
    if protection is None:
        if budget is not None:
            raise Refused(
                f"method {method.name!r} adds no noise, so no epsilon can be promised",
                "choose a private method such as dp-fedavg, or leave privacy.epsilon out",
            )
        return undecided
    if budget is None:
        raise BadInput(f"privacy.epsilon: method {method.name!r} needs a budget")
    if arithmetic is None:
        arithmetic = Arithmetic.EXACT if seed is None else Arithmetic.IDEALISED
    units = federation.clients if protection.unit is Unit.CLIENT else len(federation.train)
    delta = budget.resolved_delta(units)
    setting = Setting(
        unit=protection.unit,
        adjacency=protection.adjacency(sampling),
        trust=protection.trust,
        population=units,
        arithmetic=arithmetic,
        entropy=Entropy.SYSTEM if seed is None else Entropy.SEEDED,
    )
    if budget.noise_multiplier is not None:
        noise = budget.noise_multiplier
    else:
        epsilon = budget.epsilon or 0.0
        noise = protection.calibrate(epsilon, delta, sampling, method.rounds, setting)
    shaping = method.shaping
    if arithmetic is Arithmetic.EXACT:
        grid = protection.granularity(shaping, noise, layout.size, federation.clients)
        shaping = replace(shaping, granularity=grid)
    releases = protection.releases(noise, sampling, method.rounds)
    guarantee = account(releases, setting=setting, delta=delta)
    return replace(
        undecided, shaping=shaping, noise_multiplier=noise, setting=setting, guarantee=guarantee
    )
