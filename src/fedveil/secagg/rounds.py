"""One simulated round, in two forms that give the same sum."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.secagg import derive
from fedveil.secagg.device import DeviceRound
from fedveil.secagg.dropouts import Dropouts, sharing_course, unmasking_course
from fedveil.secagg.errors import Doubted, NotReleased, RuleBroken
from fedveil.secagg.graph import Graph, round_graph
from fedveil.secagg.masks import IntVector, decode, encode, word_type
from fedveil.secagg.params import SecAggParams
from fedveil.secagg.participant import Participant
from fedveil.secagg.server import Server
from fedveil.secagg.server_round import ServerRound
from fedveil.secagg.stopwatch import Stopwatch
from fedveil.secagg.topology import Topology


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


class MaskedRound(OpenRound):
    """Every frame of a round, passed between real state machines."""

    def __init__(
        self,
        setting: Setting,
        watch: Stopwatch,
        before: dict[str, float],
        server: Server,
        devices: dict[int, Participant],
    ) -> None:
        super().__init__(setting, watch, before)
        self._devices: dict[int, DeviceRound] = {}
        dropouts = setting.dropouts
        with watch.phase("share"):
            self._server = self._opened(server, devices)
            for member in setting.members:
                if member not in dropouts.before_sharing:
                    self._devices[member] = devices[member].join(self._server.plan)
                    self._server.receive(self._devices[member].shares)
            self._server.close_sharing()
            self.wanted = tuple(
                member
                for member in self._devices
                if self._agrees(member, self._take_sharers) and member not in dropouts.before_upload
            )

    def _opened(self, server: Server, devices: dict[int, Participant]) -> ServerRound:
        """The round, its graph drawn by devices if it is sparse."""
        setting = self.setting
        details = (
            setting.round_number,
            setting.members,
            setting.dimension,
            setting.bits,
            setting.purpose,
        )
        count = setting.params.drawers(len(setting.members), setting.topology.degree)
        if not count:
            return server.open(*details)
        present = [m for m in setting.members if m not in setting.dropouts.before_sharing]
        if len(present) < count:
            raise NotReleased(f"{len(present)} devices are there, {count} must draw the graph")
        drawing = server.draw(*details, random.SystemRandom().sample(present, count))
        for device in drawing.drawers:
            drawing.commit(devices[device].offer(drawing.invitation))
        listed = drawing.commitments()
        for device in drawing.drawers:
            drawing.reveal(devices[device].reveal(listed))
        return server.open_drawn(drawing)

    def _take_sharers(self, device: int) -> None:
        self._devices[device].take_sharers(self._server.sharers_for(device))

    def _upload(self, device: int, vector: IntVector) -> None:
        with self._watch.phase("mask"):
            frame = self._devices[device].mask(vector)
        with self._watch.phase("add"):
            self._server.receive(frame)

    def _unmask(self) -> IntVector:
        dropouts = self.setting.dropouts
        with self._watch.phase("confirm"):
            self._server.close_upload()
            if self._server.confirms:
                for device in self._server.survivors:
                    if device not in dropouts.before_confirming:
                        self._agrees(device, self._confirm)
                self._server.close_confirmation()
        silent = dropouts.before_unmasking | dropouts.before_confirming
        with self._watch.phase("unmask"):
            for device in self._server.confirmed:
                if device not in silent:
                    self._agrees(device, self._give_shares)
            return self._server.finish()

    def _confirm(self, device: int) -> None:
        joined = self._devices[device]
        try:
            frame = joined.confirm(self._server.survivors_for(device))
        except Doubted as refusal:
            frame = joined.confirm(self._server.survivors_for(device, refusal.devices))
        self._server.receive(frame)

    def _give_shares(self, device: int) -> None:
        server = self._server
        told = server.confirmed_for if server.confirms else server.survivors_for
        server.receive(self._devices[device].unmask(told(device)))

    @staticmethod
    def _agrees(device: int, act: Callable[[int], None]) -> bool:
        """Whether the device went along; one that refuses is as good as lost."""
        try:
            act(device)
        except RuleBroken:
            return False
        return True
