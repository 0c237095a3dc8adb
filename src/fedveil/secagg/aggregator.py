"""The one seam between a round and secure aggregation.

Whatever the method, a round opens a sum over its cohort, trains the clients that have not dropped
out, and gets the private sum back:

    opened = aggregator.open(summands, cohort, dropouts)      # or NotReleased: too few came
    result = engine.round_sum(RoundRequest(..., opened.clients, ..., opened.take))
    private = opened.release(result.total)                    # or NotReleased: too few are left

`OpenAggregator` adds vectors in the open; where a secure sum is planned it is the ideal one, which
refuses what the protocol would refuse. `MaskedAggregator` runs the protocol: every client adds its
own noise share and masks the result, one client after the other, so memory stays that of a few
updates. Noise comes from the same streams in both, and integers add exactly: the same sum, bit for
bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from fedveil.core.randomness import Randomness
from fedveil.secagg.dropouts import NO_DROPOUTS, Dropouts, draw_dropouts
from fedveil.secagg.errors import NotReleased
from fedveil.secagg.mode import SecureMode
from fedveil.secagg.stopwatch import Stopwatch

if TYPE_CHECKING:  # keys take a tenth of a second to import, and other runs need none
    from fedveil.secagg.aggregation import SecureSums
    from fedveil.secagg.rounds import IdealRound, OpenRound
    from fedveil.secagg.simulation import Simulation

Ints = npt.NDArray[np.int64]
Tensor = Any  # torch's: nothing here computes with it


class Summands(Protocol):
    """What one sum is of, and how noise gets into it."""

    @property
    def round_number(self) -> int: ...

    @property
    def purpose(self) -> str:
        """What the round's number is used for: one secure sum each."""
        ...

    @property
    def width(self) -> int: ...

    @property
    def word(self) -> int:
        """Bits of the words that carry the integers of a masked sum."""
        ...

    def share(self, client: int, row: Ints) -> Ints:
        """What a client sends under its masks: its integers with its own noise share."""
        ...

    def decode(self, whole: Ints) -> Tensor:
        """The private sum from the sum of what clients sent."""
        ...

    def protect(self, total: Tensor, clients: Ints) -> Tensor:
        """The private sum from one that was taken in the open, of these clients."""
        ...


class OpenSum(ABC):
    """A sum that is being taken over `clients`: those of the cohort that have not dropped out."""

    clients: Ints
    take: Callable[[Ints, Tensor], None] | None = None  # places, rows; None: their sum will do

    @abstractmethod
    def release(self, total: Tensor) -> Tensor:
        """The private sum; `total` is the plain one, at which a masked sum does not look."""


class Aggregator(ABC):
    """Takes the sums of a run's rounds, and keeps the time."""

    def __init__(self, sums: SecureSums | None) -> None:
        self.sums, self.watch = sums, Stopwatch()
        self._simulation: Simulation | None = None
        if sums is not None:
            from fedveil.secagg.simulation import Simulation

            self._simulation = Simulation(sums.params, sums.mode, self.watch)

    def dropouts(self, cohort: Ints, randomness: Randomness, round_number: int) -> Dropouts:
        """Who is simulated to drop out of a round."""
        if self.sums is None:
            return NO_DROPOUTS
        stream = randomness.stream("losses", round_number)
        return draw_dropouts([int(member) for member in cohort], self.sums.dropout, stream)

    @abstractmethod
    def open(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenSum: ...

    def _begin(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenRound | None:
        """The secure sum's own round; None if there is none."""
        if self.sums is None or self._simulation is None:
            return None
        members = [int(member) for member in cohort]
        begun = self._simulation.open(
            summands.round_number,
            members,
            summands.width,
            summands.word,
            dropouts,
            summands.purpose,
        )
        here, fewest = len(begun.wanted), self.sums.fewest
        if here < fewest:
            raise NotReleased(f"{here} of {len(members)} devices survived, need {fewest}")
        return begun


class OpenAggregator(Aggregator):
    """Adds vectors in the open; `sums` are the secure ones that this stands for, if any."""

    def open(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenSum:
        begun = cast("IdealRound | None", self._begin(summands, cohort, dropouts))
        return _InTheOpen(summands, cohort, begun, self.watch)


class MaskedAggregator(Aggregator):
    """Runs the protocol, with all devices and the server in this process."""

    def open(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenSum:
        begun = self._begin(summands, cohort, dropouts)
        if begun is None:
            raise ValueError("masks need a secure sum")
        return _Masked(summands, begun, self.watch)


def build_aggregator(sums: SecureSums | None) -> Aggregator:
    """What a plan's sums are taken with; None: in the open."""
    masked = sums is not None and sums.mode is SecureMode.MASKED
    return (MaskedAggregator if masked else OpenAggregator)(sums)


class _InTheOpen(OpenSum):
    def __init__(
        self, summands: Summands, cohort: Ints, stands_for: IdealRound | None, watch: Stopwatch
    ) -> None:
        self._summands, self._stands_for, self._watch = summands, stands_for, watch
        self.clients = cohort if stands_for is None else np.array(stands_for.wanted, np.int64)

    def release(self, total: Tensor) -> Tensor:
        if self._stands_for is not None:
            self._stands_for.check(self._stands_for.wanted)
        with self._watch.phase("noise"):
            return self._summands.protect(total, self.clients)


class _Masked(OpenSum):
    def __init__(self, summands: Summands, begun: OpenRound, watch: Stopwatch) -> None:
        self._summands, self._begun, self._watch = summands, begun, watch
        self.clients = np.array(begun.wanted, np.int64)
        self.take = self._mask

    def _mask(self, places: Ints, rows: Tensor) -> None:
        for client, row in zip(self.clients[places], rows.numpy(), strict=True):
            with self._watch.phase("noise"):
                sent = self._summands.share(int(client), row)
            self._begun.add(int(client), sent)

    def release(self, total: Tensor) -> Tensor:
        return self._summands.decode(self._begun.finish().total)
