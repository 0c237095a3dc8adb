"""Secure aggregation inside a simulation: played in full, or replaced by what it achieves.

`SecureMode.MASKED` runs every device's and the server's state machine and passes real frames
between them, one device at a time. `SecureMode.IDEAL` adds the same integers modulo the same power
of two and refuses the same rounds, without keys or masks. Both give the same sum, bit for bit.

    simulation = Simulation(params, SecureMode.MASKED)
    opened = simulation.open(round_number, members, dimension, bits, dropouts)
    for device in opened.wanted:            # the others need not compute anything
        opened.add(device, vector)
    result = opened.finish()                # SecureSum, or NotReleased
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil.run.ideal_sum import IdealRound, OpenRound, round_setting
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Admission, Roster
from fedveil_federation.secagg.rounds import MaskedRound
from fedveil_federation.secagg.server import Server

_REMEMBERED_SEEDS = 256  # per simulated device


class Simulation:
    """Rounds over simulated devices. Keys and masks come from the operating system in any case:
    they cancel, so a seeded run stays repeatable."""

    def __init__(
        self, params: SecAggParams, mode: SecureMode, watch: Stopwatch | None = None
    ) -> None:
        self.params, self.mode = params, mode
        self._watch = watch or Stopwatch()
        self._key = Ed25519PrivateKey.generate()
        self._pinned: dict[int, bytes] = {}
        # One roster for all: each card's signature is then checked once and not once per device.
        self._roster = Roster(params.federation, Admission(self._pinned))
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
        members: Sequence[int],
        dimension: int,
        bits: int,
        dropouts: Dropouts | None = None,
        purpose: str = "update",
    ) -> OpenRound:
        """Start a round; raises `NotReleased` at once if too few devices are there."""
        setting = round_setting(
            self.params, round_number, members, dimension, bits, dropouts or Dropouts(), purpose
        )
        watch, before = self._watch, dict(self._watch.seconds)
        if self.mode is SecureMode.IDEAL:
            return IdealRound(setting, watch, before)
        with watch.phase("enrol"):
            self.enrol(setting.members)
        return MaskedRound(setting, watch, before, self._server, self._devices)
