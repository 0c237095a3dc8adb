"""FLARE's processes for the benchmark of rounds: a hub and some sites, all on this machine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedveil.deploy.courier import Answer, Courier, Unreachable
from fedveil.deploy.engine_kit import EngineProcess
from fedveil.deploy.homes import Bundle, HubHome, SiteHome
from fedveil.deploy.sockets import SocketCourier
from tools.demo import free_port

COLUMNS = {"x": {"type": "number", "min": 0, "max": 1}, "y": {"type": "boolean"}}
POLICY = "[budget]\nepsilon = 1.0\n[lifetime]\nepsilon = 1.0\n"


class Homes(Courier):
    """Each site listens in a directory of its own."""

    def __init__(self, hub: HubHome, homes: dict[str, SiteHome]) -> None:
        self.hub = SocketCourier(hub.socket, hub.path)
        self._ends = {name: SocketCourier(hub.socket, home.path) for name, home in homes.items()}

    def attach(self, site: str, answer: Answer) -> None:
        self._ends[site].attach("fedveil", answer)

    def detach(self, site: str) -> None:
        self._ends[site].detach("fedveil")

    def sites(self) -> tuple[str, ...]:
        return self.hub.sites()

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        return self.hub.ask(frames, seconds)

    def close(self) -> None:
        for end in self._ends.values():
            end.close()


@contextmanager
def engines(folder: Path, sites: int, seconds: float = 300.0) -> Iterator[Homes]:
    """All processes, connected."""
    names = [f"site-{number}" for number in range(sites)]
    schema = {"label": "y", "columns": COLUMNS}
    hub = HubHome.create(folder / "h", "bench", f"localhost:{free_port()}", names, **schema)
    (folder / "policy.toml").write_text(POLICY)
    homes = {}
    for name in names:
        bundle = Bundle.read(hub.path / "bundles" / f"{name}.bundle")
        homes[name] = SiteHome.create(folder / name, bundle, folder, folder / "policy.toml")
    processes = [EngineProcess(home) for home in (hub, *homes.values())]
    courier = Homes(hub, homes)
    try:
        for process in processes:
            process.keep_running()
        until = time.monotonic() + seconds
        while not _all_there(courier, names):
            if time.monotonic() > until:
                raise TimeoutError("the engines did not start")
            time.sleep(0.2)
        yield courier
    finally:
        print(json.dumps({"engines' memory, MB": _memory(processes)}))
        courier.close()
        for process in processes:
            process.stop()


def _all_there(courier: Homes, names: list[str]) -> bool:
    try:
        return set(courier.sites()) == set(names)
    except Unreachable:
        return False


def _memory(processes: list[EngineProcess]) -> list[int]:
    """Resident megabytes of each process, the hub's first."""
    found = []
    for process in processes:
        pid = "" if process.pid is None else str(process.pid)
        said = subprocess.run(["ps", "-o", "rss=", "-p", pid], capture_output=True, text=True)
        found.append(int(said.stdout or 0) // 1024)
    return found
