"""What a pilot tries out: settings of a recipe, and the box of points that stand for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.recipe import Recipe

Point = NDArray[np.float64]

# Coordinate: (lowest, highest) of the first box. Those of steps, total, cohort and rates are
# powers of two; the clip's is one relative to how far clients reach.
_BOX = {
    "local_steps": (0.0, 6.0),
    "total": (-4.0, 0.0),
    "cohort": (-2.0, 1.0),
    "learning_rate": (-4.0, 6.0),  # of small clips and single steps it is far above the usual
    "clip_norm": (-4.0, 1.0),
    "server_learning_rate": (-4.0, 4.0),
    "smoothing": (0.0, 1.0),
    "penalty": (0.0, 1.0),
    "sparsity": (0.0, 1.0),
}
_MOST_SMOOTHING, _MOST_PENALTY, _MOST_SPARSITY = 4.0, 0.8, 0.9
_DIGITS = 3  # of settings: more would be pretence


@dataclass(frozen=True)
class Candidate:
    """Settings that a trial is made with, by the recipe's names. None: not this method's."""

    local_steps: int
    rounds: int
    learning_rate: float
    clip_norm: float
    cohort: int | None = None
    server_learning_rate: float | None = None
    smoothing: float | None = None
    penalty: float | None = None
    sparsity: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The settings that are set."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def total_steps(self) -> int:
        return self.local_steps * self.rounds

    def uploads(self, everyone: int) -> int:
        """Updates sent in all; `everyone` is the cohort where all clients always take part."""
        return self.rounds * (everyone if self.cohort is None else self.cohort)


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
    """

    base: Candidate
    most_steps: int
    clients: int
    reach: float
    clips_gradients: bool
    fixed: frozenset[str] = frozenset()
    by_turns: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The coordinates of a point, in order."""
        missing = {name for name in _BOX if getattr(self.base, name, 0) is None}
        return tuple(name for name in _BOX if name not in missing | self.fixed)

    @property
    def box(self) -> tuple[Point, Point]:
        """Lowest and highest points of the first search."""
        low, high = np.array([_BOX[name] for name in self.names], dtype=np.float64).T
        if "local_steps" in self.names:
            # With more, too few rounds are left to learn anything from each other.
            most = max(2 * math.sqrt(self.most_steps), 4 * self.base.local_steps)
            high[self.names.index("local_steps")] = math.log2(min(self.most_steps, most))
        return low, high

    def candidate(self, point: Point) -> Candidate:
        """The settings that a point stands for, after rounding."""
        at = dict(zip(self.names, (float(x) for x in point), strict=True))
        base = self.base
        cohort = self._cohort(at)
        steps, rounds = self._iterations(at, cohort)
        rate = _short(base.learning_rate * 2.0 ** at.get("learning_rate", 0.0))
        clip = base.clip_norm
        if "clip_norm" in at:
            clip = _short(self._reach(rate, steps) * 2.0 ** at["clip_norm"])
        elif not self.clips_gradients:
            clip = _short(clip * rate * steps / (base.learning_rate * base.local_steps))
        return Candidate(
            steps,
            rounds,
            rate,
            clip,
            cohort,
            _scaled(base.server_learning_rate, at.get("server_learning_rate")),
            _part(base.smoothing, at.get("smoothing"), _MOST_SMOOTHING, least=0.05),
            _part(base.penalty, at.get("penalty"), _MOST_PENALTY),
            _part(base.sparsity, at.get("sparsity"), _MOST_SPARSITY),
        )

    def point(self, candidate: Candidate) -> Point:
        """Where a candidate stands."""
        base, most = self.base, self.most_steps
        everywhere = {
            "local_steps": math.log2(candidate.local_steps),
            "total": math.log2(candidate.total_steps / most),
            "cohort": math.log2((candidate.cohort or 1) / (base.cohort or 1)),
            "learning_rate": math.log2(candidate.learning_rate / base.learning_rate),
            "clip_norm": math.log2(
                candidate.clip_norm / self._reach(candidate.learning_rate, candidate.local_steps)
            ),
            "server_learning_rate": math.log2(
                (candidate.server_learning_rate or 1) / (base.server_learning_rate or 1)
            ),
            "smoothing": math.sqrt((candidate.smoothing or 0.0) / _MOST_SMOOTHING),
            "penalty": math.sqrt((candidate.penalty or 0.0) / _MOST_PENALTY),
            "sparsity": math.sqrt((candidate.sparsity or 0.0) / _MOST_SPARSITY),
        }
        return np.array([everywhere[name] for name in self.names], dtype=np.float64)

    def around(self, candidate: Candidate, width: float) -> tuple[Point, Point]:
        """A box of `width` times the first one's size around a candidate.

        Rates and clips may leave the first box: the recipe they were measured from may be far off.
        """
        low, high = self.box
        centre, half = self.point(candidate), width * (high - low) / 2
        free = np.array([name.endswith(("rate", "clip_norm")) for name in self.names], dtype=bool)
        lowest = np.where(free, centre - half, np.clip(centre - half, low, high))
        highest = np.where(free, centre + half, np.clip(centre + half, low, high))
        return lowest, highest

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Small changes of a candidate, one at a time: fewer or more local steps that go as far in
        all; higher rates with lower clips under the same noise, and the other way round; rates and
        clips up and down, fewer or more rounds; then finer ones."""
        at = {name: place for place, name in enumerate(self.names)}
        moves: list[dict[str, float]] = [
            {"local_steps": sign, "total": sign, "learning_rate": -sign} for sign in (-1.0, 1.0)
        ]
        moves += [{"learning_rate": sign, "clip_norm": -sign} for sign in (1.0, -1.0)]
        for step in (0.5, 0.25):
            moves += [{name: sign * step} for name in ("learning_rate", "clip_norm")
                      for sign in (-1.0, 1.0)]  # fmt: skip
            moves += [{"total": sign * 2 * step} for sign in (-1.0, 1.0)]
        found: dict[Candidate, None] = {}
        for move in moves:
            if move.keys() <= at.keys():
                point = self.point(candidate)
                for name, step in move.items():
                    point[at[name]] += step
                found.setdefault(self.candidate(point))
        found.pop(candidate, None)
        return list(found)

    def _cohort(self, at: dict[str, float]) -> int | None:
        cohort = self.base.cohort
        if cohort is None or "cohort" not in at:
            return cohort
        # Halves and doubles only: every cohort needs noise of its own calibrated.
        return min(self.clients, max(1, round(cohort * 2.0 ** round(at["cohort"]))))

    def _iterations(self, at: dict[str, float], cohort: int | None) -> tuple[int, int]:
        base, most = self.base, self.most_steps
        steps = base.local_steps
        if "local_steps" in at:
            steps = min(most, max(1, round(2.0 ** at["local_steps"])))
        total = base.total_steps if "total" not in at else most * 2.0 ** min(0.0, at["total"])
        rounds = max(1, math.floor(total / steps + 1e-9))
        if self.by_turns and cohort is not None:
            rounds = _whole_turns(rounds, most // steps, self.clients, cohort)
        return steps, rounds

    def _reach(self, rate: float, steps: int) -> float:
        return self.reach if self.clips_gradients else self.reach * rate * steps


def recipe_with_settings(recipe: Recipe, candidate: Candidate) -> Recipe:
    """The recipe with a candidate's settings."""
    training = replace(
        recipe.training,
        local_steps=candidate.local_steps,
        local_epochs=None,
        rounds=candidate.rounds,
        learning_rate=candidate.learning_rate,
    )
    if candidate.cohort is not None:
        training = replace(training, cohort=candidate.cohort, rate=None)
    if candidate.penalty is not None:
        training = replace(training, penalty=candidate.penalty)
    if candidate.sparsity is not None:
        training = replace(training, sparsity=candidate.sparsity)
    server = recipe.server
    if candidate.server_learning_rate is not None:
        server = replace(server, learning_rate=candidate.server_learning_rate)
    if candidate.smoothing is not None:
        server = replace(server, smoothing=candidate.smoothing)
    privacy = replace(recipe.privacy, clip_norm=candidate.clip_norm)
    return replace(recipe, training=training, server=server, privacy=privacy)


def _whole_turns(rounds: int, most: int, clients: int, cohort: int) -> int:
    """The nearest number of rounds after which everybody has had the same number of turns."""
    turns = max(1, round(rounds * cohort / clients))
    while turns and turns * clients // cohort > most:
        turns -= 1
    return turns * clients // cohort or rounds


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _scaled(base: float | None, power: float | None) -> float | None:
    return base if base is None or power is None else _short(base * 2.0**power)


def _part(base: float | None, at: float | None, most: float, least: float = 0.0) -> float | None:
    """Squares bring the small values, which matter most, apart."""
    return base if at is None else round(max(least, most * min(1.0, max(0.0, at)) ** 2), 3)
