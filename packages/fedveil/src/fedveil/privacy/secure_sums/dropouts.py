"""Which devices vanish in a simulated round, and when; and what then becomes of the round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.core.arguments import interval
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.privacy.secure_sums.graph import Graph, round_graph
from fedveil.privacy.secure_sums.params import SecAggParams


@dataclass(frozen=True)
class Dropouts:
    """Devices by the last moment at which they still answered. Empty: nobody is lost."""

    before_sharing: frozenset[int] = frozenset()
    before_upload: frozenset[int] = frozenset()
    before_confirming: frozenset[int] = frozenset()
    before_unmasking: frozenset[int] = frozenset()


NO_DROPOUTS = Dropouts()


def draw_dropouts(members: Sequence[int], rate: float, stream: Stream) -> Dropouts:
    """Each device is lost with probability `rate`, with its vector computed but not sent."""
    lost = stream.coins(len(members), interval("[0, 1]")("dropout", rate))
    return Dropouts(
        before_upload=frozenset(m for m, is_lost in zip(members, lost, strict=True) if is_lost)
    )


def planned_dropouts(
    cohort: int, rate: float, colluders: int = 0, failure_probability: float = 2.0**-20
) -> int:
    """How many dropouts to plan for if each device is lost with probability `rate`.

    The smallest number that is exceeded with at most `failure_probability`, but never more than
    any graph can recover (colluders + 2 * dropouts < cohort - 1). In small cohorts that cap binds,
    and a round beyond it ends in `NotReleased`. A plan may then count on
    cohort - dropouts - colluders honest survivors.
    """
    interval("[0, 1]")("dropout", rate)
    from scipy.special import bdtrc

    most = (cohort - 2 - colluders) // 2
    if most < 0:
        raise ConfigError(f"cohort = {cohort}: too small for {colluders} colluders")
    beyond = bdtrc(np.arange(cohort), cohort, rate)  # more than 0, 1, 2, ... are lost
    return min(int(np.count_nonzero(beyond > failure_probability)), most)


def fit_cohort(params: SecAggParams, members: Iterable[int]) -> tuple[int, ...]:
    """Return a cohort in order; `NotReleased` if no sum of it could be released."""
    cohort = tuple(sorted(int(member) for member in members))
    if len(cohort) < max(2, params.min_survivors):
        raise NotReleased(
            f"cohort of {len(cohort)} is below min_honest + colluders = "
            f"{params.min_survivors}, or below two"
        )
    return cohort


class IdealRound:
    """A round as the protocol would go, without keys and masks: who is lost, and what is refused.

    `wanted` are those who send a vector.

    Args:
        params: The protocol's terms.
        round_number: The round's number; each (number, purpose) is used once.
        members: The cohort, distinct.
        dropouts: Who is simulated to drop out, and when.
        purpose: What is summed in this round.

    Raises:
        NotReleased: Too few are there.
    """

    def __init__(
        self,
        params: SecAggParams,
        round_number: int,
        members: Iterable[int],
        dropouts: Dropouts,
        purpose: str = "update",
    ) -> None:
        self._params, self._dropouts = params, dropouts
        self.wanted = cohort = fit_cohort(params, members)
        topology = params.topology(len(cohort))
        if dropouts == NO_DROPOUTS:  # everybody answers everybody, in any graph
            return
        self._fewest = params.fewest_survivors(len(cohort))
        # No real graph is drawn; any order that no loss depends on will do.
        ids = b"".join(derive.id_bytes(member) for member in cohort)
        number = round_number.to_bytes(8, "little")
        seed = derive.digest(b"model", number, purpose.encode(), ids)
        self._graph = round_graph(cohort, topology.degree, seed, topology.masks)
        self._threshold = topology.threshold
        self._sharers = frozenset(cohort) - dropouts.before_sharing
        _enough(len(self._sharers), len(cohort), "shared", self._fewest)
        ready = _connected(self._graph, self._sharers, self._threshold) - dropouts.before_upload
        self.wanted = tuple(sorted(ready))

    def check(self) -> None:
        """Raise `NotReleased` if the protocol would refuse the sum of all `wanted`."""
        if self._dropouts == NO_DROPOUTS:
            return
        cohort, threshold = len(self._graph.members), self._threshold
        _enough(len(self.wanted), cohort, "survived", self._fewest)
        answering = frozenset(self.wanted) - self._dropouts.before_confirming
        if not self._params.honest_server:
            _enough(len(answering), cohort, "confirmed", threshold)
            answering = _connected(self._graph, answering, threshold)
        answering -= self._dropouts.before_unmasking
        for device in sorted(self._sharers):
            came = _neighbours_among(self._graph, device, answering)
            if came < threshold:
                raise NotReleased(f"device {device}: {came} shares came, need {threshold}")


def _connected(graph: Graph, devices: frozenset[int], threshold: int) -> frozenset[int]:
    """The devices with at least `threshold` neighbours among the given ones."""
    return frozenset(
        device for device in devices if _neighbours_among(graph, device, devices) >= threshold
    )


def _neighbours_among(graph: Graph, device: int, among: frozenset[int]) -> int:
    """How many of the given devices are neighbours of this one."""
    if graph.degree == len(graph.members) - 1:  # everybody else is
        return len(among) - (device in among)
    return sum(neighbour in among for neighbour in graph.neighbours(device))


def _enough(count: int, cohort: int, what: str, needed: int) -> None:
    if count < needed:
        raise NotReleased(f"{count} of {cohort} devices {what}, need {needed}")
