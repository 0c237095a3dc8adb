"""Couriers' processes: a hub and some sites, all on this machine, with guards in this process."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from fedveil.core.errors import ConfigError
from fedveil_federation.deploy.courier import MAX_FRAME, Answer, Courier, Reply, T, Unreachable
from fedveil_federation.deploy.courier_process import CourierProcess
from fedveil_federation.deploy.sockets import SocketCourier
from fedveil_federation.deploy.state_dirs import Bundle, HubHome, SiteHome

COLUMNS = {"x": {"type": "number", "min": 0, "max": 1}, "y": {"type": "boolean"}}
POLICY = "[budget]\nepsilon = 1.0\n[lifetime]\nepsilon = 1.0\n[allow]\nparameters = 50_000_000\n"


class Homes(Courier):
    """Each site listens in a directory of its own. The couriers stay connected all the time, so who
    is there is who is attached here as well."""

    def __init__(self, hub: HubHome, homes: dict[str, SiteHome]) -> None:
        self.home, self.homes = hub, homes
        self.hub = SocketCourier(hub.socket, hub.courier)
        self._ends = {name: SocketCourier(hub.socket, home.courier) for name, home in homes.items()}
        self._attached: set[str] = set()
        self.memory: list[int] = []  # of the couriers, the hub's first, when they were stopped
        self.processes: dict[str, CourierProcess] = {}

    def attach(self, site: str, answer: Answer) -> None:
        self._ends[site].attach("fedveil", answer)
        self._attached.add(site)

    def detach(self, site: str) -> None:
        self._ends[site].detach("fedveil")
        self._attached.discard(site)

    def sites(self) -> tuple[str, ...]:
        return tuple(site for site in self.hub.sites() if site in self._attached)

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        return self.hub.ask(frames, seconds)

    def exchange(
        self, frames: Mapping[str, bytes], seconds: float, read: Callable[[str, Reply], T]
    ) -> dict[str, T]:
        return self.hub.exchange(frames, seconds, read)

    def close(self) -> None:
        for site in tuple(self._attached):
            self.detach(site)


@contextmanager
def engines(
    folder: Path, names: Sequence[str], engine: str = "https", seconds: float = 600.0
) -> Iterator[Homes]:
    """Start the couriers' processes of a hub and its sites, and yield them when all are connected.

    Args:
        folder: a short path, for sockets lie in it.
        names: of the sites.
        engine: what carries the bytes, "https" or "flare".
        seconds: how long the start may take.
    """
    schema = {"label": "y", "columns": COLUMNS, "engine": engine}
    hub = HubHome.create(folder / "h", "bench", f"localhost:{free_port()}", names, **schema)
    (folder / "policy.toml").write_text(POLICY)
    homes = {}
    for name in names:
        bundle = Bundle.read(hub.path / "bundles" / f"{name}.bundle")
        rows = folder / f"{name}.csv"  # which nobody reads
        homes[name] = SiteHome.create(folder / name, bundle, rows, folder / "policy.toml")
    processes = [CourierProcess(home) for home in (hub, *homes.values())]
    courier = Homes(hub, homes)
    try:
        for process in processes:
            process.keep_running()
        until = time.monotonic() + seconds
        while not _all_there(courier, names):
            if time.monotonic() > until:
                logs = [home.path / "courier.log" for home in (hub, *homes.values())]
                said = "\n".join(path.read_text()[-1000:] for path in logs)
                raise TimeoutError(f"the couriers did not start\n{said}")
            time.sleep(0.05)
        courier.processes = dict(zip(("hub", *names), processes, strict=True))
        yield courier
    finally:
        courier.memory = [memory_of(process.pid).resident for process in processes]
        courier.close()
        for process in processes:
            process.stop()


def _all_there(courier: Homes, names: list[str]) -> bool:
    try:
        return set(courier.hub.sites()) == set(names)
    except Unreachable:
        return False


@dataclass(frozen=True)
class Memory:
    """Megabytes of a process: all that is resident, with shared pages divided among those who share
    them, and without what is shared at all."""

    resident: int
    proportional: int
    private: int


def memory_of(pid: int | None) -> Memory:
    """Return what a process holds; nothing if it has ended."""
    try:
        words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    except OSError:
        return Memory(0, 0, 0)
    found = {name: int(words[words.index(f"{name}:") + 1]) // 1024 for name in ("Rss", "Pss")}
    private = sum(int(words[words.index(f"Private_{one}:") + 1]) for one in ("Clean", "Dirty"))
    return Memory(found["Rss"], found["Pss"], private // 1024)


def processor_of(pid: int | None) -> float:
    """Return the seconds that a process, and those it started that have ended, have computed."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as the documentation shows it."""
    for row in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


class MemoryCourier(Courier):
    """Hub and sites in one process, a thread for each site."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[Answer, ThreadPoolExecutor]] = {}

    def attach(self, site: str, answer: Answer) -> None:
        with self._lock:
            if site in self._answers:
                raise ConfigError(f"site {site!r} is attached already")
            self._answers[site] = answer, ThreadPoolExecutor(1, f"site-{site}")

    def detach(self, site: str) -> None:
        with self._lock:
            found = self._answers.pop(site, None)
        if found is not None:
            found[1].shutdown(wait=False, cancel_futures=True)

    def sites(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._answers))

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        until = monotonic() + seconds
        asked: dict[str, Future[bytes] | None] = {}
        for site, frame in frames.items():
            if len(frame) > MAX_FRAME:
                raise ConfigError(f"a request of {len(frame)} bytes: at most {MAX_FRAME}")
            with self._lock:
                found = self._answers.get(site)
                asked[site] = None if found is None else found[1].submit(found[0], bytes(frame))
        return {site: self._wait(site, future, until) for site, future in asked.items()}

    @staticmethod
    def _wait(site: str, future: Future[bytes] | None, until: float) -> bytes | Unreachable:
        if future is None:
            return Unreachable(f"site {site!r} is not there")
        try:
            return future.result(max(0.0, until - monotonic()))
        except Late:
            return Unreachable(f"site {site!r} did not answer in time")
        except Exception as error:  # a site's failure must not end the hub
            return Unreachable(f"site {site!r} failed: {type(error).__name__}")

    def close(self) -> None:
        for site in self.sites():
            self.detach(site)


def free_port() -> int:
    """Return a port of this machine that nobody listens at and that no other caller is given.

    It lies below those that the system gives to outgoing connections, one of which could take it
    before its server listens. A UDP socket of the same number marks it until this process ends.
    """
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for port in random.Random().sample(range(10_000, min(32_768, int(outgoing[0]))), 1000):
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("0.0.0.0", port))
        except OSError:
            mark.close()
            continue
        _marks.append(mark)
        return port
    raise OSError("no free port was found in a thousand tries")


_marks: list[socket.socket] = []  # of the ports that this process was given


def accepts(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
