"""A leg of 4 MB to three sites over FLARE: by the engine alone, and by fedveil through it.

The components below live in the same FLARE processes as fedveil's relays. The bare echo sends aux
messages between them. fedveil's leg goes from the hub's process through two Unix sockets to guards
in this process and back; requests and replies are signed and checked. The two take turns, so that
a busy machine slows both.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from benchmarks.deploy_engines import engines
from fedveil.deploy import engine_kit, sockets
from fedveil.deploy.envelope import Message, seal, unseal
from fedveil.deploy.hub import Sites
from fedveil.deploy.members import Members

TOPIC = "bare-echo"
SIZE, LEGS, WAIT = 4_000_000, 15, 60.0
SITES = ("a", "b", "c")


class EchoSite(FLComponent):  # type: ignore[misc]
    """Sends back what comes."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(topic=TOPIC, message_handle_func=self._answer)

    def _answer(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        reply = Shareable()
        reply["frame"] = request["frame"]
        reply.set_return_code(ReturnCode.OK)
        return reply


class EchoHub(FLComponent):  # type: ignore[misc]
    """Whenever its socket is asked: one leg to all sites, and how long it took."""

    def __init__(self, socket: str) -> None:
        super().__init__()
        self._socket = Path(socket)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.SYSTEM_START:
            self._engine = fl_ctx.get_engine()
            self._listening = sockets.Listening(self._socket, self._leg)

    def _leg(self, about: bytes, content: bytes) -> bytes:
        payload = os.urandom(SIZE)

        def ask(name: str) -> bool:
            message = Shareable()
            message["frame"] = payload
            with self._engine.new_context() as context:
                found = self._engine.send_aux_request([name], TOPIC, message, WAIT, context)
            return bool(found[name]["frame"] == payload)

        began = time.perf_counter()
        with ThreadPoolExecutor(len(SITES)) as pool:
            whole = all(pool.map(ask, SITES))
        return json.dumps(time.perf_counter() - began if whole else None).encode()


def _with(inner: Any, name: str) -> Any:
    """An engine's resources, with one component more."""

    def more(home: Any) -> dict[str, Any]:
        found = inner(home)
        settings = {"socket": str(home.path / "echo.sock")} if name == "EchoHub" else {}
        own = {"id": "echo", "path": f"benchmarks.deploy_echo.{name}", "args": settings}
        return {**found, "components": [*found["components"], own]}

    return more


def _signed_leg(sites: Sites) -> float:
    payload = os.urandom(SIZE)
    began = time.perf_counter()
    message = Message({"kind": "echo"}, (payload,))
    replies = sites.leg(dict.fromkeys(range(len(SITES)), message), WAIT)
    if [reply.part() for reply in replies.values()] != [payload] * len(SITES):
        raise ValueError("another answer, or none")
    return time.perf_counter() - began


def run() -> None:
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    hub_key = Ed25519PrivateKey.generate()
    hub = hub_key.public_key().public_bytes_raw()
    keys = {site: Ed25519PrivateKey.generate() for site in SITES}
    known = {site: key.public_key().public_bytes_raw() for site, key in keys.items()}
    members = Members("bench", hub, known)

    def guard(site: str) -> Any:
        def answer(frame: bytes) -> bytes:
            return seal(Message({}, unseal(frame, [hub]).parts), keys[site], frame)

        return answer

    client, server = engine_kit._client_resources, engine_kit._server_resources
    with (
        mock.patch.object(engine_kit, "_client_resources", _with(client, "EchoSite")),
        mock.patch.object(engine_kit, "_server_resources", _with(server, "EchoHub")),
        tempfile.TemporaryDirectory(prefix="fedveil-") as made,
        engines(Path(made), SITES, "flare") as courier,
    ):
        for site in SITES:
            courier.attach(site, guard(site))
        socket, sites = courier.home.path / "echo.sock", Sites(members, hub_key, courier)
        bare, signed = [], []
        for _ in range(LEGS + 1):
            bare.append(float(json.loads(sockets.request(socket, b"", 2 * WAIT))))
            signed.append(_signed_leg(sites))
    # The first ones make connections, and are left out.
    shown = {}
    for name, figure in (("median", statistics.median), ("mean", statistics.fmean), ("least", min)):
        alone, through = figure(bare[1:]), figure(signed[1:])
        seconds = {"bare": alone, "fedveil": through, "overhead": through / alone - 1}
        shown[name] = {what: round(value, 3) for what, value in seconds.items()}
    print(json.dumps(shown))
