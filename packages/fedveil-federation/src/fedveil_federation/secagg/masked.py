"""The aggregator that runs the protocol: every client masks its own noisy integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedveil.core.arrays import Ints
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.run.aggregator import Aggregator, OpenSum, Summands
from fedveil.run.ideal_sum import OpenRound
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import BlockSum
from fedveil_federation.secagg.simulation import Simulation

Tensor = Any  # torch's: nothing here computes with it


class MaskedAggregator(Aggregator):
    """Runs the protocol, with all devices and the server in this process."""

    def __init__(self, sums: SecureSums) -> None:
        super().__init__(sums)
        self._simulation = Simulation(sums.params, self.watch)

    def open(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenSum:
        members = [int(member) for member in cohort]
        shape = (summands.width, summands.word)
        begun = self._simulation.open(
            summands.round_number, members, *shape, dropouts, summands.purpose
        )
        self.check_survivors(len(begun.wanted), len(members))
        return _Masked(summands, begun, self.watch)


class _Masked(OpenSum):
    """A masked sum: each client adds its own noise share before its masks."""

    rows = True

    def __init__(self, summands: Summands, begun: OpenRound, watch: Stopwatch) -> None:
        self._summands, self._begun, self._watch = summands, begun, watch
        self.clients = np.array(begun.wanted, np.int64)
        self._seen = BlockSum(True, summands.width, len(self.clients))

    @property
    def statistics(self) -> Block:
        return self._seen.result()

    def add(self, block: Block) -> None:
        if block.rows is None:
            raise ValueError("a masked sum needs every client's own update")
        for client, row in zip(self.clients[block.places], block.rows.numpy(), strict=True):
            with self._watch.phase("noise"):
                sent = self._summands.upload(int(client), row)
            self._begun.add(int(client), sent)
        self._seen.add(block)

    def add_nothing(self, places: Ints) -> None:
        """Mask the noise shares alone, drawn as those of everybody else are."""
        nothing = torch.zeros(1, self._summands.width, dtype=torch.int64)
        none = torch.zeros(1)
        for place in places:
            self.add(Block(np.array([place]), nothing, none, none, none))

    def release(self) -> Tensor:
        return self._summands.decode(self._begun.finish().total)
