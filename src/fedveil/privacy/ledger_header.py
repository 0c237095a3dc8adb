"""What stands at the beginning of a ledger: what was promised, and in which file that is kept."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedveil.privacy.accounting import PrivacyModel, Release

File = tuple[int, int, int]  # device, inode, and which file of those that had the inode

_GENERATION = 0x80087601  # FS_IOC_GETVERSION


@dataclass(frozen=True)
class Header:
    """What a run promises: the releases of all its rounds, under which model, at what delta.

    `recipe` is a digest of the recipe that the plan was made from. `clients` is one of the clients'
    names in their order, where a schedule counts how often each takes part: were they others after
    an interruption, somebody would take part more often than the schedule says.
    """

    privacy_model: PrivacyModel
    delta: float
    planned: tuple[Release, ...]
    rounds: int
    recipe: str = ""
    clients: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "privacy_model": self.privacy_model.to_dict(),
            "delta": self.delta,
            "planned": [release.to_dict() for release in self.planned],
            "rounds": self.rounds,
            "recipe": self.recipe,
            "clients": self.clients,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Header:
        return cls(
            PrivacyModel.from_dict(document["privacy_model"]),
            float(document["delta"]),
            tuple(Release.from_dict(release) for release in document["planned"]),
            int(document["rounds"]),
            str(document["recipe"]),
            str(document["clients"]),
        )


def file_of(descriptor: int) -> File:
    """Which file this is: a rename keeps it, a copy is another one."""
    found, generation = os.fstat(descriptor), bytearray(8)
    with suppress(OSError):  # not every file system numbers the uses of an inode
        fcntl.ioctl(descriptor, _GENERATION, generation)
    return found.st_dev, found.st_ino, struct.unpack("=I4x", generation)[0]
