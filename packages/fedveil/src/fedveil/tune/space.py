"""What a pilot tries out: settings of a recipe, and the box of points that stand for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scipy.stats import qmc

from fedveil.methods.parts.from_recipe import clip_norm
from fedveil.privacy.sampling import Balanced, Everyone, RoundRobin
from fedveil.tune.server_settings import server_changes
from fedveil.tune.trials import Candidate, ProxyTrials, clips_gradients

# Coordinate: (lowest, highest), most of them powers of two. What looks different one by one may be
# alike: twice the steps at half the rate; half the clip at twice the rate, under the same noise. So
# the clip is relative to how far clients reach, and the stride is learning rate x local steps x the
# part of it that a clip leaves.
_BOX = {
    "local_steps": (0.0, 6.0),
    "total": (-4.0, 0.0),
    "cohort": (-2.0, 1.0),
    "stride": (-5.0, 6.0),
    "clip_norm": (-6.0, 1.0),
    "server_learning_rate": (-4.0, 4.0),
    "smoothing": (0.0, 1.0),
    "penalty": (0.0, 1.0),
    "sparsity": (0.0, 1.0),
}
_SERVER = ("server_momentum", "server_schedule", "clip_quantile")  # not in the box
_MOST = {"smoothing": 4.0, "penalty": 0.8, "sparsity": 0.9}
_LEAST = {"smoothing": 0.05}
_CHENG_PENALTY, _CHENG_SPARSITY, _LIANG_SMOOTHING = 0.4, 0.7, 1.0  # the methods' own defaults


@dataclass(frozen=True)
class Space:
    """All candidates around one.

    base: the recipe's own settings; what is None there is not searched.
    fixed: coordinates that stay as they are in `base`.
    most_steps: largest total of local steps; clients: largest cohort.
    reach: norm of a typical client's first gradient, in the clip's own norm.
    clips_gradients: the clip bounds gradients (Fu, Hu), so it does not grow with the steps.
    by_turns: clients take turns, and noise is paid for whole participations: rounds go up or down
        to the last one that costs no further participation.
    server_changes: of a candidate, what the server could do otherwise.
    """

    base: Candidate
    most_steps: int
    clients: int
    reach: float
    clips_gradients: bool
    fixed: frozenset[str] = frozenset()
    by_turns: bool = False
    server_changes: Callable[[Candidate], Iterable[Candidate]] = lambda candidate: ()

    @property
    def box(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest value of every coordinate that is searched."""
        missing = {name for name in _BOX if getattr(self.base, name, 0) is None}
        found = {name: _BOX[name] for name in _BOX if name not in missing | self.fixed}
        if "local_steps" in found:
            # With more, too few rounds are left to learn anything from each other.
            most = max(2 * math.sqrt(self.most_steps), 4 * self.base.local_steps)
            found["local_steps"] = 0.0, math.log2(min(self.most_steps, most))
        return found

    def candidate(self, at: Mapping[str, float]) -> Candidate:
        """The settings that a point stands for, after rounding."""
        base = self.base
        cohort = self._cohort(at)
        steps, rounds = self._iterations(at, cohort)
        stride = self._stride(base) * 2.0 ** at.get("stride", 0.0)
        rate = _short(stride / steps / 2.0 ** min(0.0, at.get("clip_norm", 0.0)))
        clip = base.clip_norm
        if "clip_norm" in at:
            clip = _short(self._reach(rate, steps) * 2.0 ** at["clip_norm"])
        elif not self.clips_gradients:
            clip = _short(clip * rate * steps / (base.learning_rate * base.local_steps))
        server = base.server_learning_rate
        if server is not None:
            server = _short(server * 2.0 ** at.get("server_learning_rate", 0.0))
        parts: dict[str, Any] = {name: self._part(name, at) for name in _MOST}
        return Candidate(steps, rounds, rate, clip, cohort, server, **parts)

    def point(self, candidate: Candidate) -> dict[str, float]:
        """Where a candidate stands, or the nearest place in the box."""
        base, rate, steps = self.base, candidate.learning_rate, candidate.local_steps
        servers = (candidate.server_learning_rate or 1) / (base.server_learning_rate or 1)
        ratios = {
            "local_steps": steps,
            "total": candidate.total_steps / self.most_steps,
            "cohort": (candidate.cohort or 1) / (base.cohort or 1),
            "stride": self._stride(candidate) / self._stride(base),
            "clip_norm": candidate.clip_norm / self._reach(rate, steps),
            "server_learning_rate": servers,
        }
        places = {name: math.log2(ratio) for name, ratio in ratios.items()}
        for name, most in _MOST.items():
            places[name] = math.sqrt((getattr(candidate, name) or 0.0) / most)
        return {name: min(high, max(low, places[name])) for name, (low, high) in self.box.items()}

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """What the server could do otherwise; small changes of a candidate, one coordinate at a
        time; then smaller ones."""
        here, found = self.point(candidate), dict.fromkeys(self.server_changes(candidate))
        kept = {name: getattr(candidate, name) for name in _SERVER}
        if "server_learning_rate" not in self.box:
            kept["server_learning_rate"] = candidate.server_learning_rate
        for part in (8, -8, 16, -16):
            for name, (low, high) in self.box.items():
                step = (high - low) / part
                if name == "cohort":
                    step = math.copysign(1.0, part)
                there = min(high, max(low, here[name] + step))
                found.setdefault(replace(self.candidate({**here, name: there}), **kept))
        found.pop(candidate, None)
        return list(found)

    def spread(self, number: int, seed: int) -> list[Candidate]:
        """`number` different candidates spread evenly over the box; fewer if it holds no more."""
        box = self.box
        if not box:
            return [self.base]
        sequence = qmc.Halton(len(box), seed=seed)
        found: dict[Candidate, None] = {}
        for unit in sequence.random(4 * number):  # points may round to the same candidate
            places = (
                low + x * (high - low) for x, (low, high) in zip(unit, box.values(), strict=True)
            )
            found.setdefault(self.candidate(dict(zip(box, places, strict=True))))
        return list(found)[:number]

    def _cohort(self, at: Mapping[str, float]) -> int | None:
        cohort = self.base.cohort
        if cohort is None or "cohort" not in at:
            return cohort
        # Halves and doubles only: every cohort needs noise of its own calibrated.
        return min(self.clients, max(1, round(cohort * 2.0 ** round(at["cohort"]))))

    def _iterations(self, at: Mapping[str, float], cohort: int | None) -> tuple[int, int]:
        base, most = self.base, self.most_steps
        steps = base.local_steps
        if "local_steps" in at:
            steps = min(most, max(1, round(2.0 ** at["local_steps"])))
        total = base.total_steps if "total" not in at else most * 2.0 ** min(0.0, at["total"])
        rounds = max(1, math.floor(total / steps + 1e-9))
        if self.by_turns and cohort is not None:
            rounds = _whole_turns(rounds, most // steps, self.clients, cohort)
        return steps, rounds

    def _stride(self, candidate: Candidate) -> float:
        """How far a round goes: all its steps, and what a clip that is searched leaves of them."""
        rate, steps = candidate.learning_rate, candidate.local_steps
        left = candidate.clip_norm / self._reach(rate, steps) if "clip_norm" in self.box else 1.0
        return rate * steps * min(1.0, left)

    def _reach(self, rate: float, steps: int) -> float:
        return self.reach if self.clips_gradients else self.reach * rate * steps

    def _part(self, name: str, at: Mapping[str, float]) -> float | None:
        """Squares bring the small values, which matter most, apart."""
        if name not in at:
            own: float | None = getattr(self.base, name)
            return own
        return round(max(_LEAST.get(name, 0.0), _MOST[name] * at[name] ** 2), 3)


def space_of(trials: ProxyTrials, local_steps: int, most_steps: int | None = None) -> Space:
    """The settings around a recipe's own; `most_steps` bounds their total (its own by default).

    Smoothing is searched where the method smooths; BLUR's penalty and LUS's sparsity where it has
    them; the server's learning rate where its optimiser is adaptive, for else the clients' does
    the same.
    """
    recipe, real = trials.recipe, trials.real
    training, server, method = recipe.training, recipe.server, recipe.training.method
    usual: dict[str, Any] = {}
    if method == "bounded-sparse":
        usual = {"penalty": _CHENG_PENALTY, "sparsity": _CHENG_SPARSITY}
    for name in ("penalty", "sparsity"):
        if getattr(training, name) is not None:
            usual[name] = getattr(training, name)
    if isinstance(server.smoothing, str):
        pass  # the releases choose it
    elif server.smoothing or method == "laplacian-smoothing":
        usual["smoothing"] = server.smoothing or _LIANG_SMOOTHING
    everyone = isinstance(real.sampling, Everyone)
    base = Candidate(
        local_steps,
        real.method.rounds,
        training.learning_rate,
        clip_norm(recipe),
        None if everyone else max(1, round(real.sampling.expected_cohort)),
        server.learning_rate if server.optimizer != "sgd" else None,
        **usual,
    )
    fixed = set()
    if method == "dp-sgd":
        fixed.add("local_steps")
    if real.method.voting is not None:
        fixed |= {"total", "clip_norm"}
    if recipe.privacy.clip_quantile is not None:
        fixed.add("clip_norm")  # it finds its own
    return Space(
        base,
        base.total_steps if most_steps is None else most_steps,
        trials.everyone,
        trials.reach(),
        clips_gradients(real.method),
        frozenset(fixed),
        isinstance(real.sampling, RoundRobin | Balanced),
        partial(server_changes, recipe),
    )


def _whole_turns(rounds: int, most: int, clients: int, cohort: int) -> int:
    """The nearest number of rounds after which everybody has had the same number of turns."""
    turns = max(1, round(rounds * cohort / clients))
    while turns and turns * clients // cohort > most:
        turns -= 1
    return turns * clients // cohort or rounds


def _short(value: float) -> float:
    return float(f"{value:.3g}")  # more digits would be pretence
