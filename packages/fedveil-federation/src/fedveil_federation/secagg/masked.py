"""The protocol inside a simulation: real frames between real state machines, in one process.

`MaskedAggregator` runs every device's and the server's state machine, one device at a time; where
an `IdealRound` stands for it, the same integers are added and the same rounds refused, without keys
or masks. Both give the same sum, bit for bit.

    simulation = Simulation(params)
    opened = simulation.open(round_number, members, dimension, bits, dropouts)
    for device in opened.wanted:            # the others need not compute anything
        opened.add(device, vector)
    result = opened.finish()                # SecureSum, or NotReleased
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.arrays import Ints
from fedveil.privacy.secure_sums.aggregation import SecureSums
from fedveil.privacy.secure_sums.dropouts import NO_DROPOUTS, Dropouts, fit_cohort
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil.privacy.secure_sums.masks import IntVector
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.run.aggregator import Aggregator, OpenSum, Summands
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import BlockSum
from fedveil_federation.secagg.device import DeviceRound
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.server import Server, ServerRound

_REMEMBERED_SEEDS = 256  # per simulated device


@dataclass(frozen=True)
class SecureSum:
    """The exact sum of the survivors' vectors, int64 [dimension]."""

    total: IntVector
    survivors: tuple[int, ...]


class Simulation:
    """Rounds over simulated devices. Keys and masks come from the operating system in any case:
    they cancel, so a seeded run stays repeatable.

    Args:
        params: The terms of all rounds.
        watch: What to measure phases with.
    """

    def __init__(self, params: SecAggParams, watch: Stopwatch | None = None) -> None:
        self.params = params
        self.watch = watch or Stopwatch()
        self._key = Ed25519PrivateKey.generate()
        self._pinned: dict[int, bytes] = {}
        # One roster for all: each card's signature is then checked once and not once per device.
        self._roster = Roster(params.federation, self._pinned)
        self._server = Server(self._key, self._roster, params)
        self._devices: dict[int, Participant] = {}

    def enrol(self, devices: Iterable[int]) -> None:
        """Give devices keys, once; `open` does it for whoever is missing."""
        public = self._key.public_key().public_bytes_raw()
        for device in devices:
            if device in self._devices:
                continue
            keys = new_keys(self.params.federation, device)
            self._pinned[device] = keys.identity.public_key().public_bytes_raw()
            self._roster.admit(keys.card())
            self._devices[device] = Participant(
                keys, self._roster, self.params, public, MemoryJournal(), _REMEMBERED_SEEDS
            )

    def open(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        dropouts: Dropouts = NO_DROPOUTS,
        purpose: str = "update",
    ) -> SimulatedRound:
        """Start a round; see `Server.open` for the arguments, and `dropouts` are those simulated.

        Raises:
            NotReleased: Too few devices are there.
        """
        cohort = fit_cohort(self.params, members)
        with self.watch.phase("enrol"):
            self.enrol(cohort)
        with self.watch.phase("share"):
            server = self._server.open(round_number, cohort, dimension, bits, purpose)
            present = [member for member in cohort if member not in dropouts.before_sharing]
            devices = {member: self._devices[member].join(server.plan) for member in present}
            return SimulatedRound(server, devices, dropouts, self.watch)


class SimulatedRound:
    """Every frame of a round, passed between real state machines.

    It takes vectors from `wanted` devices, in any order, each once.
    """

    def __init__(
        self,
        server: ServerRound,
        devices: dict[int, DeviceRound],
        dropouts: Dropouts,
        watch: Stopwatch,
    ) -> None:
        self._server, self._devices = server, devices
        self._dropouts, self._watch = dropouts, watch
        for device in devices.values():
            server.receive(device.shares)
        server.close_sharing()
        agreed = [member for member in devices if self._agrees(member, self._take_sharers)]
        self.wanted = tuple(member for member in agreed if member not in dropouts.before_upload)

    def _take_sharers(self, device: int) -> None:
        self._devices[device].take_sharers(self._server.sharers_for(device))

    def add(self, device: int, vector: IntVector) -> None:
        """One device's vector, int64 [dimension]."""
        with self._watch.phase("mask"):
            frame = self._devices[device].mask(vector)
        with self._watch.phase("add"):
            self._server.receive(frame)

    def finish(self) -> SecureSum:
        """The sum of what was added; wanted devices that added nothing count as lost."""
        dropouts = self._dropouts
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
            return SecureSum(self._server.finish(), tuple(self._server.survivors))

    def _confirm(self, device: int) -> None:
        named = self._server.survivors_for(device)
        self._server.receive(self._devices[device].confirm(named))

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

    def __init__(self, summands: Summands, begun: SimulatedRound, watch: Stopwatch) -> None:
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
