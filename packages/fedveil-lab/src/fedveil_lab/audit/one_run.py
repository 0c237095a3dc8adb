"""Audits from one training run: some clients or records are canaries.

The run is the program's own, rounds, sampling, noise and server step included. Canary clients
stand in for real ones, and send random directions of their own; canary records and persons are rows
that the run's engine trains on like any other. A fair coin decides of each whether it is there or
in the other world. From how far what was released leans towards each canary come guesses of the
coins, and from these bounds that assume nothing: on epsilon at the certified delta (Steinke, Nasr,
Jagielski 2023), and against the whole curve that is proved (Mahloujifar, Melis, Chaudhuri 2024).
The latter also give an epsilon if the curve is some Gaussian's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Unit
from fedveil.data.federation import Task
from fedveil.planning.plan import Plan
from fedveil.privacy.clipping import Clip, clip_rows
from fedveil.privacy.distinguishing import attack_on
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.round import play_round
from fedveil.run.run import Run
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.contract import Cohort
from fedveil.training.models.losses import example_losses
from fedveil_lab.audit.bounds import (
    contradicted,
    gaussian_dp_epsilon,
    guessed_epsilon,
    guessed_separation,
)
from fedveil_lab.audit.stand_ins import StandIns, on_release

_MOST = 1000  # canaries: directions and scores are held in memory
_FEW = 100  # canary records, or two for each client
_NUMBERS = 10**7  # of gradients that are held at once
_SHARES = (0.25, 0.5, 1.0)  # of all canaries, guess the coins of the surest so many
_LOUD = 100.0  # how far beyond its clip a canary's update goes
_NEVER = 10**9  # rounds between two evaluations

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OneRun:
    """The result of one run. `epsilon` assumes nothing.

    gaussian: at least so much, if the curve of the mechanism is a Gaussian's.
    refuted: the guesses contradict the proved curve.
    """

    canaries: int
    guesses: int
    right: int
    epsilon: float
    gaussian: float
    refuted: bool
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
    """Train once with canaries, by default half of the clients or a hundred records."""
    guarantee = plan.guarantee
    if guarantee is None or plan.method.voting is not None or plan.federation.task is Task.SEQUENCE:
        raise ConfigError("audit: one-run audits are for updates by examples that are no texts")
    began = time.monotonic()
    chance = np.random.default_rng([seed, 1])
    make = _Clients if guarantee.unit is Unit.CLIENT else _Records
    sent = make(plan, chance, canaries)
    count = len(sent.there)
    run = Run(replace(sent.plan, seed=seed), every=_NEVER)
    released: list[Tensor] = []

    def note(private: Tensor) -> Tensor:
        if len(private) == plan.layout.size:  # not the count of a tracked clip
            released.append(private.double())
        return private

    on_release(run, note)
    sent.enter(run)
    try:
        while run.rounds_left > 0 and time.monotonic() - began < seconds:
            weights = run.state.weights
            play_round(run, last=False)
            for private in released:  # none, if a round may not be released
                sent.hear(weights, private)
            released.clear()
            progress(run.state.rounds, plan.method.rounds)
    finally:
        run.close()
    complete = run.rounds_left == 0
    guessed = _guess(sent.scores(), sent.there, guarantee, alpha)
    return OneRun(count, *guessed, time.monotonic() - began, complete)


class _Clients:
    """Clients that train nothing and send their directions."""

    def __init__(self, plan: Plan, chance: np.random.Generator, asked: int | None) -> None:
        self.plan = plan
        clients = plan.federation.clients
        count = _enough(min(asked or clients // 2, clients, _MOST))
        self._place = np.full(clients, -1)
        self._place[np.sort(chance.choice(clients, count, replace=False))] = np.arange(count)
        drawn = chance.standard_normal((count, plan.layout.size))
        self._directions = torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
        self.there = chance.random(count) < 0.5
        replaced = plan.guarantee is not None and plan.guarantee.adjacency is Adjacency.REPLACE
        self._sent = np.where(self.there, 1.0, -1.0 if replaced else 0.0)
        self._heard = torch.zeros(plan.layout.size, dtype=torch.float64)

    def enter(self, run: Run) -> None:
        run.engine = StandIns(run, self._place < 0, self._send)

    def hear(self, weights: Tensor, released: Tensor) -> None:
        self._heard += released

    def scores(self) -> Floats:
        """How far all releases lean towards each canary."""
        return _cosine(self._directions, self._heard)

    def _send(self, clients: Cohort, number: int, shape: UpdatePipeline) -> tuple[Tensor, None]:
        """Their directions, far beyond the clip."""
        which = self._place[clients]
        norm = _LOUD * (1.0 if shape.clip is None else shape.clip.norm)
        updates = self._directions[which] * torch.from_numpy(norm * self._sent[which])[:, None]
        return updates.float(), None


class _Records:
    """Rows that are replaced by random ones; in the other world by their opposites, or left out.

    A canary is a record, or all records of a person, which are alike. The adversary compares every
    release with what their clipped gradients would be at the weights of its round.
    """

    def __init__(self, plan: Plan, chance: np.random.Generator, asked: int | None) -> None:
        train, clients = plan.federation.train, plan.federation.clients
        guarantee = plan.guarantee
        units = units_of_rows(plan)
        every = int(units.max()) + 1
        most = min(_MOST, 1 + _NUMBERS // plan.layout.size, every // 2)
        count = _enough(min(asked or max(_FEW, 2 * clients), most))
        place = np.full(every, -1)
        place[np.sort(chance.choice(every, count, replace=False))] = np.arange(count)
        rows = np.flatnonzero(place[units] >= 0)
        which = place[units][rows]  # the canary whose row it is
        self.there = chance.random(count) < 0.5
        inputs, targets = np.array(train.inputs), np.array(train.targets)
        loud = chance.choice([-1, 1], (count, *inputs.shape[1:]))
        # One label in both worlds: then gradients are opposite as long as the model knows nothing.
        label = np.arange(count) % plan.federation.codes if plan.federation.codes else _LOUD
        label = np.broadcast_to(np.reshape(label, (-1, *[1] * (targets.ndim - 1))),
                                (count, *targets.shape[1:]))  # fmt: skip
        targets[rows] = label[which]
        replaced = guarantee is not None and guarantee.adjacency is Adjacency.REPLACE
        worlds = [_extreme(way * loud, inputs) for way in ((1, -1) if replaced else (1,))]
        inputs[rows] = np.where(
            np.reshape(self.there[which], (-1, *[1] * (inputs.ndim - 1))),
            worlds[0][which],
            worlds[-1][which],
        )
        usable = np.ones(len(train), np.bool_) if train.usable is None else train.usable.copy()
        usable[rows] &= replaced | self.there[which]  # a row that is left out has no gradient
        self._seen = torch.from_numpy(plan.federation.model_inputs(np.concatenate(worlds)))
        self._labels = torch.from_numpy(np.concatenate([label.astype(targets.dtype)] * len(worlds)))
        federation = replace(
            plan.federation,
            train=replace(train, inputs=inputs, targets=targets, usable=usable),
            verified=True,
        )
        self.plan, self._local = replace(plan, federation=federation), plan.local
        self._heard = np.zeros(count)

    def enter(self, run: Run) -> None:
        """Nothing to do: they are among the run's own records."""

    def hear(self, weights: Tensor, released: Tensor) -> None:
        self._heard += _cosine(self._apart(weights), released)

    def scores(self) -> Floats:
        return self._heard

    def _apart(self, weights: Tensor) -> Tensor:
        """Where each canary's update goes, less where it goes in the other world."""
        plan, task = self.plan, self.plan.federation.task
        clip = self._local.gradient_clip

        def loss(flat: Tensor, one: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(plan.module, plan.layout.views(flat), (one[None],))
            return example_losses(task, outputs, target[None], self._local.loss).sum()

        gradients = vmap(grad(loss), in_dims=(None, 0, 0))
        rows: Tensor = gradients(weights, self._seen, self._labels).nan_to_num(0.0, 0.0, 0.0)
        if clip is not None:
            clip_rows(rows, Clip(clip.norm, clip.order), in_place=True)
        worlds = rows.double().view(-1, len(self.there), rows.shape[1])
        return worlds[1] - worlds[0] if len(worlds) > 1 else -worlds[0]


def units_of_rows(plan: Plan) -> npt.NDArray[np.intp]:
    """Return which protected unit each training row is of: a record, or a person."""
    persons = plan.federation.train.persons
    if persons is None or plan.guarantee is None or plan.guarantee.unit is not Unit.PERSON:
        return np.arange(len(plan.federation.train))
    return np.unique(persons, return_inverse=True)[1]


def _enough(count: int) -> int:
    if count < 8:
        raise ConfigError("audit: one-run audits need 8 canaries or more")
    return count


def _extreme(signs: Any, like: Any) -> Any:
    """Inputs at both ends of what their column can hold, or ten times as large as usual ones."""
    if np.issubdtype(like.dtype, np.integer):
        ends = np.iinfo(like.dtype)
        return np.where(signs > 0, ends.max, max(ends.min, -ends.max)).astype(like.dtype)
    size = float(np.sqrt(np.square(like[:_FEW], dtype=np.float64).mean()))
    return (10 * max(size, 1e-3) * signs).astype(like.dtype)


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
