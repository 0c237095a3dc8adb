"""What each client's own participation costs it (Hu's epsilon_i), a budget of its own included.

Where cohorts come from a schedule that does not depend on data and nobody claims credit for a
secret sample, counts are public and every client may be told its own epsilon. The headline stays
the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import PrivacyRefusal
from fedveil.planning.own_budgets import restrained
from fedveil.planning.plan import Plan
from fedveil.privacy.accounting import account
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.releases import Release
from fedveil.privacy.sampling import Everyone


@dataclass(frozen=True, eq=False)
class Participations:
    """Rounds in which each client takes part, and its epsilon, both `[clients]`."""

    counts: npt.NDArray[np.int64]
    epsilons: npt.NDArray[np.float64]


def participations(plan: Plan) -> Participations:
    """Return what each client of a plan with a public schedule pays for its own rounds."""
    if plan.privacy_model is None or plan.guarantee is None or plan.noise is None:
        raise PrivacyRefusal(
            f"method {plan.method.name!r} adds no noise", "choose a private method"
        )
    if plan.sampling.amplifies:
        raise PrivacyRefusal(
            "random cohorts: who took part must stay secret, or is not known before the run",
            "use sampling balanced, round-robin or everyone",
        )
    counts = np.zeros(plan.federation.clients, dtype=np.int64)
    for number in range(plan.method.rounds):
        counts[plan.sampling.draw(number, None, plan.federation.clients)] += 1
    uses = plan.noise.record_uses()
    if uses is None:
        uses = np.zeros_like(counts)
    charged = counts
    if (plan.privacy_model.contributions or 1) > 1:
        # A person of this client may also be at the one that takes part, or uses persons, most.
        charged, uses = np.full_like(counts, counts.max()), np.full_like(uses, uses.max())
    scales = np.ones(len(counts)) if plan.scales is None else np.array(plan.scales)
    # Clients that came equally often, touch their records equally often and keep to the same clip
    # pay the same.
    groups, place = np.unique(np.stack([charged, uses, scales]), axis=1, return_inverse=True)
    costs = [_cost(plan, int(count), int(use), float(scale)) for count, use, scale in groups.T]
    return Participations(counts, np.array(costs)[place.reshape(-1)])


def _cost(plan: Plan, count: int, uses: int, scale: float) -> float:
    if plan.privacy_model is None or plan.guarantee is None:
        return 0.0
    noise = plan.private_noise
    releases = list(noise.facts.bought)
    if count == 0 and not releases:
        return 0.0
    for release in noise.releases(plan.method.rounds):
        mechanism = release.mechanism
        if isinstance(mechanism, NoisyGradients | GridGradients):
            mechanism = replace(mechanism, record_uses=uses)
        releases += restrained(noise, [Release(mechanism, Everyone(), count, release.uses)], scale)
    return account(releases, privacy_model=plan.privacy_model, delta=plan.guarantee.delta).epsilon
