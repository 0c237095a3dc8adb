"""The lengths of all updates of a round, which a report sums up in a median."""

from __future__ import annotations

from fedveil.engines.contract import Engine, RoundRequest, RoundSum


class NormRecorder:
    """An engine that remembers its last round's update norms, before clipping, in cohort order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.norms: list[float] = []

    @property
    def name(self) -> str:
        return self._engine.name

    def round_sum(self, request: RoundRequest) -> RoundSum:
        result = self._engine.round_sum(request)
        self.norms = [float(f"{norm:.4g}") for norm in result.norms.tolist()]
        return result

    def close(self) -> None:
        self._engine.close()
