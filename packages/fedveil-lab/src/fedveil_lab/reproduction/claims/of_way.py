"""What the paper whose setting a way of spending a budget is would have claimed."""

from __future__ import annotations

from fedveil.core.units import Adjacency, Trust
from fedveil.tune.feasible import Question, Way
from fedveil_lab.reproduction.claims import fu
from fedveil_lab.reproduction.claims.cheng import paper_cheng_epsilon
from fedveil_lab.reproduction.claims.claim import Claim
from fedveil_lab.reproduction.claims.liang import paper_liang_epsilon


def claim_of(way: Way, question: Question, cohort: int, rounds: int, noise: float) -> Claim | None:
    """Return the claim about the same noise of the paper whose setting this is."""
    participations = cohort * rounds / question.clients
    if question.noise == "laplace":
        if way.trust is not Trust.LOCAL:
            return None
        return fu.paper_fu_laplace_epsilon(noise_multiplier=noise, participations=participations)
    if way.trust is Trust.LOCAL:
        return fu.paper_fu_gaussian_epsilon(
            noise_multiplier=noise,
            participations=participations,
            delta=question.delta,
            c2=1.0,
        )
    if way.trust is Trust.DISTRIBUTED:
        return paper_cheng_epsilon(
            noise_multiplier=noise,
            delta=question.delta,
            clients=question.clients,
            cohort=cohort,
            rounds=rounds,
            c2=1.0,
        )
    return paper_liang_epsilon(
        noise_multiplier=noise,
        clients=question.clients,
        cohort=cohort,
        rounds=rounds,
        delta=question.delta,
        sampling="fixed" if way.adjacency is Adjacency.REPLACE else "poisson",
    )
