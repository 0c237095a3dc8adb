"""One client's upload as others see it: open, clipped, with noise, masked, and in sums.

Clients train by the recipe's own rule and with its own engine, in the first round, each on a few
records. The grid of exact noise and public rotations are left out: both can be undone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil.methods.parts.noise_placement import Bounded
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanisms import Laplace
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Job, RoundRequest, summed

SUMS = (2, 10, 50)
OPEN, MASKED = "open", "masked"


@dataclass(frozen=True)
class Uploads:
    """By the name of a view: what is seen when each victim sends, `[victims, parameters]`."""

    crowd: Federation
    victims: int
    views: dict[str, Tensor]


def crowd_of(federation: Federation, victims: int, records: int, chance: np.random.Generator) -> (
    Federation
):  # fmt: skip
    """Clients with `records` records each, drawn from all training records; victims come first."""
    clients = max(victims, max(SUMS))
    if clients * records > len(federation.train):
        raise ConfigError(
            f"attack: {clients} clients with {records} records need {clients * records} training "
            f"examples, and there are {len(federation.train)}; use fewer --victims or --records"
        )
    rows = chance.choice(len(federation.train), clients * records, replace=False)
    offsets = np.arange(clients + 1, dtype=np.int64) * records
    train = federation.train.take(rows)
    return replace(federation, train=train, offsets=offsets, owners=None, verified=True)


def uploads(plan: Plan, crowd: Federation, victims: int, seed: int) -> Uploads:
    """Return every victim's upload, as each of its readers sees it."""
    if plan.method.voting is not None:
        raise ConfigError("attack: clients vote and send no updates, so there is no upload")
    plain = replace(plan.method.local, gradient_clip=None, gradient_noise=0.0)
    rows = _sent(plan, crowd, plain, UpdatePipeline(), seed)
    views = {OPEN: rows[:victims]}
    noise = None
    if plan.context is not None:
        quiet = replace(plan.local, gradient_noise=0.0, gradient_grid=None)
        shape = replace(plan.pipeline, granularity=None, rotation=None, rounding_beta=None)
        rows = _sent(plan, crowd, quiet, shape, seed)
        noise = _noise(plan, crowd, rows, shape, seed)
        views["clipped"] = rows[:victims]
        views["clipped, noise"] = rows[:victims] + noise[:victims]
    words = np.random.default_rng([seed, 2]).integers(-(2**31), 2**31, rows[:victims].shape)
    views[MASKED] = torch.from_numpy(words.astype(np.float64))
    for many in SUMS:
        views[f"sum of {many}"] = _summed(rows, victims, many)
    if noise is not None:
        most = max(SUMS)
        views[f"sum of {most}, noise"] = _summed(rows, victims, most) + noise[:victims]
    return Uploads(crowd, victims, views)


def _sent(
    plan: Plan, crowd: Federation, rule: LocalTraining, shape: UpdatePipeline, seed: int
) -> Tensor:
    job = Job(crowd, plan.module, plan.layout, rule, shape, Randomness(seed))
    engine = build_engine(job, processes=1)
    try:
        rows = [
            summed(engine, job, RoundRequest(plan.start, np.array([client]), 0)).total.double()
            for client in range(crowd.clients)
        ]
    finally:
        engine.close()
    return torch.stack(rows)


def _noise(
    plan: Plan, crowd: Federation, quiet: Tensor, shape: UpdatePipeline, seed: int
) -> Tensor:
    """All noise that hides an upload if everything else is known, one draw for each client."""
    noise = plan.noise
    if noise is None or plan.guarantee is None:
        raise ValueError("a method without noise hides nothing")
    shares = math.sqrt(plan.guarantee.honest_shares or 1)
    if noise.bounded is Bounded.GRADIENT:
        # In the steps themselves: what they do to an upload, from as many clients as are honest.
        noisy = replace(plan.local, gradient_grid=None, last_step_noise=True)
        return shares * (_sent(plan, crowd, noisy, shape, seed) - quiet)
    std = noise.facts.noise_multiplier * (shape.clip or noise.facts.clip).norm
    chance = np.random.default_rng([seed, 3])
    laplace = isinstance(plan.releases(plan.method.rounds)[0].mechanism, Laplace)
    draw = chance.laplace if laplace else chance.normal
    return torch.from_numpy(draw(0.0, std, tuple(quiet.shape)))


def _summed(rows: Tensor, victims: int, many: int) -> Tensor:
    """Each victim's upload together with those of the clients after it."""
    places = [(victim + np.arange(many)) % len(rows) for victim in range(victims)]
    return torch.stack([rows[place].sum(dim=0) for place in places])
