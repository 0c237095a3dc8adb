"""The lengths of all updates of a round, which a report sums up in a median."""

from __future__ import annotations

from torch import Tensor

from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.engines.contract import Cohort, Engine, RoundSum, Take


class NormRecorder:
    """An engine that remembers its last round's update norms, before clipping, in cohort order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.norms: list[float] = []

    @property
    def name(self) -> str:
        return self._engine.name

    def round_sum(
        self,
        weights: Tensor,
        cohort: Cohort,
        round_number: int,
        pipeline: UpdatePipeline | None = None,
        take: Take | None = None,
    ) -> RoundSum:
        result = self._engine.round_sum(weights, cohort, round_number, pipeline, take)
        self.norms = [float(f"{norm:.4g}") for norm in result.norms.tolist()]
        return result

    def close(self) -> None:
        self._engine.close()
