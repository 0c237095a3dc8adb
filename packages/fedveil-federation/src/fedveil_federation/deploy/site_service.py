"""A site's process: answers the hub for its owner, from the first hello to the last round."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil_federation.deploy import certificates, delivery
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.approvals import Approvals
from fedveil_federation.deploy.envelope import Message
from fedveil_federation.deploy.guard import Applicant, Guard, Responder
from fedveil_federation.deploy.state_dirs import DataNotes, SiteHome, lifetime_spent

_log = logging.getLogger(__name__)

_COUNTERS = 1.0  # seconds between two files of counters
_SPENT = 60.0  # seconds between two looks at what was spent, which takes a moment


class SiteService:
    """Answers for one site: `answer` is what a courier attaches.

    Args:
        home: the site's directory.
        randomness: for tests alone.
        metrics: a directory for counters that node_exporter can read.
        read: reads the owner's rows.
    """

    def __init__(
        self,
        home: SiteHome,
        randomness: Randomness | None = None,
        metrics: Path | None = None,
        read: Callable[[SiteHome], Federation] = SiteHome.rows,
    ) -> None:
        self.home, self._randomness, self._read = home, randomness, read
        self._lock, self._written, self._accounted = threading.Lock(), 0.0, -math.inf
        shown = [] if metrics is None else [metrics / f"fedveil_site_{home.site}.prom"]
        self._counters = (home.path / "metrics.prom", *shown)
        self.heard = False  # anything from the hub
        own = home.certificate
        certificates.check(own.certificate, home.authority, home.site, own.key)
        home.check_anchor()
        self._store = home.store()
        DataNotes(home.data).keep(home.ledger)  # it may have been moved, and rows been added
        self._handlers = {
            "members": self._proposed,
            "certificate": self._renewed,
            "deliver": lambda request: delivery.receive(home, request),
        }
        agreement = home.agreement
        hub, keys = bytes.fromhex(agreement.hub), home.keys(self._store)
        self._responder: Responder = Applicant(hub, keys, self._handlers)
        if home.members is not None:  # what is wrong is said at the start
            self._responder = self._guard(home.members)

    def welcome(self) -> None:
        """The process is up."""
        about = {"site": self.home.site, "federation": self.home.agreement.name}
        _log.info("started; the hub is at %s", self.home.agreement.address, extra={"about": about})
        if certificates.days_left(self.home.certificate.certificate) < 0:
            _log.error(
                "the certificate has expired, and the hub does not let this site in: ask there for "
                "another (fedveil federation renew %s)",
                self.home.site,
            )

    def complain(self) -> None:
        """Nothing has come from the hub."""
        hub = self.home.agreement.address
        _log.warning("no word from the hub at %s yet; see the courier's log", hub)

    def answer(self, frame: bytes) -> bytes:
        if not self.heard:
            self.heard = True
            _log.info("the hub is there")
        responder = self._confirmed()
        responder.uncertified_key = self.home.uncertified_key
        reply = responder.answer(frame)
        if monotonic() - self._written > _COUNTERS:
            self._write_counters()
        return reply

    def _write_counters(self) -> None:
        """Write the counters that this owner may watch, and nobody else."""
        self._written = monotonic()
        counters, ledger = self._responder.counters, self._store.ledger
        counters.set("lifetime_epsilon_budget", ledger.budget_epsilon)
        if isinstance(self._responder, Guard) and monotonic() - self._accounted > _SPENT:
            self._accounted = monotonic()
            spent = lifetime_spent(self._store, anew=self._responder.worked)
            if spent is not None:
                counters.set("lifetime_epsilon_spent", spent)
        counters.set(
            "certificate_days_left", certificates.days_left(self.home.certificate.certificate)
        )
        counters.write(*self._counters)

    def rested(self, seconds: float) -> bool:
        """Whether this process holds memory for runs that nobody has asked about for so long."""
        return isinstance(self._responder, Guard) and self._responder.rested(seconds)

    def close(self) -> None:
        if isinstance(self._responder, Guard):
            self._responder.close()

    def _confirmed(self) -> Responder:
        """The guard, as soon as the owner has confirmed the members' list."""
        with self._lock:
            waiting = self._responder
            if isinstance(waiting, Applicant) and self.home.members is not None:
                try:
                    self._responder = self._guard(self.home.members)
                except (FedveilError, OSError) as error:  # the hub is not told what rows hold
                    waiting.waits_for = "it cannot read its rows or its policy"
                    _log.error("this site takes part in nothing: %s", error)
            return self._responder

    def _guard(self, members: Members) -> Guard:
        home = self.home
        self._check(members)
        data = self._read(home)
        return Guard(
            home.site,
            members,
            self._store,
            home.policy,
            data,
            randomness=self._randomness,
            stopped=lambda: home.stopped,
            handlers=self._handlers,
            keep_plan=home.keep_plan,
            approvals=Approvals.of(home) if home.policy.ask.approve else None,
        )

    def _check(self, members: Members) -> None:
        """Whether a list is about this federation, and has this site's own key in it."""
        agreement, keys = self.home.agreement, self._responder.keys
        own = keys.identity.public_key().public_bytes_raw()
        if members.agreement != agreement.digest or members.hub.hex() != agreement.hub:
            raise ConfigError("members: the list is about another agreement than this site's")
        if members.federation != agreement.name or members.names != agreement.sites:
            raise ConfigError("members: the list names other sites than the bundle")
        if members.sites[self.home.site] != own:
            raise ConfigError(f"members: the list has another key for {self.home.site!r}")

    def _proposed(self, request: Message) -> Message:
        """A members' list from the hub, for the owner to look at."""
        members = Members.of(request.part().decode())
        self._check(members)
        trusted = self.home.members
        if trusted is None and self.home.proposed != members:
            self.home.propose(members)
            _log.info("the hub proposes members %s: fedveil site trust", members.fingerprint)
        elif trusted is not None and trusted.fingerprint != members.fingerprint:
            raise ConfigError(f"members: this site trusts {trusted.fingerprint}, not another list")
        return Message({"status": "done"})

    def _renewed(self, request: Message) -> Message:
        """A certificate for another year, for the key that is here."""
        if self.home.take_certificate(request.part().decode("ascii")):
            _log.info("certificate renewed")
        return Message({"status": "done"})
