"""All audits of a plan, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.data.federation import Task
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import Laplace
from fedveil.privacy.rounding import at_least, at_most
from fedveil_lab.audit.many_runs import ManyRuns, many_runs
from fedveil_lab.audit.one_run import OneRun, one_run, units_of_rows
from fedveil_lab.audit.probes import Probe, probes

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
    probes: tuple[Probe, ...]
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
        """The part of the guarantee that cannot be true; empty if nothing contradicts it."""
        found, certified = self.many.refuted, self.guarantee
        for probe in self.probes:
            if probe.broken:
                return (
                    f"{probe.what} moves what is released by {probe.reached:.6g}, where "
                    f"{probe.allowed:.6g} is accounted"
                )
        if found is not None:
            return (
                f"a canary is found with probability {found.at_least:.4f} or more at false alarms "
                f"of {found.false_positives:.4f} at most, where the proof allows "
                f"{found.allowed:.4f}"
            )
        if self.one is not None and self.one.epsilon > certified.epsilon:
            return (
                f"one run shows epsilon at least {at_least(self.one.epsilon)} at delta "
                f"{certified.delta:g}, where {at_most(certified.epsilon)} is promised"
            )
        if self.one is not None and self.one.refuted:
            return (
                f"one run lets {self.one.right} of {self.one.guesses} guesses be right, which "
                "contradicts the curve that the accountant proves"
            )
        return ""

    @property
    def method(self) -> str:
        """The audit's method in a few words."""
        parts = [f"{self.many.games} games"]
        if self.probes:
            parts.append(f"{len(self.probes)} probes")
        if self.one is not None:
            parts.append(f"one run with {self.one.canaries} canaries")
        return ", ".join(parts)

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
            "method": self.method,
            "confidence": self.confidence,
            "lower_bound": self.epsilon,
            "epsilon_at_least": self.epsilon,
            "gaussian_epsilon": self.gaussian,
            "refuted": self.refuted,
            "probes": [asdict(probe) | {"broken": probe.broken} for probe in self.probes],
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
    """Attack a plan's guarantee: probes, many short games, one run if clients are protected.

    `canaries=0` leaves the run out. Games and run are wrong with probability 5 % at most each;
    probes are never.
    """
    if games < 200:
        raise ConfigError(f"games: need at least 200, got {games}")
    guarantee = plan.guarantee
    if guarantee is None:
        raise ConfigError("audit: this method adds no noise and promises nothing")
    half = seconds / 2
    tried = probes(plan)
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
    federation = plan.federation
    summed = guarantee.trust is not Trust.LOCAL and federation.task is not Task.SEQUENCE
    units = federation.clients if guarantee.unit is Unit.CLIENT else units_of_rows(plan).max() + 1
    if canaries != 0 and summed and plan.method.voting is None and units >= 16:
        one = one_run(
            plan,
            canaries=canaries,
            alpha=ALPHA,
            seed=seed,
            seconds=half,
            progress=lambda done, of: progress("rounds", done, of),
        )
    return Audit(guarantee, tried, many, one)
