"""The hub: drives rounds over a courier, and keeps the same run directory as `fedveil run`.

A run across machines is a `Run` whose engine is the sites and whose aggregator is the server's side
of the secure sum. The hub holds nobody's data; public test examples are its own.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.files import write_atomically
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil.methods.parts.noise_placement import Drawn, RoundNoise
from fedveil.planning import recipe as recipes
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.noise.grid import unsnap
from fedveil.privacy.secure_sums.aggregation import COUNT, UPDATE, SecureSums
from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.privacy.secure_sums.errors import NotReleased, SecureAggregationError
from fedveil.run.aggregator import Aggregator, OpenSum, Summands
from fedveil.run.directory import RunDirectory, stored_recipe
from fedveil.run.round_report import RoundReport
from fedveil.run.run import Run
from fedveil.training.engines.contract import Cohort, RoundRequest
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.courier import Courier, Reply, Unreachable
from fedveil_federation.deploy.envelope import BadFrame, Message, plain, seal, unseal
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.plan_document import PlanDocument, planned, resolved, terms_at
from fedveil_federation.deploy.plausible import implausible
from fedveil_federation.deploy.scoring import CountSum, Scoring, Table
from fedveil_federation.deploy.work import scheduled
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.server import Deadlines, Phase, Server, ServerRound

_log = logging.getLogger(__name__)

DOCUMENT = "federation-plan.json"
ACCEPTED = "federation-signatures.json"  # of all sites under the plan
_ASK = 10.0  # seconds for one request; longer work is asked for again
_SLOWEST = 1 << 19  # bytes a second that a connection carries at least, there and back
_PAUSE = 0.1  # seconds until a site that is away is asked again
_HASHING = 4  # threads
_READY = 4.0  # seconds in which sites say whether they can take part
_BACK_OFF, _LONGEST_BACK_OFF = 1.0, 60.0  # seconds until sites are asked again whether they can
MOST_LOST = 5  # rounds in a row that release nothing, until a run stops

Known = Callable[[Facts], Federation]


class RoundsLost(PrivacyRefusal):
    """Rounds were paid for and released nothing, as many in a row as a run may lose."""


class SitesAway(PrivacyRefusal):
    """Some sites are silent and none refuses: ask again when they are there."""


class OwnersAsked(SitesAway):
    """None refuses, but some wait for their owner's yes: ask again later."""


class Sites:
    """The sites of one federation, as the hub reaches them. Numbers are those of the members."""

    def __init__(self, members: Members, key: Ed25519PrivateKey, courier: Courier) -> None:
        if key.public_key().public_bytes_raw() != members.hub:
            raise ConfigError("hub key: the members' list holds another one")
        self.members, self.key, self.courier = members, key, courier
        self.refusals: dict[str, str] = {}  # the last reason of each site that refused
        self.silent: set[str] = set()  # sites that did not answer when they were asked last
        self.waiting: set[str] = set()  # sites that wait for their owner's yes
        self._pause = threading.Event()  # never set
        self.introduce: Callable[[int], None] | None = None  # to a guard that was restarted

    def leg(self, asked: Mapping[int, Message], seconds: float) -> dict[int, Message]:
        """One request to each of these sites; replies of those who did what was asked in time.

        Requests may be repeated: a guard gives the same request the same answer.
        """
        until, names = monotonic() + seconds, self.members.names
        frames = self._sealed(asked)
        numbers = {names[number]: number for number in frames}
        waiting, replies, again = set(frames), dict[int, Message](), set[int]()

        def read(site: str, found: Reply) -> Message | None:
            return self._reply(site, frames[numbers[site]], found)

        while waiting and (left := until - monotonic()) > 0:
            wanted = {names[number]: frames[number] for number in sorted(waiting)}
            patience = _ASK + max(map(len, wanted.values())) / _SLOWEST
            said, working = self.courier.exchange(wanted, min(left, patience), read), False
            for site, reply in said.items():
                number = numbers[site]
                status = None if reply is None else reply.header.get("status")
                working = working or status == "working"
                if reply is None or status == "working":
                    continue
                if status == "unknown" and self.introduce is not None and number not in again:
                    again.add(number)
                    self.introduce(number)
                    continue
                waiting.discard(number)
                if status == "waits":
                    self.waiting.add(site)
                if status in ("refused", "waits"):
                    self.refusals[site] = plain(reply.header.get("reason"))
                elif status == "unknown":  # unless it has said why it does not take the plan
                    self.refusals.setdefault(site, plain(reply.header.get("reason")))
                else:
                    self.refusals.pop(site, None)
                    replies[number] = reply
            if waiting and not working:
                self._pause.wait(min(_PAUSE, max(0.0, until - monotonic())))
        return replies

    def _sealed(self, asked: Mapping[int, Message]) -> dict[int, bytes]:
        """Return the frame for each site; a message to several is signed once."""
        different = {id(message): message for message in asked.values()}
        # Most of its time goes into hashes of long messages, which need no lock of Python's.
        with ThreadPoolExecutor(_HASHING) as pool:
            frames = pool.map(lambda message: seal(message, self.key), different.values())
            sealed = dict(zip(different, frames, strict=True))
        return {number: sealed[id(message)] for number, message in asked.items()}

    def _reply(self, name: str, frame: bytes, found: Reply) -> Message | None:
        if found is None or isinstance(found, Unreachable):
            self.refusals[name] = str(found)
            self.silent.add(name)
            return None
        self.silent.discard(name)
        self.waiting.discard(name)
        try:
            return unseal(found, [self.members.sites[name]], frame)
        except BadFrame as error:  # cut off or changed on the way: ask again
            self.refusals[name] = str(error)
            return None

    @contextmanager
    def dropping(self, number: int) -> Iterator[None]:
        """Read a site's reply: one that is not what was asked for is no reply, and no more."""
        try:
            yield
        except NotReleased:  # the hub's own log is at fault, and the round over
            raise
        except (SecureAggregationError, BadFrame) as error:
            self.refusals[self.members.names[number]] = str(error)

    def everybody(self, message: Message, seconds: float) -> dict[int, Message]:
        """A leg to all sites; refused if one of them does not go along."""
        numbers = range(len(self.members.sites))
        replies = self.leg(dict.fromkeys(numbers, message), seconds)
        missing = [self.members.names[number] for number in numbers if number not in replies]
        if missing:
            who: dict[str, list[str]] = {}  # by what they say
            for name in missing:
                who.setdefault(self.refusals[name], []).append(name)
            said = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in who.items())
            kind: type[PrivacyRefusal] = PrivacyRefusal
            if (self.silent | self.waiting).issuperset(missing):
                kind = OwnersAsked if self.waiting.intersection(missing) else SitesAway
            raise kind(f"not every site takes part: {said}", "no round was run")
        return replies


@dataclass
class _RoundNow:
    """The state of the current round that the engine and the sums share."""

    number: int = -1
    purpose: str = UPDATE
    clip: float | None = None  # a tracked one, as it is in this round
    server: ServerRound | None = None


class RemoteAggregator(Aggregator):
    """The hub's side of each round's sum; without a secure one, of uploads in the open.

    Secure rounds are logged in `logs` before sites are told anything, so that a hub that ends in
    the middle of one goes on where it stood. `schedule` says who takes part in a round (from 0), if
    that is known beforehand: sites then join it while they unmask the one before, which saves a
    round trip. Once `stopping`, no more rounds are opened so early.
    """

    def __init__(
        self,
        document: PlanDocument,
        terms: Mapping[str, PrivacyTerms],
        sums: SecureSums | None,
        sites: Sites,
        waits: Deadlines,
        logs: Path,
        schedule: Callable[[int], list[int] | None] = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._schedule, self._stopping = schedule, stopping
        super().__init__(sums)
        self._document, self._terms, self.sites, self.waits = document, terms, sites, waits
        self.now = _RoundNow()
        self.server: Server | None = None
        self._logged: list[ServerRound] = []  # of the round under way
        self._uploaded: list[int] = []  # sites in the last sum without masks
        # By round of the run (from 0) and purpose.
        self._unfinished: dict[tuple[int, str], ServerRound] = {}
        if self.sums is not None:
            roster = Roster(sites.members.secagg_name, sites.members.pinned)
            roster.admit(*document.key_cards)
            self.server = Server(sites.key, roster, self.sums.params, logs)
            for found in self.server.resume():
                about = found.layout.plan
                number = about.round_number - document.first_round
                self._unfinished[number, about.purpose] = found

    def go_on_from(self, number: int) -> None:
        """Keep the logs of this round (from 0) and of a later one; those before are deleted."""
        for old in [known for known in self._unfinished if known[0] < number]:
            self._unfinished.pop(old).discard_log()

    def dropouts(self, cohort: Cohort, randomness: Randomness, round_number: int) -> Dropouts:
        """Nobody is simulated to drop out: some really do."""
        return Dropouts()

    def took_part(self, cohort: Cohort, dropouts: Dropouts) -> int:
        """Return how many sites shared in the round under way, or in the last one."""
        return len(self.shared)

    @property
    def shared(self) -> list[int]:
        """The sites that shared secrets for the last secure sum, or are in the last open one."""
        opened = self.now.server
        return self._uploaded if opened is None else opened.sharers

    def joined(self, number: int) -> bool:
        """Whether enough sites have joined a round (from 0) while they unmasked the one before."""
        opened = self._unfinished.get((number, UPDATE))
        return opened is not None and len(opened.sharers) >= self.fewest

    @property
    def fewest(self) -> int:
        """How many sites a sum needs at least."""
        return 1 if self.sums is None else self.sums.fewest

    def ready(self, number: int) -> set[int]:
        """Return the sites that could take part in a round (from 0) now; others say why not."""
        members = self._schedule(number)
        asked = range(len(self.sites.members.sites)) if members is None else members
        header = {"kind": "ready", "run": self._document.digest, "round": number}
        return set(self.sites.leg(dict.fromkeys(asked, Message(header)), _READY))

    def ask(
        self, kind: str, parts: Mapping[int, tuple[bytes, ...]], wait: float
    ) -> dict[int, Message]:
        now = self.now
        header = {"kind": kind, "run": self._document.digest, "round": now.number}
        header |= {"purpose": now.purpose, "clip": now.clip}
        asked = {number: Message(header, own) for number, own in parts.items()}
        return self.sites.leg(asked, wait)

    def open(self, summands: Summands, cohort: Cohort, dropouts: Dropouts) -> OpenSum:
        number, purpose = summands.round_number, summands.purpose
        if number != self.now.number:
            self.done()
        self.now = _RoundNow(number, purpose, self._clip(summands))
        if self.server is None:
            return _Uploads(self, summands, cohort)
        opened = self._unfinished.pop((number, purpose), None)
        opened = opened or self._begun(self.server, number, cohort.tolist(), summands)
        self.now.server = opened
        self._logged.append(opened)
        if opened.phase is Phase.OVER:
            raise NotReleased("the round had been given up when the hub ended")
        if opened.phase is Phase.SHARES:
            with self.watch.phase("share"):
                plans = dict.fromkeys(opened.missing, (opened.plan,))
                replies = self.ask("open", plans, self.waits.shares)
                try:
                    self.take(opened, replies)
                    left_out = opened.close_sharing()
                except NotReleased:
                    self.abort(opened)
                    raise
                self.ask("abort", {n: (frame,) for n, frame in left_out.items()}, _ASK)
        return _MaskedUploads(self, summands, opened)

    def _begun(
        self, server: Server, number: int, members: list[int], summands: Summands
    ) -> ServerRound:
        """A round's sum, logged; nobody has been told of it yet."""
        at, purpose = self._document.first_round + number, summands.purpose
        shape = (summands.width, summands.word)
        return server.open(at, members, *shape, purpose, terms_at(self._terms, summands))

    def following(self, summands: Summands) -> ServerRound | None:
        """The next round, for sites to join while they unmask this one; None if it has to wait.

        All sums of one round must be opened before the next round is; a tracked clip has two.
        """
        number = self.now.number + 1
        known, members = self._unfinished.get((number, UPDATE)), self._schedule(number)
        if known is not None or self.server is None or members is None:
            return known
        if self._stopping() or COUNT in self._terms:
            return None
        with suppress(ConfigError):  # `open` will say why it cannot be; this round goes on
            self._unfinished[number, UPDATE] = self._begun(self.server, number, members, summands)
        return self._unfinished.get((number, UPDATE))

    def uploads(self, cohort: Cohort, weights: bytes = b"") -> Iterator[SiteUpload]:
        """Have sites compute what they add to the sum under way, and yield what they send."""
        opened, asked = self.now.server, dict[int, tuple[bytes, ...]]()
        if opened is None:
            asked = {int(n): (b"", weights) for n in cohort}
        elif opened.phase is Phase.VECTORS:
            asked = {n: (opened.sharers_for(n), weights) for n in opened.missing}
        for number, reply in self.ask("train", asked, self.waits.vectors).items():
            yield SiteUpload(number, reply)

    def _clip(self, summands: Summands) -> float | None:
        """A tracked clip, for sites to work with; a count is about the updates before it."""
        if COUNT not in self._terms:
            return None
        return self.now.clip if summands.purpose == COUNT else summands.clip_norm

    def done(self) -> None:
        """The last round is stored: its logs have no more use."""
        while self._logged:
            self._logged.pop().discard_log()

    def abort(self, opened: ServerRound) -> None:
        """Tell who has joined that there will be no sum: what has not left is not charged."""
        frame = opened.abort()
        self.log_remarks(opened)
        joined = {*opened.sharers, *opened.remarks}  # those who sit out as well
        self.ask("abort", dict.fromkeys(joined, (frame,)), _ASK)

    def log_remarks(self, opened: ServerRound) -> None:
        """Tell who runs the hub which sites departed from the protocol, as far as it shows."""
        for number, remark in opened.remarks.items():
            about = {"run": self._document.digest, "round": self.now.number + 1}
            _log.warning(
                "site %s %s", self.sites.members.names[number], remark, extra={"about": about}
            )

    def take(self, opened: ServerRound, replies: Mapping[int, Message], part: int = 0) -> None:
        """Frames of a leg; a site that sends something else has dropped out."""
        for number, reply in replies.items():
            with self.sites.dropping(number):
                opened.receive(reply.part(part))


@dataclass(frozen=True)
class SiteUpload:
    """One site's upload into a sum: the block of updates of a federation across machines."""

    number: int
    reply: Message

    def at(self, places: Cohort) -> SiteUpload:
        """Return it as it is: it says itself whose it is."""
        return self


class _RemoteSum(OpenSum):
    """A sum over what sites send. Nobody tells the hub norms or losses."""

    @property
    def statistics(self) -> None:
        return None

    elsewhere = True

    @abstractmethod
    def add(self, block: Any) -> None:
        """Add a `SiteUpload`."""

    def add_nothing(self, places: Cohort) -> None:
        """Sites say themselves, and to nobody, whether they add an update."""


class _MaskedUploads(_RemoteSum):
    """A secure round after its sharing; each leg asks those who have not answered yet."""

    def __init__(self, hub: RemoteAggregator, summands: Summands, opened: ServerRound) -> None:
        self._hub, self._summands, self._round = hub, summands, opened
        self.clients = np.array(opened.sharers, np.int64)

    def add(self, block: Any) -> None:
        try:
            self._hub.take(self._round, {block.number: block.reply})
        except NotReleased:
            self._hub.abort(self._round)
            raise

    def release(self) -> Tensor:
        hub, opened = self._hub, self._round
        if hub.now.purpose == COUNT:  # sites know their bits from the updates
            for upload in hub.uploads(self.clients):
                self.add(upload)
        if opened.phase is Phase.VECTORS:
            try:
                opened.close_upload()
            except NotReleased:
                hub.abort(opened)
                raise
        try:
            self.clients = np.array(opened.survivors, np.int64)
            if opened.phase is Phase.CONFIRMATIONS:
                with hub.watch.phase("confirm"):
                    named = {n: (opened.survivors_for(n),) for n in opened.missing}
                    hub.take(opened, hub.ask("confirm", named, hub.waits.confirmations))
                    opened.close_confirmation()
            with hub.watch.phase("unmask"):
                last = opened.confirmed_for if opened.confirms else opened.survivors_for
                told: dict[int, tuple[bytes, ...]] = {n: (last(n),) for n in opened.missing}
                following = hub.following(self._summands)
                if following is not None:  # its members that are here get its plan as well
                    joining = told.keys() & following.identities.keys()
                    told |= {n: (*told[n], following.plan) for n in joining}
                replies = hub.ask("unmask", told, hub.waits.unmasking)
                hub.take(opened, replies)
                if following is not None:
                    joined = {n: reply for n, reply in replies.items() if reply.parts[1:]}
                    with suppress(NotReleased):  # `open` will say so; this round goes on
                        hub.take(following, joined, part=1)
                private: Tensor = self._summands.decode(opened.finish())
        finally:
            hub.log_remarks(opened)
        if isinstance(self._summands, RoundNoise) and (
            reason := implausible(self._summands, private, len(self.clients))
        ):
            raise NotReleased(reason)
        return private


class _Uploads(_RemoteSum):
    """Uploads that are private each by itself, or that the hub is trusted with."""

    def __init__(self, hub: RemoteAggregator, summands: Summands, cohort: Cohort) -> None:
        self._hub, self._summands, self.clients = hub, summands, cohort
        self._rows: dict[int, Ints] = {}

    def add(self, block: Any) -> None:
        with self._hub.sites.dropping(block.number):
            if len(row := block.reply.part()) != 8 * self._summands.width:
                raise BadFrame(f"upload: {len(row)} bytes, need 8 for each weight")
            upload = np.frombuffer(row, "<i8")
            self._check(upload)
            self._rows[block.number] = upload

    def _check(self, upload: Ints) -> None:
        """Refuse an upload that no honest site sends, by itself: others are not held up."""
        summands = self._summands
        if isinstance(summands, RoundNoise) and summands.grid is not None:
            values = torch.from_numpy(unsnap(upload, summands.grid))
            if reason := implausible(summands, values, 1):
                raise BadFrame(reason)

    def release(self) -> Tensor:
        uploads, summands = self._rows, self._summands
        self._hub._uploaded = sorted(uploads)
        if not uploads:
            raise NotReleased("no site has sent anything")
        if not summands.integer:
            raise ValueError("uploads are integers")
        self.clients = np.array(sorted(uploads), np.int64)
        whole: Ints = np.stack([uploads[n] for n in sorted(uploads)]).sum(axis=0)
        private: Tensor = summands.decode(whole)
        return private


class SitesEngine:
    """Trains where the data are, and hands on what the sites send."""

    name = "sites"

    def __init__(self, hub: RemoteAggregator) -> None:
        self._hub = hub

    def updates(self, request: RoundRequest) -> Iterator[Any]:
        """Yield a `SiteUpload` of every site that answers."""
        data = request.weights.numpy().astype("<f4").tobytes()
        return self._hub.uploads(request.cohort, data)

    def close(self) -> None:
        """The sites go on without this run."""
        self._hub.done()


@dataclass(frozen=True)
class SiteRounds:
    """Makes engine and aggregator of a plan that sites have accepted, as `document` says it.

    Sites carry out the document, and each has worked out its epsilon for itself.
    """

    document: PlanDocument
    sites: Sites
    waits: Deadlines
    logs: Path
    stopping: Callable[[], bool]

    def parts(self, plan: Plan) -> tuple[SitesEngine, RemoteAggregator]:
        said, guarantee = self.document, plan.guarantee
        if guarantee is None or not (
            math.isclose(said.epsilon, guarantee.epsilon, rel_tol=1e-6)  # of another machine
            and said.delta == guarantee.delta
        ):
            raise ConfigError("plan: the sites have accepted another one; start a new run")
        last = plan.method.rounds - 1
        sums = RemoteAggregator(
            self.document,
            self.document.terms(plan),
            plan.secure_sums,
            self.sites,
            self.waits,
            self.logs,
            lambda number: scheduled(plan, number) if number <= last else None,
            self.stopping,
        )
        return SitesEngine(sums), sums


class Hub:
    """Starts and resumes runs of one federation. `state`: a directory of the hub's own."""

    def __init__(
        self,
        members: Members,
        key: Ed25519PrivateKey,
        courier: Courier,
        state: Path,
        waits: Deadlines | None = None,
    ) -> None:
        self.sites = Sites(members, key, courier)
        self.state, self.waits = state, waits or Deadlines()
        self.stopping: Callable[[], bool] = lambda: False  # whether a run is to end early

    def hellos(self) -> tuple[Message, ...]:
        """Return every site's description of itself, in order; refuse if one is not ready."""
        said = self.sites.everybody(Message({"kind": "hello"}), self.waits.shares)
        for number, one in said.items():
            if one.header.get("trusts") != self.sites.members.fingerprint:
                why = plain(one.header.get("stopped")) or "it trusts another members' list"
                raise PrivacyRefusal(
                    f"site {self.sites.members.names[number]!r} is not ready: {why}",
                    "its owner can help (fedveil site members, trust, start)",
                )
        return tuple(said[number] for number in sorted(said))

    def start(
        self, recipe: Recipe, facts: Facts, output: Path, known: Known = Facts.federation
    ) -> Run:
        """A new run that all sites have accepted; iterate over it, or call `finish`.

        `known` makes what the hub knows of the federation, public test examples among it.
        """
        recipe = recipes.with_defaults(recipe)
        plan = planned(recipe, known(facts))
        if plan.guarantee is None:
            raise ConfigError("plan: it promises nothing")
        rounds = plan.method.rounds
        document = self._document(resolved(recipe, plan), facts, rounds, plan.guarantee)
        accepted = self._agree(document, output.name)
        directory = RunDirectory.create(output, plan, recipes.to_table(recipe))
        write_atomically(output / ACCEPTED, json.dumps([one.hex() for one in accepted]).encode())
        write_atomically(output / DOCUMENT, document.to_bytes())
        return self._run(plan, document, directory, recipe)

    def _document(
        self,
        recipe: Mapping[str, Any],
        facts: Facts,
        rounds: int,
        guarantee: Guarantee,
        scoring: Mapping[str, Any] | None = None,
    ) -> PlanDocument:
        """A plan to propose, with the key cards of all sites and numbers for its rounds."""
        cards = tuple(one.part().hex() for one in self.hellos())
        first, run = self._take_numbers(rounds), secrets.token_hex(16)
        cost = float(guarantee.epsilon), float(guarantee.delta)
        return PlanDocument(
            version("fedveil"), run, recipe, facts, cards, first, *cost, scoring or {}
        )

    def table(
        self, scoring: Scoring, recipe: Mapping[str, Any], name: str, weights: Tensor | None = None
    ) -> tuple[Table, Guarantee]:
        """Return a noisy sum of tables, and its cost.

        Args:
            scoring: what sites count.
            recipe: of the plan: the model that they evaluate, or nothing.
            name: the hub's, for the run.
            weights: of the model; without it sites count their columns' values.
        """
        guarantee = scoring.guarantee()
        document = self._document(recipe, scoring.facts, 1, guarantee, scoring.asked)
        self._agree(document, name)
        terms, logs = scoring.terms(document.digest), self.state / "evaluations" / document.run
        sums = RemoteAggregator(document, terms, scoring.sums, self.sites, self.waits, logs)
        cohort = np.arange(len(scoring.facts.sizes), dtype=np.int64)
        sent = b"" if weights is None else weights.numpy().astype("<f4").tobytes()
        try:
            opened = sums.open(CountSum(scoring, Randomness(None)), cohort, Dropouts())  # type: ignore[arg-type]
            for upload in sums.uploads(cohort, sent):
                opened.add(upload)  # type: ignore[arg-type]
            return opened.release().numpy().reshape(scoring.shape), guarantee
        finally:
            sums.done()

    def resume(self, path: Path, known: Known = Facts.federation) -> Run:
        """Go on with a run whose hub has ended, in the round where it stood."""
        try:
            document = PlanDocument.from_bytes((path / DOCUMENT).read_bytes())
            accepted = [bytes.fromhex(one) for one in json.loads((path / ACCEPTED).read_bytes())]
        except OSError:
            raise ConfigError(f"{path}: no run across machines (no {DOCUMENT})") from None
        recipe = recipes.parse(stored_recipe(path))
        plan = planned(recipe, known(document.facts))
        self._introduce_with(document, accepted, path.name)
        return self._run(plan, document, RunDirectory.open(path, plan), recipe)

    def _run(
        self, plan: Plan, document: PlanDocument, directory: RunDirectory, recipe: Recipe
    ) -> Run:
        logs = directory.path / "rounds"
        remote = SiteRounds(document, self.sites, self.waits, logs, lambda: self.stopping())
        run = Run(plan, every=recipe.evaluation.every, remote=remote).keep_in(directory)
        # Sites give the same request the same answer, and what was not logged they have not seen:
        # nothing is drawn again. Only a trusted hub's own noise would be.
        begun = run.next_round - 1 if run.next_round > run.state.rounds else None
        run.unfinished = None if plan.private_noise.drawn is Drawn.BY_SERVER else begun
        if isinstance(run.aggregator, RemoteAggregator):
            run.aggregator.go_on_from(run.next_round)
        return run

    def rounds(
        self, run: Run, wait: Callable[[str, float], bool], most_lost: int = MOST_LOST
    ) -> Iterator[RoundReport]:
        """Play a run's rounds, each as soon as enough sites are ready for it.

        A round is paid for when it begins, whatever comes of it. So none begins before the sites
        that it needs have said that they can take part, and after one that released nothing there
        is a pause.

        Args:
            run: started or resumed by this hub.
            wait: is told for whom the run waits and for how many seconds it should; returns whether
                to go on.
            most_lost: rounds in a row that may release nothing.

        Raises:
            RoundsLost: so many released nothing. The rest of the run's rounds is kept for later.
        """
        rounds, lost = iter(run), 0
        while True:
            seconds = _BACK_OFF
            while reason := self._not_ready(run):
                if not wait(reason, seconds):
                    return
                seconds = min(2 * seconds, _LONGEST_BACK_OFF)
            report = next(rounds, None)
            if report is None:
                return
            reason = "" if report.dropouts is None else report.dropouts.not_released
            lost = lost + 1 if reason else 0
            yield report
            if lost >= most_lost:
                raise RoundsLost(
                    f"{lost} rounds in a row released nothing: {self._why() or reason}",
                    f"the other {run.rounds_left} rounds are kept; resume the run when that is "
                    "mended",
                )
            if lost and run.rounds_left:
                said = f"round {report.round_number} released nothing: {self._why() or reason}"
                if not wait(said, min(_BACK_OFF * 2**lost, _LONGEST_BACK_OFF)):
                    return

    def _not_ready(self, run: Run) -> str:
        """For whom the next round would be lost; empty if it can begin."""
        sums, number = run.aggregator, run.next_round
        if not isinstance(sums, RemoteAggregator) or not run.rounds_left:
            return ""
        if run.unfinished is not None or sums.joined(number):
            return ""
        self.sites.refusals.clear()
        return "" if len(sums.ready(number)) >= sums.fewest else self._why()

    def _why(self) -> str:
        """Return the reasons of sites that did not take part."""
        said = sorted(self.sites.refusals.items())
        return "; ".join(f"{site}: {reason}" for site, reason in said)

    def _agree(self, document: PlanDocument, name: str) -> list[bytes]:
        """Show every site the plan, and then every site that all have signed it."""
        plan = Message({"kind": "plan", "name": name}, (document.to_bytes(),))
        accepted = self.sites.everybody(plan, self.waits.shares)
        signatures = [accepted[number].part() for number in sorted(accepted)]
        begin = self._introduce_with(document, signatures, name)
        self.sites.everybody(begin, self.waits.shares)
        return signatures

    def _introduce_with(
        self, document: PlanDocument, signatures: list[bytes], name: str
    ) -> Message:
        """Tell guards that were restarted about this run; the last thing that they are told."""
        plan = Message({"kind": "plan", "name": name}, (document.to_bytes(),))
        begin = Message({"kind": "begin", "run": document.digest}, tuple(signatures))

        def introduce(number: int) -> None:
            self.sites.introduce, kept = None, self.sites.introduce
            try:
                for message in (plan, begin):
                    self.sites.leg({number: message}, self.waits.shares)
            finally:
                self.sites.introduce = kept

        self.sites.introduce = introduce
        return begin

    def _take_numbers(self, rounds: int) -> int:
        """Numbers for a run's rounds; nobody gets them again, even if the run never starts."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.state / "next_round"
        try:
            first = int(path.read_text()) if path.exists() else 0
        except ValueError:
            raise ConfigError(f"{path}: damaged; put the next free round number there") from None
        write_atomically(path, str(first + rounds).encode())
        return first
