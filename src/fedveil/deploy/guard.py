"""The guard: one owner's data, keys, policy and lifetime ledger, and what it lets out of the house.

It answers its own hub's requests with signed replies, and every request is checked as if the hub
lied. A plan arrives as data; the guard makes the plan itself, with its own accountant, and holds it
to the owner's policy. It joins a run only after every other site has signed the same plan. Each
round is charged to the owner's ledger before anything is computed; then the guard trains on its own
rows as a simulation would, adds its noise, masks, and answers. Whatever does not fit is refused,
with the reason.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.core.units import Unit
from fedveil.data.federation import Federation
from fedveil.deploy.envelope import BadFrame, Message, seal, unseal
from fedveil.deploy.members import Members
from fedveil.deploy.plan_document import PlanDocument, parameters, planned
from fedveil.deploy.policy import Policy
from fedveil.engines.choose import build_engine
from fedveil.engines.contract import Engine
from fedveil.engines.one_client import lone
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.noise_placement import RoundContext
from fedveil.planning.limits import taken_from_records
from fedveil.planning.plan import Plan
from fedveil.run.run import job_of
from fedveil.run.sums import PrivateSum, update_sum
from fedveil.secagg import derive
from fedveil.secagg.aggregation import UPDATE
from fedveil.secagg.aggregator import Ints
from fedveil.secagg.device import DeviceRound
from fedveil.secagg.device_store import DeviceStore
from fedveil.secagg.errors import Doubted
from fedveil.secagg.journal import Claim
from fedveil.secagg.keys import signed
from fedveil.secagg.messages import RoundPlan
from fedveil.secagg.params import Limits
from fedveil.secagg.participant import Participant
from fedveil.secagg.privacy_terms import PrivacyTerms
from fedveil.secagg.roster import Admission, Roster
from fedveil.secagg.wire import MAX_FRAME, read

_log = logging.getLogger(__name__)

ACCEPT = b"fedveil accepts plan "


class UnknownRun(FedveilError):
    """A run that this guard has not been told about since it was started."""


@dataclass
class _Run:
    """A plan that this guard would take part in, and where it stands."""

    document: PlanDocument
    plan: Plan
    terms: PrivacyTerms
    roster: Roster
    engine: Engine
    begun: bool = False
    participant: Participant | None = None
    round_number: int = -1
    device: DeviceRound | None = None
    answers: dict[bytes, Message] = field(default_factory=dict)  # of this round, by request
    work: dict[bytes, Future[bytes]] = field(default_factory=dict)

    @property
    def participations(self) -> int:
        return self.plan.releases(self.plan.method.rounds)[0].counted_participations


class Guard:
    """One site. `data` is a federation of one client, encoded as the public facts say.

    `randomness` is the system's; a seeded one is for tests alone. `patience`: seconds that a
    request may wait for training before the hub is told to ask again.
    """

    def __init__(
        self,
        site: str,
        members: Members,
        store: DeviceStore,
        policy: Policy,
        data: Federation,
        *,
        randomness: Randomness | None = None,
        patience: float = 2.0,
    ) -> None:
        if data.clients != 1:
            raise ConfigError(f"data: {data.clients} clients; a guard holds one owner's")
        self.site, self.members, self.store, self.policy = site, members, store, policy
        self.number = members.number(site)
        self.keys = store.enrol(members.secagg_name, self.number)
        if self.keys.identity.public_key().public_bytes_raw() != members.sites[site]:
            raise ConfigError(f"site {site!r}: the members' list holds another key for it")
        self._data, self._size = lone(data, 0), len(data.train)
        self._taken = taken_from_records(data)
        self._randomness = randomness or Randomness(None)
        self._patience = patience
        if policy.ask.hubs and members.hub.hex() not in policy.ask.hubs:
            raise ConfigError("policy: ask.hubs does not name the hub of the members' list")
        self._runs: dict[str, _Run] = {}
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(1, f"guard-{site}")

    def close(self) -> None:
        """Stop training and forget all runs; the store keeps what must last."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for run in self._runs.values():
            run.engine.close()
        self._runs.clear()

    def answer(self, frame: bytes) -> bytes:
        """One request's reply, whatever comes."""
        try:
            with self._lock:
                reply = self._answered(frame)
        except UnknownRun as error:
            reply = Message({"status": "unknown", "reason": str(error)})
        except FedveilError as error:
            _log.warning("refused: %s", error)
            reply = Message({"status": "refused", "reason": str(error)})
        except Exception as error:  # a fault here is no business of the hub's
            _log.exception("failed")
            reply = Message({"status": "refused", "reason": f"failed: {type(error).__name__}"})
        return seal(reply, self.keys.identity, frame)

    def _answered(self, frame: bytes) -> Message:
        request = unseal(frame, [self.members.hub])
        kind = request.text("kind")
        if kind == "hello":
            return Message({"status": "done", "version": version("fedveil")}, (self.keys.card(),))
        if kind == "plan":
            return self._accept(request.part())
        run = self._runs.get(request.text("run"))
        if run is None:
            raise UnknownRun(f"site {self.site!r} knows no such run: send its plan first")
        if kind == "begin":
            return self._begin(run, request)
        if not run.begun:
            raise BadFrame("this run was not begun: show that all sites have accepted its plan")
        steps: dict[str, Callable[[_Run, Message, bytes], Message]] = {
            "open": self._open,
            "train": self._train,
            "confirm": self._confirm,
            "unmask": self._unmask,
            "abort": self._abort,
        }
        if kind not in steps:
            raise BadFrame(f"message: unknown kind {kind!r}")
        digest = hashlib.sha256(frame).digest()
        if digest not in run.answers:  # the same request again gets the same answer
            reply = steps[kind](run, request, digest)
            if reply.header["status"] != "done":
                return reply
            run.answers[digest] = reply
        return run.answers[digest]

    # --- before a run -----------------------------------------------------------------------------

    def _accept(self, data: bytes) -> Message:
        """Work a plan out, hold it to the policy, and sign it."""
        document = PlanDocument.from_bytes(data)
        digest = document.digest
        if digest not in self._runs:
            roster = self._check_facts(document)
            plan = self._planned(document)
            job = job_of(plan, self._randomness.of_client(self.number))
            engine = build_engine(replace(job, federation=self._data, isolated=True), threads=1)
            terms = document.terms(plan)
            self._runs[digest] = _Run(document, plan, terms, roster, engine)
        return Message({"status": "done"}, (self.keys.identity.sign(ACCEPT + digest.encode()),))

    def _check_facts(self, document: PlanDocument) -> Roster:
        """Whether the plan is about this federation, its members and this site's kind of data."""
        if document.version != version("fedveil"):
            raise ConfigError(
                f"plan: made by fedveil {document.version}, this site runs {version('fedveil')}"
            )
        facts, data = document.facts, self._data
        if facts.name != self.members.federation:
            raise ConfigError(f"plan: for federation {facts.name!r}, not this one")
        if len(facts.sizes) != len(self.members.sites):
            raise ConfigError(
                f"plan: {len(facts.sizes)} sites, the members' list has {len(self.members.sites)}"
            )
        known = (str(data.task), data.classes, data.input_shape)
        if (facts.task, facts.classes, facts.input_shape) != known:
            raise ConfigError("plan: its schema does not fit this site's rows")
        roster = Roster(
            self.members.secagg_name,
            Admission(self.members.pinned),
            self.store.memory(self.members.secagg_name),
        )
        roster.admit_all(document.cards)
        if len(roster) != len(self.members.sites):
            raise ConfigError(f"plan: key cards of {len(roster)} sites, need all")
        return roster

    def _planned(self, document: PlanDocument) -> Plan:
        """The plan by this site's own accountant."""
        recipe, federation = document.parsed(), document.facts.federation()
        name = recipe.model.name
        if name == "auto":
            raise ConfigError("model.name: say which; 'auto' is no name")
        self.policy.check_recipe(recipe, name, parameters(recipe, federation))
        plan = planned(recipe, federation)
        self.policy.check_plan(plan)
        guarantee, model = plan.guarantee, plan.privacy_model
        if guarantee is None or model is None:
            raise ConfigError("plan: it promises nothing")
        if guarantee.epsilon > document.epsilon or guarantee.delta > document.delta:
            raise PrivacyRefusal(
                f"the hub states epsilon {document.epsilon:.6g} at delta {document.delta:.3g}, "
                f"this site computes {guarantee.epsilon:.6g} at {guarantee.delta:.3g}",
                "state what the plan costs",
            )
        if model.unit is Unit.RECORD and self._taken:
            raise PrivacyRefusal(
                f"one record of this site is more than one gradient: {self._taken[0]}",
                "read the site's rows by a public schema, with declared classes",
            )
        size = document.facts.sizes[self.number]
        if size != (self._size if model.unit is Unit.RECORD else 1):
            raise ConfigError("plan: it states another number of records than this site has agreed")
        self._check_lifetime(plan, document.digest)
        return plan

    def _check_lifetime(self, plan: Plan, run: str) -> None:
        """Whether what is left of the run fits into what the owner has left."""
        (release,) = plan.releases(plan.method.rounds)
        left = release.counted_participations - self.store.ledger.runs().get(run, 0)
        if plan.privacy_model is not None and left > 0:
            self.store.ledger.afford(replace(release, participations=left), plan.privacy_model)

    def _begin(self, run: _Run, request: Message) -> Message:
        """Every site has signed this very plan, or this one does not take part."""
        content = ACCEPT + run.document.digest.encode()
        signatures = dict(enumerate(request.parts))
        for number, (name, identity) in enumerate(self.members.sites.items()):
            key = Ed25519PublicKey.from_public_bytes(identity)
            if not signed(key, signatures.get(number, b""), content):
                raise PrivacyRefusal(
                    f"site {name!r} has not accepted this plan: it was shown another, or none",
                    "send every site the same plan",
                )
        sums = run.plan.secure_sums
        if sums is not None and run.participant is None:
            run.participant = Participant(
                self.keys, run.roster, sums.params, self.members.hub, self.store
            )
        run.begun = True
        return Message({"status": "done"})

    # --- one round --------------------------------------------------------------------------------

    def _enter(self, run: _Run, number: int) -> None:
        """Go to a round (from 0) of a run; those before it are over."""
        if number >= run.plan.method.rounds:
            raise PrivacyRefusal(f"round {number + 1}", f"the plan has {run.plan.method.rounds}")
        if number < run.round_number:
            raise PrivacyRefusal(f"round {number + 1} is over", "go on with the next one")
        if number == run.round_number:
            return
        taken = self.store.ledger.runs().get(run.document.digest, 0)
        if taken >= run.participations:
            raise PrivacyRefusal(
                f"this site has taken part {taken} times, as often as the plan counts",
                "keep to the schedule",
            )
        run.round_number, run.device = number, None
        run.answers.clear()
        run.work.clear()

    def _open(self, run: _Run, request: Message, digest: bytes) -> Message:
        """Check a secure sum's plan, pay for the round, and share secrets for it."""
        number, frame = request.number("round"), request.part()
        if run.participant is None:
            raise BadFrame("this plan has no secure sums")
        hub = Ed25519PublicKey.from_public_bytes(self.members.hub)
        asked = read(frame, RoundPlan, MAX_FRAME, hub)
        if asked.round_number != run.document.first_round + number or asked.purpose != UPDATE:
            raise PrivacyRefusal("the secure sum has another number or purpose", "use the plan's")
        if asked.privacy != run.terms.to_bytes():
            raise PrivacyRefusal(
                "the round states other noise or honest shares than the plan that was accepted",
                "use the plan's",
            )
        sums = self._sums(run, number)
        if (asked.dimension, asked.bits) != (sums.width, sums.word):
            raise PrivacyRefusal("the round has vectors of another shape", "use the plan's")
        if run.plan.secure_sums is None or len(asked.members) != run.plan.secure_sums.cohort:
            raise PrivacyRefusal("the round has a cohort of another size", "use the plan's")
        self._enter(run, number)
        run.device = run.participant.join(frame)
        return Message({"status": "done"}, (run.device.shares,))

    def _train(self, run: _Run, request: Message, digest: bytes) -> Message:
        """Start to compute what leaves in this round, or ask for patience."""
        number = request.number("round")
        if digest not in run.work:
            weights = self._weights(run, request.part())
            if run.participant is not None:
                device = self._joined(run, number)
                device.take_sharers(request.part(1))
                run.work[digest] = self._pool.submit(self._masked, run, device, weights, number)
            else:
                paid = self._claimed(run, number)
                run.work[digest] = self._pool.submit(self._noisy, run, weights, number, paid)
        try:
            return Message({"status": "done"}, (run.work[digest].result(self._patience),))
        except Late:
            return Message({"status": "working"})

    def _masked(self, run: _Run, device: DeviceRound, weights: torch.Tensor, number: int) -> bytes:
        sums = self._sums(run, number)
        return device.mask(sums.share(self.number, self._trained(run, weights, number, sums)))

    def _claimed(self, run: _Run, number: int) -> int:
        """Charge a round without a secure sum to the ledger; the reservation's number."""
        self._enter(run, number)
        own = derive.digest(b"members", derive.id_bytes(self.number))
        at = run.document.first_round + number
        claim = Claim(self.members.secagg_name, at, UPDATE, own, Limits().round_step, run.terms)
        return self.store.claim(claim)

    def _noisy(self, run: _Run, weights: torch.Tensor, number: int, paid: int) -> bytes:
        """An upload that is private by its own noise."""
        sums = self._sums(run, number)
        placement, context = run.plan.method.placement, run.plan.context
        if not isinstance(placement, LocalNoise) or context is None:
            raise BadFrame("this plan has no noise for single uploads")
        row = self._trained(run, weights, number, sums)
        stream = sums.this_round.stream(self.number)
        noisy = placement.upload(context, row, sums.pipeline, stream)
        self.store.settle(paid, left=True)
        return noisy.astype("<i8").tobytes()

    def _confirm(self, run: _Run, request: Message, digest: bytes) -> Message:
        device = self._joined(run, request.number("round"))
        try:
            return Message({"status": "done"}, (device.confirm(request.part()),))
        except Doubted as doubt:
            return Message({"status": "doubted", "devices": list(doubt.devices)})

    def _unmask(self, run: _Run, request: Message, digest: bytes) -> Message:
        device = self._joined(run, request.number("round"))
        return Message({"status": "done"}, (device.unmask(request.part()),))

    def _abort(self, run: _Run, request: Message, digest: bytes) -> Message:
        self._joined(run, request.number("round")).abort(request.part())
        return Message({"status": "done"})

    def _joined(self, run: _Run, number: int) -> DeviceRound:
        if run.device is None or number != run.round_number:
            raise BadFrame(f"this site has not joined round {number + 1}, or has left it behind")
        return run.device

    def _weights(self, run: _Run, data: bytes) -> torch.Tensor:
        """The shared weights; whatever they are, what leaves is clipped and noisy."""
        if len(data) != 4 * run.plan.layout.size:
            raise BadFrame(f"weights: {len(data)} bytes, the model has {run.plan.layout.size}")
        return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))

    def _sums(self, run: _Run, number: int) -> PrivateSum:
        own = np.array([self.number], np.int64)
        return update_sum(run.plan, RoundContext(number, own, self._randomness), {})

    def _trained(self, run: _Run, weights: torch.Tensor, number: int, sums: PrivateSum) -> Ints:
        """This site's shaped update on the grid, int64 [width]: as a simulation computes it."""
        alone = np.zeros(1, np.int64)
        total = run.engine.round_sum(weights, alone, number, sums.pipeline).total
        row: Ints = total.numpy()
        return row
