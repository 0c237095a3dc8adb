"""The process that carries a party's bytes: the files it reads, and how it is started.

It parses what the network sends, so it is kept away from what it need not see. It reads one
directory (certificate, key and authority of the transport, and the address of the guard's or the
hub's socket) and nothing else of its party. Under an account of its own it *can* read nothing else:

    fedveil site start --home north --courier /run/fedveil-site    # account fedveil
    fedveil site courier /run/fedveil-site                         # account fedveil-courier

Started by hand, without `--courier`, it is a child process under the owner's account: its code
looks at no rows or keys, but a fault in it or in a library could; a warning says so.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import signal
import stat
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil_federation.deploy.courier import HUB, KEYS, MAX_FRAME, Settings
from fedveil_federation.deploy.state_dirs import HubHome, SiteHome

_log = logging.getLogger(__name__)

_AGAIN = 5.0  # seconds between two starts
_LONGEST_LOG = 10_000_000  # bytes: peers must not be able to fill the owner's disk


def write_kit(home: HubHome | SiteHome) -> None:
    """Write what the courier's process reads; files that have not changed are left alone."""
    directory = home.courier
    if not home.courier_is_separate:
        directory.mkdir(mode=0o700, exist_ok=True)
    home.socket.parent.mkdir(mode=0o700, exist_ok=True)
    agreement, pair = home.agreement, home.certificate
    site = home if isinstance(home, SiteHome) else None
    settings = Settings(
        engine=agreement.engine,
        name=HUB if site is None else site.site,
        sites=_let_in(home),
        host=agreement.host,
        port=home.port if isinstance(home, HubHome) else agreement.port,
        socket=os.fspath(home.socket),
        most=MAX_FRAME if site is None else site.longest_request,
    )
    authority = home.authority.certificate if isinstance(home, HubHome) else home.authority
    before = os.umask(0o027 if home.courier_is_separate else 0o077)
    try:
        known = {KEYS: json.dumps(home.site_keys())} if isinstance(home, HubHome) else {}
        for name, text in {
            **known,
            "authority.crt": authority,
            "link.crt": pair.certificate,
            "link.pem": pair.key,
            "link.json": json.dumps(
                asdict(settings)
            ),  # last: a courier that waits for it finds the rest
        }.items():
            path = directory / name
            if not path.exists() or path.read_bytes() != text.encode():
                write_atomically(path, text.encode())
    finally:
        os.umask(before)


def _let_in(home: HubHome | SiteHome) -> tuple[str, ...]:
    """Return the sites that may connect."""
    revoked = home.revoked if isinstance(home, HubHome) else set[str]()
    return tuple(site for site in home.agreement.sites if site not in revoked)


def separate_courier(home: HubHome | SiteHome, directory: Path) -> None:
    """Let a process under another account carry the bytes, through a directory that both can use.

    Args:
        home: the party's home. Its entry `courier` becomes a link to the directory.
        directory: owned by this account; its group is that of the courier's account, which can
            read it and not write it (mode 2750: files in it get the group). At the hub a folder
            `relay` in it, which the courier can write (2770), takes the courier's socket.

    Raises:
        ConfigError: the directory is missing, somebody else's, or open to others.
    """
    directory = directory.resolve()
    wanted = "install -d -o {} -g GROUP-OF-THE-COURIER -m {} {}"
    account = _account()
    places = {directory: 0o2750}
    if isinstance(home, HubHome):
        places[directory / "relay"] = 0o2770
    for place, mode in places.items():
        command = wanted.format(account, f"{mode:o}", place)
        try:
            found = place.stat()
        except OSError as error:
            raise ConfigError(f"--courier {place}: {error.strerror}. Run: {command}") from None
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != mode:
            raise ConfigError(
                f"--courier {place}: needs owner {account} and mode {mode:o}. Run: {command}"
            )
    link = home.path / "courier"
    if link.is_dir() and not link.is_symlink():
        for left in sorted(link.rglob("*"), reverse=True):  # of a courier that was started by hand
            left.rmdir() if left.is_dir() else left.unlink()
        link.rmdir()
    link.unlink(missing_ok=True)
    link.symlink_to(directory)


def warn_of_one_account() -> None:
    """Say that courier and owner share an account, and what to type instead."""
    _log.warning(
        "The courier runs under this account, so a fault in it could read what this account can "
        "read. Give it an account of its own with --courier DIR; docs/deploy.md shows how."
    )


def warn_of_readable_rows(path: Path) -> None:
    """Say that every account of this machine can read the owner's rows."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads the rows says what is wrong
    if mode & stat.S_IROTH:
        _log.warning(
            "%s can be read by every account of this machine. Run: chmod o= %s", path, path
        )


class CourierProcess:
    """The courier as a child process; it ends with this one, however that ends.

    Where the courier runs under an account of its own, this writes its files and starts nothing.
    """

    def __init__(self, home: HubHome | SiteHome) -> None:
        self._home, self._started = home, 0.0
        self._process: subprocess.Popen[bytes] | None = None
        if not home.courier_is_separate:
            _check_installed(home.agreement.engine)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def keep_running(self) -> None:
        """Bring the courier's files up to date; start it, or start it again if it has ended."""
        if self._home.courier_is_separate:
            write_kit(self._home)
            return
        if self._process is not None:
            log_path = self._home.path / "courier.log"
            if log_path.stat().st_size > _LONGEST_LOG:
                os.truncate(log_path, 0)
            if self._process.poll() is None or monotonic() - self._started < _AGAIN:
                write_kit(self._home)
                return
            _log.warning("The courier has ended and is started again; see courier.log.")
        self._started = monotonic()
        write_kit(self._home)
        # -P: no modules from whatever directory this was started in.
        program = "fedveil_federation.deploy.carry"
        command = [sys.executable, "-P", "-m", program, str(self._home.courier)]
        log_file = os.open(
            self._home.path / "courier.log",
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND,
            0o600,
        )
        with os.fdopen(log_file, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--end-with-parent"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
            )

    def stop(self) -> None:
        """End the child process, if there is one: it keeps nothing that lasts."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process = None


def _check_installed(engine: str) -> None:
    if engine == "flare" and find_spec("nvflare") is None:
        raise ConfigError(
            "NVIDIA FLARE, which carries the bytes of this federation, is not installed. "
            "Run: pip install 'fedveil-federation[flare]'"
        )


def _account() -> str:
    """Return the name of this process's account, or its number if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
