"""Everything a device remembers, in one file: keys, others' cards, rounds, and its lifetime ledger.

The file is a client ledger (`client_ledger.py`) with more tables. Every change is an event
in the ledger's chain, whose head is kept apart, so a file that was cut or put back from a backup is
noticed and allows nothing any more. Taking part in a round is one transaction: the cost is checked
against the lifetime budget and reserved, and the round is claimed, or nothing happens. Private keys
are encrypted under a key file. A copy of the file on another machine is not
noticed: a device lives in one place.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import RuleBroken, SecureAggregationError
from fedveil_federation import client_events
from fedveil_federation.client_ledger import ClientLedger
from fedveil_federation.secagg.journal import Claim, DeviceProgress
from fedveil_federation.secagg.keys import DeviceKeys, new_keys
from fedveil_federation.secagg.roster import Known

VERSION = 2
_CHECK = b"device store"
_ROOM = 1 << 20  # bytes that are free on the disk before a round begins
_SCHEMA = (
    "CREATE TABLE store (version INTEGER NOT NULL, salt BLOB NOT NULL, sealed BLOB NOT NULL)",
    "CREATE TABLE keys (federation TEXT PRIMARY KEY, device INTEGER NOT NULL,"
    " version INTEGER NOT NULL, public BLOB NOT NULL, sealed BLOB NOT NULL)",
    "CREATE TABLE progress (federation TEXT PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE TABLE known (federation TEXT, device INTEGER, identity BLOB NOT NULL,"
    " version INTEGER NOT NULL, PRIMARY KEY (federation, device))",
)


class StoreFault(RuleBroken):
    """The store cannot be read or written; what it says names files of its owner."""


@dataclass(frozen=True)
class Lock:
    """The key that encrypts private keys: the content of a key file."""

    secret: bytes = field(repr=False)

    @staticmethod
    def key_file(path: Path) -> Lock:
        """A file of 32 random bytes or more that its owner alone can read."""
        try:
            if path.stat().st_mode & 0o077:
                raise ConfigError(f"key file {path}: others can read it; chmod 600")
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"key file {path}: {error.strerror}") from None
        if len(content) < 32:
            raise ConfigError(f"key file {path}: need 32 random bytes or more")
        return Lock(content)

    def key(self, salt: bytes) -> bytes:
        # The content cannot be guessed, so there is nothing to slow down.
        return Scrypt(salt=salt, length=32, n=2, r=8, p=1).derive(self.secret)


class DeviceStore:
    """The file at `path`, which must be there; `create` makes it, once. It is a `Journal`."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path = path
        if not path.is_file():
            raise RuleBroken(f"device store {path}: not there; create it, once")
        with self._transaction() as database:
            rows = database.execute("SELECT version, salt, sealed FROM store").fetchall()
            if len(rows) != 1 or rows[0][0] != VERSION:
                raise RuleBroken(f"device store {path}: of another version, not {VERSION}")
            self._key = lock.key(rows[0][1])
            if self._open(rows[0][2], _CHECK) != _CHECK:
                raise RuleBroken(f"device store {path}: damaged")
            self.ledger = ClientLedger.reopened(path)

    @classmethod
    def create(
        cls,
        path: Path,
        lock: Lock,
        *,
        budget_epsilon: float,
        delta: float,
        unit: Unit = Unit.CLIENT,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
        trust: Trust = Trust.DISTRIBUTED,
    ) -> DeviceStore:
        """A new store with an empty ledger; see `ClientLedger` for the terms.

        What a creation that was killed has left is made into one; a store is never made anew.
        """
        made = True
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            made = False
        except OSError as error:
            raise RuleBroken(f"device store {path}: {error.strerror}") from None
        salt = os.urandom(16)
        sealed = _seal(lock.key(salt), _CHECK, _CHECK)
        try:
            with client_events.transaction(path) as events:
                if events.head() != client_events.NONE:
                    raise RuleBroken(f"device store {path}: it exists already")
                ClientLedger(
                    path, budget_epsilon, delta, unit=unit, adjacency=adjacency, trust=trust
                )
                for statement in _SCHEMA:
                    events.database.execute(statement)
                row = (VERSION, salt, sealed)
                events.database.execute("INSERT INTO store VALUES (?, ?, ?)", row)
        except BaseException:
            if made:
                path.unlink()  # nobody has used it
            raise
        return cls(path, lock)

    # --- keys -------------------------------------------------------------------------------------

    def enrol(self, federation: str, device: int) -> DeviceKeys:
        """The device's keys in a federation; fresh ones the first time."""
        with self._transaction() as database:
            found = self._keys(database, federation)
            if found is not None and found.device != device:
                raise RuleBroken(
                    f"device store {self.path}: it is device {found.device} of {federation!r}"
                )
            return found or self._keep(database, new_keys(federation, device))

    def renew(self, federation: str) -> DeviceKeys:
        """A fresh X25519 key of the next version; the old one is gone."""
        with self._transaction() as database:
            found = self._keys(database, federation)
            if found is None:
                raise RuleBroken(f"device store {self.path}: no keys for {federation!r}")
            return self._keep(database, found.renewed())

    def _keys(self, database: sqlite3.Connection, federation: str) -> DeviceKeys | None:
        row = database.execute(
            "SELECT device, version, public, sealed FROM keys WHERE federation = ?", (federation,)
        ).fetchone()
        if row is None:
            return None
        device, version, public, sealed = row
        secret = self._open(sealed, _about(federation, device, version, public))
        identity = Ed25519PrivateKey.from_private_bytes(secret[:32])
        agreement = X25519PrivateKey.from_private_bytes(secret[32:])
        return DeviceKeys(federation, device, identity, agreement, version)

    def _keep(self, database: sqlite3.Connection, keys: DeviceKeys) -> DeviceKeys:
        secret = keys.identity.private_bytes_raw() + keys.agreement.private_bytes_raw()
        about = _about(keys.federation, keys.device, keys.version, keys.public)
        sealed = _seal(self._key, secret, about)
        row = (keys.federation, keys.device, keys.version, keys.public, sealed)
        database.execute("PRAGMA secure_delete = ON")
        database.execute("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?)", row)
        self._note({"keys": keys.federation, "version": keys.version})
        return keys

    def _open(self, sealed: bytes, about: bytes) -> bytes:
        try:
            return AESGCM(self._key).decrypt(sealed[:12], sealed[12:], about)
        except (InvalidTag, ValueError):
            raise RuleBroken(f"device store {self.path}: wrong key file, or damaged") from None

    # --- rounds -----------------------------------------------------------------------------------

    def claim(self, wanted: Claim) -> int:
        """Charge the ledger and claim the round, both or neither; the reservation's number."""
        if wanted.privacy is None:
            raise RuleBroken("the plan does not say what taking part costs; no round without it")
        with self._transaction() as database:
            reached = self._progress(database, wanted.federation).claimed(wanted)
            row = (wanted.federation, reached.to_json())
            database.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", row)
            terms = wanted.privacy
            return self.ledger.reserve(terms.release, terms.privacy_model, run=terms.run)

    def settle(self, reservation: int, left: bool) -> None:
        """Make the charge final, or take it back if nothing of the device's data has left."""
        with self._transaction():
            (self.ledger.commit if left else self.ledger.cancel)(reservation)

    def check_room(self) -> None:
        """Check that a round could be written down now.

        Raises:
            StoreFault: the disk has no room for it, or cannot be written.
        """
        try:
            with tempfile.TemporaryFile(dir=self.path.parent) as file:
                os.posix_fallocate(file.fileno(), 0, _ROOM)
        except OSError as error:
            raise StoreFault(f"device store {self.path}: {error.strerror}") from None

    def last_round(self, federation: str) -> int:
        """The last round that was claimed in a federation; -1 if there was none."""
        with self._transaction() as database:
            return self._progress(database, federation).round_number

    @staticmethod
    def _progress(database: sqlite3.Connection, federation: str) -> DeviceProgress:
        row = database.execute(
            "SELECT state FROM progress WHERE federation = ?", (federation,)
        ).fetchone()
        return DeviceProgress() if row is None else DeviceProgress.from_json(row[0])

    # --- others' cards ----------------------------------------------------------------------------

    def known(self, federation: str) -> dict[int, Known]:
        """The memory of other devices that a roster needs."""
        with self._transaction() as database:
            rows = database.execute(
                "SELECT device, identity, version FROM known WHERE federation = ?", (federation,)
            )
            return {device: Known(identity, version) for device, identity, version in rows}

    def keep_known(self, federation: str, changed: Mapping[int, Known]) -> None:
        """Write down what has changed of it; on disk when this returns."""
        rows = [(federation, device, *astuple(one)) for device, one in changed.items()]
        with self._transaction() as database:
            database.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?)", rows)
            self._note({"cards": federation, "changed": len(rows)})

    def _note(self, body: dict[str, object]) -> None:
        """Every change is an event, so that an older copy of the file is noticed."""
        with client_events.transaction(self.path) as events:
            events.append("state", body)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, one process at a time, on disk when it returns."""
        try:
            if self.path.stat().st_mode & 0o077:
                self.path.chmod(0o600)
            with client_events.transaction(self.path) as events:
                yield events.database
        except (SecureAggregationError, KeyboardInterrupt):
            raise
        except PrivacyRefusal as refusal:
            raise RuleBroken(f"this device's ledger refuses: {refusal}") from refusal
        except (FedveilError, sqlite3.Error, OSError, ValueError, ArithmeticError) as error:
            raise StoreFault(f"device store {self.path}: {error}; no round without it") from None


def _about(federation: str, device: int, version: int, public: bytes) -> bytes:
    return derive.digest(
        b"stored-keys",
        federation.encode(),
        derive.id_bytes(device),
        derive.id_bytes(version),
        public,
    )


def _seal(key: bytes, secret: bytes, about: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, secret, about)
