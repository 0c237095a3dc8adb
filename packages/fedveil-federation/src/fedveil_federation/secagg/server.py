"""The server: opens rounds for enrolled devices, and resumes them from its logs.

A round relays frames, adds masked vectors and removes the masks. Its memory is one vector plus a
few hundred bytes for each pair of neighbours: a masked vector is added to the total when it arrives
and kept nowhere. A frame that fails a check raises a typed error and changes nothing, so a round
survives whatever the network does to single messages; a frame that comes again counts once. Frames
may come from many threads: signatures are checked side by side, and what they change is changed
under one lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import Malformed, NotReleased, OutOfTurn
from fedveil.privacy.secure_sums.masks import IntVector, check_bits, decode
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.layout import (
    SEED_BYTES,
    Flags,
    RoundLayout,
    lay_out,
    longest,
    packed,
)
from fedveil_federation.secagg.messages import (
    Abort,
    Confirm,
    Confirmed,
    Masked,
    RoundPlan,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.ratchet import ROUNDS
from fedveil_federation.secagg.relay import Kept, Recovery
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.round_log import RecordKind, RoundLog, Unopened
from fedveil_federation.secagg.session import Session, answer, exchange_key

_KINDS: dict[int, type[Shares | Masked | Confirm | Unmask]] = {
    kind.KIND: kind for kind in (Shares, Masked, Confirm, Unmask)
}


class Phase(IntEnum):
    """The phases of a round; the numbers are the kinds of message it then takes."""

    SHARES = Shares.KIND
    VECTORS = Masked.KIND
    CONFIRMATIONS = Confirm.KIND
    UNMASKING = Unmask.KIND
    OVER = 255


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a server waits in each phase for who has not answered."""

    shares: float = 60.0
    vectors: float = 600.0
    confirmations: float = 60.0
    unmasking: float = 60.0


class ServerRound:
    """One round: `receive` frames in each phase, then close the phase.

    `identities`: the members' Ed25519 keys. With a directory for `logs`, the round survives the end
    of its process (`resume`).
    """

    def __init__(
        self,
        plan: RoundPlan,
        key: Ed25519PrivateKey,
        identities: Mapping[int, bytes],
        params: SecAggParams,
        logs: Path | None = None,
    ) -> None:
        self.plan = wire.seal(plan, key)
        self.layout: RoundLayout = lay_out(plan, wire.message_digest(self.plan))
        self.identities: dict[int, Ed25519PublicKey] = {
            member: Ed25519PublicKey.from_public_bytes(identities[member])
            for member in plan.members
        }
        self.phase = Phase.SHARES
        # What devices did wrong in this round, as far as it can be told, for who runs the server.
        self.remarks: dict[int, str] = {}
        self.confirms = not params.honest_server  # whether there are confirmations
        self._lock = threading.RLock()
        self._key = key
        self._exchange = exchange_key(key)
        self._sessions: dict[int, Session] = {}
        self._fewest = params.fewest_survivors(len(plan.members))
        self._seen: dict[tuple[int, int], bytes] = {}  # kind, device -> signature
        self._kept = Kept(self.layout, self.identities, self.confirms)
        self._confirmed = b""
        self._log: RoundLog | None = None
        if logs is not None:
            path = logs / f"{self.layout.digest.hex()}.round"
            self._log = RoundLog.begin(path, self.plan, identities)

    @classmethod
    def resume(cls, path: Path, key: Ed25519PrivateKey, params: SecAggParams) -> ServerRound:
        """Go on with a logged round as it was when its server ended.

        Args:
            path: The round's log.
            key: The server's signing key.
            params: The terms of the round.

        Returns:
            The round: the same frames have come in, and the same lists go out.

        Raises:
            ConfigError: The log is damaged, or of other terms.
            Unopened: The plan had not been written, hence not been sent.
        """
        with RoundLog.resume(path) as (log, frame, identities, records):
            plan = wire.read(frame, RoundPlan, wire.MAX_FRAME, key.public_key())
            if plan.params != params.digest:
                raise ConfigError(f"round log {path}: its round was made under other terms")
            found = cls(plan, key, identities, params)
            for record in records:
                if record.kind is RecordKind.FRAME:
                    found.receive(record.content)
                elif record.kind is RecordKind.ABORTED:
                    found.phase = Phase.OVER
                elif record.content != bytes((found.phase,)):
                    raise ConfigError(f"round log {path}: damaged; abort its round")
                else:
                    with suppress(NotReleased):
                        found.close()
            found._log = log
        return found

    @property
    def missing(self) -> list[int]:
        """Who could answer in this phase and has not."""
        kept = self._kept
        waiting = {
            Phase.SHARES: ~kept.shared,
            Phase.VECTORS: kept.shared & ~kept.uploaded,
            Phase.CONFIRMATIONS: kept.uploaded & ~kept.confirmed,
            Phase.UNMASKING: kept.confirmed & ~kept.answered,
        }.get(self.phase)
        return [] if waiting is None else kept.ids(waiting)

    def close(self) -> None:
        """Close whichever phase is open; unmasking ends by `finish`.

        Raises:
            NotReleased: Too few devices have answered.
            OutOfTurn: The round unmasks, or is over.
        """
        closing = {
            Phase.SHARES: self.close_sharing,
            Phase.VECTORS: self.close_upload,
            Phase.CONFIRMATIONS: self.close_confirmation,
        }.get(self.phase)
        if closing is None:
            raise OutOfTurn(f"{self.phase.name} is not closed: call finish, or it is over")
        closing()

    def abort(self) -> bytes:
        """Give the round up; the frame that tells the devices. No share is asked for any more."""
        with self._lock:
            if self.phase is not Phase.OVER:
                self.phase = Phase.OVER
                self._write(RecordKind.ABORTED, b"", sync=True)
            return wire.seal(Abort(self.layout.digest), self._key)

    def discard_log(self) -> None:
        """Delete the round's log, once its sum is kept elsewhere or nobody needs it."""
        with self._lock:
            if self._log is not None:
                self.phase = Phase.OVER
                self._log.discard()
                self._log = None

    @property
    def sharers(self) -> list[int]:
        return self._kept.ids(self._kept.shared)

    @property
    def survivors(self) -> list[int]:
        return self._kept.ids(self._kept.uploaded)

    @property
    def confirmed(self) -> list[int]:
        return self._kept.ids(self._kept.confirmed)

    def _expected(self, start: bytes) -> int:
        """How long the frame is that begins so, or an error.

        Everything that the header claims is checked: kind, phase, round, membership and size.
        """
        claims = wire.head(start)
        kind = _KINDS.get(claims.kind)
        if kind is None:
            raise Malformed(f"kind {claims.kind} is no message to a server")
        plan = self.layout.plan
        vector = plan.dimension * (plan.bits // 8)
        wire.expect(start, kind, longest(kind, len(plan.members), plan.degree, vector))
        if claims.device not in self.identities:
            raise OutOfTurn(f"device {claims.device} is not in this round's cohort")
        if claims.context != self.layout.digest:
            raise OutOfTurn(f"{kind.__name__} of another round")
        if claims.kind != self.phase and (claims.kind, claims.device) not in self._seen:
            when = "late" if claims.kind < self.phase else "early"
            raise OutOfTurn(f"kind {claims.kind} comes too {when}: collecting {self.phase.name}")
        return claims.size

    def receive(self, frame: bytes) -> int:
        """Take one device's frame of the current phase.

        Args:
            frame: What the device sent; the same frame again counts once.

        Returns:
            The device's id.

        Raises:
            SecureAggregationError: The frame is not the device's, or not in turn; nothing changed.
            NotReleased: The round's log cannot be written, and the round is over.
        """
        size = self._expected(frame)
        claims = wire.head(frame)
        key = (claims.kind, claims.device)
        if key in self._seen:
            return self._repeated(frame, key)
        message = wire.read(frame, _KINDS[claims.kind], size, self._author(*key))
        session = self._agreed(message) if isinstance(message, Shares) else None
        with self._lock:
            if key in self._seen:  # by another thread, meanwhile
                return self._repeated(frame, key)
            self._expected(frame)
            signature = frame[wire.SIGNATURE : wire.HEADER]
            self._kept.take(message)
            if session is not None:
                self._sessions[claims.device] = session
            self._seen[key] = signature
            self._write(RecordKind.FRAME, frame)
        return claims.device

    def _author(self, kind: int, device: int) -> wire.Author:
        """Whose signature, or stamp, a frame must carry."""
        if kind == Shares.KIND:
            return self.identities[device]
        session = self._sessions.get(device)
        if session is None:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        return session.up

    def _agreed(self, message: Shares) -> Session:
        plan, digest = self.layout.plan, self.layout.digest
        return answer(self._exchange, plan.exchange, message.exchange, digest, message.device)

    def close_sharing(self) -> dict[int, bytes]:
        """Take no more shares: from here on those who have not shared are out of the round.

        So are devices that contradict others about the keys of a pair; `remarks` names them.

        Returns:
            By device that has shared in vain, the frame that tells it so. One that sits the round
            out gives nothing away, and need not pay.

        Raises:
            NotReleased: Too few devices have shared.
        """
        with self._lock:
            self._expect_phase(Phase.SHARES)
            left_out = self._kept.close_sharing()
            for device, others in left_out.items():
                self.remarks[device] = f"contradicts {others} about common keys, and sits out"
            self._close(Phase.VECTORS, len(self.sharers), "shared")
            return dict.fromkeys(left_out, wire.seal(Abort(self.layout.digest), self._key))

    def sharers_for(self, device: int) -> bytes:
        """The frame that tells a sharer who else has shared, with the shares meant for it."""
        self._expect(Phase.VECTORS, device, self._kept.shared)
        lists = self._kept.relayed(device)
        told = Sharers(self.layout.digest, device, self._kept.sharers, *lists)
        return wire.seal(told, self._sessions[device].down)

    def close_upload(self) -> None:
        """Take no more vectors: who has not sent one is lost, and a late one is refused.

        Raises:
            NotReleased: Too few devices have survived.
        """
        with self._lock:
            self._expect_phase(Phase.VECTORS)
            self._kept.survivors = packed(self._kept.uploaded)
            following = Phase.CONFIRMATIONS
            if not self.confirms:
                following, self._kept.confirmed = Phase.UNMASKING, self._kept.uploaded.copy()
            self._close(following, len(self.survivors), "survived")

    def survivors_for(self, device: int) -> bytes:
        """The frame that names the survivors to one of them; without confirmations, it unmasks."""
        phase = Phase.CONFIRMATIONS if self.confirms else Phase.UNMASKING
        self._expect(phase, device, self._kept.uploaded)
        statements = self._kept.statements_for(device)
        told = Survivors(self.layout.digest, device, self._kept.survivors, statements)
        return wire.seal(told, self._sessions[device].down)

    def close_confirmation(self) -> None:
        """Take no more confirmations.

        Raises:
            NotReleased: Too few devices have confirmed.
        """
        with self._lock:
            self._expect_phase(Phase.CONFIRMATIONS)
            self._confirmed = packed(self._kept.confirmed)
            enough = self.layout.plan.threshold
            self._close(Phase.UNMASKING, len(self.confirmed), "confirmed", enough)

    def confirmed_for(self, device: int) -> bytes:
        """The frame that shows a device which neighbours act on the same survivors."""
        self._expect(Phase.UNMASKING, device, self._kept.confirmed)
        tags = self._kept.tags_for(device)
        message = Confirmed(self.layout.digest, device, self._confirmed, tags)
        return wire.seal(message, self._sessions[device].down)

    def finish(self) -> IntVector:
        """Take the masks off the sum.

        May be called again after more answers came in, as long as it has raised. `remarks` then
        says who gave wrong shares, or dealt some that could not be opened.

        Returns:
            The exact sum of the survivors' vectors, int64 [dimension].

        Raises:
            NotReleased: The masks cannot be removed exactly.
        """
        with self._lock:
            self._expect_phase(Phase.UNMASKING)
            recovery = Recovery(self._kept, self._kept.uploaded)
            try:
                recovery.remove_masks(self._kept.total)
            finally:
                for dealer, holders in self._kept.disputes().items():
                    self.remarks[dealer] = f"dealt shares that {holders} say they cannot open"
                self.remarks |= dict.fromkeys(recovery.wrong, "gave shares that nobody had dealt")
            self.phase = Phase.OVER
            return decode(self._kept.total, self.layout.plan.bits)

    def _repeated(self, frame: bytes, key: tuple[int, int]) -> int:
        """Ignore the same frame again; refuse another one of its kind, which comes too late."""
        if self._seen[key] != frame[wire.SIGNATURE : wire.HEADER]:
            raise OutOfTurn(f"device {key[1]} has sent its {_KINDS[key[0]].__name__} before")
        wire.verify(frame, self._author(*key))
        return key[1]

    def _expect(self, phase: Phase, device: int, among: Flags) -> None:
        if self.phase is not phase:
            raise OutOfTurn(f"this frame belongs to {phase.name}, not to {self.phase.name}")
        if not self._kept.has(among, device):
            raise OutOfTurn(f"device {device} has dropped out of this round")

    def _write(self, kind: RecordKind, content: bytes, sync: bool = False) -> None:
        """Into the log, if there is one; a round that cannot be logged ends here."""
        if self._log is None:
            return
        try:
            self._log.append(kind, content, sync)
        except OSError as error:
            self.phase = Phase.OVER
            raise NotReleased(f"round log {self._log.path}: {error.strerror}") from None

    def _expect_phase(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise OutOfTurn(f"this belongs to {phase.name}, not to {self.phase.name}")

    def _close(self, following: Phase, count: int, what: str, fewest: int | None = None) -> None:
        """The last step of a close: once the phase is another, devices are told what it decided."""
        self._write(RecordKind.CLOSED, bytes((self.phase,)), sync=True)
        needed = self._fewest if fewest is None else fewest
        if count < needed:
            self.phase = Phase.OVER
            cohort = len(self.layout.plan.members)
            raise NotReleased(f"{count} of {cohort} devices {what}, need {needed}")
        self.phase = following


class Server:
    """Opens rounds; the signing key is what devices know it by. `logs`: where rounds are logged."""

    def __init__(
        self, key: Ed25519PrivateKey, roster: Roster, params: SecAggParams, logs: Path | None = None
    ) -> None:
        self.key = key
        self.logs = logs
        self.roster = roster
        self.params = params
        self._exchange = exchange_key(key).public_key().public_bytes_raw()
        self._graph = (b"", b"")  # the last roster for which this server drew, and what it drew

    def open(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str = "update",
        privacy: PrivacyTerms | None = None,
    ) -> ServerRound:
        """Open a round; its `plan` is the frame for all members.

        A sparse graph is kept as long as the cohort and its keys are the same, so that neighbours
        agree on their seeds once.

        Args:
            round_number: The round; each number and purpose is used once.
            members: The cohort.
            dimension: The length of everybody's vector.
            bits: The width of its words, 32 or 64.
            purpose: What is summed, one of the terms' purposes.
            privacy: What taking part costs a device; None in simulations.

        Returns:
            The server's side of the round.

        Raises:
            ConfigError: No such round is possible under the terms.
        """
        check_bits(bits)
        cohort = tuple(sorted(members))
        if len(set(cohort)) != len(cohort):
            raise ConfigError("members: a device is named twice")
        most = self.params.limits.dimension
        if not 1 <= dimension <= most:
            raise ConfigError(f"dimension = {dimension}: need 1 to {most}")
        if not 0 <= round_number < ROUNDS:
            raise ConfigError(f"round = {round_number}: need a number within 0..2^32 - 1")
        if purpose not in self.params.purposes:
            raise ConfigError(f"purpose = {purpose!r}: the terms name {list(self.params.purposes)}")
        topology = self.params.topology(len(cohort))
        if privacy is not None:
            privacy.check(self.params, dimension)
        roster = self.roster.digest(cohort)
        if not topology.complete and self._graph[0] != roster:
            self._graph = (roster, os.urandom(SEED_BYTES))
        plan = RoundPlan(
            self.params.federation,
            round_number,
            purpose,
            cohort,
            roster,
            self.params.digest,
            self._exchange,
            dimension,
            bits,
            topology.degree,
            topology.masks,
            topology.threshold,
            self.params.min_survivors,
            b"" if privacy is None else privacy.to_bytes(),
            b"" if topology.complete else self._graph[1],
        )
        identities = {member: self.roster.get(member).identity_bytes for member in cohort}
        return ServerRound(plan, self.key, identities, self.params, self.logs)

    def resume(self) -> list[ServerRound]:
        """The rounds that were under way when the last server on these logs ended, oldest first.

        A log without a whole plan is deleted: no device has seen that round.
        """
        found = []
        for path in sorted(self.logs.glob("*.round")) if self.logs is not None else ():
            try:
                found.append(ServerRound.resume(path, self.key, self.params))
            except Unopened:
                path.unlink()
        return sorted(found, key=lambda one: one.layout.plan.round_number)
