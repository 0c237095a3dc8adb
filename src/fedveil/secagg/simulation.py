"""Secure aggregation inside a simulation: played in full, or replaced by its exact effect.

`Mode.FULL` runs every device's and the server's state machine and passes real frames between them,
one device at a time. `Mode.MODELLED` adds the same integers modulo the same power of two and
refuses the same rounds, without keys or masks. Both give the same sum, bit for bit.

    simulation = Simulation(terms, Mode.FULL)
    opened = simulation.open(round, members, dimension, bits, losses)
    for device in opened.wanted:            # lost devices need not compute anything
        opened.add(device, vector)
    result = opened.finish()                # SecureSum, or NotReleased
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.errors import BadInput
from fedveil.secagg.device import DeviceRound
from fedveil.secagg.errors import NotReleased, RuleBroken
from fedveil.secagg.graph import round_graph
from fedveil.secagg.journal import MemoryJournal
from fedveil.secagg.keys import new_keys
from fedveil.secagg.losses import Losses, sharing_course, unmasking_course
from fedveil.secagg.masks import word_type
from fedveil.secagg.modulus import IntVector, check_bits, decode, encode
from fedveil.secagg.participant import Participant
from fedveil.secagg.roster import Admission, Roster
from fedveil.secagg.server import Server
from fedveil.secagg.terms import Terms
from fedveil.secagg.topology import Topology

_REMEMBERED_SEEDS = 256  # per simulated device


class Mode(Enum):
    FULL = "full"
    MODELLED = "modelled"


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round and what its secrecy assumed; `seconds` by phase."""

    mode: Mode
    round: int
    purpose: str
    cohort: int
    survivors: int
    bits: int
    topology: Topology
    min_honest: int
    colluders: int
    smallest_group: int  # honest devices in the smallest sum a lying server could learn
    seconds: dict[str, float]

    @property
    def lost(self) -> int:
        return self.cohort - self.survivors


@dataclass(frozen=True)
class SecureSum:
    """The exact sum of the survivors' vectors, int64 [dimension]."""

    total: IntVector
    survivors: tuple[int, ...]
    report: RoundReport


@dataclass
class Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Setting:
    """What one simulated round is about."""

    round: int
    members: tuple[int, ...]
    dimension: int
    bits: int
    purpose: str
    losses: Losses
    terms: Terms
    topology: Topology


class OpenRound(ABC):
    """A round that takes vectors from `wanted` devices, in any order, each once."""

    mode: Mode

    def __init__(self, setting: Setting, watch: Stopwatch) -> None:
        self.setting = setting
        self.wanted: tuple[int, ...] = ()
        self._watch = watch
        self._added: set[int] = set()

    def add(self, device: int, vector: IntVector) -> None:
        """One device's vector, int64 [dimension]."""
        if device not in self.wanted or device in self._added:
            raise BadInput(f"device = {device}: not wanted in round {self.setting.round}, or twice")
        if vector.shape != (self.setting.dimension,):
            raise BadInput(f"vector: shape {vector.shape}, need ({self.setting.dimension},)")
        self._upload(device, vector)
        self._added.add(device)

    def finish(self) -> SecureSum:
        """The sum of what was added; wanted devices that added nothing count as lost."""
        total = self._unmask()
        setting = self.setting
        report = RoundReport(
            self.mode,
            setting.round,
            setting.purpose,
            len(setting.members),
            len(self._added),
            setting.bits,
            setting.topology,
            setting.terms.min_honest,
            setting.terms.colluders,
            setting.topology.smallest_group(setting.terms.min_honest),
            dict(self._watch.seconds),
        )
        return SecureSum(total, tuple(sorted(self._added)), report)

    @abstractmethod
    def _upload(self, device: int, vector: IntVector) -> None: ...

    @abstractmethod
    def _unmask(self) -> IntVector: ...


class ModelledRound(OpenRound):
    """The effect of secure aggregation: a sum modulo 2^bits, under the same conditions."""

    mode = Mode.MODELLED

    def __init__(self, setting: Setting, watch: Stopwatch) -> None:
        super().__init__(setting, watch)
        self._graph = round_graph(
            setting.terms.federation,
            setting.round,
            setting.purpose,
            setting.members,
            setting.topology.degree,
        )
        self._fewest = setting.terms.fewest_survivors(len(setting.members))
        with watch.phase("share"):
            course = sharing_course(
                self._graph, setting.topology.threshold, self._fewest, setting.losses
            )
        self._sharers = course.sharers
        self.wanted = tuple(sorted(course.ready))
        self._total = np.zeros(setting.dimension, dtype=word_type(setting.bits))

    def _upload(self, device: int, vector: IntVector) -> None:
        with self._watch.phase("add"):
            np.add(self._total, encode(vector, self.setting.bits), out=self._total)

    def _unmask(self) -> IntVector:
        with self._watch.phase("unmask"):
            unmasking_course(
                self._graph,
                self.setting.topology.threshold,
                self._fewest,
                self.setting.losses,
                self._sharers,
                frozenset(self._added),
            )
            return decode(self._total, self.setting.bits)


class FullRound(OpenRound):
    """Every frame of a round, passed between real state machines."""

    mode = Mode.FULL

    def __init__(
        self, setting: Setting, watch: Stopwatch, server: Server, devices: dict[int, Participant]
    ) -> None:
        super().__init__(setting, watch)
        self._server = server.open(
            setting.round, setting.members, setting.dimension, setting.bits, setting.purpose
        )
        self._devices: dict[int, DeviceRound] = {}
        losses = setting.losses
        with watch.phase("share"):
            for member in setting.members:
                if member not in losses.before_sharing:
                    self._devices[member] = devices[member].join(self._server.plan)
                    self._server.receive(self._devices[member].shares)
            self._server.close_sharing()
            self.wanted = tuple(
                member
                for member in self._devices
                if self._agrees(member, self._take_sharers) and member not in losses.before_upload
            )

    def _take_sharers(self, device: int) -> None:
        self._devices[device].take_sharers(self._server.sharers_for(device))

    def _upload(self, device: int, vector: IntVector) -> None:
        with self._watch.phase("mask"):
            frame = self._devices[device].mask(vector)
        with self._watch.phase("add"):
            self._server.receive(frame)

    def _unmask(self) -> IntVector:
        losses = self.setting.losses
        with self._watch.phase("confirm"):
            self._server.close_upload()
            for device in self._server.survivors:
                if device not in losses.before_confirming:
                    self._agrees(device, self._confirm)
            self._server.close_confirmation()
        with self._watch.phase("unmask"):
            for device in self._server.confirmed:
                if device not in losses.before_unmasking:
                    self._agrees(device, self._give_shares)
            return self._server.finish()

    def _confirm(self, device: int) -> None:
        self._server.receive(self._devices[device].confirm(self._server.survivors_for(device)))

    def _give_shares(self, device: int) -> None:
        self._server.receive(self._devices[device].unmask(self._server.confirmed_for(device)))

    @staticmethod
    def _agrees(device: int, act: Callable[[int], None]) -> bool:
        """Whether the device went along; one that refuses is as good as lost."""
        try:
            act(device)
        except RuleBroken:
            return False
        return True


class Simulation:
    """Rounds over simulated devices. Keys and masks come from the operating system in any case:
    they cancel, so a seeded run stays repeatable."""

    def __init__(self, terms: Terms, mode: Mode) -> None:
        self.terms = terms
        self.mode = mode
        self._key = Ed25519PrivateKey.generate()
        self._pinned: dict[int, bytes] = {}
        # One roster for all: each card's signature is then checked once and not once per device.
        self._roster = Roster(terms.federation, Admission(self._pinned))
        self._server = Server(self._key, self._roster, terms)
        self._devices: dict[int, Participant] = {}

    def enrol(self, devices: Iterable[int]) -> None:
        """Give devices keys, once; `open` does it for whoever is missing."""
        public = self._key.public_key().public_bytes_raw()
        for device in devices:
            if device in self._devices:
                continue
            keys = new_keys(self.terms.federation, device)
            self._pinned[device] = keys.identity.public_key().public_bytes_raw()
            self._roster.admit(keys.card())
            self._devices[device] = Participant(
                keys, self._roster, self.terms, public, MemoryJournal(), _REMEMBERED_SEEDS
            )

    def open(
        self,
        round: int,
        members: Sequence[int],
        dimension: int,
        bits: int,
        losses: Losses | None = None,
        purpose: str = "update",
    ) -> OpenRound:
        """Start a round; raises `NotReleased` at once if too few devices are there."""
        check_bits(bits)
        cohort = tuple(sorted(int(member) for member in members))
        if len(set(cohort)) != len(cohort):
            raise BadInput("members: a device is named twice")
        if len(cohort) < max(2, self.terms.min_survivors):
            raise NotReleased(
                f"cohort of {len(cohort)} is below min_honest + colluders = "
                f"{self.terms.min_survivors}, or below two"
            )
        topology = self.terms.topology(len(cohort))
        setting = Setting(
            round, cohort, dimension, bits, purpose, losses or Losses(), self.terms, topology
        )
        watch = Stopwatch()
        if self.mode is Mode.MODELLED:
            return ModelledRound(setting, watch)
        with watch.phase("enrol"):
            self.enrol(cohort)
        return FullRound(setting, watch, self._server, self._devices)


def secure_sum(
    vectors: Callable[[int], IntVector],
    members: Sequence[int],
    *,
    dimension: int,
    bits: int,
    simulation: Simulation,
    round: int,
    losses: Losses | None = None,
    purpose: str = "update",
) -> SecureSum:
    """One whole round: `vectors(device)` is asked for the devices that get to send one."""
    opened = simulation.open(round, members, dimension, bits, losses, purpose)
    for device in opened.wanted:
        opened.add(device, vectors(device))
    return opened.finish()
