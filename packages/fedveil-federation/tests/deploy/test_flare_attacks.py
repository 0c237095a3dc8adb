"""A hub, a fellow site and a local user who send everything that FLARE knows to real couriers.

Rows and keys of a site hold a canary. Nothing that comes back may hold it, and nothing but answers
of the guard comes back at all. The same attack on FLARE's own client reads the canary.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import COLUMNS, POLICY, table

from fedveil_federation.deploy.courier_process import CourierProcess
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.sockets import SocketCourier, free_port
from fedveil_federation.deploy.state_dirs import Bundle, HubHome, SiteHome

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None, reason="nvflare is not installed: pip install 'fedveil[flare]'"
)
CANARY = "canary-7d1f"
SITES = ("north", "south", "east")


class Victims:
    """A hub's and a site's homes, with a canary among the site's rows and beside its keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        address = f"localhost:{free_port()}"
        self.hub = HubHome.create(
            folder / "h", "hospitals", address, SITES, label="ill", columns=COLUMNS
        )
        (folder / "policy.toml").write_text(POLICY)
        (folder / "patients.csv").write_text(table(50, 1) + f"{CANARY},,,\n")
        self.bundles = {
            site: Bundle.read(self.hub.path / "bundles" / f"{site}.bundle") for site in SITES
        }
        self.site = SiteHome.create(
            folder / "n", self.bundles["north"], folder / "patients.csv", folder / "policy.toml"
        )

    @property
    def secrets(self) -> list[str]:
        rows = str(self.folder / "patients.csv")
        return [rows, *(str(self.site.path / name) for name in ("store.key", "site.pem"))]

    def settings(self, name: str, through: str, target: str, certificate: str) -> str:
        """What an attacker is told: endpoint and certificate may belong to different parties."""
        own = self.hub.certificate if certificate == "hub" else self.bundles[certificate].pair
        files = {"certificate": own.certificate, "key": own.key}
        files["authority"] = self.hub.authority.certificate
        places = {}
        for kind, text in files.items():
            place = self.folder / f"{name}-{certificate}-{kind}.pem"
            place.write_text(text)
            places[kind] = str(place)
        told = {"name": name, "through": through, "target": target, "files": self.secrets}
        url = f"grpc://localhost:{self.hub.agreement.port}"
        return json.dumps({**told, **places, "url": url, "folder": str(self.folder)})


@pytest.fixture
def victims() -> Iterator[Victims]:
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        yield Victims(Path(made))


@contextmanager
def running(*homes: HubHome | SiteHome) -> Iterator[list[CourierProcess]]:
    """The couriers of hub and sites as they are started by hand, and the sites' guards."""
    processes = [CourierProcess(home) for home in homes]
    guards = []
    for process in processes:
        process.keep_running()
    for home in homes:
        if isinstance(home, SiteHome):
            guard = SocketCourier(home.socket, home.courier)
            guard.attach("fedveil", SiteService(home).answer)
            guards.append(guard)
    try:
        yield processes
    finally:
        for process in processes:
            process.stop()
        for guard in guards:
            guard.close()


def attacked(settings: str) -> dict[str, Any]:
    """What an attacker's own process has to say at its end."""
    command = [sys.executable, "-m", "tests.deploy.flare_attacker", "attack", settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_attack_reads_rows_and_keys_of_flares_own_client(victims: Victims) -> None:
    """So nothing that comes back in the other tests is due to fedveil's courier."""
    own = victims.settings("north", "server", "server", "north")
    command = [sys.executable, "-m", "tests.deploy.flare_attacker", "victim", own]
    victim = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = attacked(victims.settings("server", "north", "north", "hub"))
    finally:
        victim.kill()
        victim.wait()
    said = json.dumps(found["arrived"])
    assert CANARY in said
    assert "PRIVATE KEY" in said
    assert found["topics"] > 50


def test_a_hub_gets_answers_of_the_guard_and_nothing_else(victims: Victims) -> None:
    with running(victims.site):
        found = attacked(victims.settings("server", "north", "north", "hub"))
    assert found["sent"] > 1000
    # One request was of fedveil's own kind. The hub had not signed it, and the guard said so.
    (answer,) = found["arrived"]
    assert answer["headers"] == {"kind": "answer", "number": "1000000"}
    check_secrets(victims, found)


@pytest.mark.parametrize("target", ["north", "server"])
def test_a_fellow_site_gets_nothing_under_an_honest_hub(victims: Victims, target: str) -> None:
    with running(victims.hub, victims.site):
        found = attacked(victims.settings("south", "server", target, "south"))
    assert found["sent"] > 1000
    assert found["arrived"] == []


def test_a_site_cannot_take_another_sites_name(victims: Victims) -> None:
    with running(victims.hub, victims.site):
        hub = SocketCourier(victims.hub.socket, victims.hub.courier)
        wait_for(lambda: hub.sites() == ("north",))
        found = attacked(victims.settings("east", "server", "server", "south"))
        assert hub.sites() == ("north",)
    assert found["arrived"] == []


def check_secrets(victims: Victims, found: dict[str, Any]) -> None:
    said = "".join(one["payload"] for one in found["arrived"])
    for place in victims.secrets:
        for line in Path(place).read_text().splitlines():
            assert len(line) < 12 or line not in said
    assert CANARY not in said


def test_a_local_user_finds_no_port_and_no_open_file(victims: Victims) -> None:
    with running(victims.hub, victims.site) as (hub, site):
        courier = SocketCourier(victims.hub.socket, victims.hub.courier)
        wait_for(lambda: courier.sites() == ("north",))
        assert listening_ports(site.pid) == set()
        assert listening_ports(hub.pid) == {victims.hub.agreement.port}
        for home in (victims.hub, victims.site):
            for path in (home.path, *home.path.rglob("*")):
                assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
        sockets = [path for path in victims.site.path.rglob("*") if path.is_socket()]
        assert sockets == [victims.site.socket]


def listening_ports(pid: int | None) -> set[int]:
    """The TCP ports at which a process listens, by the system's own tables."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for tables in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{tables}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def wait_for(ready: Any, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ready():
                return
        except Exception:
            pass
        time.sleep(0.1)
    raise TimeoutError
