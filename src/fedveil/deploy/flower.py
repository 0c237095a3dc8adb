"""Flower 1.41 as the courier: SuperLink and SuperNodes that carry bytes, and load no code.

Flower's usual way is to ship an app from whoever starts a run to everybody else, who execute it.
Here hub and sites leave what is shipped alone:

    site  a SuperNode, in "process" isolation: it executes nothing. Its messages are taken by a loop
          in the same process that runs the `ClientApp` below, which asks the guard at its socket.
    hub   a SuperLink that shows the network its Fleet API alone: nobody can start or stop runs, or
          register nodes. Sites are known by the keys of their certificates.

TLS proves the hub to the sites, and each request of a site is signed with its key. What is carried
is signed by hub and guards themselves, so Flower need not be believed.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import secrets
import sys
import threading
import time
import zipfile
from base64 import b64decode
from collections.abc import Mapping
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TIMESTAMP_HEADER,
    ErrorCode,
    SubStatus,
)
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TaskType,
)
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.superlink.servicer.control.control_handlers import start_run
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedveil.deploy import sockets
from fedveil.deploy.courier import Unreachable

_log = logging.getLogger(__name__)

_RECORD, _FRAME = "fedveil", "frame"
_LONGEST = 20.0  # seconds for one request: guards answer sooner, or are asked again
_POLL, _IDLE = 0.1, 1.0  # seconds between two looks
_AWAKE = 60.0  # seconds after a message in which the next one is expected
_SPARE = 60.0  # seconds that a message lives longer than it is waited for: clocks differ
_PROOF = tuple(
    name.encode() for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
)
_STAMP = TIMESTAMP_HEADER.encode()
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_LOCAL = "127.0.0.1"
_APP = """\
[project]
name = "fedveil"
version = "1.0.0"
[tool.flwr.app]
publisher = "fedveil"
[tool.flwr.app.components]
serverapp = "nothing:here"
clientapp = "nothing:here"
"""

carrier = ClientApp()


@carrier.query()  # type: ignore[untyped-decorator]
def carry(message: Message, context: Context) -> Message:
    """Ask the guard, and bring its answer back."""
    guard, frame = Path(str(context.node_config["guard"])), message.content[_RECORD][_FRAME]
    try:
        answer = sockets.request(guard, frame, _LONGEST)
    except Unreachable as error:
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
    return Message(_content(answer), reply_to=message)


# --- a site ---------------------------------------------------------------------------------------


def _site(workspace: Path) -> None:
    """A SuperNode, and the loop that takes its messages."""
    known = json.loads((workspace / "flower.json").read_text(encoding="utf-8"))
    secret, port, pace = workspace / "secret", sockets.free_port(), _Pace()
    # Its node looks for messages every 3 seconds, for replies every half; a round has five legs.
    start_client_internal.time = SimpleNamespace(sleep=lambda most: pace.wait(most))
    whole = threading.Semaphore(0)  # messages to be taken
    pull = start_client_internal._pull_and_store_message
    start_client_internal._pull_and_store_message = partial(_pulled, pull, pace, whole)
    taking = (_take_messages, port, secret.read_bytes(), whole)
    threading.Thread(target=_or_end, args=taking, daemon=True).start()
    sys.argv = [
        *("flower-supernode", "--superlink", known["address"], "--isolation", "process"),
        *("--root-certificates", str(workspace / "rootCA.pem")),
        *("--auth-supernode-private-key", str(workspace / "node.key")),
        *("--host", _LOCAL, "--port", str(port)),
        *("--superexec-auth-secret-file", str(secret)),  # who has it may take messages
        *("--node-config", f"guard={json.dumps(known['guard'])}"),
    ]
    flower_supernode()


class _Pace:
    """Looks often while messages come, and once a second while none do."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def note(self) -> None:
        self._last = time.monotonic()

    def wait(self, most: float = _IDLE) -> None:
        busy = time.monotonic() - self._last < _AWAKE
        time.sleep(min(most, _POLL if busy else _IDLE))


def _or_end(loop: Any, *args: Any) -> None:
    """A loop that fails ends the process: the site's service starts it again."""
    try:
        loop(*args)
    except BaseException:
        _log.exception("the engine ends")
        os._exit(1)


def _pulled(pull: Any, pace: _Pace, whole: threading.Semaphore, **given: Any) -> int | None:
    """Have the node pull a message, and say so when all of it is there.

    The node offers a message before it has its content. If the hub gives the message up meanwhile,
    the node withdraws it, and whoever took it too early has nothing to answer.
    """
    found: int | None = pull(**given)
    if found is not None:
        pace.note()
        whole.release()
    return found


def _take_messages(port: int, secret: bytes, whole: threading.Semaphore) -> None:
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    address = f"{_LOCAL}:{port}"
    while True:
        whole.acquire()  # the node that has pulled it listens by now
        with _runtime(address, "SuperExec", signed) as node:
            _answer(address, node.AcquireTask(wanted).token)


def _answer(address: str, token: str) -> None:
    """One message: the app that it came with is not looked at."""
    with _runtime(address, "flwr-clientapp", RuntimeTokenHttpInterceptor(token)) as task:
        message, context, _, _ = pull_task_input(task)
        push_message(task, carrier(message, context), context)
        push_task_output(task, context, SubStatus.COMPLETED, "")


def _runtime(address: str, name: str, proof: Any) -> RuntimeHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name=name)
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # within this machine
        root_certificates=None,
        interceptors=[version, proof],
    )


# --- the hub --------------------------------------------------------------------------------------


class _Hub:
    """A SuperLink with one run that never ends, through which the hub's requests go."""

    def __init__(self, workspace: Path) -> None:
        known = json.loads((workspace / "flower.json").read_text(encoding="utf-8"))
        app = create_app()
        app.state.enable_supernode_auth = True
        app.state.superexec_auth_secret = secrets.token_bytes(32)  # nobody's
        self._state = app.state.linkstate_factory.state()
        self._nodes = {
            site: self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key.encode(), 0)
            for site, key in known["nodes"].items()
        }
        inside = sockets.free_port()
        tls = {
            "ssl_certfile": str(workspace / "server.crt"),
            "ssl_keyfile": str(workspace / "server.key"),
        }
        keys = {key.encode(): self._nodes[site] for site, key in known["nodes"].items()}
        fleet = _for_nodes(_only(app, "/v1/fleet/"), self._state, keys)
        _serve(fleet, host="0.0.0.0", port=known["port"], **tls)
        _serve(_only(app, "/v1/runtime/"), host=_LOCAL, port=inside)
        self._grid = self._started(inside)
        self._pause = threading.Event()  # never set

    def _started(self, port: int) -> HttpGrid:
        """Start the run, and take it as its ServerApp would."""
        account = AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME)
        app = _bundle()
        fab = fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {}))
        started = start_run(StartRunRequest(fab=fab), account, self._state, None)
        (run,) = self._state.get_run_info(run_ids=[started.run_id])
        token = self._state.claim_task(run.primary_task_id)
        grid = HttpGrid(f"{_LOCAL}:{port}", insecure=True, token=token)
        while not sockets.accepts(port):
            time.sleep(_POLL)
        client = grid._runtime_client
        HeartbeatSender(make_task_heartbeat_fn_http(client)).start()
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        return grid

    def sites(self) -> tuple[str, ...]:
        here = self._state.get_nodes(TaskIdentity.run_id)
        return tuple(sorted(site for site, node in self._nodes.items() if node in here))

    def forward(self, site: str, frame: bytes, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        if site not in self.sites():
            raise Unreachable(f"site {site!r} is not there")
        content, node = _content(frame), self._nodes[site]
        message = Message(content, node, "query", ttl=seconds + _SPARE)
        (sent,) = self._grid.push_messages([message])
        while time.monotonic() < until:
            for reply in self._grid.pull_messages([sent]):
                if reply.has_error():
                    raise Unreachable(f"site {site!r} did not answer")
                answer: bytes = reply.content[_RECORD][_FRAME]
                return answer
            self._pause.wait(_POLL)
        self._state.delete_messages({sent})
        self._state.object_store.delete(sent)
        raise Unreachable(f"site {site!r} did not answer in time")


def _bundle() -> bytes:
    """Flower wants an app for every run. This one has no code."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pyproject.toml", _APP)
    return made.getvalue()


def _only(app: Any, prefix: str) -> Any:
    """Nothing of the application but what lies under a path."""

    async def filtered(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith(prefix):
            await app(scope, receive, send)
        else:
            await _refuse(send, 404)

    return filtered


def _for_nodes(app: Any, state: Any, nodes: Mapping[bytes, int]) -> Any:
    """The application for whoever signs as a node, by its public key (PEM).

    Flower finds out as well, after it has read all of a request: strangers are not to fill the
    hub's memory. A node that comes back before it was missed is let in at once.
    """

    async def filtered(scope: Any, receive: Any, send: Any) -> None:
        node = _signer(dict(scope["headers"]), nodes)
        if node is None:
            await _refuse(send, 401)
            return
        if scope["path"].endswith("/activate-node"):
            state.deactivate_node(node)
        await app(scope, receive, send)

    return filtered


def _signer(headers: Mapping[bytes, bytes], nodes: Mapping[bytes, int]) -> int | None:
    try:
        key, signature = (b64decode(headers[name], validate=True) for name in _PROOF)
        known = bytes_to_public_key(key) if key in nodes else None
        signed = known is not None and verify_signature(known, headers[_STAMP], signature)
    except (KeyError, ValueError):
        return None
    return nodes[key] if signed else None


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _serve(app: Any, **settings: Any) -> None:
    quiet = {"lifespan": "off", "ws": "none", "access_log": False, "log_config": None}
    config = uvicorn.Config(app, **quiet, **settings)
    threading.Thread(target=_or_end, args=(uvicorn.Server(config).run,), daemon=True).start()


def _content(frame: bytes) -> RecordDict:
    """Flower keeps equal contents once, and loses one while another goes: none are equal here."""
    return RecordDict({_RECORD: ConfigRecord({_FRAME: frame, "once": secrets.token_bytes(16)})})


def _main(workspace: str, site: str) -> None:
    """The engine as a process that ends with the one that started it."""
    sockets.end_with_parent()
    folder = Path(workspace)
    log = RotatingFileHandler(folder / "engine.log", maxBytes=1 << 22, backupCount=2)
    logging.basicConfig(level=logging.WARNING, handlers=[log], force=True)
    flower = logging.getLogger("flwr")
    flower.handlers.clear()
    flower.setLevel(logging.WARNING)
    if site:
        _site(folder)  # until the hub does not know it any more: then it is started again
        return
    hub = _Hub(folder)
    known = json.loads((folder / "flower.json").read_text(encoding="utf-8"))
    listening = sockets.relay(Path(known["socket"]), hub.forward, hub.sites)
    try:
        threading.Event().wait()
    finally:
        listening.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
