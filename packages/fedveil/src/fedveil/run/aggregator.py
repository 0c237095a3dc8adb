"""The one seam between a round and its sums.

Whatever the method, a round opens a sum over its cohort, adds the updates of the clients that have
not dropped out as they come, and gets the private sum back:

    total = aggregator.open(summands, cohort, dropouts)       # or NotReleased: too few came
    for block in engine.updates(request):
        total.add(block)
    private = total.release()                                 # or NotReleased: too few are left

`OpenAggregator` adds vectors in the open; where a secure sum is planned it is the ideal one, which
refuses what the protocol would refuse. `MaskedAggregator` of fedveil-federation runs the protocol:
every client adds its own noise share and masks the result, one client after the other, so memory
stays that of a few updates. Noise comes from the same streams in both, and integers add exactly:
the same sum, bit for bit. The hub of a federation has sums of its own, over what sites send.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor

from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError
from fedveil.core.origin import is_own
from fedveil.core.randomness import Randomness
from fedveil.core.registry import extension
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.privacy.secure_sums.dropouts import NO_DROPOUTS, Dropouts, IdealRound, draw_dropouts
from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import BlockSum

Summands = RoundNoise  # what one sum is of, and how noise gets into it


class OpenSum(ABC):
    """A sum that is being taken.

    Attributes:
        clients: The members of the cohort that have not dropped out. After `release`, those whose
            updates are in the sum.
        rows: Whether blocks must hold single updates.
        elsewhere: Whether clients are on other machines, where each tosses its own coin and scales
            its own clip.
    """

    clients: Ints
    rows: bool = False
    elsewhere: bool = False

    @property
    @abstractmethod
    def statistics(self) -> Block | None:
        """Norms and losses of the clients so far, for simulations; None if nobody tells them."""

    @abstractmethod
    def add(self, block: Block) -> None:
        """Add the updates of some clients; `block.places` are positions in `clients`."""

    @abstractmethod
    def add_nothing(self, places: Ints) -> None:
        """Add zero for the clients at these positions: they send their noise shares alone."""

    @abstractmethod
    def release(self) -> Tensor:
        """Return the private sum.

        Raises:
            NotReleased: Too few clients are left.
        """


class Aggregator(ABC):
    """Takes the sums of a run's rounds, and keeps the time."""

    def __init__(self, sums: SecureSums | None) -> None:
        self.sums, self.watch = sums, Stopwatch()

    def dropouts(self, cohort: Ints, randomness: Randomness, round_number: int) -> Dropouts:
        """Draw which members of a cohort are simulated to drop out of a round."""
        if self.sums is None:
            return NO_DROPOUTS
        stream = randomness.stream("losses", round_number)
        return draw_dropouts([int(member) for member in cohort], self.sums.dropout, stream)

    @abstractmethod
    def open(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenSum:
        """Open the sum of a round.

        Args:
            summands: What is summed, and the noise of this round.
            cohort: The clients that were drawn.
            dropouts: Those that are simulated to drop out.

        Raises:
            NotReleased: Too few clients came.
        """

    def took_part(self, cohort: Ints, dropouts: Dropouts) -> int:
        """Return how many of a cohort took part in a round that released nothing."""
        return len(cohort) - len(dropouts.before_upload)

    def check_survivors(self, here: int, cohort: int) -> None:
        """Raise `NotReleased` if a secure sum of so many devices would hold too little noise."""
        if self.sums is not None and here < self.sums.fewest:
            raise NotReleased(f"{here} of {cohort} devices survived, need {self.sums.fewest}")


class OpenAggregator(Aggregator):
    """Adds vectors in the open; `sums` are the secure ones that this stands for, if any."""

    def open(self, summands: Summands, cohort: Ints, dropouts: Dropouts) -> OpenSum:
        if self.sums is None:
            return _InTheOpen(summands, cohort, None, self.watch)
        begun = IdealRound(
            self.sums.params, summands.round_number, cohort, dropouts, summands.purpose
        )
        self.check_survivors(len(begun.wanted), len(cohort))
        return _InTheOpen(summands, cohort, begun, self.watch)


def build_aggregator(sums: SecureSums | None) -> Aggregator:
    """Return the aggregator for a plan's sums; None: in the open.

    Raises:
        ConfigError: The sums are masked and the package with the protocol is not installed.
    """
    if sums is None or sums.mode is not SecureMode.MASKED:
        return OpenAggregator(sums)
    masked = extension("fedveil.sums", "masked")
    if masked is None or not is_own(masked):
        raise ConfigError(
            "aggregation.secure is 'masked', and the protocol for it is not installed. "
            "Run: pip install fedveil-federation"
        )
    aggregator: Aggregator = masked(sums)
    return aggregator


class _InTheOpen(OpenSum):
    def __init__(
        self, summands: Summands, cohort: Ints, stands_for: IdealRound | None, watch: Stopwatch
    ) -> None:
        self._summands, self._stands_for, self._watch = summands, stands_for, watch
        self.clients = cohort if stands_for is None else np.array(stands_for.wanted, np.int64)
        self._sum = BlockSum(summands.integer, summands.width, len(self.clients))

    @property
    def statistics(self) -> Block:
        return self._sum.result()

    def add(self, block: Block) -> None:
        self._sum.add(block)

    def add_nothing(self, places: Ints) -> None:
        """Noise goes into the whole sum, with a share of every client."""

    def release(self) -> Tensor:
        if self._stands_for is not None:
            self._stands_for.check()
        with self._watch.phase("noise"):
            return self._summands.protect(self._sum.result().total, self.clients)
