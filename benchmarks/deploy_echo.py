"""Legs to three sites and back over FLARE's transport, as a round makes them: signed and checked.

A leg goes from the hub's process through a Unix socket to its courier, over mutual TLS to the
sites' couriers, through their sockets to guards in this process, and back.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.deploy_engines import engines
from fedveil_federation.deploy.envelope import Message, seal, unseal
from fedveil_federation.deploy.hub import Sites
from fedveil_federation.deploy.members import Members

SIZES, LEGS, WAIT = (100, 4_000_000), 15, 60.0
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


def run() -> None:
    hub_key = Ed25519PrivateKey.generate()
    hub = hub_key.public_key().public_bytes_raw()
    keys = {site: Ed25519PrivateKey.generate() for site in SITES}
    known = {site: key.public_key().public_bytes_raw() for site, key in keys.items()}
    members = Members("bench", hub, known)

    def guard(site: str) -> Any:
        def answer(frame: bytes) -> bytes:
            return seal(Message({}, unseal(frame, [hub]).parts), keys[site], frame)

        return answer

    with (
        tempfile.TemporaryDirectory(prefix="fedveil-") as made,
        engines(Path(made), SITES) as courier,
    ):
        for site in SITES:
            courier.attach(site, guard(site))
        sites = Sites(members, hub_key, courier)
        for size in SIZES:
            _leg(sites, size)  # makes connections
            seconds = [_leg(sites, size) for _ in range(LEGS)]
            shown = {"least": min(seconds), "median": statistics.median(seconds)}
            rounded = {name: round(value, 4) for name, value in shown.items()}
            print(json.dumps({"bytes": size, **rounded}), flush=True)
    print(json.dumps({"megabytes of the couriers, the hub's first": courier.memory}))
