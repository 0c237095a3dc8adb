"""From a case's noise to a plan, and to the epsilon that is proved at the paper's own delta.

Two papers use a delta at or above one over the number of protected units. A plan refuses that, and
rightly so; to compare at equal delta, the same releases are accounted for here without naming a
population. Such an epsilon is shown beside the paper's claim and promised to nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import nn

from fedveil.core.errors import ConfigError
from fedveil.core.units import Arithmetic
from fedveil.data.federation import Federation
from fedveil.methods.parts.method import Method
from fedveil.planning.plan import Budget, Plan, plan
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.calibration import least_noise
from fedveil_lab.reproduction.case import Certified, Claimed, Noise, Without

_NOTHING = 1e-12  # times the clip: noise that no figure shows


@dataclass(frozen=True)
class Cost:
    """What a run costs: what the paper says, and what is proved for the same noise."""

    claimed: float | None
    certified: float | None
    delta: float | None
    proof: str  # one line
    noise_multiplier: float | None


def _plan(
    method: Method, federation: Federation, model: nn.Module, budget: Budget, seed: int
) -> Plan:
    """A simulation with real numbers: the grids and masks of protected runs change no figure."""
    made = plan(
        method, federation, model, budget=budget, seed=seed, arithmetic=Arithmetic.IDEALISED
    )
    return replace(made, secure_sums=None)


def planned(
    method: Method, federation: Federation, model: nn.Module, noise: Noise, seed: int
) -> tuple[Plan, Cost]:
    """The plan of a simulated run with this noise, and what it costs at the noise's delta."""
    if noise is None:
        made = plan(method, federation, model, seed=seed)
        return made, Cost(None, None, None, "no noise, no guarantee", None)
    if isinstance(noise, Without):
        made = _plan(method, federation, model, Budget(noise_multiplier=1.0), seed)
        silent = replace(made, noise_multiplier=_NOTHING, delta=None)
        return silent, Cost(None, None, None, "no noise, no guarantee", None)
    pure = noise.delta == 0
    first = noise.noise_multiplier if isinstance(noise, Claimed) else 1.0
    budget = Budget(noise_multiplier=first, delta=0.0 if pure else None)
    made = _plan(method, federation, model, budget, seed)
    if isinstance(noise, Certified):
        multiplier = _calibrated(made, noise)
        made = _plan(method, federation, model, replace(budget, noise_multiplier=multiplier), seed)
    proved = account(made.releases(method.rounds), privacy_model=_unnamed(made), delta=noise.delta)
    shown = f"{proved.theorem}; {proved.accountant}"
    claimed = noise.epsilon if isinstance(noise, Claimed) else None
    return made, Cost(claimed, proved.epsilon, noise.delta, shown, made.noise_multiplier)


def _unnamed(made: Plan) -> PrivacyModel:
    """The plan's privacy model without its population, which would forbid the papers' deltas."""
    if made.privacy_model is None:
        raise ConfigError(f"method {made.method.name!r}: a plan with noise needs a privacy model")
    return replace(made.privacy_model, population=None)


def _calibrated(made: Plan, noise: Certified) -> float:
    """The least noise multiplier that proves the wanted epsilon at the wanted delta."""

    def releases(multiplier: float) -> tuple[Release, ...]:
        return replace(made, noise_multiplier=multiplier).releases(made.method.rounds)

    found = least_noise(
        releases,
        epsilon=noise.epsilon,
        delta=noise.delta,
        privacy_model=_unnamed(made),
        guess=math.sqrt(made.method.rounds) / noise.epsilon,
    )
    if found is None:
        raise ConfigError(f"epsilon {noise.epsilon}: no amount of noise proves it")
    return found
