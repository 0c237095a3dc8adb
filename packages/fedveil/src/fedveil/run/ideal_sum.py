"""A secure sum as its users see it: an exact sum modulo a power of two, or a refusal.

`IdealRound` adds the integers in the open and refuses what the protocol would refuse. The protocol
itself, in `fedveil_federation.secagg`, gives the same sum bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.dropouts import Dropouts, sharing_course, unmasking_course
from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.privacy.secure_sums.graph import Graph, round_graph
from fedveil.privacy.secure_sums.masks import IntVector, check_bits, decode, encode, word_type
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.privacy.secure_sums.topology import Topology


@dataclass(frozen=True)
class SecureSum:
    """The exact sum of the survivors' vectors, int64 [dimension]; `seconds` by phase."""

    total: IntVector
    survivors: tuple[int, ...]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Setting:
    """What one simulated round is about."""

    round_number: int
    members: tuple[int, ...]
    dimension: int
    bits: int
    purpose: str
    dropouts: Dropouts
    params: SecAggParams
    topology: Topology

    def graph_seed(self) -> bytes:
        """An ideal round draws no graph; any order that no loss depends on will do."""
        ids = b"".join(derive.id_bytes(member) for member in self.members)
        return derive.digest(
            b"model", self.round_number.to_bytes(8, "little"), self.purpose.encode(), ids
        )


def round_setting(
    params: SecAggParams,
    round_number: int,
    members: Sequence[int],
    dimension: int,
    bits: int,
    dropouts: Dropouts,
    purpose: str = "update",
) -> Setting:
    """Describe one simulated round of a secure sum.

    Args:
        params: The protocol's parameters.
        round_number: The round's number; each (number, purpose) is used once.
        members: The cohort, distinct.
        dimension: The length of everybody's vector.
        bits: The width of the words that carry its entries.
        dropouts: Who is simulated to drop out, and when.
        purpose: What is summed in this round.

    Raises:
        ConfigError: A member is named twice.
        NotReleased: The cohort is too small for the protocol to release anything.
    """
    check_bits(bits)
    cohort = tuple(sorted(int(member) for member in members))
    if len(set(cohort)) != len(cohort):
        raise ConfigError("members: a device is named twice")
    if len(cohort) < max(2, params.min_survivors):
        raise NotReleased(
            f"cohort of {len(cohort)} is below min_honest + colluders = "
            f"{params.min_survivors}, or below two"
        )
    topology = params.topology(len(cohort))
    return Setting(round_number, cohort, dimension, bits, purpose, dropouts, params, topology)


class OpenRound(ABC):
    """A round that takes vectors from `wanted` devices, in any order, each once."""

    def __init__(self, setting: Setting, watch: Stopwatch, before: dict[str, float]) -> None:
        self.setting = setting
        self.wanted: tuple[int, ...] = ()
        self._watch = watch
        self._before = before  # what the watch showed when the round was begun
        self._added: set[int] = set()

    def add(self, device: int, vector: IntVector) -> None:
        """One device's vector, int64 [dimension]."""
        if device not in self.wanted or device in self._added:
            raise ConfigError(
                f"device = {device}: not wanted in round {self.setting.round_number}, or twice"
            )
        if vector.shape != (self.setting.dimension,):
            raise ConfigError(f"vector: shape {vector.shape}, need ({self.setting.dimension},)")
        self._upload(device, vector)
        self._added.add(device)

    def finish(self) -> SecureSum:
        """The sum of what was added; wanted devices that added nothing count as lost."""
        total = self._unmask()
        return SecureSum(total, tuple(sorted(self._added)), self._watch.since(self._before))

    @abstractmethod
    def _upload(self, device: int, vector: IntVector) -> None: ...

    @abstractmethod
    def _unmask(self) -> IntVector: ...


class IdealRound(OpenRound):
    """The effect of secure aggregation: a sum modulo 2^bits, under the same conditions."""

    def __init__(self, setting: Setting, watch: Stopwatch, before: dict[str, float]) -> None:
        super().__init__(setting, watch, before)
        self._fewest = setting.params.fewest_survivors(len(setting.members))
        self._sharers = frozenset(setting.members)
        self.wanted = setting.members
        if setting.dropouts != Dropouts():  # else everybody answers everybody, in any graph
            with watch.phase("share"):
                self._sharers, ready = sharing_course(
                    self._graph, setting.topology.threshold, self._fewest, setting.dropouts
                )
            self.wanted = tuple(sorted(ready))
        self._total = np.zeros(setting.dimension, dtype=word_type(setting.bits))

    @property
    def _graph(self) -> Graph:
        setting = self.setting
        topology = setting.topology
        return round_graph(setting.members, topology.degree, setting.graph_seed(), topology.masks)

    def _upload(self, device: int, vector: IntVector) -> None:
        with self._watch.phase("add"):
            np.add(self._total, encode(vector, self.setting.bits), out=self._total)

    def check(self, survivors: Collection[int]) -> None:
        """Raise `NotReleased` if the protocol would refuse a sum of these devices."""
        if len(survivors) == len(self.setting.members) and self.setting.dropouts == Dropouts():
            return
        with self._watch.phase("unmask"):
            unmasking_course(
                self._graph,
                self.setting.topology.threshold,
                self._fewest,
                self.setting.dropouts,
                self._sharers,
                frozenset(survivors),
                confirms=not self.setting.params.honest_server,
            )

    def _unmask(self) -> IntVector:
        self.check(self._added)
        return decode(self._total, self.setting.bits)
