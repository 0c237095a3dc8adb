"""Couriers side by side: legs to three sites and back, recovery after a kill, and memory.

A leg goes from the hub's process through a Unix socket to its courier, over mutual TLS to the
sites' couriers, through their sockets to guards in this process, and back. It is signed and
checked, as a round's legs are.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.deploy_engines import Homes, engines, memory_of
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


def run(kinds: Sequence[str]) -> None:
    """Print one line for each courier and figure.

    Args:
        kinds: couriers to measure, of `agreement.ENGINES`.
    """
    for kind in kinds:
        _measure(kind)


def _measure(kind: str) -> None:
    hub_key = Ed25519PrivateKey.generate()
    hub = hub_key.public_key().public_bytes_raw()
    keys = {site: Ed25519PrivateKey.generate() for site in SITES}
    known = {site: key.public_key().public_bytes_raw() for site, key in keys.items()}
    members = Members("bench", hub, known)

    def guard(site: str) -> Callable[[bytes], bytes]:
        return lambda frame: seal(Message({}, unseal(frame, [hub]).parts), keys[site], frame)

    def say(**shown: object) -> None:
        print(json.dumps({"courier": kind, **shown}), flush=True)

    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="fedveil-") as made,
        engines(Path(made), SITES, kind) as courier,
    ):
        say(seconds_to_start=round(time.perf_counter() - began, 1), load=os.getloadavg()[0])
        for site in SITES:
            courier.attach(site, guard(site))
        sites = Sites(members, hub_key, courier)

        def memory() -> dict[str, int]:
            return {name: memory_of(one.pid) for name, one in courier.processes.items()}

        _leg(sites, 100)
        say(idle_megabytes=memory())
        for size, legs in LEGS.items():
            _leg(sites, size)  # makes connections
            seconds = [_leg(sites, size) for _ in range(legs)]
            least, median = round(min(seconds), 4), round(statistics.median(seconds), 4)
            say(bytes=size, least=least, median=median, megabytes=memory())
        for name in ("a", "hub"):
            seconds = [_recovery(courier, sites, name) for _ in range(3)]
            say(killed=name, seconds=[round(one, 2) for one in seconds])
