"""What one round costs: `python -m benchmarks.secagg_cost [--devices N] [--dimension D] [--lying]`.

The server runs in a process of its own and real frames pass between it and the devices, which live
in this one. Reported are CPU seconds of the server and the memory at its peak, milliseconds and
bytes per device, all of the second of two rounds. `--lying` joins everybody to everybody, for a
server that may lie; without it, the server is trusted, and draws a sparse graph. `--rounds 1`
reports the first round, in which all pairs agree on their seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg.device import _signed
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.server import Server


def serve(pipe: Connection, key: bytes, params: SecAggParams, cards: list[bytes]) -> None:
    """The server's process: does what it is told and keeps the time of it."""
    pinned = {int.from_bytes(card[6:14], "little"): card[14:46] for card in cards}
    roster = Roster(params.federation, pinned)
    roster.admit(*cards)
    del cards
    server = Server(Ed25519PrivateKey.from_private_bytes(key), roster, params)
    seconds, opened = 0.0, None
    while True:
        name, *arguments = pipe.recv()
        start = time.process_time()
        result: Any = None
        if name == "open":
            opened = server.open(*arguments)
        elif name in ("plan", "survivors", "confirmed"):
            result = getattr(opened, name)
        elif name == "spent":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            pipe.send((seconds, peak))
            seconds = 0.0
            continue
        elif name == "end":
            return
        else:
            result = getattr(opened, name)(*arguments)
        seconds += time.process_time() - start
        pipe.send(result)


@dataclass
class Meter:
    """The server's end of the pipe; seconds of the devices, and bytes by direction."""

    pipe: Connection
    seconds: float = 0.0
    up: int = 0
    down: int = 0

    def server(self, name: str, *arguments: Any) -> Any:
        self.pipe.send((name, *arguments))
        return self.pipe.recv()

    def told(self, name: str, frame: bytes) -> None:
        self.up += len(frame)
        self.server(name, frame)

    def device(self, act: Callable[..., Any], *arguments: Any) -> Any:
        self.down += sum(len(one) for one in arguments if isinstance(one, bytes))
        start = time.process_time()
        result = act(*arguments)
        self.seconds += time.process_time() - start
        return result


def play(
    meter: Meter,
    devices: dict[int, Participant],
    params: SecAggParams,
    round_number: int,
    dimension: int,
    lost: float,
) -> None:
    count = len(devices)
    details = (round_number, list(devices), dimension, 32)
    meter.server("open", *details)
    plan = meter.server("plan")
    rounds = {}
    for device in devices:
        rounds[device] = meter.device(devices[device].join, plan)
        meter.told("receive", rounds[device].shares)
    meter.server("close_sharing")
    base = np.arange(dimension, dtype=np.int64)
    gone = {int(i / lost) for i in range(int(count * lost))} if lost else set()
    for device in devices:
        meter.device(rounds[device].take_sharers, meter.server("sharers_for", device))
        if device not in gone:
            meter.told("receive", meter.device(rounds[device].mask, base + device))
    meter.server("close_upload")
    if not params.honest_server:
        for device in meter.server("survivors"):
            frame = meter.server("survivors_for", device)
            _signed.cache_clear()  # devices of their own would each check all statements
            meter.told("receive", meter.device(rounds[device].confirm, frame))
        meter.server("close_confirmation")
    last = "survivors_for" if params.honest_server else "confirmed_for"
    for device in meter.server("confirmed"):
        frame = meter.server(last, device)
        meter.told("receive", meter.device(rounds[device].unmask, frame))
        del rounds[device]
    alive = [device for device in devices if device not in gone]
    if not np.array_equal(meter.server("finish"), base * len(alive) + sum(alive)):
        raise RuntimeError("the sum is wrong")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--lost", type=float, default=0.05)
    parser.add_argument("--lying", action="store_true", help="plan for a server that may lie")
    parser.add_argument("--rounds", type=int, default=2, help="the last one is reported")
    asked = parser.parse_args(arguments)
    count = asked.devices
    trust = {"sparse": not asked.lying, "honest_server": not asked.lying}
    params = SecAggParams("bench", count // 2, count // 20, 0.1, **trust)
    keys = {device: new_keys("bench", device) for device in range(count)}
    pinned = {i: one.identity.public_key().public_bytes_raw() for i, one in keys.items()}
    cards = [one.card() for one in keys.values()]
    secret = Ed25519PrivateKey.generate()
    public = secret.public_key().public_bytes_raw()
    here, there = multiprocessing.get_context("spawn").Pipe()
    told = (there, secret.private_bytes_raw(), params, cards)
    child = multiprocessing.get_context("spawn").Process(target=serve, args=told)
    child.start()
    roster = Roster("bench", pinned)  # one for all: each card is checked once
    roster.admit(*cards)
    devices = {
        i: Participant(one, roster, params, public, MemoryJournal(), 512) for i, one in keys.items()
    }
    for round_number in range(asked.rounds):
        meter = Meter(here)
        play(meter, devices, params, round_number, asked.dimension, asked.lost)
        seconds, peak = meter.server("spent")
    meter.pipe.send(("end",))
    child.join()
    found = params.topology(count)
    print(
        f"{count} devices x {asked.dimension}, {asked.lost:.0%} lost, degree {found.degree}, "
        f"{found.masks} masks: server {seconds:.2f} s, {peak:.0f} MB; a device "
        f"{1e3 * meter.seconds / count:.1f} ms, {meter.up / count / 1e3:.1f} kB up, "
        f"{meter.down / count / 1e3:.1f} kB down; all devices "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
