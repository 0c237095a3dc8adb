"""Couriers side by side: legs to three sites and back, recovery after a kill, and memory.

A table has a column for each courier. Seconds are least / median; processor seconds are those of a
leg in all processes, which a busy machine changes little.

A leg goes from the hub's process through a Unix socket to its courier, over mutual TLS to the
sites' couriers, through their sockets to guards in this process, and back. It is signed and
checked, as a round's legs are.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.deploy_engines import Homes, engines, memory_of, processor_of, show_table
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.envelope import Message, seal, unseal
from fedveil_federation.deploy.hub import Sites

LEGS = {100: 15, 4_000_000: 15, 100_000_000: 3}  # by bytes
WAIT = 300.0  # seconds
SITES = ("a", "b", "c")


def _leg(sites: Sites, size: int) -> float:
    """Return the seconds that one leg takes."""
    payload = os.urandom(size)
    began = time.perf_counter()
    message = Message({"kind": "echo"}, (payload,))
    replies = sites.leg(dict.fromkeys(range(len(SITES)), message), WAIT)
    if [reply.part() for reply in replies.values()] != [payload] * len(SITES):
        raise ValueError("another answer, or none")
    return time.perf_counter() - began


def _recovery(courier: Homes, sites: Sites, name: str) -> float:
    """Return the seconds from the start of a courier that was killed to the next whole leg."""
    process = courier.processes[name]
    if process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.stop()
    began = time.perf_counter()
    process.keep_running()
    _leg(sites, 100)
    return time.perf_counter() - began


def _used(courier: Homes) -> float:
    """Return the processor seconds of this process and all couriers."""
    return time.process_time() + sum(processor_of(one.pid) for one in courier.processes.values())


def run(kinds: Sequence[str]) -> None:
    """Print a table with a column for each courier.

    Args:
        kinds: couriers to measure, of `agreement.ENGINES`.
    """
    measured = [_measure(kind) for kind in kinds]
    rows = [[name, *(column[name] for column in measured)] for name in measured[0]]
    show_table([f"load {os.getloadavg()[0]:.0f}", *kinds], rows)


def _measure(kind: str) -> dict[str, str]:
    """Return one courier's figures by what they are."""
    hub_key = Ed25519PrivateKey.generate()
    hub = hub_key.public_key().public_bytes_raw()
    keys = {site: Ed25519PrivateKey.generate() for site in SITES}
    known = {site: key.public_key().public_bytes_raw() for site, key in keys.items()}
    members = Members("bench", hub, known)

    def guard(site: str) -> Callable[[bytes], bytes]:
        return lambda frame: seal(Message({}, unseal(frame, [hub]).parts), keys[site], frame)

    shown: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="fedveil-") as made,
        engines(Path(made), SITES, kind) as courier,
    ):
        for site in SITES:
            courier.attach(site, guard(site))
        sites = Sites(members, hub_key, courier)
        held: dict[str, list[int]] = {"a site's courier": [], "the hub's courier": []}

        def look() -> None:
            for name, party in (("a site's courier", "a"), ("the hub's courier", "hub")):
                held[name].append(memory_of(courier.processes[party].pid).resident)

        _leg(sites, 100)
        look()
        for size, legs in LEGS.items():
            _leg(sites, size)  # makes connections
            before = _used(courier)
            seconds = [_leg(sites, size) for _ in range(legs)]
            used = (_used(courier) - before) / legs
            least, median = min(seconds), statistics.median(seconds)
            shown[f"{size:,} B, s"] = f"{least:.3f} / {median:.3f}"
            shown[f"{size:,} B, CPU s"] = f"{used:.3f}"
            look()
        for name, megabytes in held.items():
            shown[f"{name}, MB idle / after each size"] = " / ".join(map(str, megabytes))
        for name, killed in (("a site's courier", "a"), ("the hub's courier", "hub")):
            seconds = sorted(_recovery(courier, sites, killed) for _ in range(3))
            shown[f"{name} killed, s"] = " / ".join(f"{one:.1f}" for one in seconds)
    return shown
