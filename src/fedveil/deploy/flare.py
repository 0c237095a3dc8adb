"""NVIDIA FLARE as the courier: two components that move bytes, for each party's own
`local/resources.json`. They run in FLARE's permanent processes, without a job; nothing is shipped.

    site  {"id": "fedveil", "path": "fedveil.deploy.flare.SiteRelay", "args": {"socket": ...}}
    hub   {"id": "fedveil", "path": "fedveil.deploy.flare.HubRelay", "args": {"socket": ...}}

FLARE 2.9.0 authenticates both sides by their certificates (mTLS). What is carried is signed by hub
and guards themselves, so FLARE need not be believed.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from fedveil.deploy import sockets
from fedveil.deploy.courier import Unreachable

TOPIC = "fedveil"
_LONGEST = 60.0  # seconds for one request: guards answer sooner, or say that they are working


class SiteRelay(FLComponent):  # type: ignore[misc]
    """Asks the guard at `socket`, and brings its answer back."""

    def __init__(self, socket: str) -> None:
        super().__init__()
        self._socket = Path(socket)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(topic=TOPIC, message_handle_func=self._answer)

    def _answer(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        reply = Shareable()
        try:
            reply["frame"] = sockets.request(self._socket, request["frame"], _LONGEST)
            reply.set_return_code(ReturnCode.OK)
        except Unreachable:
            reply.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
        return reply


class HubRelay(FLComponent):  # type: ignore[misc]
    """Listens at `socket` for the hub, and forwards to sites."""

    def __init__(self, socket: str) -> None:
        super().__init__()
        self._socket = Path(socket)
        self._engine: Any = None
        self._listening: sockets.Listening | None = None

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.SYSTEM_START:
            self._engine = fl_ctx.get_engine()
            self._listening = sockets.relay(self._socket, self._forward, self._sites)
        elif event_type == EventType.SYSTEM_END and self._listening is not None:
            self._listening.close()

    def _sites(self) -> tuple[str, ...]:
        return tuple(sorted(client.name for client in self._engine.get_clients()))

    def _forward(self, site: str, frame: bytes, seconds: float) -> bytes:
        if site not in self._sites():
            raise Unreachable(f"site {site!r} is not there")
        message = Shareable()
        message["frame"] = frame
        with self._engine.new_context() as context:
            found = self._engine.send_aux_request([site], TOPIC, message, seconds, context) or {}
        reply = found.get(site)
        if reply is None or reply.get_return_code() != ReturnCode.OK:
            raise Unreachable(f"site {site!r} did not answer")
        answer: bytes = reply["frame"]
        return answer


def _main(workspace: str, site: str) -> None:
    """The engine as a process that ends with the one that started it."""
    sockets.end_with_parent()
    kind, own = ("client", [f"uid={site}"]) if site else ("server", [])
    variables = ["secure_train=true", "config_folder=config", "org=fedveil", *own]
    sys.argv[1:] = ["-m", workspace, "-s", f"fed_{kind}.json", "--set", *variables]
    runpy.run_module(f"nvflare.private.fed.app.{kind}.{kind}_train", run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
