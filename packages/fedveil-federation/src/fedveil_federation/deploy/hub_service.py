"""The hub's process: brings the sites together, then carries out the runs in its queue.

A run that is in the queue is carried on until it has ended, however often the process ends.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.core.units import Unit
from fedveil.planning import recipe as recipes
from fedveil.planning.recipe import Recipe
from fedveil.run.run import Run
from fedveil_federation.deploy import certificates, delivery
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.certificates import Pair
from fedveil_federation.deploy.courier import Courier, Unreachable
from fedveil_federation.deploy.envelope import BadFrame, Message, claimed, plain, seal, unseal
from fedveil_federation.deploy.facts import Facts, plan_digest
from fedveil_federation.deploy.hub import (
    DOCUMENT,
    MOST_LOST,
    Hub,
    Known,
    OwnersAsked,
    RemoteAggregator,
    RoundsLost,
    SitesAway,
)
from fedveil_federation.deploy.logs import Counters
from fedveil_federation.deploy.plan_document import PlanDocument, planned
from fedveil_federation.deploy.schemas import TableSchema
from fedveil_federation.deploy.scoring import Scoring, figures
from fedveil_federation.deploy.sockets import SocketCourier
from fedveil_federation.deploy.state_dirs import (
    HubHome,
    damaged,
    keep_pair,
    keep_secret,
    now,
    read_as,
    read_json,
    read_text,
    write_json,
)
from fedveil_federation.deploy.statistics import Statistics
from fedveil_federation.secagg.server import Deadlines

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")
_HELLO = 4.0  # seconds: what is asked before the other side is ready hangs until then
_MEET, _SETTLED = 2.0, 30.0  # seconds between two rounds of hellos, before and after all agree
_OWNERS = 60.0  # seconds until owners are asked again; a site looks at a hundred plans an hour
_SLICE = 0.5  # seconds between two looks whether a run that waits is to stop
_QUEUED, _ENDED, _STOP, _WAITING = ".job.json", ".ended.json", ".stop", ".waiting"

EVALUATION, STATISTICS = "federated-evaluation.json", "statistics.json"
DELIVERED = "delivered.json"  # when each site had got all of a finished run

Finish = Callable[[Run, Recipe], None]  # writes model, result and report


@dataclass(frozen=True)
class HubJob:
    """A run that was asked for, or the evaluation of one."""

    name: str
    recipe: Mapping[str, Any]
    test: str | None = None  # a file of public test rows
    evaluate: str | None = None  # a run whose model sites are to evaluate
    noise: float = 10.0  # std on every count of that
    statistics: float = 0.0  # the epsilon that statistics of all columns may cost
    delta: float = 1e-6
    colluders: int = 0  # of the sums that count
    most_lost: int = MOST_LOST  # rounds in a row that release nothing, until it stops


class Queue:
    """Files in the hub's directory: asked for, ended, to be stopped."""

    def __init__(self, home: HubHome) -> None:
        self._home = home

    def put(self, job: HubJob) -> None:
        if self._known(job.name) or (self._home.runs / job.name).exists():
            raise ConfigError(f"run {job.name!r}: exists already; choose another name")
        write_json(self._place(job.name, _QUEUED), vars(job))

    def _known(self, name: str) -> bool:
        return any(self._place(name, kind).exists() for kind in (_QUEUED, _ENDED))

    def next(self) -> HubJob | None:
        """The oldest that has not ended."""
        names = self.names()
        return read_as(HubJob, self._place(names[0], _QUEUED)) if names else None

    def names(self) -> list[str]:
        """Return the jobs that have not ended, oldest first."""
        waiting = sorted(self._home.queue.glob(f"*{_QUEUED}"), key=lambda one: one.stat().st_mtime)
        return [path.name.removesuffix(_QUEUED) for path in waiting]

    def stop(self, name: str) -> None:
        if not self._place(name, _QUEUED).exists():
            raise ConfigError(f"run {name!r}: not in the queue")
        self._place(name, _STOP).touch()

    def stopping(self, name: str) -> bool:
        return self._place(name, _STOP).exists()

    def wait(self, name: str, reason: str) -> None:
        """Say why a run has not begun yet."""
        keep_secret(self._place(name, _WAITING), reason)

    def waiting(self, name: str) -> str:
        path = self._place(name, _WAITING)
        return read_text(path) if path.exists() else ""

    def end(self, job: HubJob, outcome: str, reason: str = "") -> None:
        name, ended = job.name, {"outcome": outcome, "reason": reason}
        write_json(self._place(name, _ENDED), {**ended, "job": vars(job)})
        for kind in (_QUEUED, _STOP, _WAITING):
            self._place(name, kind).unlink(missing_ok=True)

    def ended(self, name: str) -> dict[str, str] | None:
        """Outcome (done, stopped, refused, failed) and reason; None for a run that goes on."""
        found = self._read(name)
        return None if found is None else {key: str(found[key]) for key in ("outcome", "reason")}

    def again(self, name: str) -> None:
        """Go on with a run that was stopped or has failed, or ask again for a refused one."""
        found = self._read(name)
        if found is None or found["outcome"] == "done":
            raise ConfigError(f"run {name!r}: neither stopped, nor refused, nor failed")
        write_json(self._place(name, _QUEUED), found["job"])
        self._place(name, _ENDED).unlink()

    def test_of(self, name: str) -> str | None:
        """The test rows of a run that has ended."""
        found = self._read(name)
        if found is None:
            raise ConfigError(f"run {name!r}: it has not ended")
        test: str | None = found["job"]["test"]
        return test

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._place(name, _ENDED)
        if not path.exists():
            return None
        found = read_json(path)
        if not {"outcome", "reason", "job"} <= found.keys():
            raise damaged(path)
        return found

    def _place(self, name: str, kind: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"run {name!r}: use letters, digits, points and hyphens")
        return self._home.queue / f"{name}{kind}"


class HubService:
    """Carries out a hub's runs: call `step` again and again.

    Args:
        home: the hub's directory.
        courier: reaches the sites.
        finish: writes what a run has ended with.
        waits: how long sites have in each phase of a round.
        metrics: a directory for counters that node_exporter can read.
    """

    def __init__(
        self,
        home: HubHome,
        courier: Courier,
        finish: Finish,
        waits: Deadlines | None = None,
        metrics: Path | None = None,
    ) -> None:
        shown = [] if metrics is None else [metrics / f"fedveil_hub_{home.agreement.name}.prom"]
        self._metrics = (home.path / "metrics.prom", *shown)
        self.home, self.courier, self.queue = home, courier, Queue(home)
        self.counters = Counters("fedveil_hub")
        self._finish, self._waits, self._key = finish, waits, home.key
        own, authority = home.certificate, home.authority.certificate
        certificates.check(own.certificate, authority, home.agreement.host, own.key)
        self._identities: dict[str, bytes] = {}
        self._next_meeting = 0.0
        self._not_before: defaultdict[str, float] = defaultdict(float)  # by run: to be asked again
        self._pause = threading.Event()  # never set
        self.tend: Callable[[], None] = lambda: None  # is called now and then during a run

    def welcome(self) -> None:
        """The process is up."""
        about = {"federation": self.home.agreement.name}
        _log.info("started at %s", self.home.agreement.address, extra={"about": about})

    def step(self) -> bool:
        """Do one thing, if there is one to do; return whether there was."""
        self._meet_if_due()
        members, job = self.home.members, self.queue.next()
        if members is None or job is None or time.monotonic() < self._not_before[job.name]:
            return False
        try:
            outcome = self._carry_out(job, members)
        except SitesAway as away:  # the run stays in the queue
            self.queue.wait(job.name, str(away.reason))
            if isinstance(away, OwnersAsked):  # whose sites look at each plan anew
                self._not_before[job.name] = time.monotonic() + _OWNERS
        except RoundsLost as lost:  # the rest of its rounds is kept
            _log.warning("run: stopped: %s", lost, extra={"about": {"run": job.name}})
            self.queue.end(job, "stopped", str(lost))
        except (FedveilError, OSError) as error:
            outcome = "failed" if (self.home.runs / job.name).exists() else "refused"
            _log.warning("run: %s: %s", outcome, error, extra={"about": {"run": job.name}})
            self.queue.end(job, outcome, str(error))
        else:
            _log.info("run: %s", outcome, extra={"about": {"run": job.name}})
            self.queue.end(job, outcome)
        return True

    def _meet_if_due(self) -> None:
        if time.monotonic() > self._next_meeting:
            settled = self._meet()
            self._next_meeting = time.monotonic() + (_SETTLED if settled else _MEET)

    def hellos(self) -> dict[str, Message | str]:
        """Return each site's description of itself, or a word on why there is none."""
        frame = seal(Message({"kind": "hello"}), self._key)
        found = self.courier.ask(dict.fromkeys(self.home.agreement.sites, frame), _HELLO)
        return {site: self._introduced(site, frame, reply) for site, reply in found.items()}

    def _introduced(self, site: str, frame: bytes, reply: bytes | Unreachable) -> Message | str:
        if isinstance(reply, Unreachable):
            return "away"
        members = self.home.members
        try:
            said = claimed(reply)
            known = None if members is None else members.sites[site]
            identity = known or bytes.fromhex(said.text("identity"))
            return unseal(reply, [identity], frame)
        except (BadFrame, ValueError) as error:
            return f"not believed: {error}"

    def _meet(self) -> bool:
        """Collect the sites' keys, show everybody the list, renew certificates in time.

        Returns whether all sites are there and have confirmed the list.
        """
        said = {site: one for site, one in self.hellos().items() if isinstance(one, Message)}
        self.counters.set("sites_present", len(said))
        members = self.home.members
        if members is None:
            for site, one in said.items():
                self._identities[site] = bytes.fromhex(one.text("identity"))
            sites = self.home.agreement.sites
            if len(self._identities) == len(sites):
                members = self._listed({site: self._identities[site] for site in sites})
        for site, one in said.items():
            if members is not None and not one.header.get("trusts"):
                self._tell(site, Message({"kind": "members"}, (members.to_text().encode(),)))
            self._certify(site, one.header.get("public"))
        own = self.home.certificate
        if certificates.days_left(own.certificate) < certificates.RENEW_DAYS:
            host = self.home.agreement.host
            fresh = certificates.renewed(self.home.authority, own.certificate, host)
            keep_pair(self.home.path, "hub", Pair(fresh, own.key))
        self.counters.write(*self._metrics)
        trusting = [site for site, one in said.items() if one.header.get("trusts")]
        self._deliver(trusting)
        return len(trusting) == len(self.home.agreement.sites)

    def _listed(self, identities: dict[str, bytes]) -> Members:
        agreement = self.home.agreement
        hub = bytes.fromhex(agreement.hub)
        members = Members(agreement.name, hub, identities, agreement.digest)
        self.home.keep_members(members)
        _log.info("all sites have joined: members %s", members.fingerprint)
        return members

    def _certify(self, site: str, public: object) -> None:
        """Give a site a certificate for a key that it has made itself, and another one in time.

        The key of its bundle, which has travelled, counts until it has come with its own.

        Args:
            site: by name.
            public: the public part of a key without a certificate, as the site says.
        """
        if isinstance(public, str) and public:
            try:
                fresh = self.home.certify(site, public)
            except ConfigError as error:
                _log.warning("%s: %s", site, error)
                return
            self.tend()  # the courier has to know the key before the site comes with it
            self._tell(site, Message({"kind": "certificate"}, (fresh.encode(),)))
            return
        self.home.spend_bundle(site)
        old = self.home.site_certificate(site)
        if certificates.days_left(old) < certificates.RENEW_DAYS:
            fresh = certificates.renewed(self.home.authority, old)
            told = self._tell(site, Message({"kind": "certificate"}, (fresh.encode(),)))
            if told is not None:
                self.home.keep_site_certificate(site, fresh)

    def _deliver(self, sites: Collection[str]) -> None:
        """Send finished runs to those sites that do not have them yet."""
        for path in sorted(self.home.runs.iterdir()):
            if not ((path / DOCUMENT).exists() and (path / "result.json").exists()):
                continue
            run = plan_digest((path / DOCUMENT).read_bytes())
            kept = read_json(path / DELIVERED) if (path / DELIVERED).exists() else {}
            for site in sorted(set(sites) - kept.keys()):
                if delivery.send(path, run, partial(self._tell, site)):
                    kept[site] = now()
                    write_json(path / DELIVERED, kept)
                    about = {"run": path.name, "site": site}
                    _log.info("model and report delivered", extra={"about": about})

    def _tell(self, site: str, message: Message) -> Message | None:
        """Return a member's reply; None if it has not done what it was told."""
        frame = seal(message, self._key)
        reply = self._introduced(site, frame, self.courier.ask({site: frame}, _HELLO)[site])
        if isinstance(reply, str):
            return None
        if reply.header.get("status") != "done":
            reason = plain(reply.header.get("reason"))
            _log.warning("%s refuses (%s): %s", site, message.text("kind"), reason)
            return None
        return reply

    # --- runs -------------------------------------------------------------------------------------

    def _carry_out(self, job: HubJob, members: Members) -> str:
        """Start a run, or go on with it, to its end; how it ended."""
        if recipes.parse(job.recipe).evaluation.baseline:
            raise ConfigError("evaluation.baseline: nobody trains without noise across machines")
        if job.statistics:
            return self._statistics(job, members)
        if job.evaluate is not None:
            return self._evaluate(job, members, self.home.runs / job.evaluate)
        recipe = recipes.with_defaults(recipes.parse(job.recipe))
        hub = self._hub(members)
        hub.stopping = lambda: self.queue.stopping(job.name)
        output, known = self.home.runs / job.name, self._known(job.test)
        if (revoked := self.home.revoked) and not (output / DOCUMENT).exists():
            raise ConfigError(
                f"site {', '.join(sorted(revoked))} was revoked, and a new run needs every site of "
                "the members' list. Found a new federation without it."
            )
        if output.exists() and not (output / DOCUMENT).exists():
            shutil.rmtree(output)  # the hub ended before any site was asked for a round
        if output.exists():
            run = hub.resume(output, known)
        else:
            run = hub.start(recipe, self._facts(hub, recipe), output, known)
        self.queue.wait(job.name, "")

        def wait(reason: str, seconds: float) -> bool:
            """Say for whom the run waits, and meet the sites meanwhile.

            End early if told to, and as soon as a site that was away has connected.
            """
            _log.warning("run: waits for %s", reason, extra={"about": {"run": job.name}})
            self.queue.wait(job.name, reason)
            until, away = time.monotonic() + seconds, set(members.names) - self._connected()
            while not self.queue.stopping(job.name) and time.monotonic() < until:
                self.tend()
                self._meet_if_due()
                self._pause.wait(min(_SLICE, max(0.0, until - time.monotonic())))
                if away & self._connected():
                    break
            return not self.queue.stopping(job.name)

        try:
            for report in hub.rounds(run, wait, job.most_lost):
                self.queue.wait(job.name, "")
                lost = report.dropouts is not None and report.dropouts.not_released
                self.counters.add("rounds", released="no" if lost else "yes")
                if isinstance(run.aggregator, RemoteAggregator):
                    for number in run.aggregator.shared:
                        self.counters.add("rounds_shared", site=members.names[number])
                about = {"run": job.name, "round": report.round_number}
                _log.info("round: %s", lost or "released", extra={"about": about})
                self.counters.write(*self._metrics)
                self.tend()
                if self.queue.stopping(job.name):
                    break
            run.close()
            if run.rounds_left:
                return "stopped"
            self._finish(run, recipe)
            return "done"
        finally:
            if run.directory is not None:
                run.directory.close()

    def _evaluate(self, job: HubJob, members: Members, path: Path) -> str:
        """A finished run's model, on rows that sites hold out; kept beside it."""
        hub = self._hub(members)
        if not (path / DOCUMENT).exists():
            raise ConfigError(f"run {job.evaluate!r}: there is none")
        document = PlanDocument.from_bytes((path / DOCUMENT).read_bytes())
        run = hub.resume(path, self._known(self.queue.test_of(str(job.evaluate))))
        try:
            weights, model = run.weights, document.recipe["model"]
        finally:
            if run.directory is not None:
                run.directory.close()
        facts = self._records(hub)
        scoring, schema = (
            Scoring(facts, job.noise, document.delta, job.colluders),
            self.home.agreement.schema,
        )
        table, guarantee = hub.table(scoring, {"model": model}, job.name, weights)
        found = figures(scoring, table, schema.unit, schema.classes)
        said = {**guarantee.to_dict(), "statement": guarantee.statement}
        write_json(path / EVALUATION, {**found, "guarantee": said})
        return "done"

    def _statistics(self, job: HubJob, members: Members) -> str:
        """How the values of each column are spread over all sites."""
        hub, schema = self._hub(members), self.home.agreement.schema
        encoder = schema.encoder if isinstance(schema, TableSchema) else None
        asked = Statistics.about(self._records(hub), 1.0, job.delta, job.colluders, encoder)
        asked = asked.within(job.statistics)
        table, guarantee = hub.table(asked, {}, job.name)
        said = {**guarantee.to_dict(), "statement": guarantee.statement}
        (self.home.runs / job.name).mkdir(mode=0o700)
        document = {**asked.described(table, schema.classes), "guarantee": said}
        write_json(self.home.runs / job.name / STATISTICS, document)
        return "done"

    def _connected(self) -> set[str]:
        """Return the sites whose couriers are connected; none while this hub's own is not there."""
        try:
            return set(self.courier.sites())
        except Unreachable:
            return set()

    def _hub(self, members: Members) -> Hub:
        return Hub(members, self._key, self.courier, self.home.path, self._waits)

    def _records(self, hub: Hub) -> Facts:
        facts = self._told_facts(hub, Unit.RECORD)
        if facts is None:
            raise ConfigError("counts of records: need sites whose policies protect records")
        return facts

    def _known(self, test: str | None) -> Known:
        """Return the hub's view of the federation, with public test rows from a file."""
        agreement = self.home.agreement
        rows = None if test is None else agreement.public_rows(Path(test))
        return lambda facts: agreement.at_hub(facts.sizes, rows)

    def _told_facts(self, hub: Hub, unit: Unit) -> Facts | None:
        """The agreement with the sites' numbers of records or persons, if all of them tell."""
        told = (one.header.get(f"{unit}s") for one in hub.hellos())
        sizes = tuple(size for size in told if type(size) is int and 0 < size < 2**32)
        agreement = self.home.agreement
        return agreement.facts(sizes) if len(sizes) == len(agreement.sites) else None

    def _facts(self, hub: Hub, recipe: Recipe) -> Facts:
        """The sites' numbers of records, or of persons, are stated where these are protected."""
        if recipe.privacy.unit == Unit.PERSON:
            told = self._told_facts(hub, Unit.PERSON)
            if told is None:
                raise ConfigError(
                    "privacy.unit: a site does not say how many persons it has. Every site joins "
                    'with --person-column, and its policy names "person" (allow.units).'
                )
            return told
        told = self._told_facts(hub, Unit.RECORD)
        if told is not None:
            model = planned(recipe, told.federation()).privacy_model
            if model is not None and model.unit is Unit.RECORD:
                return told
        return self.home.agreement.facts((1,) * len(self.home.agreement.sites))


def status_of(home: HubHome) -> dict[str, Any]:
    """Who is there, as each site shows itself now."""
    service = HubService(home, SocketCourier(home.socket, home.courier), lambda run, recipe: None)
    said, members = service.hellos(), home.members
    return {
        "name": home.agreement.name,
        "hub": home.agreement.address,
        "running": home.running,
        "members": None if members is None else members.fingerprint,
        "sites": [_site_status(home, site, said[site]) for site in home.agreement.sites],
        "queue": service.queue.names(),
    }


def _site_status(home: HubHome, site: str, said: Message | str) -> dict[str, Any]:
    header = said.header if isinstance(said, Message) else {}
    figures = {name: header.get(name) for name in ("records", "persons", "epsilon", "spent")}
    return {
        "site": site,
        "state": said if isinstance(said, str) else plain(header.get("stopped")) or "ready",
        "trusts": plain(header.get("trusts")),
        "version": plain(header.get("version")),
        **{name: one if _figure(one) else None for name, one in figures.items()},
        "certificate_days": round(certificates.days_left(home.site_certificate(site)), 1),
    }


def _figure(said: object) -> bool:
    """Whether what a site says is a number that can be shown."""
    return type(said) in (int, float) and 0 <= said < 2**53  # type: ignore[operator]
