"""Which devices vanish in a simulated round, and when; and what then becomes of the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.privacy.secure_sums.graph import Graph


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
    if not 0 <= rate <= 1:
        raise ConfigError(f"dropout = {rate}: need a probability in [0, 1]")
    lost = stream.coins(len(members), rate)
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
    if not 0 <= rate <= 1:
        raise ConfigError(f"dropout = {rate}: need a probability in [0, 1]")
    from scipy.special import bdtrc

    most = (cohort - 2 - colluders) // 2
    if most < 0:
        raise ConfigError(f"cohort = {cohort}: too small for {colluders} colluders")
    beyond = bdtrc(np.arange(cohort), cohort, rate)  # more than 0, 1, 2, ... are lost
    return min(int(np.count_nonzero(beyond > failure_probability)), most)


def sharing_course(
    graph: Graph, threshold: int, fewest: int, dropouts: Dropouts
) -> tuple[frozenset[int], frozenset[int]]:
    """Who shares, and who of them holds enough of its neighbours' shares to send a vector;
    `NotReleased` if too few share."""
    members = frozenset(graph.members)
    sharers = members - dropouts.before_sharing
    _enough(len(sharers), len(members), "shared", fewest)
    return sharers, _connected(graph, sharers, threshold) - dropouts.before_upload


def unmasking_course(
    graph: Graph,
    threshold: int,
    fewest: int,
    dropouts: Dropouts,
    sharers: frozenset[int],
    survivors: frozenset[int],
    confirms: bool = True,
) -> None:
    """Whether the survivors' sum can be unmasked; `NotReleased` as the real protocol would."""
    cohort = len(graph.members)
    _enough(len(survivors), cohort, "survived", fewest)
    answering = survivors - dropouts.before_confirming
    if confirms:
        _enough(len(answering), cohort, "confirmed", threshold)
        answering = _connected(graph, answering, threshold)
    answering -= dropouts.before_unmasking
    for device in sorted(sharers):
        came = _neighbours_among(graph, device, answering)
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
