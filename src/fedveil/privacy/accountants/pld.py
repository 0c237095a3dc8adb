"""Privacy loss distributions by dp-accounting."""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.privacy.accountants.steps import PoissonGaussianStep, Step


def pld_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Upper bound on epsilon at `delta`, or None if a step has no privacy loss distribution."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = None
    for step in steps:
        if not isinstance(step, PoissonGaussianStep) or delta < 1e-13 * step.count:
            return None
        one = pld.from_gaussian_mechanism(
            step.noise, sampling_prob=step.rate, value_discretization_interval=1e-3
        )
        part = one.self_compose(step.count)
        total = part if total is None else total.compose(part)
    return None if total is None else float(total.get_epsilon_for_delta(0.999 * delta))
