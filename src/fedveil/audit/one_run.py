"""Audits from one training run: some clients are canaries with random directions of their own.

The run is the program's own, rounds, sampling, noise and server step included; the canaries stand
in for real clients, and a fair coin decides of each whether it is there or in the other world. Two
things are made of the same scores, how far what was released leans towards each canary:

* a Gaussian-DP estimate from the cosines (Andrew et al. 2023), of all released sums and of the
  last model alone: an estimate, whose interval takes cosines to be Gaussian;
* guesses of the coins, and bounds that assume nothing: on epsilon at the certified delta (Steinke,
  Nasr, Jagielski 2023), and against the whole curve that is proved (Mahloujifar, Melis, Chaudhuri
  2024). The latter also give an epsilon if the curve is some Gaussian's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor

from fedveil.audit.bounds import (
    contradicted,
    gaussian_dp_epsilon,
    guessed_epsilon,
    guessed_separation,
)
from fedveil.audit.proved import attack_on
from fedveil.audit.stand_ins import StandIns
from fedveil.client.update_pipeline import Senders, ShapedRows, UpdatePipeline, shape_rows
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Unit
from fedveil.engines.contract import Cohort
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.round import play_round
from fedveil.run.run import Run

_MOST = 1000  # canaries: directions and scores are held in memory
_SHARES = (0.25, 0.5, 1.0)  # of all canaries, guess the coins of the surest so many
_LOUD = 100.0  # how far beyond its clip a canary's update goes
_NEVER = 10**9  # rounds between two evaluations

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cosines:
    """How well cosines tell canaries that were there from others, if both are Gaussian."""

    of: str
    separation: tuple[float, float]
    epsilon: tuple[float, float]


@dataclass(frozen=True)
class OneRun:
    """What one run shows. `epsilon` assumes nothing; the cosines' intervals are estimates.

    gaussian: at least so much, if the curve of the mechanism is a Gaussian's.
    refuted: the guesses contradict the proved curve.
    """

    canaries: int
    guesses: int
    right: int
    epsilon: float
    gaussian: float
    refuted: bool
    cosines: tuple[Cosines, ...]
    seconds: float
    complete: bool


def one_run(
    plan: Plan,
    *,
    canaries: int | None = None,
    alpha: float = 0.05,
    seed: int = 0,
    seconds: float = math.inf,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> OneRun:
    """Train once with canaries, by default half of the clients, and bound epsilon from below."""
    guarantee = plan.guarantee
    if guarantee is None or guarantee.unit is not Unit.CLIENT or plan.method.voting is not None:
        raise ConfigError("audit: one-run audits are for clients that send updates")
    count = min(canaries or plan.federation.clients // 2, plan.federation.clients, _MOST)
    if count < 8:
        raise ConfigError("audit: one-run audits need 8 canaries or more")
    began = time.monotonic()
    run = Run(replace(plan, seed=seed), every=_NEVER)
    chance = np.random.default_rng([seed, 1])
    sent = _Canaries(run, plan, chance, count)
    released = torch.zeros(plan.layout.size, dtype=torch.float64)
    try:
        while run.rounds_left > 0 and time.monotonic() - began < seconds:
            sent.released = torch.zeros_like(released)  # a round may release nothing
            play_round(run, last=False)
            released += sent.released
            progress(run.state.rounds, plan.method.rounds)
    finally:
        run.close()
    complete = run.rounds_left == 0
    sums = _cosine(sent.directions, released)
    model = _cosine(sent.directions, (run.state.weights - plan.start).double())
    delta = guarantee.delta
    guessed = _guess(sums, sent.there, guarantee, alpha)
    named = (("all released sums", sums), ("the last model", model))
    cosines = tuple(_estimate(of, score, sent.there, delta, alpha) for of, score in named)
    return OneRun(count, *guessed, cosines, time.monotonic() - began, complete)


class _Canaries:
    """Clients that train nothing and send their directions, and notes of what is released."""

    def __init__(self, run: Run, plan: Plan, chance: np.random.Generator, count: int) -> None:
        self._plan = plan
        clients = plan.federation.clients
        self._place = np.full(clients, -1)
        self._place[np.sort(chance.choice(clients, count, replace=False))] = np.arange(count)
        drawn = chance.standard_normal((count, plan.layout.size))
        self.directions = torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
        self.there = chance.random(count) < 0.5
        replaced = plan.guarantee is not None and plan.guarantee.adjacency is Adjacency.REPLACE
        self._sent = np.where(self.there, 1.0, -1.0 if replaced else 0.0)
        self.released = torch.zeros(plan.layout.size, dtype=torch.float64)
        self._randomness = run.randomness
        run.engine = StandIns(run.engine, plan, self._place < 0, self._send)
        opened = run.aggregator.open

        def noting(*args: Any) -> Any:
            """Keep what leaves the noise: the sum that the round works with."""
            one: Any = opened(*args)
            one.release = partial(self._note, one.release)
            return one

        run.aggregator.open = noting  # type: ignore[method-assign, assignment]

    def _note(self, release: Callable[[Tensor], Tensor], total: Tensor) -> Tensor:
        private = release(total)
        if private.shape == self.released.shape:  # not the count of a tracked clip
            self.released = private.double()
        return private

    def _send(
        self, clients: Cohort, weights: Tensor, round_number: int, shape: UpdatePipeline
    ) -> ShapedRows:
        """What the program makes of the canaries' directions."""
        which = self._place[clients]
        norm = _LOUD * (1.0 if shape.clip is None else shape.clip.norm)
        updates = self.directions[which] * torch.from_numpy(norm * self._sent[which])[:, None]
        sizes = np.asarray(self._plan.federation.sizes)[clients]
        senders = Senders(clients, sizes, weights, round_number, self._randomness)
        return shape_rows(updates.float(), shape, self._plan.layout, senders)


def _cosine(directions: Tensor, seen: Tensor) -> Floats:
    cosines: Floats = (directions @ seen / max(float(seen.norm()), 1e-300)).numpy()
    return cosines


def _guess(
    scores: Floats, there: npt.NDArray[np.bool_], guarantee: Guarantee, alpha: float
) -> tuple[int, int, float, float, bool]:
    """Guesses, right ones, the epsilons that they refute, and whether the proved curve is one.

    The surest guesses are those at both ends. Each of a few ways to guess gets its share of alpha,
    and in it the bound on epsilon and the test of the curve get half each.
    """
    count, found = len(scores), []
    ranked, each = np.argsort(scores, kind="stable"), alpha / len(_SHARES) / 2
    least = attack_on(guarantee).least
    for share in _SHARES:
        half = max(1, round(share * count / 2))
        right = int((~there[ranked[:half]]).sum() + there[ranked[count - half :]].sum())
        tried = 2 * half, right, count
        epsilon = guessed_epsilon(*tried, guarantee.delta, each)
        mu = guessed_separation(*tried, each)
        found.append((*tried[:2], epsilon, mu, contradicted(least, *tried, each)))
    best = max(found, key=lambda one: (one[2], one[3]))
    gaussian = gaussian_dp_epsilon(max(one[3] for one in found), guarantee.delta or 1e-5)
    return (*best[:3], gaussian, any(one[4] for one in found))


def _estimate(
    of: str, scores: Floats, there: npt.NDArray[np.bool_], delta: float, alpha: float
) -> Cosines:
    one, other = scores[there], scores[~there]
    if min(len(one), len(other)) < 2:
        return Cosines(of, (0.0, math.inf), (0.0, math.inf))
    spread = math.sqrt((one.var(ddof=1) + other.var(ddof=1)) / 2)
    mu = float(one.mean() - other.mean()) / max(spread, 1e-300)
    freedom = len(scores) - 2
    error = math.sqrt(1 / len(one) + 1 / len(other) + mu**2 / (2 * freedom))
    reach = float(ndtri(1 - alpha / 2)) * error
    low, high = max(0.0, mu - reach), max(0.0, mu + reach)
    at = delta or 1e-5
    return Cosines(of, (low, high), (gaussian_dp_epsilon(low, at), gaussian_dp_epsilon(high, at)))
