"""A run some of whose clients train nothing: what they send is said by somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.client.update_pipeline import ShapedRows, UpdatePipeline
from fedveil.engines.contract import Cohort, Engine, RoundRequest, RoundSum
from fedveil.planning.plan import Plan
from fedveil.run.run import Run

# What these clients send, trained from these weights in this round and shaped so.
Send = Callable[[Cohort, Tensor, int, UpdatePipeline], ShapedRows]


class StandIns:
    """Stands between a run and its engine, which trains the clients that `train` and no others."""

    def __init__(
        self, engine: Engine, plan: Plan, train: npt.NDArray[np.bool_], send: Send
    ) -> None:
        self._engine, self._plan, self._train, self._send = engine, plan, train, send
        self.others: Tensor | None = None  # what the clients that train sent in the last round

    @property
    def name(self) -> str:
        return self._engine.name

    def close(self) -> None:
        self._engine.close()

    def round_sum(self, request: RoundRequest) -> RoundSum:
        """The engine's sum over real clients, and what the others send."""
        cohort, shape = request.cohort, request.pipeline or self._plan.pipeline
        real = np.flatnonzero(self._train[cohort])
        others = np.flatnonzero(~self._train[cohort])
        found = self._engine.round_sum(request.part(real))
        self.others = found.total
        sent = self._send(cohort[others], request.weights, request.round_number, shape)
        if request.take is not None and len(others):
            request.take(others, sent.rows)
        figures = {name: torch.zeros(len(cohort)) for name in ("norms", "shaped_norms", "losses")}
        for name, values in figures.items():
            values[real] = getattr(found, name).float()
            values[others] = getattr(sent, name).float() if name != "losses" else 0.0
        total = found.total + sent.rows.sum(dim=0).to(found.total.dtype)
        return RoundSum(total, rejected=found.rejected, **figures)


def on_release(run: Run, see: Callable[[Tensor], Tensor]) -> None:
    """Pass every sum that leaves the noise through `see`, before the round works with it."""
    opened = run.aggregator.open

    def seen(*args: Any) -> Any:
        one: Any = opened(*args)
        release = one.release
        one.release = lambda total: see(release(total))
        return one

    run.aggregator.open = seen  # type: ignore[method-assign, assignment]


def silence(plan: Plan) -> Send:
    """Nothing at all."""

    def send(
        clients: Cohort, weights: Tensor, round_number: int, shape: UpdatePipeline
    ) -> ShapedRows:
        kind = torch.float32 if shape.granularity is None else torch.int64
        none = torch.zeros(len(clients))
        rows = torch.zeros((len(clients), shape.width(plan.layout)), dtype=kind)
        return ShapedRows(rows, none, none, 0)

    return send
