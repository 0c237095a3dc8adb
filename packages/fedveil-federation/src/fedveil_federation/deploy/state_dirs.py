"""Where hub and sites keep what they have: one directory each, for its owner's eyes alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TypeVar

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.core.units import Adjacency, Trust
from fedveil.data.federation import Federation
from fedveil.methods.recipes.values import build
from fedveil.privacy import ledger_anchor
from fedveil_federation import client_events
from fedveil_federation.deploy import certificates
from fedveil_federation.deploy.agreement import Agreement, Members
from fedveil_federation.deploy.certificates import Pair
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.secagg.device_store import DeviceStore, Lock
from fedveil_federation.secagg.keys import DeviceKeys

_LONGEST_SOCKET = 107  # bytes; the system takes 108 with the zero at the end
T = TypeVar("T")
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
                _write_bundle(path, site, agreement, authority)
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

    def invite(self, site: str) -> Path:
        """Write another bundle for a site that has not joined yet; the one before is void."""
        self._check_site(site)
        if self.members is not None:
            raise ConfigError(
                f"site {site!r}: the members' list has its key. Found a new federation for another."
            )
        self._next_of(site).unlink(missing_ok=True)
        return _write_bundle(self.path, site, self.agreement, self.authority)

    def site_keys(self) -> dict[str, list[str]]:
        """Return the keys of certificates by which each site is known now."""
        places = {site: (self._of_site(site), self._next_of(site)) for site in self.agreement.sites}
        return {
            site: [certificates.key_of(read_text(path)) for path in paths if path.exists()]
            for site, paths in places.items()
            if site not in self.revoked
        }

    def certify(self, site: str, public: str) -> str:
        """Return a certificate for a key of the site's own, which counts from now on."""
        fresh = certificates.certified(self.authority, site, public)
        path = self._next_of(site)
        if not path.exists() or certificates.key_of(read_text(path)) != certificates.key_of(fresh):
            keep_secret(path, fresh)
        return read_text(path)

    def spend_bundle(self, site: str) -> None:
        """Know a site by the key of its own alone, once it has come with it."""
        if (path := self._next_of(site)).exists():
            path.replace(self._of_site(site))
            (self.path / "bundles" / f"{site}.bundle").unlink(missing_ok=True)

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

    def _next_of(self, site: str) -> Path:
        return self.path / "bundles" / f"{site}.next.crt"


def _write_bundle(path: Path, site: str, agreement: Agreement, authority: Pair) -> Path:
    """Write what a site gets to join, with a key that counts until it has come with it."""
    pair = certificates.new_pair(authority, site, days=certificates.BUNDLE_DAYS)
    bundle = Bundle(site, agreement, pair, authority.certificate)
    place = path / "bundles" / f"{site}.bundle"
    keep_secret(place.with_suffix(".crt"), pair.certificate)
    keep_secret(place, tomli_w.dumps(bundle.to_table()))
    return place


@dataclass(frozen=True)
class Bundle:
    """The files with which a site joins: the agreement, and a certificate with its key."""

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
            self.person_column: str | None = table.get("person_column")
            self.agreement = Agreement.of(table["federation"])
            # Whose ledger is charged, and where the key lies that its secrets are encrypted under.
            self.ledger = Path(table.get("ledger", self.path))
            self.key = Path(table.get("key", self.ledger / "store.key"))
        except (KeyError, TypeError):
            raise damaged(self.path / "site.toml") from None
        if self.site not in self.agreement.sites:
            raise damaged(self.path / "site.toml")

    @staticmethod
    def create(
        path: Path,
        bundle: Bundle,
        data: Path,
        policy: Path,
        *,
        person_column: str | None = None,
        ledger: SiteHome | None = None,
        key: Path | None = None,
    ) -> SiteHome:
        """Join: a store with the lifetime's budget, and keys that never leave.

        Args:
            path: a new directory.
            bundle: what the hub has sent.
            data: the owner's rows.
            policy: the owner's rules.
            person_column: the column of the rows that says which person each is of.
            ledger: the site of another federation that trains on the same rows, whose ledger is
                charged for this one too.
            key: a file for the key that the store's secrets are encrypted under, made if it is not
                there; without it one in the directory.

        Raises:
            ConfigError: the rows are charged to another ledger already, or the policy does not fit.
        """
        rules = Policy.read(policy)
        rules.check_hub(bundle.agreement.hub)
        rows = DataNotes(data)
        rows.check(None if ledger is None else ledger.ledger)
        named = {"site": bundle.site, "data": str(data.absolute()), "authority": bundle.authority}
        if person_column is not None:
            named["person_column"] = person_column
        if ledger is not None:
            ledger.check_name(bundle.agreement)
            named |= {"ledger": str(ledger.ledger), "key": str(ledger.key)}
        elif key is not None:
            named["key"] = str(key.absolute())
        table = {**named, "federation": bundle.agreement.to_table()}
        with _new_directory(path):
            keep_secret(path / "policy.toml", policy.read_text(encoding="utf-8"))
            keep_pair(path, "site", bundle.pair)
            keep_secret(path / "own.pem", certificates.new_key())
            keep_secret(path / "site.toml", tomli_w.dumps(table))
            home = SiteHome(path)
            if ledger is None:
                if not home.key.exists():
                    keep_secret(home.key, secrets.token_hex(32))
                create_store(home.store_path, rules, home.lock_of_store)
            home.keys(home.store())
            rows.keep(home.ledger)
        return home

    def rows(self) -> Federation:
        """This owner's rows, with their persons where a column names them."""
        return self.agreement.rows(self.data, self.person_column)

    @property
    def store_path(self) -> Path:
        return self.ledger / "store.db"

    @property
    def lock_of_store(self) -> Lock:
        return Lock.key_file(self.key)

    def check_name(self, agreement: Agreement) -> None:
        """Refuse a second federation of one name on one ledger: keys and rounds go by the name.

        The same federation may be joined again, with the keys that are in the store.
        """
        taken = f"fedveil/{agreement.name}" in self._federations()
        if taken and self.agreement.digest != agreement.digest:
            raise ConfigError(
                f"--ledger {self.ledger}: has another federation {agreement.name!r}. Found this "
                "one under a name of its own."
            )

    def _federations(self) -> list[str]:
        with client_events.transaction(self.store_path) as events:
            found = events.database.execute("SELECT federation FROM keys").fetchall()
        return [name for (name,) in found]

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
        """By which the hub knows this site: for a key of its own, or the bundle's before that."""
        return read_pair(self.path, "own" if (self.path / "own.crt").exists() else "site")

    @property
    def uncertified_key(self) -> str:
        """The public part of a key that was made here and has no certificate yet, if any (PEM)."""
        if (self.path / "own.crt").exists() or not (self.path / "own.pem").exists():
            return ""
        return certificates.public_part(read_text(self.path / "own.pem"))

    def take_certificate(self, text: str) -> bool:
        """Keep a certificate for a key that is here, unless the one in use lasts as long.

        Returns:
            Whether it was kept.

        Raises:
            ConfigError: it is another authority's, another site's or for another key.
        """
        own = read_text(self.path / "own.pem") if self.uncertified_key else ""
        if own and certificates.is_for(text, own):
            certificates.check(text, self.authority, self.site, own)
            keep_secret(self.path / "own.crt", text)
            for kind in ("crt", "pem"):  # the bundle's
                (self.path / f"site.{kind}").unlink(missing_ok=True)
            return True
        old, name = self.certificate, "own" if (self.path / "own.crt").exists() else "site"
        certificates.check(text, self.authority, self.site, old.key)
        if certificates.end_of(text) <= certificates.end_of(old.certificate):
            return False
        keep_secret(self.path / f"{name}.crt", text)
        return True

    def store(self) -> DeviceStore:
        """The store; a lifetime's budget that the policy has lowered is lowered in it.

        Raises:
            ConfigError: the policy says more of the lifetime than the ledger was made for.
        """
        found = DeviceStore(self.store_path, self.lock_of_store)
        rules = self.policy
        allowed, ledger = rules.lifetime, found.ledger
        less: list[tuple[str, object, object]] = []
        if allowed.delta < ledger.delta:
            less.append(("delta", allowed.delta, ledger.delta))
        adjacencies = (rules.lifetime_adjacency, ledger.adjacency)
        if adjacencies == (Adjacency.REPLACE, Adjacency.ZERO_OUT):
            less.append(("adjacency", *adjacencies))
        for key, said, made_for in less:
            raise ConfigError(
                f"policy: lifetime.{key} = {said}: the ledger of {self.ledger} was made for "
                f"{made_for}, and promises no more. Write that."
            )
        kept = ledger.budget_epsilon
        exhausted = kept == client_events.EXHAUSTED
        if allowed.epsilon is not None and allowed.epsilon != kept and not exhausted:
            found.ledger = _reopened(found, allowed.epsilon)
        return found

    def check_anchor(self) -> None:
        """Refuse to go on where an older copy of the ledger would not be noticed."""
        client_events.check_anchor(self.store_path)

    def restore(self, exhaust: bool) -> int:
        """Bring a store that was put back from a backup up to date.

        What was spent since is charged, and what was begun counts as spent. The key for masks is
        renewed: the old one may have been used further than the backup knows.

        Args:
            exhaust: allow nothing any more, where nobody knows what was spent since.

        Returns:
            How many events of the ledger it lacked.
        """
        if self.ledger != self.path:
            raise ConfigError(f"restore: the ledger is that of {self.ledger}. Restore it there.")
        path, missing = self.store_path, 0
        if exhaust:
            client_events.exhaust(path)
        else:
            missing = client_events.restore(path)
        store = DeviceStore(path, self.lock_of_store)
        for federation in self._federations():
            store.renew(federation)
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

    def keep_plan(self, run: str, plan: bytes, called: str) -> None:
        """Remember what a run of the ledger was about, when it began and how the hub calls it."""
        path = self.ledger / "plans" / f"{run}.json"
        if not path.exists():  # a site that was started again begins the run once more
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_json(path, {**json.loads(plan), "called": called, "begun": now()})

    def plan(self, run: str) -> dict[str, Any] | None:
        """None if it cannot be read: what was spent is in the store."""
        with suppress(ConfigError, OSError):
            return read_json(self.ledger / "plans" / f"{run}.json")
        return None

    def charged_within(self, seconds: float) -> bool:
        """Return whether the ledger was charged for a run so short a time ago."""
        begun = (self.ledger / "plans").is_dir()
        return begun and time.time() - self.store_path.stat().st_mtime < seconds

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
        """For good: the key that opened others' shares is replaced, the lifetime's ledger stays."""
        (self.path / "left").touch(mode=0o600)
        store = DeviceStore(self.store_path, self.lock_of_store)  # whatever the policy is
        store.renew(f"fedveil/{self.agreement.name}")


def lifetime_spent(store: DeviceStore, anew: bool = True) -> float | None:
    """Return the lifetime's epsilon so far, worked out again only when something was charged.

    It is kept in a file, for a site that waits does without the accountants' memory.

    Args:
        store: the site's.
        anew: whether to work it out if that was not done yet; None is returned otherwise.
    """
    ledger, path = store.ledger, store.path.with_name("spent.json")
    about = {"charges": ledger.charges, "version": version("fedveil")}
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = read_json(path)
        if about == {name: kept[name] for name in about}:
            return float(kept["epsilon"])
    if not anew:
        return None
    spent = ledger.spent()
    with suppress(OSError):
        write_json(path, {**about, "epsilon": spent})
    return spent


def create_store(path: Path, rules: Policy, lock: Lock) -> None:
    """A store for what a policy allows, over a lifetime."""
    if rules.lifetime.epsilon is None:
        raise ConfigError("policy: say what all runs together may cost: [lifetime], epsilon = ...")
    DeviceStore.create(
        path,
        lock,
        budget_epsilon=rules.lifetime.epsilon,
        delta=rules.lifetime.delta,
        unit=rules.lifetime_unit,
        adjacency=rules.lifetime_adjacency,
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


class DataNotes:
    """Which ledger rows are charged to: notes with the user's state, beside those of ledgers.

    Two ledgers for the same rows would each allow a whole lifetime's budget. Rows are known by
    their place, and a file by its content too; who copies and edits them is not noticed.

    Args:
        data: the rows' file or folder.
    """

    def __init__(self, data: Path) -> None:
        names = [os.fsencode(data.resolve())]
        if data.is_file():
            with data.open("rb") as file:
                names.append(hashlib.file_digest(file, "sha256").digest())
        try:
            folder = ledger_anchor.place_of("0" * 32).parents[1] / "rows"
        except RuntimeError as error:
            raise ConfigError(f"notes about rows: {error}. Set XDG_STATE_HOME.") from None
        self._data = data
        self._places = [folder / hashlib.sha256(name).hexdigest() for name in names]

    def check(self, ledger: Path | None) -> None:
        """Refuse rows that are charged to another ledger than this one.

        Raises:
            ConfigError: names the directory of the ledger.
        """
        for place in self._places:
            kept = Path(read_text(place)) if place.exists() else None
            if kept is not None and kept != ledger and (kept / "store.db").exists():
                raise ConfigError(
                    f"--data {self._data}: these rows are charged to the ledger of {kept}. Join "
                    f"with --ledger {kept}, so that one lifetime's budget covers both federations."
                )

    def keep(self, ledger: Path) -> None:
        for place in self._places:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            keep_secret(place, str(ledger))


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


def now() -> str:
    """Return the time as people read it, in UTC."""
    return datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00")


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


def read_as(kind: type[T], path: Path) -> T:
    """A dataclass whose fields `write_json` wrote."""
    try:
        said = {name: one for name, one in read_json(path).items() if one is not None}
        found: T = build(kind, said, "")
        return found
    except (ConfigError, TypeError):
        raise damaged(path) from None


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
