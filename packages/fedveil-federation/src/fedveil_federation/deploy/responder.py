"""Who answers a hub at a site: signed replies to the hub's own signed requests, whatever comes."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.metadata import version

from fedveil.core.errors import FedveilError
from fedveil_federation.deploy.approvals import OwnerAsked
from fedveil_federation.deploy.counters import Counters
from fedveil_federation.deploy.envelope import BadFrame, Message, seal, unseal
from fedveil_federation.secagg.keys import DeviceKeys

_log = logging.getLogger(__name__)

Handlers = Mapping[str, Callable[[Message], Message]]


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
            reply = Message({"status": status, "reason": self._told(error)})
        except Exception:  # a fault here is no business of the hub's
            _log.exception("failed (%s)", kind)
            self.counters.add("failures")
            reply = Message({"status": "refused", "reason": "failed; its owner's log says why"})
        else:
            self.counters.add("requests", kind=kind)
        return seal(reply, self.keys.identity, frame, known)

    def _told(self, error: FedveilError) -> str:
        """What the hub hears of a refusal."""
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
