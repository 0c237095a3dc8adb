"""Where hub and sites keep what they have: one directory each, for its owner's eyes alone."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil_federation import client_events
from fedveil_federation.deploy import certificates
from fedveil_federation.deploy.agreement import Agreement
from fedveil_federation.deploy.certificates import Pair
from fedveil_federation.deploy.members import Members
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.secagg.device_store import DeviceStore, Lock
from fedveil_federation.secagg.keys import DeviceKeys

_LONGEST_SOCKET = 107  # bytes; the system takes 108 with the zero at the end
MEMBERS, PROPOSED = "members.toml", "members-proposed.toml"


class Home:
    """A directory with an agreement in it. One process runs it at a time."""

    agreement: Agreement
    _socket = "fedveil.sock"

    def __init__(self, path: Path, marker: str, what: str) -> None:
        self.path = path.absolute()
        if not (self.path / marker).is_file():
            raise ConfigError(f"{path}: not the directory of a {what} (no {marker}); name --home")

    @property
    def socket(self) -> Path:
        """Where the courier asks the guard, or the hub asks the courier."""
        path = self.courier / self._socket
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            raise ConfigError(f"{path}: too long for a socket; move the directory up")
        return path

    @property
    def courier(self) -> Path:
        """What the courier's process may read of this party; shared with its account if it has one
        of its own."""
        return (self.path / "courier").resolve()

    @property
    def courier_is_separate(self) -> bool:
        """Whether the courier runs under an account of its own."""
        return (self.path / "courier").is_symlink()

    @property
    def members(self) -> Members | None:
        """The list that is trusted here; None before there is one."""
        return _listed(self.path / MEMBERS)

    def keep_members(self, members: Members) -> None:
        keep_secret(self.path / MEMBERS, members.to_text())

    def lock(self) -> IO[str]:
        """Held until it is closed or the process ends, however it ends."""
        file = (self.path / ".lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(
                f"{self.path}: another process runs it already; stop that one first"
            ) from None
        return file

    @property
    def running(self) -> bool:
        """Whether a process runs it now."""
        try:
            self.lock().close()
        except ConfigError:
            return True
        return False


class HubHome(Home):
    """The hub's: keys, certificates, bundles, queue and runs."""

    _socket = "relay/hub.sock"  # made by the courier, in a folder of its own

    def __init__(self, path: Path) -> None:
        super().__init__(path, "federation.toml", "federation's hub")
        self.agreement = Agreement.of(read_toml(self.path / "federation.toml"))
        self.queue, self.runs = self.path / "queue", self.path / "runs"

    @staticmethod
    def create(path: Path, name: str, address: str, sites: Iterable[str], **schema: Any) -> HubHome:
        """A new federation: keys, certificates and a bundle for each site."""
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw().hex()
        agreement = Agreement(name, address, public, tuple(sites), **schema)
        authority = certificates.new_authority(name)
        own = certificates.new_pair(authority, agreement.host)
        with _new_directory(path):
            for folder in ("bundles", "queue", "runs"):
                (path / folder).mkdir(mode=0o700)
            keep_secret(path / "hub.key", key.private_bytes_raw().hex())
            keep_pair(path, "authority", authority)
            keep_pair(path, "hub", own)
            for site in agreement.sites:
                pair = certificates.new_pair(authority, site, days=certificates.BUNDLE_DAYS)
                keep_secret(path / "bundles" / f"{site}.crt", pair.certificate)
                bundle = Bundle(site, agreement, pair, authority.certificate)
                keep_secret(path / "bundles" / f"{site}.bundle", tomli_w.dumps(bundle.to_table()))
            keep_secret(path / "federation.toml", tomli_w.dumps(agreement.to_table()))
        return HubHome(path)

    @property
    def key(self) -> Ed25519PrivateKey:
        path = self.path / "hub.key"
        try:
            return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(read_text(path)))
        except ValueError:
            raise damaged(path) from None

    @property
    def authority(self) -> Pair:
        return read_pair(self.path, "authority")

    @property
    def certificate(self) -> Pair:
        return read_pair(self.path, "hub")

    def site_certificate(self, site: str) -> str:
        return read_text(self._of_site(site))

    def keep_site_certificate(self, site: str, certificate: str) -> None:
        keep_secret(self._of_site(site), certificate)

    def renew_certificate(self, site: str) -> Path:
        """A certificate for another year, for a site that cannot be reached to get it."""
        self._check_site(site)
        fresh = certificates.renewed(self.authority, self.site_certificate(site))
        self.keep_site_certificate(site, fresh)
        return self._of_site(site)

    @property
    def port(self) -> int:
        """Where the hub's courier listens: what sites reach, unless `listen_at` named another."""
        path = self.path / "listen"
        if not path.exists():
            return self.agreement.port
        try:
            return int(read_text(path))
        except ValueError:
            raise damaged(path) from None

    def listen_at(self, port: int) -> None:
        """Listen at another port than sites reach, from now on."""
        if not 0 < port < 2**16:
            raise ConfigError(f"--listen {port}: need a port, 1 to 65535")
        keep_secret(self.path / "listen", str(port))

    @property
    def revoked(self) -> set[str]:
        """The sites that are not let in any more."""
        return {site for site in self.agreement.sites if self._revocation(site).exists()}

    def revoke(self, site: str) -> None:
        """Let a site in no more, whatever certificate it shows; runs may go on without it."""
        self._check_site(site)
        keep_secret(self._revocation(site), "")

    def _check_site(self, site: str) -> None:
        if site not in self.agreement.sites:
            raise ConfigError(f"site {site!r} is none of {', '.join(self.agreement.sites)}")
        if site in self.revoked:
            raise ConfigError(f"site {site!r} was revoked; found a new federation for it")

    def _revocation(self, site: str) -> Path:
        return self.path / "bundles" / f"{site}.revoked"

    def _of_site(self, site: str) -> Path:
        return self.path / "bundles" / f"{site}.crt"


@dataclass(frozen=True)
class Bundle:
    """What a site gets to join: the agreement, and a certificate with its key."""

    site: str
    agreement: Agreement
    pair: Pair
    authority: str

    def to_table(self) -> dict[str, Any]:
        certificate = {"certificate": self.pair.certificate, "key": self.pair.key}
        named = {"site": self.site, "authority": self.authority}
        return {**named, **certificate, "federation": self.agreement.to_table()}

    @staticmethod
    def read(path: Path) -> Bundle:
        table = read_toml(path)
        kinds = dict.fromkeys(("site", "authority", "certificate", "key"), str)
        for name, kind in {**kinds, "federation": dict}.items():
            if not isinstance(table.get(name), kind):
                raise ConfigError(f"bundle {path}: {name} is missing or damaged; ask for another")
        site, authority = table["site"], table["authority"]
        pair = Pair(table["certificate"], table["key"])
        found = Bundle(site, Agreement.of(table["federation"]), pair, authority)
        if site not in found.agreement.sites:
            raise ConfigError(f"bundle {path}: site {site!r} is none of the federation's")
        certificates.check(pair.certificate, authority, site, pair.key)
        return found


class SiteHome(Home):
    """A site's: where its rows are, its policy, store and certificate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "site.toml", "site")
        table = read_toml(self.path / "site.toml")
        try:
            self.site, self.data = str(table["site"]), Path(table["data"])
            self.authority = str(table["authority"])
            self.agreement = Agreement.of(table["federation"])
        except (KeyError, TypeError):
            raise damaged(self.path / "site.toml") from None
        if self.site not in self.agreement.sites:
            raise damaged(self.path / "site.toml")

    @staticmethod
    def create(path: Path, bundle: Bundle, data: Path, policy: Path) -> SiteHome:
        """Join: a store with the lifetime's budget, and keys that never leave."""
        rules = Policy.read(policy)
        rules.check_hub(bundle.agreement.hub)
        named = {"site": bundle.site, "data": str(data.absolute()), "authority": bundle.authority}
        table = {**named, "federation": bundle.agreement.to_table()}
        with _new_directory(path):
            keep_secret(path / "policy.toml", policy.read_text(encoding="utf-8"))
            keep_pair(path, "site", bundle.pair)
            keep_secret(path / "store.key", secrets.token_hex(32))
            create_store(path, rules)
            keep_secret(path / "site.toml", tomli_w.dumps(table))
            home = SiteHome(path)
            home.keys(home.store())
        return home

    @property
    def policy(self) -> Policy:
        return Policy.read(self.path / "policy.toml")

    @cached_property
    def longest_request(self) -> int:
        """The bytes that a request of the hub may have, by the policy as it is at the start."""
        return self.policy.longest_request

    @property
    def number(self) -> int:
        return self.agreement.sites.index(self.site)

    @property
    def certificate(self) -> Pair:
        return read_pair(self.path, "site")

    def take_certificate(self, text: str) -> bool:
        """Keep a certificate for the key that is here, if it lasts longer; whether it does."""
        old = self.certificate
        certificates.check(text, self.authority, self.site, old.key)
        if certificates.end_of(text) <= certificates.end_of(old.certificate):
            return False
        keep_pair(self.path, "site", Pair(text, old.key))
        return True

    def store(self) -> DeviceStore:
        """The store; a lifetime's budget that the policy has lowered is lowered in it."""
        found = DeviceStore(self.path / "store.db", _lock_of(self.path))
        allowed, kept = self.policy.lifetime, found.ledger.budget_epsilon
        exhausted = kept == client_events.EXHAUSTED
        if allowed.epsilon is not None and allowed.epsilon != kept and not exhausted:
            found.ledger = _reopened(found, allowed.epsilon)
        return found

    def check_anchor(self) -> None:
        """Refuse to go on where an older copy of the ledger would not be noticed."""
        client_events.check_anchor(self.path / "store.db")

    def restore(self, exhaust: bool) -> int:
        """Bring a store that was put back from a backup up to date.

        What was spent since is charged, and what was begun counts as spent. The key for masks is
        renewed: the old one may have been used further than the backup knows.

        Args:
            exhaust: allow nothing any more, where nobody knows what was spent since.

        Returns:
            How many events of the ledger it lacked.
        """
        path, missing = self.path / "store.db", 0
        if exhaust:
            client_events.exhaust(path)
        else:
            missing = client_events.restore(path)
        DeviceStore(path, _lock_of(self.path)).renew(f"fedveil/{self.agreement.name}")
        return missing

    def keys(self, store: DeviceStore) -> DeviceKeys:
        """This site's own, made when it joined."""
        return store.enrol(f"fedveil/{self.agreement.name}", self.number)

    @property
    def proposed(self) -> Members | None:
        return _listed(self.path / PROPOSED)

    def propose(self, members: Members) -> None:
        """Keep a list that the hub sent until the owner has confirmed it."""
        keep_secret(self.path / PROPOSED, members.to_text())

    def trust(self, fingerprint: str) -> Members:
        """Confirm the proposed list by its fingerprint, which the owner has from other owners."""
        if (known := self.members) is not None:
            raise ConfigError(f"members: this site trusts {known.fingerprint} already")
        proposed = self.proposed
        if proposed is None:
            raise ConfigError("members: the hub has sent no list yet; start the site and wait")
        if proposed.fingerprint.replace("-", "") != re.sub(r"[\s-]", "", fingerprint).lower():
            raise ConfigError(
                f"members: the list that the hub sent is {proposed.fingerprint}, not "
                f"{fingerprint}; unless that is a slip, somebody was shown another list: trust none"
            )
        self.keep_members(proposed)
        return proposed

    def keep_plan(self, run: str, plan: bytes) -> None:
        """Remember what a run of the ledger was about."""
        (self.path / "plans").mkdir(mode=0o700, exist_ok=True)
        keep_secret(self.path / "plans" / f"{run}.json", plan.decode())

    def plan(self, run: str) -> dict[str, Any] | None:
        """None if it cannot be read: what was spent is in the store."""
        with suppress(ConfigError, OSError):
            return read_json(self.path / "plans" / f"{run}.json")
        return None

    @property
    def stopped(self) -> str:
        """Why this site takes part in nothing for now; empty if it does."""
        if (self.path / "left").exists():
            return "its owner has left this federation"
        return "paused by its owner" if (self.path / "paused").exists() else ""

    def pause(self, on: bool) -> None:
        path = self.path / "paused"
        if on:
            path.touch(mode=0o600)
        else:
            path.unlink(missing_ok=True)

    def leave(self) -> None:
        """For good: the key that opens others' shares goes, the lifetime's ledger stays."""
        (self.path / "left").touch(mode=0o600)
        store = DeviceStore(self.path / "store.db", _lock_of(self.path))  # whatever the policy is
        store.forget(f"fedveil/{self.agreement.name}")


def create_store(path: Path, rules: Policy) -> None:
    """A store for what a policy allows, over a lifetime."""
    if rules.lifetime.epsilon is None:
        raise ConfigError("policy: say what all runs together may cost: [lifetime], epsilon = ...")
    record = Unit.RECORD in rules.allow.units
    DeviceStore.create(
        path / "store.db",
        _lock_of(path),
        budget_epsilon=rules.lifetime.epsilon,
        delta=rules.lifetime.delta,
        unit=Unit.RECORD if record else Unit.CLIENT,
        adjacency=Adjacency.REPLACE if record else Adjacency.ZERO_OUT,
        trust=Trust.CENTRAL if Trust.CENTRAL in rules.allow.trust else Trust.DISTRIBUTED,
    )


def _reopened(store: DeviceStore, budget: float) -> Any:
    ledger = store.ledger
    return type(ledger)(
        ledger.path,
        budget,
        ledger.delta,
        unit=ledger.unit,
        adjacency=ledger.adjacency,
        trust=ledger.trust,
    )


def _lock_of(path: Path) -> Lock:
    return Lock.key_file(path / "store.key")


@contextmanager
def _new_directory(path: Path) -> Iterator[None]:
    """Make a directory, and take it away again if what comes into it fails."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; choose another --home") from None
    try:
        yield
    except BaseException:
        shutil.rmtree(path)
        raise


def keep_secret(path: Path, text: str) -> None:
    """Replace a file that its owner alone can read, whole or not at all."""
    before = os.umask(0o077)
    try:
        write_atomically(path, text.encode())
    finally:
        os.umask(before)


def keep_pair(folder: Path, name: str, pair: Pair) -> None:
    keep_secret(folder / f"{name}.crt", pair.certificate)
    keep_secret(folder / f"{name}.pem", pair.key)


def read_pair(folder: Path, name: str) -> Pair:
    parts = (folder / f"{name}.{kind}" for kind in ("crt", "pem"))
    return Pair(*map(read_text, parts))


def damaged(path: Path) -> ConfigError:
    return ConfigError(f"{path}: damaged; put it back from a backup")


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise damaged(path) from None


def read_json(path: Path) -> dict[str, Any]:
    """A document that `write_json` wrote."""
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise damaged(path) from None
    if not isinstance(found, dict):
        raise damaged(path)
    return found


def _listed(path: Path) -> Members | None:
    """The members' list in a file, if it is there."""
    if not path.exists():
        return None
    try:
        return Members.of(read_text(path))
    except ConfigError:
        raise damaged(path) from None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    keep_secret(path, json.dumps(document, indent=2) + "\n")
