"""The hub: drives rounds over a courier, and keeps the same run directory as `fedveil run`.

A run across machines is a `Run` whose engine is the sites and whose aggregator is the server's side
of the secure sum. The hub holds nobody's data; public test examples are its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.config import recipe as recipes
from fedveil.config.recipe import Recipe
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples
from fedveil.deploy.courier import Courier, Unreachable
from fedveil.deploy.envelope import BadFrame, Message, seal, unseal
from fedveil.deploy.members import Members
from fedveil.deploy.plan_document import Facts, PlanDocument, planned, resolved
from fedveil.engines.contract import Cohort, RoundSum, Take
from fedveil.planning.plan import Plan
from fedveil.privacy.noise import unsnap
from fedveil.run.checkpoint import write_atomically
from fedveil.run.directory import RunDirectory, stored_recipe
from fedveil.run.run import Run
from fedveil.run.sums import PrivateSum
from fedveil.secagg.aggregator import Aggregator, Ints, OpenSum, Summands
from fedveil.secagg.dropouts import Dropouts
from fedveil.secagg.errors import NotReleased, SecureAggregationError
from fedveil.secagg.roster import Admission, Roster
from fedveil.secagg.server import Server
from fedveil.secagg.server_round import Deadlines, ServerRound
from fedveil.secagg.stopwatch import Stopwatch

DOCUMENT = "federation-plan.json"
_ASK = 10.0  # seconds for one request; longer work is asked for again
_PAUSE = 0.1  # seconds until a site that is away is asked again


class Sites:
    """The sites of one federation, as the hub reaches them. Numbers are those of the members."""

    def __init__(self, members: Members, key: Ed25519PrivateKey, courier: Courier) -> None:
        if key.public_key().public_bytes_raw() != members.hub:
            raise ConfigError("hub key: the members' list holds another one")
        self.members, self.key, self.courier = members, key, courier
        self.refusals: dict[str, str] = {}  # the last reason of each site that refused
        self._pause = threading.Event()  # never set
        self.introduce: Callable[[int], None] | None = None  # to a guard that was restarted

    def leg(self, asked: Mapping[int, Message], seconds: float) -> dict[int, Message]:
        """One request to each of these sites; replies of those who did what was asked in time.

        Requests may be repeated: a guard gives the same request the same answer.
        """
        until, names = monotonic() + seconds, self.members.names
        frames = {number: seal(message, self.key) for number, message in asked.items()}
        waiting, replies, again = set(frames), dict[int, Message](), set[int]()
        while waiting and (left := until - monotonic()) > 0:
            wanted = {names[number]: frames[number] for number in sorted(waiting)}
            found = self.courier.ask(wanted, min(left, _ASK))
            for number in sorted(waiting):
                reply = self._reply(number, frames[number], found.get(names[number]))
                status = None if reply is None else reply.header.get("status")
                if reply is None or status == "working":
                    continue
                if status == "unknown" and self.introduce is not None and number not in again:
                    again.add(number)
                    self.introduce(number)
                    continue
                waiting.discard(number)
                if status in ("refused", "unknown"):
                    self.refusals[names[number]] = str(reply.header.get("reason"))
                else:
                    replies[number] = reply
            if any(isinstance(found.get(names[number]), Unreachable) for number in waiting):
                self._pause.wait(min(_PAUSE, max(0.0, until - monotonic())))
        return replies

    def _reply(
        self, number: int, frame: bytes, found: bytes | Unreachable | None
    ) -> Message | None:
        name = self.members.names[number]
        if found is None or isinstance(found, Unreachable):
            self.refusals[name] = str(found)
            return None
        try:
            return unseal(found, [self.members.sites[name]], frame)
        except BadFrame as error:
            return Message({"status": "refused", "reason": str(error)})

    def everybody(self, message: Message, seconds: float) -> dict[int, Message]:
        """A leg to all sites; refused if one of them does not go along."""
        numbers = range(len(self.members.sites))
        replies = self.leg(dict.fromkeys(numbers, message), seconds)
        missing = [self.members.names[number] for number in numbers if number not in replies]
        if missing:
            said = "; ".join(f"{name}: {self.refusals.get(name, 'silent')}" for name in missing)
            raise PrivacyRefusal(f"not every site takes part: {said}", "no round was run")
        return replies


@dataclass
class _RoundNow:
    """What engine and aggregator share of the round that is under way."""

    number: int = 0
    server: ServerRound | None = None
    uploads: dict[int, Ints] = field(default_factory=dict)


class RemoteAggregator(Aggregator):
    """The hub's side of each round's sum; for local noise, of noisy uploads in the open."""

    def __init__(self, plan: Plan, document: PlanDocument, sites: Sites, waits: Deadlines) -> None:
        self.sums, self.watch = plan.secure_sums, Stopwatch()
        self._plan, self._document, self._sites, self.waits = plan, document, sites, waits
        self.now = _RoundNow()
        self.server: Server | None = None
        if self.sums is not None:
            roster = Roster(sites.members.secagg_name, Admission(sites.members.pinned))
            roster.admit_all(document.cards)
            self.server = Server(sites.key, roster, self.sums.params)

    def dropouts(self, cohort: Cohort, randomness: Randomness, round_number: int) -> Dropouts:
        """Nobody is simulated to drop out: some really do."""
        return Dropouts()

    def ask(
        self, kind: str, parts: Mapping[int, tuple[bytes, ...]], wait: float
    ) -> dict[int, Message]:
        header = {"kind": kind, "run": self._document.digest, "round": self.now.number}
        asked = {number: Message(header, own) for number, own in parts.items()}
        return self._sites.leg(asked, wait)

    def open(self, summands: Summands, cohort: Cohort, dropouts: Dropouts) -> OpenSum:
        self.now = _RoundNow(summands.round_number)
        if self.server is None:
            return _Uploads(self, summands, cohort)
        opened = self.server.open(
            self._document.first_round + summands.round_number,
            [int(member) for member in cohort],
            summands.width,
            summands.word,
            summands.purpose,
            self._document.terms(self._plan),
        )
        self.now.server = opened
        with self.watch.phase("share"):
            plans = {int(member): (opened.plan,) for member in cohort}
            self.take(opened, self.ask("open", plans, self.waits.shares))
            try:
                opened.close_sharing()
            except NotReleased:
                self.abort(opened)
                raise
        return _MaskedUploads(self, summands, opened)

    def abort(self, opened: ServerRound) -> None:
        """Tell who has joined that there will be no sum: what has not left is not charged."""
        frame = opened.abort()
        self.ask("abort", dict.fromkeys(opened.sharers, (frame,)), _ASK)

    def take(self, opened: ServerRound, replies: Mapping[int, Message]) -> None:
        """Frames of a leg; a site that sends something else has dropped out."""
        for number, reply in replies.items():
            try:
                opened.receive(reply.part())
            except (SecureAggregationError, BadFrame) as error:
                self._sites.refusals[self._sites.members.names[number]] = str(error)


class _MaskedUploads(OpenSum):
    def __init__(self, hub: RemoteAggregator, summands: Summands, opened: ServerRound) -> None:
        self._hub, self._summands, self._round = hub, summands, opened
        self.clients = np.array(opened.sharers, np.int64)

    def release(self, total: Tensor) -> Tensor:
        hub, opened = self._hub, self._round
        try:
            opened.close_upload()
        except NotReleased:
            hub.abort(opened)
            raise
        try:
            self.clients = np.array(opened.survivors, np.int64)
            if opened.confirms:
                with hub.watch.phase("confirm"):
                    self._confirm(opened.survivors)
                    opened.close_confirmation()
            with hub.watch.phase("unmask"):
                last = opened.confirmed_for if opened.confirms else opened.survivors_for
                told = {n: (last(n),) for n in opened.confirmed}
                hub.take(opened, hub.ask("unmask", told, hub.waits.unmasking))
                private: Tensor = self._summands.decode(opened.finish())
                return private
        finally:
            if hub.server is not None:
                hub.server.judge(opened)

    def _confirm(self, survivors: Collection[int]) -> None:
        hub, opened = self._hub, self._round
        told = {n: (opened.survivors_for(n),) for n in survivors}
        replies = hub.ask("confirm", told, hub.waits.confirmations)
        doubting = {
            n: tuple(reply.header.get("devices", ()))
            for n, reply in replies.items()
            if reply.header.get("status") == "doubted"
        }
        hub.take(opened, {n: reply for n, reply in replies.items() if n not in doubting})
        if doubting:
            told = {n: (opened.survivors_for(n, doubted),) for n, doubted in doubting.items()}
            hub.take(opened, hub.ask("confirm", told, hub.waits.confirmations))


class _Uploads(OpenSum):
    """Noisy uploads, each private by itself."""

    def __init__(self, hub: RemoteAggregator, summands: Summands, cohort: Cohort) -> None:
        self._hub, self._summands, self.clients = hub, summands, cohort

    def release(self, total: Tensor) -> Tensor:
        uploads, summands = self._hub.now.uploads, self._summands
        if not uploads:
            raise NotReleased("no site has sent anything")
        if not isinstance(summands, PrivateSum) or summands.pipeline.granularity is None:
            raise ValueError("uploads are integers")
        self.clients = np.array(sorted(uploads), np.int64)
        whole: Ints = np.stack([uploads[n] for n in sorted(uploads)]).sum(axis=0)
        return torch.from_numpy(unsnap(whole, summands.pipeline.granularity)).float()


class SitesEngine:
    """Trains where the data are. Sums of what comes back are the aggregator's."""

    name = "sites"

    def __init__(self, hub: RemoteAggregator) -> None:
        self._hub = hub

    def round_sum(
        self,
        weights: Tensor,
        cohort: Cohort,
        round_number: int,
        pipeline: UpdatePipeline | None = None,
        take: Take | None = None,
    ) -> RoundSum:
        hub, data = self._hub, weights.numpy().astype("<f4").tobytes()
        opened = hub.now.server
        if opened is not None:
            asked = {n: (data, opened.sharers_for(n)) for n in map(int, cohort)}
            hub.take(opened, hub.ask("train", asked, hub.waits.vectors))
        else:
            replies = hub.ask("train", {int(n): (data,) for n in cohort}, hub.waits.vectors)
            rows = {n: np.frombuffer(reply.part(), "<i8") for n, reply in replies.items()}
            width = weights.numel()
            hub.now.uploads = {n: row for n, row in rows.items() if row.shape == (width,)}
        nothing = torch.full((len(cohort),), float("nan"))  # nobody tells the hub
        return RoundSum(torch.zeros(0), nothing, nothing, nothing, 0)

    def close(self) -> None:
        """The sites go on without this run."""


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

    def start(
        self, recipe: Recipe, facts: Facts, output: Path, test: Examples | None = None
    ) -> Run:
        """A new run that all sites have accepted; iterate over it, or call `finish`."""
        recipe = recipes.with_defaults(recipe)
        plan = planned(recipe, facts.federation(test))
        if plan.guarantee is None:
            raise ConfigError("plan: it promises nothing")
        hello = self.sites.everybody(Message({"kind": "hello"}), self.waits.shares)
        cards = tuple(hello[number].part() for number in sorted(hello))
        document = PlanDocument(
            version("fedveil"),
            secrets.token_hex(16),
            resolved(recipe, plan),
            facts,
            cards,
            self._take_numbers(plan.method.rounds),
            float(plan.guarantee.epsilon),
            float(plan.guarantee.delta),
        )
        self._agree(document)
        directory = RunDirectory.create(output, plan, recipes.to_table(recipe))
        write_atomically(output / DOCUMENT, document.to_bytes())
        return self._run(plan, document, directory, recipe)

    def resume(self, path: Path, test: Examples | None = None) -> Run:
        """Go on with a run whose hub has ended; a round that was under way is not drawn again."""
        try:
            document = PlanDocument.from_bytes((path / DOCUMENT).read_bytes())
        except OSError:
            raise ConfigError(f"{path}: no run across machines (no {DOCUMENT})") from None
        recipe = recipes.parse(stored_recipe(path))
        plan = planned(recipe, document.facts.federation(test))
        self._agree(document)
        return self._run(plan, document, RunDirectory.open(path, plan), recipe)

    def _run(
        self, plan: Plan, document: PlanDocument, directory: RunDirectory, recipe: Recipe
    ) -> Run:
        sums = RemoteAggregator(plan, document, self.sites, self.waits)
        every, engine = recipe.evaluation.every, SitesEngine(sums)
        return Run(plan, every=every, engine=engine, aggregator=sums).keep_in(directory)

    def _agree(self, document: PlanDocument) -> None:
        """Show every site the plan, and then every site that all have signed it."""
        plan = Message({"kind": "plan"}, (document.to_bytes(),))
        accepted = self.sites.everybody(plan, self.waits.shares)
        signatures = tuple(accepted[number].part() for number in sorted(accepted))
        begin = Message({"kind": "begin", "run": document.digest}, signatures)
        self.sites.everybody(begin, self.waits.shares)

        def introduce(number: int) -> None:
            self.sites.introduce, kept = None, self.sites.introduce
            try:
                for message in (plan, begin):
                    self.sites.leg({number: message}, self.waits.shares)
            finally:
                self.sites.introduce = kept

        self.sites.introduce = introduce

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
