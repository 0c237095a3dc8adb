"""From a case's noise to a plan, and to the epsilon that is proved at the paper's own delta.

Two papers use a delta at or above one over the number of protected units. A simulation may have it,
to compare at equal delta: its epsilon is shown beside the paper's claim and promised to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from fedveil.core.errors import ConfigError
from fedveil.core.units import Arithmetic
from fedveil.data.federation import Federation
from fedveil.methods.parts.method import Method
from fedveil.planning.plan import Budget, Plan, plan
from fedveil_lab.reproduction.case import Claimed, Noise, Without

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
    claimed = noise.epsilon if isinstance(noise, Claimed) else None
    budget = (
        Budget(delta=noise.delta, noise_multiplier=noise.noise_multiplier)
        if isinstance(noise, Claimed)
        else Budget(noise.epsilon, noise.delta)
    )
    made = _plan(method, federation, model, budget, seed)
    proved = made.guarantee
    if proved is None:
        raise ConfigError(f"method {method.name!r}: a plan with noise has a guarantee")
    shown = f"{proved.theorem}; {proved.accountant}"
    return made, Cost(claimed, proved.epsilon, noise.delta, shown, made.noise_multiplier)
