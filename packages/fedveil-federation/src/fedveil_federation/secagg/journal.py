"""What a device must remember across restarts: which rounds it has answered.

Two cohorts under one round number, differing by one device, would unmask that device. A round is
therefore claimed, on disk, before the first byte about it leaves, and never claimed again; numbers
only rise, by steps that the terms bound. Several purposes may share one round number if they share
the cohort. The same step charges the device's lifetime ledger (`device_store.py`).
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Protocol

from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil_federation.secagg.privacy_terms import PrivacyTerms


@dataclass(frozen=True)
class Claim:
    """A round that a device is about to answer; `cohort` is a digest of its members."""

    federation: str
    round_number: int
    purpose: str
    cohort: bytes
    step: int  # how far above the last round this one may lie
    privacy: PrivacyTerms | None = None  # what taking part costs


class Journal(Protocol):
    """Claims a round or raises `RuleBroken`; a claim that returned is never lost."""

    def claim(self, wanted: Claim) -> int | None:
        """The number of the reservation by which the device was charged, if it keeps a ledger."""

    def settle(self, reservation: int, left: bool) -> None:
        """Whether anything that depends on the device's data has left: if not, the cost is back."""


@dataclass(frozen=True)
class DeviceProgress:
    """The highest round so far, its cohort and purposes."""

    round_number: int = -1
    cohort: bytes = b""
    purposes: frozenset[str] = frozenset()

    def claimed(self, wanted: Claim) -> DeviceProgress:
        """The progress after a claim."""
        self.check(wanted)
        number, same = wanted.round_number, wanted.round_number == self.round_number
        purposes = (self.purposes if same else frozenset()) | {wanted.purpose}
        return DeviceProgress(number, wanted.cohort, purposes)

    def check(self, wanted: Claim) -> None:
        """Raise `RuleBroken` if this round may not be answered."""
        if wanted.round_number < self.round_number:
            raise RuleBroken(
                f"round {wanted.round_number} comes after round {self.round_number}: "
                "numbers only rise"
            )
        if wanted.round_number == self.round_number and wanted.purpose in self.purposes:
            raise RuleBroken(f"round {wanted.round_number} ({wanted.purpose}) was answered before")
        if wanted.round_number == self.round_number and wanted.cohort != self.cohort:
            raise RuleBroken(f"round {wanted.round_number} has another cohort already")
        if wanted.round_number > self.round_number + wanted.step:
            raise RuleBroken(
                f"round {wanted.round_number} lies {wanted.round_number - self.round_number} above "
                f"the last one, {self.round_number}; at most {wanted.step} are taken"
            )

    def to_json(self) -> str:
        return json.dumps([self.round_number, self.cohort.hex(), sorted(self.purposes)])

    @classmethod
    def from_json(cls, document: str) -> DeviceProgress:
        number, cohort, purposes = json.loads(document)
        return cls(number, bytes.fromhex(cohort), frozenset(purposes))


class MemoryJournal:
    """The rules without a disk or a ledger: for simulated devices, which never restart and whose
    costs the ledger of their run counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: dict[str, DeviceProgress] = {}

    def claim(self, wanted: Claim) -> None:
        with self._lock:
            known = self._progress.get(wanted.federation, DeviceProgress())
            self._progress[wanted.federation] = known.claimed(wanted)

    def settle(self, reservation: int, left: bool) -> None:
        """Nothing was charged."""
