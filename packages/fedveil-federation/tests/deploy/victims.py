"""A hub and a site with secrets, for tests that attack their couriers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import COLUMNS, POLICY, table

from benchmarks.deploy_engines import free_port
from fedveil_federation.deploy.courier import Unreachable
from fedveil_federation.deploy.courier_process import CourierProcess
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.sockets import SocketCourier
from fedveil_federation.deploy.state_dirs import Bundle, HubHome, SiteHome

CANARY = "canary-7d1f"
SITES = ("north", "south", "east")


class Victims:
    """A hub's and a site's homes, with a canary among the site's rows and beside its keys."""

    def __init__(self, folder: Path, engine: str = "https") -> None:
        self.folder = folder
        address = f"localhost:{free_port()}"
        self.hub = HubHome.create(
            folder / "h", "hospitals", address, SITES, label="ill", columns=COLUMNS, engine=engine
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
def victims(request: pytest.FixtureRequest) -> Iterator[Victims]:
    """A module that says `ENGINE = "flare"` gets couriers of that kind."""
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        yield Victims(Path(made), getattr(request.module, "ENGINE", "https"))


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
    except Exception as error:  # why is in the couriers' logs
        for home in homes:
            error.add_note(f"{home.path}: {(home.path / 'courier.log').read_text()[-2000:]}")
        raise
    finally:
        for process in processes:
            process.stop()
        for guard in guards:
            guard.close()


def wait_for(ready: Any, seconds: float = 900.0) -> None:
    """Wait for as long as a very busy machine may take."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ready():
                return
        except (OSError, Unreachable):  # not there yet; any other error is the test's own
            pass
        time.sleep(0.1)
    raise TimeoutError


def of_hub(victims: Victims) -> SocketCourier:
    """The hub's end of its courier."""
    return SocketCourier(victims.hub.socket, victims.hub.courier)


def highest_memory(pid: int | None) -> int:
    """The most megabytes that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
