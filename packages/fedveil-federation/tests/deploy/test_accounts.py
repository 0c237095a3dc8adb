"""A courier under an account of its own carries bytes, and can read neither rows nor keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.victims import Victims, running, wait_for

from fedveil.core.errors import ConfigError
from fedveil_federation.deploy.courier_process import CourierProcess, separate_courier
from fedveil_federation.deploy.envelope import Message, claimed, seal
from fedveil_federation.deploy.sockets import SocketCourier
from fedveil_federation.deploy.state_dirs import SiteHome

OWNER, COURIER, STRANGER = 61001, 61002, 61003  # numbers of accounts; no names are needed
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start processes of two accounts"
)
TRY = """
import json, os, sys
found = {}
for top in sys.argv[1:]:
    inside = (os.path.join(at, name) for at, _, names in os.walk(top) for name in names)
    for place in [top, *inside]:
        try:
            os.listdir(place) if os.path.isdir(place) else open(place, "rb").close()
            found[place] = "read"
        except PermissionError:
            found[place] = "refused"
        except OSError:
            found[place] = "socket"
print(json.dumps(found))
"""


def run_as(
    account: int, *words: str, python: str = shutil.which("python3", path="/usr/bin") or ""
) -> subprocess.Popen[str]:
    """Start Python under an account that belongs to no group but its own.

    It is the system's: this one may lie in a home that other accounts cannot enter.
    """
    return subprocess.Popen(
        [python or sys.executable, *words],
        user=account,
        group=account,
        extra_groups=[],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={
            **os.environ,
            "HOME": "/",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Victims]:
    """A site of the owner's account, with a directory that it shares with the courier's."""
    if run_as(COURIER, "-c", "import aiohttp, fedveil_federation.deploy.courier").wait() != 0:
        pytest.skip("no Python here that other accounts can run with this checkout")
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        folder = Path(made)
        state = folder / "notes"  # of the owner's ledger
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        victims = Victims(folder)
        folder.chmod(0o711)
        rows = folder / "patients.csv"
        rows.chmod(0o600)
        own = (victims.site.path, state)
        for path in (rows, *own, *(inside for one in own for inside in one.rglob("*"))):
            os.chown(path, OWNER, OWNER)
        shared = folder / "shared"
        shared.mkdir()
        os.chown(shared, OWNER, COURIER)
        shared.chmod(0o2750)
        yield victims


def test_a_courier_of_its_own_account_carries_bytes_and_reads_no_rows(site: Victims) -> None:
    shared, home = str(site.folder / "shared"), str(site.site.path)
    words = ("-m", "fedveil", "site")
    guard = run_as(OWNER, *words, "start", "--home", home, "--courier", shared)
    courier = run_as(COURIER, *words, "courier", shared)
    hub = CourierProcess(site.hub)
    try:
        hub.keep_running()
        asking = SocketCourier(site.hub.socket, site.hub.courier)
        wait_for(lambda: asking.sites() == ("north",))
        hello = seal(Message({"kind": "hello"}), site.hub.key)

        def answered() -> bool:
            reply = asking.ask({"north": hello}, 10.0)["north"]
            return isinstance(reply, bytes) and "identity" in claimed(reply).header

        wait_for(answered)
        assert courier.poll() is None
        tried = found_by(COURIER, home, str(site.folder / "patients.csv"), shared)
        own = {place for place in tried if place.startswith(shared)}
        readable = {place for place, what in tried.items() if what == "read"}
        # Nothing but what the courier is given: transport keys, and the guard's socket's address.
        assert {place for place, what in tried.items() if what == "socket"} <= own
        assert readable == own - {str(Path(shared) / "fedveil.sock")}
        assert {Path(place).name for place in readable - {shared}} == {
            *("link.json", "link.crt", "link.pem", "authority.crt")
        }
        for place in site.secrets:
            assert found_by(COURIER, place) == {place: "refused"}
        # The guard answers no courier of the owner's own account.
        ask = (
            "import sys; from pathlib import Path; from fedveil_federation.deploy import sockets;"
            "print(sockets.request(Path(sys.argv[1]), b'x', 5.0))"
        )
        same = run_as(OWNER, "-c", ask, str(Path(shared) / "fedveil.sock"))
        assert "Unreachable" in same.communicate()[1]
    finally:
        hub.stop()
        for process in (guard, courier):
            process.kill()
            process.wait()


def test_a_hub_reaches_sites_through_a_courier_of_its_own_account(site: Victims) -> None:
    shared, home = site.folder / "shared-hub", site.hub.path
    for path in (home, *home.rglob("*")):
        os.chown(path, OWNER, OWNER)
    for place, mode in {shared: 0o2750, shared / "relay": 0o2770}.items():
        place.mkdir()
        os.chown(place, OWNER, COURIER)
        place.chmod(mode)
    words = ("-m", "fedveil", "hub")
    hub = run_as(OWNER, *words, "start", "--home", str(home), "--courier", str(shared))
    courier = run_as(COURIER, *words, "courier", str(shared))
    try:
        with running(site.site):
            counters = home / "metrics.prom"
            wait_for(lambda: "fedveil_hub_sites_present 1" in counters.read_text())
        assert (hub.poll(), courier.poll()) == (None, None)
        tried = found_by(COURIER, str(home), str(shared))
        readable = {Path(place).name for place, what in tried.items() if what == "read"}
        files = {"link.json", "link.crt", "link.pem", "authority.crt", "keys.json"}
        assert readable == {shared.name, *files}
        # Nobody else gets to either socket.
        assert found_by(STRANGER, str(shared / "relay")) == {str(shared / "relay"): "refused"}
    finally:
        for process in (hub, courier):
            process.kill()
            process.wait()


def found_by(account: int, *places: str) -> dict[str, Any]:
    done = run_as(account, "-c", TRY, *places)
    out, error = done.communicate()
    assert done.returncode == 0, error
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("mode", [0o2770, 0o2755, 0o750, None])
def test_a_shared_directory_that_others_can_write_or_read_is_refused(
    tmp_path: Path, mode: int | None
) -> None:
    victims = Victims(tmp_path)
    shared = tmp_path / "shared"
    if mode is not None:
        shared.mkdir()
        shared.chmod(mode)
    with pytest.raises(ConfigError, match="install -d -o root"):
        separate_courier(SiteHome(victims.site.path), shared)
    assert not victims.site.courier_is_separate
