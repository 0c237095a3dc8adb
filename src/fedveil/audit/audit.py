"""Both audits of a plan, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.audit.many_runs import ManyRuns, many_runs
from fedveil.audit.one_run import OneRun, one_run
from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import Laplace

ALPHA = 0.05
_NOT_TRIED = (
    "noise that is alike in different coordinates (each coordinate is a game of its own)",
    "masks, keys and messages of a secure sum (sums were taken without them)",
    "files, timings and error messages of a run",
    "a generator of the operating system that can be predicted (seeds were used)",
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Audit:
    """Certified beside audited."""

    guarantee: Guarantee
    many: ManyRuns
    one: OneRun | None

    @property
    def epsilon(self) -> float:
        """The best lower bound that assumes nothing."""
        return max(self.many.epsilon, 0.0 if self.one is None else self.one.epsilon)

    @property
    def gaussian(self) -> tuple[float, float] | None:
        """Interval for epsilon if the noise is Gaussian; None where it is claimed not to be."""
        claimed = (release.mechanism for release in self.guarantee.releases)
        return None if any(isinstance(one, Laplace) for one in claimed) else self.many.gaussian

    @property
    def confidence(self) -> float:
        """Of all that is said together: each of the two audits is wrong with probability ALPHA."""
        return 1 - (1 if self.one is None else 2) * ALPHA

    @property
    def refuted(self) -> str:
        """What the guarantee says and cannot be; empty if nothing contradicts it."""
        found, certified = self.many.refuted, self.guarantee
        if found is not None:
            return (
                f"epsilon is at least {found.at_least:.3f} at delta {found.delta:g}, where the "
                f"accountant proves {found.claimed:.3f}"
            )
        if self.one is not None and self.one.epsilon > certified.epsilon:
            return (
                f"one run shows epsilon at least {self.one.epsilon:.3f} at delta "
                f"{certified.delta:g}, where {certified.epsilon:.3f} is promised"
            )
        return ""

    @property
    def not_tried(self) -> tuple[str, ...]:
        more = () if self.one is not None else ("a whole training run with canaries",)
        return (*self.many.not_tried, *more, *_NOT_TRIED)

    def to_dict(self) -> dict[str, Any]:
        return {
            "certified": {
                "epsilon": self.guarantee.epsilon,
                "delta": self.guarantee.delta,
                "unit": str(self.guarantee.unit),
                "adjacency": str(self.guarantee.adjacency),
                "trust": str(self.guarantee.trust),
            },
            "confidence": self.confidence,
            "epsilon_at_least": self.epsilon,
            "gaussian_epsilon": self.gaussian,
            "refuted": self.refuted,
            "many_runs": asdict(self.many),
            "one_run": None if self.one is None else asdict(self.one),
            "not_tried": list(self.not_tried),
        }


def audit(
    plan: Plan,
    *,
    games: int = 20_000,
    canaries: int | None = None,
    seed: int = 0,
    seconds: float = math.inf,
    progress: Progress = lambda what, done, of: None,
) -> Audit:
    """Attack a plan's guarantee: many short games, then one run if clients are protected.

    `canaries=0` leaves the run out. Each audit is wrong with probability 5 % at most.
    """
    if games < 200:
        raise ConfigError(f"games: need at least 200, got {games}")
    guarantee = plan.guarantee
    if guarantee is None:
        raise ConfigError("audit: this method adds no noise and promises nothing")
    half = seconds / 2
    many = many_runs(
        plan,
        games=games,
        alpha=ALPHA,
        seed=seed,
        seconds=half,
        progress=lambda done, of: progress("games", done, of),
    )
    one = None
    # Under local trust the adversary sees single uploads, of which the games are; sums say less.
    summed = guarantee.unit is Unit.CLIENT and guarantee.trust is not Trust.LOCAL
    playable = summed and plan.method.voting is None
    if canaries != 0 and playable and plan.federation.clients >= 16:
        one = one_run(
            plan,
            canaries=canaries,
            alpha=ALPHA,
            seed=seed,
            seconds=half,
            progress=lambda done, of: progress("rounds", done, of),
        )
    return Audit(guarantee, many, one)
