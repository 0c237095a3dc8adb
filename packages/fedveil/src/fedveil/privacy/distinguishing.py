"""What a guarantee means to an attacker who wants to know whether one unit's data were there.

Every test of "was it there?" has a false-positive rate and a true-positive rate. A mechanism that
is (epsilon, delta)-private bounds the second by the first (Kairouz, Oh, Viswanath 2015). It is so
at every delta, each with an epsilon of its own, and the least of all these bounds holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from fedveil.privacy.accountants import bounds
from fedveil.privacy.accountants.steps import merged
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.translation import step_of

Pair = tuple[float, float]  # epsilon, delta

_LOW = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075)
RATES = (*_LOW, *(k / 40 for k in range(4, 41)))  # false-positive rates that are drawn
_DELTAS = (1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.04, 0.07, *(k / 20 for k in range(2, 20)))
_TOO_MUCH = 20.0  # beyond, the curve stays at the top of the picture and takes long to compute


@dataclass(frozen=True)
class AttackBound:
    """Upper bounds on every attack: `pairs` of (epsilon, delta) that all hold, the guarantee's own
    one first; and the mu of Gaussian differential privacy (Dong, Roth, Su 2022), where it is exact.
    """

    pairs: tuple[Pair, ...]
    mu: float | None = None

    def true_positives(self, false_positives: float) -> float:
        """The largest share of true positives at this share of false ones."""
        bound = min(1.0, *(_most(*pair, false_positives) for pair in self.pairs))
        if self.mu is None or not 0 < false_positives < 1:
            return bound
        normal = NormalDist()
        return min(bound, normal.cdf(normal.inv_cdf(false_positives) + self.mu))

    def least(self, share: float) -> float:
        """The smallest probability in one world of what has probability `share` in the other."""
        return 1 - self.true_positives(1 - share)

    @property
    def right_guesses(self) -> float:
        """How often the best guess is right if the unit was there in one of two cases.

        That is 1/2 and half of the total variation, which is at most
        (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).
        """
        apart = min(math.tanh(e / 2) + 2 * d / (math.exp(min(e, 700)) + 1) for e, d in self.pairs)
        if self.mu is not None:
            apart = min(apart, 2 * NormalDist().cdf(self.mu / 2) - 1)
        return 0.5 + 0.5 * min(1.0, apart)


def attack_on(guarantee: Guarantee) -> AttackBound:
    """Return bounds on any attack on the releases of a guarantee.

    A mu is exact if every release is an unsampled Gaussian, and nothing else: not one that may fail
    with a small probability. For sampled ones it is known in the limit only, and a limit proves
    nothing about a run.
    """
    model, own = guarantee.privacy_model, (guarantee.epsilon, guarantee.delta)
    steps = merged([step_of(release, model) for release in guarantee.releases])
    noises = [0.0 if step.failure else step.gaussian() or 0.0 for step in steps]
    if guarantee.tuning is None and all(noise > 0 for noise in noises):
        squares = (step.count / noise**2 for step, noise in zip(steps, noises, strict=True))
        return AttackBound((own,), math.sqrt(math.fsum(squares)))
    if not guarantee.epsilon <= _TOO_MUCH:
        return AttackBound((own,))
    pairs = [own]
    for delta in _DELTAS:
        if delta > guarantee.delta and pairs[-1][0] > 0:  # after epsilon 0 nothing is gained
            pairs.append((min(x for _, x in bounds(steps, delta, guarantee.tuning, True)), delta))
    return AttackBound(tuple(pairs))


def _most(epsilon: float, delta: float, rate: float) -> float:
    if epsilon > 700:  # e^epsilon leaves the range of floats
        return 1.0
    return min(math.exp(epsilon) * rate + delta, 1 - math.exp(-epsilon) * (1 - delta - rate))
