"""The finished run goes to every site: its model, and what its report and guarantee are made from.

The hub sends the files of its run directory in pieces, each signed as every request is. A site
takes them for runs that it has begun itself, under these names and up to a size alone, and puts
them into `models/NAME` when all are there and have the digests that were announced. The digests go
into the ledger's chain of events. A network that makes the model's inputs is named as the owner's
policy names it: whoever reads a model calls what it names. `report.html` is not sent: a page may
hold scripts, so owners make it themselves with `fedveil report`, which also computes the guarantee
again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.core.files import sync_directory
from fedveil.data.schema import Kind
from fedveil.run.directory import CHECKPOINT, LEDGER, METRICS, MODEL, PROMISE, RECIPE
from fedveil_federation import client_events
from fedveil_federation.deploy.envelope import BadFrame, Message
from fedveil_federation.deploy.state_dirs import SiteHome

_FILES = (RECIPE, LEDGER, PROMISE, METRICS, "result.json", str(CHECKPOINT), MODEL)
_PIECE = 1 << 20  # bytes; every policy allows requests that are longer
_TIMES = (
    8  # all files together may have so many times the bytes of a request: optimisers have state
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")

Ask = Callable[[Message], Message | None]


def send(path: Path, run: str, ask: Ask) -> bool:
    """Send a finished run to one site.

    Args:
        path: its directory at the hub.
        run: the plan's digest, by which sites know it.
        ask: sends one request; returns the site's reply, or None if it refuses or is away.

    Returns:
        Whether the site has all of it.
    """
    contents = {name: (path / name).read_bytes() for name in _FILES if (path / name).exists()}
    files = {name: [len(one), _digest(one)] for name, one in contents.items()}
    header: dict[str, Any] = {"kind": "deliver", "run": run, "files": files}
    wanted = Message({**header, "file": RECIPE, "offset": 0}, (b"",))
    pieces = sum(len(one) // _PIECE + 1 for one in contents.values())
    for _ in range(2 * pieces + 2):  # a site that asks for the same one again has no hold on a hub
        reply = ask(wanted)
        if reply is None or reply.header.get("complete") is True:
            return reply is not None
        name, offset = reply.text("file"), reply.number("offset")
        if not 0 <= offset < len(contents.get(name, b"")):
            return False  # no honest site asks for that
        piece = contents[name][offset : offset + _PIECE]
        wanted = Message({**header, "file": name, "offset": offset}, (piece,))
    return False


def receive(home: SiteHome, request: Message) -> Message:
    """Take one piece of a finished run, and say which one is to come next.

    Args:
        home: the site's.
        request: of the hub, whose signature was checked.

    Raises:
        BadFrame: this site has not begun the run, or names or sizes are not allowed.
        PrivacyRefusal: the model uses a network that the owner has not named.
    """
    run, files = request.text("run"), _announced(home, request.header.get("files"))
    plan = home.plan(run) if re.fullmatch("[0-9a-f]{64}", run) else None
    if plan is None or plan.get("scoring"):
        raise BadFrame("deliver: this site has begun no such run")
    if plan["facts"]["name"] != home.agreement.name:
        raise BadFrame("deliver: that run is another federation's")
    folder = home.path / "models" / place_of(run, plan)
    if folder.exists():
        return Message({"status": "done", "complete": True})
    incoming = folder.with_name(f".{run}")
    if any(_bytes(incoming / one) > files.get(one, (-1, ""))[0] for one in _FILES):
        shutil.rmtree(incoming)  # what is there was announced otherwise
    (incoming / CHECKPOINT).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name, piece = request.text("file"), request.part()
    if name not in files or len(piece) > _PIECE:
        raise BadFrame("deliver: another file than was announced, or too long a piece")
    with (incoming / name).open("ab") as file:
        if file.tell() == request.number("offset"):  # otherwise it came twice
            file.write(piece[: files[name][0] - file.tell()])
    for name, (size, _) in files.items():
        have = max(0, _bytes(incoming / name))
        if have < size:
            return Message({"status": "done", "file": name, "offset": have})
    if wrong := [one for one in files if _digest((incoming / one).read_bytes()) != files[one][1]]:
        shutil.rmtree(incoming)
        raise BadFrame(f"deliver: {wrong[0]} is not what was announced")
    try:
        _rename_network(home, incoming / MODEL)
    except FedveilError:
        shutil.rmtree(incoming)
        raise
    for name in files:
        (incoming / name).chmod(0o600)
    digests = {one: _digest((incoming / one).read_bytes()) for one in files}
    with client_events.transaction(home.store_path) as events:
        events.append("state", {"delivered": run, "files": digests})
    incoming.rename(folder)
    sync_directory(folder.parent)
    return Message({"status": "done", "complete": True})


def _rename_network(home: SiteHome, path: Path) -> None:
    """Let a model name the network that makes its inputs, if any, as this site's policy does.

    An encoder of free text is code as well, and no policy names one: such a model is refused.
    """
    try:
        with safe_open(path, framework="np") as file:
            said = json.loads((file.metadata() or {}).get("fedveil", "{}"))
        described = json.loads(said.get("description", "{}"))
        columns = (described.get("encoder") or {}).get("columns", {})
        if texts := [name for name, one in columns.items() if one.get("type") == Kind.TEXT]:
            raise BadFrame(f"deliver: column {texts[0]!r} is free text, which sites do not read")
        inputs = described.get("featurizer") or {}
        if (network := inputs.get("backbone")) is None:
            return
        digest, head = network["digest"], network["backbone_head"]
    except (
        SafetensorError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise BadFrame(f"deliver: {MODEL} is no model ({str(error)[:100]})") from None
    from fedveil.run.bundle import renamed_network  # loads torch

    path.write_bytes(renamed_network(path, home.policy.backbone(digest, head)))


def place_of(run: str, plan: Mapping[str, Any]) -> str:
    """Return the folder of a run: the hub's name for it, with digits that no other run has."""
    called = str(plan.get("called", ""))
    return f"{called}-{run[:8]}" if _NAME.fullmatch(called) else run


def delivered(home: SiteHome) -> dict[str, Path]:
    """Return the folders of runs that were delivered and are as the ledger's events say, by run."""
    found = {}
    with client_events.transaction(home.store_path) as events:
        bodies = events.database.execute("SELECT body FROM events WHERE kind = 'state'").fetchall()
    for (body,) in bodies:
        event = json.loads(body)
        plan = home.plan(event["delivered"]) if "delivered" in event else None
        if plan is None:
            continue
        folder = home.path / "models" / place_of(event["delivered"], plan)
        if _unchanged(folder, event["files"]):
            found[event["delivered"]] = folder
    return found


def _unchanged(folder: Path, files: Mapping[str, str]) -> bool:
    try:
        found = {name: (folder / name).stat() for name in files}
        return all(
            _digest_at(folder / name, one.st_mtime_ns, one.st_size) == files[name]
            for name, one in found.items()
        )
    except OSError:
        return False


@lru_cache(maxsize=1000)
def _digest_at(path: Path, changed: int, size: int) -> str:
    """Return a file's digest; the console asks for it every second."""
    return _digest(path.read_bytes())


def _announced(home: SiteHome, said: object) -> dict[str, tuple[int, str]]:
    """Return sizes and digests of the files that the hub has, if the owner's disk may take them."""
    try:
        files = {str(name): (size, digest) for name, (size, digest) in dict(said).items()}  # type: ignore[call-overload]
        sizes = [size for size, _ in files.values()]
        digests = [re.fullmatch("[0-9a-f]{64}", digest) for _, digest in files.values()]
        if not {RECIPE, MODEL} <= files.keys() <= set(_FILES) or not all(digests):
            raise ConfigError("names or digests")
        if not all(type(size) is int and size > 0 for size in sizes):
            raise ConfigError("sizes")
    except (TypeError, ValueError) as error:
        raise BadFrame(f"deliver: its list of files is damaged ({str(error)[:100]})") from None
    if sum(sizes) > _TIMES * home.longest_request:
        raise BadFrame(f"deliver: {sum(sizes)} bytes are more than this site's policy allows")
    return files


def _bytes(path: Path) -> int:
    """Return the size of a file; -1 if there is none."""
    return path.stat().st_size if path.exists() else -1


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
