"""The program of a courier's process: carries bytes between a party's socket and the network.

    python -m fedveil_federation.deploy.carry DIRECTORY  # written by courier_process

It parses what comes from the network, so it imports little and reads one directory alone.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import stat
import sys
import threading
from functools import partial
from pathlib import Path

from fedveil_federation.deploy import sockets
from fedveil_federation.deploy.courier import HUB, MAX_FRAME, Link, Settings, place_of
from fedveil_federation.deploy.logs import log_to_stderr

FILES = ("authority.crt", "link.crt", "link.pem", "link.json")
_LONGEST = 60.0  # seconds for one request: guards answer sooner, or say that they are working
_LOOK = 1.0  # seconds between two looks at the files

_log = logging.getLogger(__name__)


def carry(directory: Path) -> None:
    """Run a party's link from the files in a directory until the process is told to end.

    Waits until the files are there, and begins anew when they change: a certificate was renewed.

    Args:
        directory: what `courier_process.write_kit` wrote, for this process to read.
    """
    log_to_stderr()
    ended, changed = threading.Event(), False
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while not (directory / "link.json").exists() and not ended.wait(_LOOK):
        pass
    if ended.is_set():
        return
    before = _versions(directory)
    link, listening = _opened(directory)
    link.start()
    try:
        while not ended.wait(_LOOK) and not (changed := _versions(directory) != before):
            pass
    finally:
        if listening is not None:
            listening.close()
        if not changed:
            link.stop()
    if changed:
        _log.info("The files of this courier have changed, so it begins anew.")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _opened(place: Path) -> tuple[Link, sockets.Listening | None]:
    """Return the link of the party whose files lie in a directory; at the hub, with its socket."""
    written = json.loads((place / "link.json").read_text(encoding="utf-8"))
    settings = Settings(**{**written, "sites": tuple(written["sites"])})
    socket = Path(settings.socket)
    module = importlib.import_module(place_of(settings.engine))
    if settings.name != HUB:
        guard = partial(sockets.request, socket, seconds=_LONGEST, most=MAX_FRAME)
        return module.site_link(settings, place, guard), None
    link: Link = module.hub_link(settings, place)
    # The hub's account is not in the courier's group. The folder keeps everybody else out.
    mode = 0o666 if socket.parent.stat().st_mode & stat.S_ISGID else 0o600
    return link, sockets.relay(socket, link.request, link.present, mode=mode)


def _versions(directory: Path) -> list[tuple[int, int]]:
    files = (directory / name for name in FILES)
    return [(found.st_ino, found.st_mtime_ns) for found in map(os.stat, files)]


if __name__ == "__main__":
    if "--end-with-parent" in sys.argv[2:]:
        sockets.end_with_parent()
    carry(Path(sys.argv[1]))
