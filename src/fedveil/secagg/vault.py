"""A device's directory: its keys, the journal that belongs to them, and what it knows of others.

The key file counts the claims of its journal. A journal that is gone, of another key, or behind
that count (put back from a backup) cannot say what was answered, so its key is retired: the device
gets a fresh X25519 key of the next version with a journal of its own, and must send its new card.
Nothing tells if the whole directory was put back; a device must live in one place only.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.secagg import store
from fedveil.secagg.errors import RuleBroken
from fedveil.secagg.journal import Claim, FileJournal
from fedveil.secagg.keys import DeviceKeys, new_keys
from fedveil.secagg.roster import FileMemory

_VERSION = 1


@dataclass(frozen=True)
class Opened:
    """A device as its directory has it; `renewed` says why its key is a new one, if it is."""

    keys: DeviceKeys
    journal: VaultJournal
    memory: FileMemory
    renewed: str = ""


class VaultJournal:
    """A journal whose key file counts along: first the claim, then the count of it."""

    def __init__(self, vault: Vault, journal: FileJournal) -> None:
        self._vault, self._journal = vault, journal

    def claim(self, wanted: Claim) -> None:
        self._journal.claim(wanted)
        self._vault.count(self._journal)

    def draw(self, wanted: Claim, most: int) -> None:
        self._journal.draw(wanted, most)
        self._vault.count(self._journal)


class Vault:
    """The directory of one device, made by the first `open`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys = directory / "keys.json"
        self._roster = directory / "roster.sqlite"
        self._lock = threading.Lock()

    def open(self, federation: str, device: int) -> Opened:
        """The device's keys and journal; fresh ones if there are none or the journal is lost."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._keys.exists():
            # Without the key no memory of its rounds or of others' cards is worth anything.
            self._roster.unlink(missing_ok=True)
            memory = FileMemory.create(self._roster)
            return self._begin(new_keys(federation, device), memory, "no key was here")
        memory = FileMemory(self._roster)  # lost, nothing could bring old cards to light
        keys, claims, last = self._read()
        if (keys.federation, keys.device) != (federation, device):
            raise RuleBroken(
                f"keys {self._keys}: of device {keys.device} in {keys.federation!r}; "
                "every device has a directory of its own"
            )
        try:
            if keys.agreement is None:
                raise RuleBroken("its X25519 key was forgotten")
            journal = FileJournal(self._journal(keys), keys.fingerprint)
            if journal.claims < claims:
                raise RuleBroken(f"journal {self._journal(keys)}: older than its key")
        except RuleBroken as reason:
            return self._begin(keys.renewed(), memory, str(reason), last)
        return Opened(keys, VaultJournal(self, journal), memory)

    def renew(self, keys: DeviceKeys) -> Opened:
        """A fresh X25519 key with a journal that goes on where the old one stood."""
        _, _, last = self._read()
        return self._begin(keys.renewed(), FileMemory(self._roster), "asked for", last)

    def forget(self) -> None:
        """Take the X25519 key off the disk; the next `open` makes a new one."""
        with self._lock:
            keys, claims, last = self._read()
            self._write(replace(keys, agreement=None), claims, last)

    def count(self, journal: FileJournal) -> None:
        """Write into the key file how many claims its journal must hold from now on."""
        with self._lock:
            keys, claims, last = self._read()
            self._write(keys, max(claims, journal.claims), max(last, journal.last))

    def _begin(self, keys: DeviceKeys, memory: FileMemory, reason: str, last: int = -1) -> Opened:
        # The journal comes first: a key on disk always has one.
        journal = FileJournal.create(self._journal(keys), keys.fingerprint, last)
        self._write(keys, 0, last)
        return Opened(keys, VaultJournal(self, journal), memory, reason)

    def _journal(self, keys: DeviceKeys) -> Path:
        return self._directory / f"journal-{keys.version}-{keys.fingerprint.hex()[:16]}.sqlite"

    def _read(self) -> tuple[DeviceKeys, int, int]:
        try:
            found = json.loads(self._keys.read_text())
            if found["format"] != _VERSION:
                raise RuleBroken(f"keys {self._keys}: format {found['format']}, not {_VERSION}")
            agreement = bytes.fromhex(found["agreement"])
            keys = DeviceKeys(
                found["federation"],
                found["device"],
                Ed25519PrivateKey.from_private_bytes(bytes.fromhex(found["identity"])),
                X25519PrivateKey.from_private_bytes(agreement) if agreement else None,
                found["version"],
                bytes.fromhex(found["certificate"]),
                bytes.fromhex(found["public"]),
            )
            return keys, int(found["claims"]), int(found["last"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RuleBroken(f"keys {self._keys}: {error}; enrol anew") from None

    def _write(self, keys: DeviceKeys, claims: int, last: int) -> None:
        agreement = b"" if keys.agreement is None else keys.agreement.private_bytes_raw()
        document = {
            "format": _VERSION,
            "federation": keys.federation,
            "device": keys.device,
            "version": keys.version,
            "identity": keys.identity.private_bytes_raw().hex(),
            "agreement": agreement.hex(),
            "public": keys.public.hex(),
            "certificate": keys.certificate.hex(),
            "claims": claims,
            "last": last,
        }
        draft = self._keys.with_name(f"keys.json.{os.getpid()}.new")
        handle = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with open(handle, "w") as file:
            file.write(json.dumps(document))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._keys)
        store.sync_directory(self._directory)
