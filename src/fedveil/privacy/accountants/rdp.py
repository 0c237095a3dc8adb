"""Rényi accounting by dp-accounting: valid for every step, rarely the tightest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedveil.privacy.accountants.steps import (
    FixedSizeGaussianStep,
    GaussianStep,
    PoissonGaussianStep,
    Step,
    ZcdpStep,
)

Curve = npt.NDArray[np.float64]


def rdp_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Upper bound on epsilon at `delta`, or None if a step has no Rényi curve here."""
    from dp_accounting.rdp import compute_epsilon

    orders = list(range(2, 129))
    total = np.zeros(len(orders))
    for step in steps:
        curve = _curve(step, orders)
        if curve is None:
            return None
        total = total + step.count * curve
    return float(compute_epsilon(orders, total, delta)[0])


def _curve(step: Step, orders: Sequence[float]) -> Curve | None:
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if isinstance(step, GaussianStep):
        event = dp_event.GaussianDpEvent(step.noise)
    elif isinstance(step, PoissonGaussianStep):
        event = dp_event.PoissonSampledDpEvent(step.rate, dp_event.GaussianDpEvent(step.noise))
    elif isinstance(step, FixedSizeGaussianStep):
        relation = NeighboringRelation.REPLACE_ONE
        event = dp_event.SampledWithoutReplacementDpEvent(
            1, step.rate, dp_event.GaussianDpEvent(step.noise)
        )
    elif isinstance(step, ZcdpStep) and step.rate == 1:
        event = dp_event.ZCDpEvent(step.rho)
    else:
        return None
    curve: Curve = RdpAccountant(orders, relation).compose(event).rdp
    return curve
