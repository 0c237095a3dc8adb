"""The guard: one owner's data, keys, policy and lifetime ledger, and what it lets out of the house.

It answers its own hub's requests with signed replies, and every request is checked as if the hub
lied. A plan arrives as data; the guard makes the plan itself, with its own accountant, and holds it
to the owner's policy. It joins a run only after every other site has signed the same plan. Each
round is charged to the owner's ledger before anything is computed; then the guard trains on its own
rows as a simulation would, adds its noise, masks, and answers. Whatever does not fit is refused,
with the reason.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from time import monotonic
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.core.units import Unit
from fedveil.data.federation import Federation
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.aggregation import UPDATE
from fedveil.privacy.secure_sums.params import Limits
from fedveil_federation.client_events import LedgerFault
from fedveil_federation.client_ledger import LifetimeBudgetExceeded
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.approvals import Approvals, OwnerAsked
from fedveil_federation.deploy.envelope import BadFrame, Message, plain, seal, signature_of, unseal
from fedveil_federation.deploy.facts import plan_digest
from fedveil_federation.deploy.logs import Counters
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.deploy.state_dirs import lifetime_spent
from fedveil_federation.secagg.device import DeviceRound
from fedveil_federation.secagg.device_store import DeviceStore, StoreFault
from fedveil_federation.secagg.journal import Claim
from fedveil_federation.secagg.keys import DeviceKeys, signed
from fedveil_federation.secagg.messages import RoundPlan
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.wire import MAX_FRAME, read

if TYPE_CHECKING:
    from fedveil_federation.deploy.examiner import Examiner
    from fedveil_federation.deploy.work import Work
_log = logging.getLogger(__name__)

Handlers = Mapping[str, Callable[[Message], Message]]


_OWN = "failed; its owner's log says why"
_PATH = re.compile(r"(?<![\w.])/[\w.~-]+/")  # of a file of this machine


class UnknownRun(FedveilError):
    """A run that this guard has not been told about since it was started."""


class Responder(ABC):
    """`handlers`: kinds of request that others answer. `most`: bytes of a request.

    `uncertified_key`: the public part of a courier's key that waits for its certificate (PEM)."""

    uncertified_key = ""

    def __init__(
        self, hub: bytes, keys: DeviceKeys, handlers: Handlers | None = None, most: int = 1 << 20
    ) -> None:
        self.keys, self._most = keys, most
        self.counters = Counters("fedveil_site")
        self._hub, self._handlers, self._lock = hub, dict(handlers or {}), threading.RLock()

    def answer(self, frame: bytes) -> bytes:
        """One request's reply, whatever comes."""
        kind, known = "unsigned", False
        try:
            request = unseal(frame, [self._hub], most=self._most)
            known = True
            kind = request.text("kind")
            with self._lock:
                found = self._handlers.get(kind)
                reply = self._answered(request, frame) if found is None else found(request)
        except UnknownRun as error:
            reply = Message({"status": "unknown", "reason": str(error)})
        except FedveilError as error:
            _log.warning("refused (%s): %s", kind, error)
            self.counters.add("refusals", kind=kind if kind in KINDS else "other")
            status = "waits" if isinstance(error, OwnerAsked) else "refused"
            reason = self._told(error)
            reply = Message({"status": status, "reason": _OWN if _PATH.search(reason) else reason})
        except Exception:  # a fault here is no business of the hub's
            _log.exception("failed (%s)", kind)
            self.counters.add("failures")
            reply = Message({"status": "refused", "reason": _OWN})
        else:
            self.counters.add("requests", kind=kind)
        return seal(reply, self.keys.identity, frame, known)

    def _told(self, error: FedveilError) -> str:
        """Return the hub's answer to a refusal."""
        return str(error)

    @abstractmethod
    def _answered(self, request: Message, frame: bytes) -> Message:
        """The reply to a request that the hub has signed; `frame` is all of it."""


KINDS = (
    *("hello", "members", "certificate", "deliver", "plan", "begin"),
    *("ready", "open", "train", "count", "confirm", "unmask", "abort", "disclose"),
)


class Applicant(Responder):
    """A site that takes part in nothing yet: it shows its key, and says what it waits for."""

    waits_for = "its owner has not confirmed the members' list"

    def _answered(self, request: Message, frame: bytes) -> Message:
        if request.text("kind") != "hello":
            raise BadFrame(self.waits_for)
        identity = self.keys.identity.public_key().public_bytes_raw()
        said = {"trusts": "", "identity": identity.hex(), "stopped": self.waits_for}
        said["public"] = self.uncertified_key
        return Message({"status": "done", "version": version("fedveil"), **said})


ACCEPT = b"fedveil accepts plan "
EXAMINER = "fedveil_federation.deploy.examiner"  # imports torch, which takes seconds
MOST_RUNS = 4  # in memory
MOST_PLANS = 100  # looked at in an hour
MOST_REQUESTS = 100  # answered in one round, a request and its repetitions counted once


@dataclass
class _Run:
    """A plan that this guard would take part in, and where it stands."""

    work: Work
    roster: Roster
    called: str  # the hub's name for it
    begun: bool = False
    participant: Participant | None = None
    round_number: int = -1
    devices: dict[str, DeviceRound] = field(default_factory=dict)  # by purpose
    answers: dict[bytes, Message] = field(default_factory=dict)  # of this round, by request
    computing: dict[bytes, Future[bytes]] = field(default_factory=dict)
    weights: dict[str, bytes] = field(default_factory=dict)  # of this round, by purpose


class Guard(Responder):
    """One site. `data` is a federation of one client, encoded as the public facts say.

    `randomness` is the system's; a seeded one is for tests alone. `patience`: seconds that a
    request may wait for training before the hub is told to ask again. `stopped`: why the owner
    takes part in nothing for now, or nothing. `keep_plan` gets digest, plan and the hub's name of
    each run that begins. `approvals`: what the owner has said yes to, if the policy wants that.
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
        stopped: Callable[[], str] = str,
        handlers: Handlers | None = None,
        keep_plan: Callable[[str, bytes, str], None] | None = None,
        approvals: Approvals | None = None,
    ) -> None:
        if data.clients != 1:
            raise ConfigError(f"data: {data.clients} clients; a guard holds one owner's")
        self.site, self.members, self.store, self.policy = site, members, store, policy
        self.number = members.number(site)
        keys = store.enrol(members.secagg_name, self.number)
        super().__init__(members.hub, keys, handlers, policy.longest_request)
        if self.keys.identity.public_key().public_bytes_raw() != members.sites[site]:
            raise ConfigError(f"site {site!r}: the members' list holds another key for it")
        self._data, self._randomness = data, randomness or Randomness(None)
        self._patience, self._stopped, self._keep_plan = patience, stopped, keep_plan
        self._approvals = approvals
        policy.check_hub(members.hub.hex())
        self._runs: dict[str, _Run] = {}
        self._plans: list[float] = []  # when they came
        self._worked = monotonic()  # when it was last asked about a run
        self._pool = ThreadPoolExecutor(1, f"guard-{site}")

    def rested(self, seconds: float) -> bool:
        """Whether it holds what plans take, and was asked about no run for so long."""
        if not self._lock.acquire(blocking=False):  # it is looking at one, or answers
            return False
        try:
            return self.worked and monotonic() - self._worked >= seconds
        finally:
            self._lock.release()

    def close(self) -> None:
        """Stop training and forget all runs; the store keeps what must last."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for run in self._runs.values():
            run.work.close()
        self._runs.clear()

    def _answered(self, request: Message, frame: bytes) -> Message:
        kind = request.text("kind")
        if kind == "hello":
            return self._hello()
        self._worked = monotonic()
        if stopped := self._stopped():
            raise PrivacyRefusal(f"site {self.site!r}: {stopped}", "go on without it, or ask again")
        if kind == "plan":
            return self._accept(request)
        run = self._runs.get(request.text("run"))
        if run is None:
            raise UnknownRun(f"site {self.site!r} knows no such run: send its plan first")
        if kind == "begin":
            return self._begin(run, request)
        if not run.begun:
            raise BadFrame("this run was not begun: show that all sites have accepted its plan")
        if kind == "ready":
            return self._ready(run, request.number("round"))
        steps: dict[str, Callable[[_Run, Message, bytes], Message]] = {
            "open": self._open,
            "train": self._train,
            "confirm": self._confirm,
            "unmask": self._unmask,
            "abort": self._abort,
        }
        if kind not in steps:
            raise BadFrame(f"message: unknown kind {kind!r}")
        digest = signature_of(frame)  # of all of it, by the hub
        if digest not in run.answers:  # the same request again gets the same answer
            if len({*run.answers, *run.computing} - {digest}) >= MOST_REQUESTS:
                raise BadFrame(f"{MOST_REQUESTS} requests about one round: go on with the next one")
            reply = steps[kind](run, request, digest)
            if reply.header["status"] != "done":
                return reply
            run.answers[digest] = reply
        return run.answers[digest]

    def _told(self, error: FedveilError) -> str:
        """The reason; but what is left of the budget is told only if the owner shows it."""
        reasons = (error, error.__cause__)
        spent = any(isinstance(reason, LifetimeBudgetExceeded) for reason in reasons)
        if spent and not self.policy.show.budget:
            return "this site's lifetime budget does not allow it"
        if any(isinstance(reason, StoreFault | LedgerFault) for reason in reasons):
            return "this site's store cannot be used; its owner's log says why"
        return str(error)

    # --- before a run -----------------------------------------------------------------------------

    def _hello(self) -> Message:
        """Return what this owner shows to whoever runs the hub."""
        shown = {"trusts": self.members.fingerprint, "stopped": self._stopped()}
        shown["public"] = self.uncertified_key
        said: dict[str, Any] = {"status": "done", "version": version("fedveil"), **shown}
        if Unit.RECORD in self.policy.allow.units:  # such plans state it
            said["records"] = len(self._data.train)
        if Unit.PERSON in self.policy.allow.units and self._data.train.persons is not None:
            said["persons"] = int(self._data.persons.sizes[0])
        if self.policy.show.budget:
            said["epsilon"] = self.store.ledger.budget_epsilon
            said["spent"] = lifetime_spent(self.store)
        return Message(said, (self.keys.card(),))

    @property
    def worked(self) -> bool:
        """Whether this process has loaded what it takes to look at plans."""
        return EXAMINER in sys.modules

    def _accept(self, request: Message) -> Message:
        """Work a plan out, hold it to the policy, and sign it."""
        data, called = request.part(), plain(request.header.get("name"))
        digest = plan_digest(data)
        if digest not in self._runs:
            self._limit()
            work, roster, lifetime = self._examiner.examined(data)
            if self._approvals is not None:
                self._approvals.check(data, digest, called, lifetime)
            self._runs[digest] = _Run(work, roster, called)
        return Message({"status": "done"}, (self.keys.identity.sign(ACCEPT + digest.encode()),))

    @cached_property
    def _examiner(self) -> Examiner:
        """Made for the first plan: a site that only waits does without torch."""
        from fedveil_federation.deploy.examiner import Examiner

        known = (self.number, self.members, self.store, self.policy)
        return Examiner(*known, self._data, self._randomness)

    def _limit(self) -> None:
        """Plans cost time to check and memory to keep. A run that was forgotten is told again."""
        now = monotonic()
        self._plans = [at for at in self._plans if now - at < 3600]
        if len(self._plans) >= MOST_PLANS:
            raise BadFrame(f"{MOST_PLANS} plans in an hour: ask later")
        self._plans.append(now)
        while len(self._runs) >= MOST_RUNS:
            self._runs.pop(next(iter(self._runs))).work.close()

    def _begin(self, run: _Run, request: Message) -> Message:
        """Every site has signed this very plan, or this one does not take part."""
        content = ACCEPT + run.work.document.digest.encode()
        signatures = dict(enumerate(request.parts))
        for number, (name, identity) in enumerate(self.members.sites.items()):
            key = Ed25519PublicKey.from_public_bytes(identity)
            if not signed(key, signatures.get(number, b""), content):
                raise PrivacyRefusal(
                    f"site {name!r} has not accepted this plan: it was shown another, or none",
                    "send every site the same plan",
                )
        sums = run.work.sums
        if sums is not None and run.participant is None:
            run.participant = Participant(
                self.keys,
                run.roster,
                sums.params,
                self.members.hub,
                self.store,
                charged=run.work.charged,
            )
        if not run.begun:
            document = run.work.document
            if self._approvals is not None:
                self._approvals.use(document.to_bytes(), document.digest)
            if self._keep_plan is not None:
                self._keep_plan(document.digest, document.to_bytes(), run.called)
            about = {"run": document.digest, "name": run.called}
            cost = {"epsilon": document.epsilon, "delta": document.delta}
            _log.info("takes part in a run", extra={"about": {**about, **cost}})
        run.begun = True
        return Message({"status": "done"})

    # --- one round --------------------------------------------------------------------------------

    def _ready(self, run: _Run, number: int) -> Message:
        """Say whether this site could take part in a round (from 0), before anybody pays for it."""
        if number > run.round_number:
            self.store.check_room()
            releases = [run.work.charged(terms).release for terms in run.work.terms.values()]
            self.store.ledger.afford(releases, next(iter(run.work.terms.values())).privacy_model)
        return Message({"status": "done"})

    def _enter(self, run: _Run, number: int) -> None:
        """Go to a round (from 0) of a run; those before it are over."""
        work = run.work
        if number >= work.rounds:
            raise PrivacyRefusal(f"round {number + 1}", f"the plan has {work.rounds}")
        if number < run.round_number:
            raise PrivacyRefusal(f"round {number + 1} is over", "go on with the next one")
        if number == run.round_number:
            return
        due, last = work.schedule(number), self.store.last_round(self.members.secagg_name)
        if due is not None and self.number not in due:
            raise PrivacyRefusal(
                f"round {number + 1} is not this site's turn", "keep to the schedule"
            )
        gap, least = work.document.first_round + number - last, self.policy.allow.separation
        if last >= 0 and 0 < gap < least:  # numbers that do not rise are refused by the journal
            raise PrivacyRefusal(
                f"round {number + 1} comes {gap} after the last one, at least {least} are to lie "
                "between them",
                "wait for this site's next turn",
            )
        taken = self.store.ledger.runs().get(work.document.digest, 0) // len(work.terms)
        if taken >= work.participations:
            raise PrivacyRefusal(
                f"this site has taken part {taken} times, as often as the plan counts",
                "keep to the schedule",
            )
        run.round_number = number
        work.new_round()
        for kept in (run.devices, run.answers, run.computing, run.weights):
            kept.clear()

    def _open(self, run: _Run, request: Message, digest: bytes) -> Message:
        """Check a secure sum's plan, pay for the round, and share secrets for it."""
        number, frame, purpose = request.number("round"), request.part(), request.text("purpose")
        work = run.work
        if run.participant is None or work.sums is None or purpose not in work.terms:
            raise BadFrame("this plan has no such secure sums")
        hub = Ed25519PublicKey.from_public_bytes(self.members.hub)
        asked = read(frame, RoundPlan, MAX_FRAME, hub)
        if asked.round_number != work.document.first_round + number or asked.purpose != purpose:
            raise PrivacyRefusal("the secure sum has another number or purpose", "use the plan's")
        if asked.privacy != work.stated(request).to_bytes():
            raise PrivacyRefusal(
                "the round states other noise or honest shares than the plan that was accepted, or "
                "another clip than this site is told",
                "use the plan's",
            )
        sums = work.summands(request)
        if (asked.dimension, asked.bits) != (sums.width, sums.word):
            raise PrivacyRefusal("the round has vectors of another shape", "use the plan's")
        if len(asked.members) != work.sums.cohort:
            raise PrivacyRefusal("the round has a cohort of another size", "use the plan's")
        self._enter(run, number)
        if list(asked.members) != (work.schedule(number) or list(asked.members)):
            raise PrivacyRefusal("the round has another cohort", "keep to the schedule")
        run.devices[purpose] = run.participant.join(frame)
        self._note_round(run, number)
        return Message({"status": "done"}, (run.devices[purpose].shares,))

    def _train(self, run: _Run, request: Message, digest: bytes) -> Message:
        """Start to compute what leaves in this round, or ask for patience."""
        if digest not in run.computing:
            if run.participant is not None:
                device = self._joined(run, request)
                if device.privacy != run.work.stated(request):
                    raise PrivacyRefusal(
                        "this sum was opened under another clip", "keep to what it states"
                    )
                self._check_model(run, request)
                device.take_sharers(request.part())
                started = self._pool.submit(self._masked, run.work, device, request)
            else:
                paid = self._claimed(run, request.number("round"))
                started = self._pool.submit(self._uploaded, run.work, request, paid)
            run.computing[digest] = started
        try:
            return Message({"status": "done"}, (run.computing[digest].result(self._patience),))
        except Late:
            return Message({"status": "working"})

    def _check_model(self, run: _Run, request: Message) -> None:
        """One model a round: what others would do with these rows is nobody's to see, not even
        whether training fails or how long it takes."""
        weights = b"".join(request.parts[1:2])
        if run.weights.setdefault(request.text("purpose"), weights) != weights:
            raise BadFrame("there was another model in this round: go on with the next one")

    def _masked(self, work: Work, device: DeviceRound, request: Message) -> bytes:
        row = _computed(work.row, request)
        return device.mask(work.summands(request).upload(self.number, row))

    def _uploaded(self, work: Work, request: Message, paid: int) -> bytes:
        row = _computed(work.upload, request)
        self.store.settle(paid, left=True)
        return row.astype("<i8").tobytes()

    def _claimed(self, run: _Run, number: int) -> int:
        """Charge a round without a secure sum to the ledger; the reservation's number."""
        self._enter(run, number)
        own = derive.digest(b"members", derive.id_bytes(self.number))
        at, terms = run.work.document.first_round + number, run.work.charged(run.work.terms[UPDATE])
        claim = Claim(self.members.secagg_name, at, UPDATE, own, Limits().round_step, terms)
        paid = self.store.claim(claim)
        self._note_round(run, number)
        return paid

    @staticmethod
    def _note_round(run: _Run, number: int) -> None:
        about = {"run": run.work.document.digest, "round": number + 1, "of": run.work.rounds}
        _log.info("takes part in a round", extra={"about": about})

    def _confirm(self, run: _Run, request: Message, digest: bytes) -> Message:
        device = self._joined(run, request)
        return Message({"status": "done"}, (device.confirm(request.part()),))

    def _unmask(self, run: _Run, request: Message, digest: bytes) -> Message:
        """Give shares away; and join the next round if its plan came along and nothing forbids."""
        unmasked = self._joined(run, request).unmask(request.part())
        if len(request.parts) == 1:
            return Message({"status": "done"}, (unmasked,))
        try:
            later = {**request.header, "round": request.number("round") + 1}
            shares = self._open(run, Message(later, request.parts[1:]), digest).part()
        except FedveilError as error:  # the hub hears it again when it asks for that round alone
            _log.warning("refused (open): %s", error)
            return Message({"status": "done"}, (unmasked,))
        return Message({"status": "done"}, (unmasked, shares))

    def _abort(self, run: _Run, request: Message, digest: bytes) -> Message:
        self._joined(run, request).abort(request.part())
        return Message({"status": "done"})

    def _joined(self, run: _Run, request: Message) -> DeviceRound:
        number, device = request.number("round"), run.devices.get(request.text("purpose"))
        if device is None or number != run.round_number:
            raise BadFrame(f"this site has not joined round {number + 1}, or has left it behind")
        return device


def _computed(compute: Callable[[Message], Ints], request: Message) -> Ints:
    """Compute from rows. Why that fails may depend on them, and only the owner may know."""
    try:
        return compute(request)
    except BadFrame:  # about the request
        raise
    except Exception:
        _log.exception("failed (train)")
        raise BadFrame("this site could not compute its part") from None
