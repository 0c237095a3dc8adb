"""The lengths of all updates of a round, which a report sums up in a median."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import Engine, RoundRequest


class NormRecorder:
    """An engine that remembers its last round's update norms, before clipping, in cohort order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.norms: list[float] = []

    @property
    def name(self) -> str:
        return self._engine.name

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        norms = torch.zeros(len(request.cohort))
        for block in self._engine.updates(request):
            norms[torch.from_numpy(block.places)] = block.norms.float().cpu()
            yield block
        self.norms = [float(f"{norm:.4g}") for norm in norms.tolist()]

    def close(self) -> None:
        self._engine.close()
