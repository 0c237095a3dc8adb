"""Was this unit in the training? Answers from the released model, beside what epsilon allows.

Many runs are trained, each with about half of the units, by a coin for each unit and run. Every
run is attacked in turn with what all others show: LiRA (Carlini et al. 2022) fits a Gaussian to a
unit's scores in runs with it and in runs without it; RMIA (Zarifzadeh et al. 2024) asks how often
the unit gains more on the average model than public examples do. The unit is the guarantee's: a
record, or all records of a client. What "without" means is the guarantee's adjacency: a record or a
client that contributes nothing (zero-out, add-remove), or another unit in its place (replace).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call

from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Unit
from fedveil.data.federation import Examples, Federation, Task
from fedveil.planning.plan import Plan
from fedveil.privacy.distinguishing import attack_on
from fedveil.run.evaluation import rows_at_once
from fedveil.run.run import Run
from fedveil.training.models.losses import class_scores
from fedveil.training.models.tensors import as_tensor
from fedveil_lab.audit.bounds import at_least
from fedveil_lab.audit.stand_ins import StandIns

FALSE_RATES = (0.001, 0.01, 0.1)
_LEAST_RUNS = 16
_NEVER = 10**9  # rounds between two evaluations
_PUBLIC = 1000  # test examples that RMIA compares with
_GAIN = 1.0  # how much more a unit must gain than a public example

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Point:
    """A point of a ROC curve: the true rate, its lower 95 % bound, and what epsilon allows."""

    false_rate: float
    true_rate: float
    at_least: float
    allowed: float | None


@dataclass(frozen=True)
class Curve:
    """One attack. `curve` has (false rate, true rate) pairs for a picture."""

    attack: str
    auc: float
    points: tuple[Point, ...]
    curve: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Membership:
    unit: str
    without: str
    units: int
    runs: int
    trials: int
    epsilon: float | None
    delta: float | None
    accuracy: float | None
    curves: tuple[Curve, ...]
    allowed: tuple[tuple[float, float], ...]
    seconds: float
    complete: bool


def membership(
    plan: Plan,
    *,
    runs: int,
    seed: int,
    seconds: float = math.inf,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Membership:
    """Train `runs` models, attack each with the help of the others."""
    if runs < _LEAST_RUNS:
        raise ConfigError(f"--runs: need at least {_LEAST_RUNS}, got {runs}")
    if plan.federation.task is not Task.CLASSIFICATION:
        raise ConfigError("attack: membership is read off the confidence in a class")
    began = time.monotonic()
    worlds = _Worlds(plan)
    chance = np.random.default_rng([seed, 5])
    there, scores, public, right = [], [], [], []
    for number in range(runs):
        if number >= _LEAST_RUNS and time.monotonic() - began > seconds:
            break
        coins = chance.random(worlds.units) < 0.5
        weights, accuracy = worlds.train(coins, seed * 2**20 + number)
        there.append(worlds.present(coins))
        scores.append(worlds.scores(weights))
        public.append(worlds.public(weights))
        right.append(accuracy)
        progress(number + 1, runs)
    present, seen, others = np.stack(there), np.stack(scores), np.stack(public)
    guarantee = worlds.guarantee
    allowed = None if guarantee is None else attack_on(guarantee).true_positives
    found = {"LiRA": _lira(seen, present), "RMIA": _rmia(seen, present, others)}
    grid = np.unique(np.concatenate([[0.0], np.logspace(-4, 0, 41)]))
    return Membership(
        str(worlds.unit),
        worlds.without,
        present.shape[1],
        len(there),
        present.size,
        None if guarantee is None else guarantee.epsilon,
        None if guarantee is None else guarantee.delta,
        float(np.mean(right)),
        tuple(_curve(name, score, present, allowed) for name, score in found.items()),
        () if allowed is None else tuple((float(x), allowed(float(x))) for x in grid),
        time.monotonic() - began,
        len(there) == runs,
    )


class _Worlds:
    """The worlds that the guarantee is about, and what a model says of each unit."""

    def __init__(self, plan: Plan) -> None:
        guarantee, self._pool = plan.guarantee, plan.federation
        self.unit = Unit.CLIENT if guarantee is None else guarantee.unit
        train, offsets = self._pool.train, self._pool.offsets
        owners = np.repeat(np.arange(self._pool.clients), np.diff(offsets))
        rows = np.arange(len(train))
        if self.unit is Unit.CLIENT:
            rows = owners
        elif self.unit is Unit.PERSON and train.persons is not None:
            rows = np.unique(train.persons, return_inverse=True)[1]
        self._unit_of, self._owners = rows, owners
        self.units, self._seen = int(rows.max()) + 1, np.arange(int(rows.max()) + 1)
        self._replaced = guarantee is None or guarantee.adjacency is Adjacency.REPLACE
        self.without = "it sends nothing" if self.unit is Unit.CLIENT else "it is left out"
        self._plan = plan
        if self._replaced:
            self.without = f"another {self.unit} is in its place"
            if self.unit is Unit.PERSON:
                raise ConfigError("attack: persons who replace one another are not tried")
            self._pairs = _pairs(rows, owners if self.unit is Unit.RECORD else rows // 2)
            self.units, self._seen = len(self._pairs), self._pairs.reshape(-1)
            chosen = self._chosen(np.ones(self.units, np.bool_))
            self._plan = replace(plan, federation=chosen)
        self.guarantee = self._plan.guarantee

    def present(self, coins: Bools) -> Bools:
        """Which units are in: where one takes another's place, both are units."""
        return np.stack([coins, ~coins], axis=1).reshape(-1) if self._replaced else coins

    def train(self, coins: Bools, seed: int) -> tuple[Tensor, float]:
        federation, silent = self._pool, not self._replaced and self.unit is Unit.CLIENT
        if self._replaced:
            federation = self._chosen(coins)
        elif not silent:  # an unusable record has no gradient, and keeps its place and its coins
            usable = coins[self._unit_of]
            if federation.train.usable is not None:
                usable &= federation.train.usable
            federation = replace(federation, train=replace(federation.train, usable=usable))
        run = Run(replace(self._plan, seed=seed, federation=federation), every=_NEVER)
        if silent:
            run.engine = StandIns(run, coins)
        try:
            for _ in run:
                pass
            return run.weights, float(run.evaluate().accuracy or 0.0)
        finally:
            run.close()

    def scores(self, weights: Tensor) -> Floats:
        """How sure the model is of each unit's labels, as a log-odds ratio: the mean of its own."""
        sure = np.bincount(self._unit_of, self._confidence(weights, self._pool.train))
        means: Floats = (sure / np.bincount(self._unit_of))[self._seen]
        return means

    def public(self, weights: Tensor) -> Floats:
        test = self._pool.test
        few = Examples(test.inputs[:_PUBLIC], test.targets[:_PUBLIC])
        return self._confidence(weights, few)

    def _chosen(self, coins: Bools) -> Federation:
        """The federation in which one of each pair takes part."""
        taken = np.isin(self._unit_of, np.where(coins, *self._pairs.T))
        sizes = np.bincount(self._owners[taken])
        offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)
        train = self._pool.train.take(np.flatnonzero(taken))
        return replace(self._pool, train=train, offsets=offsets, owners=None, verified=True)

    @torch.inference_mode()
    def _confidence(self, weights: Tensor, examples: Examples) -> Floats:
        plan, found = self._plan, []
        views = plan.layout.views(weights)
        step = rows_at_once(plan.module, self._pool.input_shape)
        for begin in range(0, len(examples), step):
            part = slice(begin, begin + step)
            inputs = as_tensor(self._pool.model_inputs(np.asarray(examples.inputs[part])))
            targets = as_tensor(np.asarray(examples.targets[part]))
            outputs = class_scores(functional_call(plan.module, views, (inputs,))).double()
            own = outputs.gather(1, targets[:, None])[:, 0]
            rest = outputs.scatter(1, targets[:, None], -math.inf)
            found.append((own - rest.logsumexp(dim=1)).numpy())
        return np.concatenate(found)


def _pairs(units: Ints, groups: Ints) -> Ints:
    """Units of which one takes the other's place, `[pairs, 2]`: neighbours of the same group."""
    first, at = np.unique(units, return_index=True)
    group = groups[at]
    place = np.arange(len(first)) - np.searchsorted(group, group)  # within the group
    left = first[:-1][(place[:-1] % 2 == 0) & (group[:-1] == group[1:])]
    if len(left) < 2:
        raise ConfigError("attack: too few units to take each other's place")
    return np.stack([left, left + 1], axis=1)


def _lira(scores: Floats, there: Bools) -> Floats:
    """Log-likelihood ratios `[runs, units]`, each run judged by all others.

    One spread for all units, as in the paper where there are few runs.
    """
    inside, outside = _others_mean(scores, there), _others_mean(scores, ~there)
    spreads = []
    for mask, mean in ((there, inside), (~there, outside)):
        spreads.append(max(float(np.sqrt(((scores - mean)[mask] ** 2).mean())), 1e-12))
    near, far = ((scores - inside) / spreads[0]) ** 2, ((scores - outside) / spreads[1]) ** 2
    return (far - near) / 2


def _rmia(scores: Floats, there: Bools, public: Floats) -> Floats:
    """Share of public examples that gain less on the average model than the unit does."""
    unit, other = _log_probability(scores), _log_probability(public)
    # The average model: half of the runs have the unit and half do not.
    average = (_others_mean(np.exp(unit), there) + _others_mean(np.exp(unit), ~there)) / 2
    base = _others_mean(np.exp(other), np.ones(other.shape, np.bool_))
    gain = unit - np.log(np.maximum(average, 1e-300))
    public_gain = np.sort(other - np.log(np.maximum(base, 1e-300)), axis=1)
    limits = gain - math.log(_GAIN)
    shares = [
        np.searchsorted(row, limit, side="right") / len(row)
        for row, limit in zip(public_gain, limits, strict=True)
    ]
    # Ties are broken by the gain itself.
    return np.stack(shares) + 1e-6 * np.tanh(gain)


def _log_probability(log_odds: Floats) -> Floats:
    return -np.logaddexp(0.0, -log_odds)


def _others_mean(values: Floats, mask: Bools) -> Floats:
    """For each run and unit the mean over the other runs in `mask`; over all others if none is."""
    total, count = (values * mask).sum(axis=0) - values * mask, mask.sum(axis=0) - mask
    everybody = (values.sum(axis=0) - values) / max(len(values) - 1, 1)
    means: Floats = np.where(count > 0, total / np.maximum(count, 1), everybody)
    return means


def _curve(
    name: str, scores: Floats, there: Bools, allowed: Callable[[float], float] | None
) -> Curve:
    inside, outside = np.sort(scores[there]), np.sort(scores[~there])
    if min(len(inside), len(outside)) == 0:
        raise ConfigError("attack: too few units for a ROC curve")
    ranks = np.searchsorted(outside, inside, side="left")
    ties = np.searchsorted(outside, inside, side="right") - ranks
    auc = float((ranks + ties / 2).mean() / len(outside))

    def true_rate(false_rate: float) -> tuple[float, int]:
        alarms = math.floor(false_rate * len(outside))
        threshold = outside[len(outside) - alarms - 1] if alarms < len(outside) else -math.inf
        hits = len(inside) - int(np.searchsorted(inside, threshold, side="right"))
        return hits / len(inside), hits

    points = []
    for rate in FALSE_RATES:
        found, hits = true_rate(rate)
        low = float(at_least(hits, len(inside), 0.05))
        points.append(Point(rate, found, low, None if allowed is None else allowed(rate)))
    grid = np.unique(np.concatenate([np.logspace(-4, 0, 81), [0.0]]))
    line = tuple((float(x), true_rate(float(x))[0]) for x in grid)
    return Curve(name, auc, tuple(points), line)
