"""Where the tuner searches: named coordinates, and the settings that a point of them stands for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.stats import qmc

from fedveil.methods.parts.from_recipe import clip_norm
from fedveil.methods.registry import METHODS
from fedveil.planning.recipe import Recipe
from fedveil.privacy.sampling import Balanced, Everyone, RoundRobin
from fedveil.training.client.batches import unit_sizes
from fedveil.training.server.schedules import RateSchedule
from fedveil.tune.trials import Candidate, ProxyTrials, clips_gradients

Point = Mapping[str, Any]  # places by coordinate; other settings of the server by their names


class Space(ABC):
    """A box of coordinates, most of them exponents of two, and what its points stand for."""

    @property
    @abstractmethod
    def box(self) -> Mapping[str, tuple[float, float]]:
        """Return the lowest and the highest place of every coordinate that is searched."""

    @property
    @abstractmethod
    def start(self) -> Point:
        """Return the point from which the search sets out."""

    @abstractmethod
    def candidate(self, at: Point) -> Candidate:
        """Return the settings that a point stands for."""

    def simulated(self, candidate: Candidate) -> Candidate:
        """Return the settings to simulate in place of a candidate's, which they stand for."""
        return candidate

    def server_changes(self, at: Point) -> Iterator[Point]:
        """Yield points at which the server does something else with the same releases."""
        yield from ()

    def moved(self, at: Point, name: str, steps: float) -> Point | None:
        """Return the nearest point with other settings, so many steps on or more.

        Args:
            at: Where to set out.
            name: The coordinate to move along.
            steps: Units of the coordinate; negative for the other way.

        Returns:
            The point, or None if the box ends before the settings change.
        """
        low, high = self.box[name]
        here, place = self.candidate(at), float(at[name])
        while low <= place <= high:
            before = place
            place = min(high, max(low, place + steps * _UNITS.get(name, 1.0)))
            if place == before:
                break
            if self.candidate(there := {**at, name: place}) != here:
                return there
        return None

    def spread(self, number: int, seed: int) -> list[Point]:
        """Return points spread evenly over the box, a Halton sequence of a public seed."""
        box = self.box
        if not box:
            return []
        units = qmc.Halton(len(box), seed=seed).random(number)
        lows, highs = zip(*box.values(), strict=True)
        places = qmc.scale(units, lows, highs)
        return [dict(zip(box, map(float, row), strict=True)) for row in places]


# What looks different one by one may be alike: twice the steps at half the rate; half the clip at
# twice the rate, under the same noise. So the clip is relative to how far clients reach, and the
# stride is learning rate x local steps x the part of it that a clip leaves.
_BOX = {
    "local_steps": (0.0, 6.0),
    "total": (-4.0, 0.0),
    "cohort": (-2.0, 1.0),
    "stride": (-5.0, 6.0),
    "clip_norm": (-6.0, 1.0),
    "server_learning_rate": (-4.0, 4.0),
    "batch_size": (-4.0, 6.0),
    "smoothing": (0.0, 1.0),
    "penalty": (0.0, 1.0),
    "sparsity": (0.0, 1.0),
}
_UNITS = {"smoothing": 0.25, "penalty": 0.25, "sparsity": 0.25}  # of a step; 1 elsewhere
_SERVER = ("server_learning_rate", "server_momentum", "server_schedule", "clip_quantile")
_MOST = {"smoothing": 4.0, "penalty": 0.8, "sparsity": 0.9}
_LEAST = {"smoothing": 0.05}
_LEAST_SPARSITY = 0.01
_CHENG_PENALTY, _CHENG_SPARSITY, _LIANG_SMOOTHING = 0.4, 0.7, 1.0  # the methods' own defaults
_MOMENTA, _QUANTILES = (0.5, 0.9), (0.2, 0.5)


@dataclass(frozen=True)
class RecipeSpace(Space):
    """All settings around a recipe's own.

    Attributes:
        recipe: The recipe; the server's part of it says what is left open there.
        base: The recipe's own settings; what is None there is not searched.
        most_steps: Largest total of local steps.
        clients: Largest cohort.
        reach: Norm of a typical client's first gradient, in the clip's own norm.
        clips_gradients: The clip bounds gradients (Fu, Hu), so it does not grow with the steps.
        fixed: Coordinates that stay as they are in `base`.
        records: Records of a client on average, the largest batch.
        by_turns: Clients take turns, and noise is paid for whole participations: rounds go up or
            down to the last one that costs no further participation.
    """

    recipe: Recipe
    base: Candidate
    most_steps: int
    clients: int
    reach: float
    clips_gradients: bool
    fixed: frozenset[str] = frozenset()
    by_turns: bool = False
    records: int = 1

    @property
    def box(self) -> dict[str, tuple[float, float]]:
        missing = {name for name in _BOX if getattr(self.base, name, 0) is None}
        found = {name: _BOX[name] for name in _BOX if name not in missing | self.fixed}
        if "local_steps" in found:
            # With more, too few rounds are left to learn anything from each other.
            most = max(2 * math.sqrt(self.most_steps), 4 * self.base.local_steps)
            found["local_steps"] = 0.0, math.log2(min(self.most_steps, most))
        return {name: ends for name, ends in found.items() if ends[0] < ends[1]}

    @property
    def start(self) -> Point:
        """Where the recipe's own settings stand, or the nearest place in the box."""
        base, places = self.base, dict.fromkeys(_BOX, 0.0)
        reach = self._reach(base.learning_rate, base.local_steps)
        places["local_steps"] = math.log2(base.local_steps)
        places["total"] = math.log2(base.total_steps / self.most_steps)
        places["clip_norm"] = math.log2(base.clip_norm / reach)
        for name, most in _MOST.items():
            places[name] = math.sqrt((getattr(base, name) or 0.0) / most)
        return {name: min(high, max(low, places[name])) for name, (low, high) in self.box.items()}

    def candidate(self, at: Point) -> Candidate:
        base = self.base
        if at == self.start:
            return base  # and not what rounding makes of it
        cohort = self._cohort(at)
        steps, rounds = self._iterations(at, cohort)
        stride = self._stride(base) * 2.0 ** at.get("stride", 0.0)
        rate = short(stride / steps / 2.0 ** min(0.0, at.get("clip_norm", 0.0)))
        clip = base.clip_norm
        if "clip_norm" in at:
            clip = short(self._reach(rate, steps) * 2.0 ** at["clip_norm"])
        elif not self.clips_gradients:
            clip = short(clip * rate * steps / (base.learning_rate * base.local_steps))
        parts: dict[str, Any] = {"server_learning_rate": base.server_learning_rate}
        parts |= {name: self._part(name, at) for name in _MOST}
        if parts["penalty"] == parts["sparsity"] == 0:  # with neither it is another method
            parts["sparsity"] = _LEAST_SPARSITY
        if base.batch_size is not None:
            batch = round(base.batch_size * 2.0 ** at.get("batch_size", 0.0))
            parts["batch_size"] = min(self.records, max(1, batch))
        parts |= {name: at[name] for name in _SERVER if name in at}
        if "server_learning_rate" in self.box:
            server = (base.server_learning_rate or 1.0) * 2.0 ** at["server_learning_rate"]
            parts["server_learning_rate"] = short(server)
        return Candidate(steps, rounds, rate, clip, cohort, **parts)

    def server_changes(self, at: Point) -> Iterator[Point]:
        """Yield points with one thing changed that the recipe leaves to the server.

        Whether momentum, a falling rate or a clip that follows a quantile pays depends on the
        noise, so they are tried with the noise that the run will have. The server's rate changes
        with momentum, which multiplies a lasting update, and with a linear schedule, which leaves
        half of the way, so that all rounds together lead as far as before.
        """
        server, privacy = self.recipe.server, self.recipe.privacy
        plain = server.optimizer == "sgd" and "server_learning_rate" not in self.box
        rate = server.learning_rate
        # Noise that cancels is fitted to the recipe's own momentum.
        if plain and not server.momentum and privacy.correlated is None:
            for momentum in _MOMENTA:
                slower = short((1 - momentum) * rate)
                yield {**at, "server_momentum": momentum, "server_learning_rate": slower}
        if plain and server.schedule == RateSchedule.CONSTANT:
            linear = RateSchedule.LINEAR.value
            yield {**at, "server_schedule": linear, "server_learning_rate": 2 * rate}
        tracks = "privacy.clip_quantile" in METHODS[self.recipe.training.method].keys
        if tracks and privacy.correlated is None and not privacy.clip_quantile:
            for quantile in _QUANTILES:
                yield {**at, "clip_quantile": quantile}

    def _cohort(self, at: Point) -> int | None:
        cohort = self.base.cohort
        if cohort is None or "cohort" not in at:
            return cohort
        # Halves and doubles only: every cohort needs noise of its own calibrated.
        times = 2.0 ** round(float(at["cohort"]))
        return min(self.clients, max(1, round(cohort * times)))

    def _iterations(self, at: Point, cohort: int | None) -> tuple[int, int]:
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
        """Return how far a round goes: its steps, and what a clip that is searched leaves."""
        rate, steps = candidate.learning_rate, candidate.local_steps
        left = candidate.clip_norm / self._reach(rate, steps) if "clip_norm" in self.box else 1.0
        return rate * steps * min(1.0, left)

    def _reach(self, rate: float, steps: int) -> float:
        return self.reach if self.clips_gradients else self.reach * rate * steps

    def _part(self, name: str, at: Point) -> float | None:
        """Squares bring the small values, which matter most, apart."""
        if name not in at:
            own: float | None = getattr(self.base, name)
            return own
        return round(max(_LEAST.get(name, 0.0), _MOST[name] * float(at[name]) ** 2), 3)


def space_of(trials: ProxyTrials, local_steps: int, most_steps: int | None = None) -> RecipeSpace:
    """Return the space around a recipe's own settings.

    Smoothing is searched where the method smooths; BLUR's penalty and LUS's sparsity where it has
    them; the server's learning rate where its optimiser is adaptive, for else the clients' does
    the same.

    Args:
        trials: Of the recipe; say how far clients reach.
        local_steps: Steps of a round by the recipe's own settings.
        most_steps: Largest total of local steps; by default the recipe's own.
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
        batch_size=None if real.method.local.batch_rate is None else real.method.local.batch_size,
        **usual,
    )
    units = int(unit_sizes(real.federation, real.method.local).sum())
    fixed = set()
    if method == "dp-sgd":
        fixed.add("local_steps")
    if real.method.voting is not None:
        fixed |= {"total", "clip_norm"}
    if recipe.privacy.clip_quantile is not None:
        fixed.add("clip_norm")  # it finds its own
    return RecipeSpace(
        recipe,
        base,
        base.total_steps if most_steps is None else most_steps,
        trials.everyone,
        trials.reach(),
        clips_gradients(real.method),
        frozenset(fixed),
        isinstance(real.sampling, RoundRobin | Balanced),
        max(1, round(units / real.federation.clients)),
    )


def _whole_turns(rounds: int, most: int, clients: int, cohort: int) -> int:
    """Return the nearest number of rounds after which all clients have had as many turns."""
    turns = max(1, round(rounds * cohort / clients))
    while turns and turns * clients // cohort > most:
        turns -= 1
    return turns * clients // cohort or rounds


def short(value: float) -> float:
    """Round to three digits: more would be pretence."""
    return float(f"{value:.3g}")
