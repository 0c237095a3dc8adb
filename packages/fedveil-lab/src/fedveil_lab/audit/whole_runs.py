"""The game of a client, played by whole training runs: engine, cohorts, sums and noise together.

One client is the canary and sends a direction of its own; all others train. What they send is known
to the adversary, and subtracted from every release where it is a plain sum. Each game is a run, so
that this is for short runs of small models; the games of `games` are thousands of times cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanisms import Laplace
from fedveil.run.round import play_round
from fedveil.run.run import Run
from fedveil.run.sums import pipeline_in
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.contract import Cohort
from fedveil_lab.audit.games import Bools, Players, View
from fedveil_lab.audit.stand_ins import StandIns, on_release

_LOUD = 100.0  # how far beyond its clip a canary's update goes


class WholeRuns:
    """One run for each game."""

    most = 20  # games in one call
    not_tried: tuple[str, ...] = ("the view of somebody who knows single noise shares",)

    def __init__(self, plan: Plan) -> None:
        self._at = at = Players(plan)
        known = at.guarantee.unit is Unit.CLIENT and at.guarantee.trust is not Trust.LOCAL
        if not known or plan.method.voting is not None:
            raise ConfigError("--whole-runs: only of clients whose updates are summed")
        drawn = torch.randn(plan.layout.size, generator=torch.Generator().manual_seed(0))
        self._direction = drawn / torch.linalg.vector_norm(drawn)

    def views(self, seed: int, there: Bools) -> Iterator[View]:
        """Play one game for each entry of `there`; what is seen, round by round."""
        at, sampling = self._at, self._at.plan.sampling
        seen = [self._played(seed * 2**20 + game, bool(it)) for game, it in enumerate(there)]
        clip = (at.plan.pipeline.clip or at.context.clip).norm
        laplace = isinstance(at.release.mechanism, Laplace)
        rate = sampling.coin_rate
        if at.release.amplified:
            rate = sampling.expected_cohort / at.context.clients
        noise = at.context.noise_multiplier * clip
        for column in np.array(seen).T:
            yield View(column, clip, at.other * clip, noise, laplace, rate)

    def _played(self, seed: int, there: bool) -> list[float]:
        """How far each release leans towards the canary, beyond what the others sent."""
        at, leans = self._at, np.zeros(self._at.plan.method.rounds)
        plan = replace(at.plan, seed=seed)
        run = Run(plan, every=10**9)
        # It turns round from round to round, so that noise which is used twice cancels.
        signs = {number: (-1) ** turn for turn, number in enumerate(at.numbers)}

        def send(clients: Cohort, number: int, shape: UpdatePipeline) -> tuple[Tensor, None]:
            loud = _LOUD * (1.0 if shape.clip is None else shape.clip.norm)
            way = signs.get(number, 0) * loud * (1.0 if there else at.other)
            return (way * self._direction).repeat(len(clients), 1), None

        train = np.arange(plan.federation.clients) != at.canary
        run.engine = engine = StandIns(run, train, send)

        def note(private: Tensor) -> Tensor:
            number = run.state.rounds
            if len(private) == plan.layout.size:  # not the count of a tracked clip
                shape = pipeline_in(plan, number, run.state.optimizer)
                heard = private.double()
                if engine.others is not None and shape.rotation is None:
                    heard = heard - (shape.granularity or 1.0) * engine.others.double()
                leans[number] = signs.get(number, 0) * float(self._direction.double() @ heard)
            return private

        on_release(run, note)
        try:
            while run.rounds_left > 0:
                play_round(run, last=False)
        finally:
            run.close()
        return [float(leans[number]) for number in at.numbers]
