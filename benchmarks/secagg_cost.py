"""What one round costs: `python -m benchmarks.secagg_cost [--devices N] [--dimension D] [--lying]`.

The server runs in a process of its own and real frames pass between it and the devices, which live
in this one. Reported are CPU seconds of the server and the memory at its peak, milliseconds and
bytes per device, all of the second of two rounds; and what a device that knows nobody is sent,
computes and then keeps in its first round (the cards of its neighbours, and seeds agreed with
them). `--lying`
plans the graph for a server that may lie; without it, for one that does not. `--rounds 1` reports
the first round, in which all pairs agree on their seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import DeviceKeys, new_keys
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Admission, Roster
from fedveil_federation.secagg.server import Server


def serve(pipe: Connection, key: bytes, params: SecAggParams, cards: list[bytes]) -> None:
    """The server's process: does what it is told and keeps the time of it."""
    pinned = {int.from_bytes(card[6:14], "little"): card[14:46] for card in cards}
    roster = Roster(params.federation, Admission(pinned))
    roster.admit_all(cards)
    del cards
    server = Server(Ed25519PrivateKey.from_private_bytes(key), roster, params)
    seconds, drawing, opened = 0.0, None, None
    while True:
        name, *arguments = pipe.recv()
        start = time.process_time()
        result: Any = None
        if name == "open":
            opened = server.open(*arguments)
        elif name == "draw":
            drawing = server.draw(*arguments)
        elif name == "open_drawn":
            opened = server.open_drawn(drawing)  # type: ignore[arg-type]
        elif name == "cards_for":
            result = server.cards_for(opened, *arguments)  # type: ignore[arg-type]
        elif name in ("invitation", "drawers", "plan", "survivors", "confirmed"):
            result = getattr(drawing if name in ("invitation", "drawers") else opened, name)
        elif name in ("commit", "commitments", "reveal"):
            result = getattr(drawing, name)(*arguments)
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
    first: dict[str, float] = field(default_factory=dict)

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
    if params.drawers(count, params.topology(count).degree):
        meter.server("draw", *details)
        invitation, drawers = meter.server("invitation"), meter.server("drawers")
        for device in drawers:
            meter.told("commit", meter.device(devices[device].offer, invitation))
        listed = meter.server("commitments")
        for device in drawers:
            meter.told("reveal", meter.device(devices[device].reveal, listed))
        meter.server("open_drawn")
    else:
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


def newcomers(
    params: SecAggParams,
    pinned: dict[int, bytes],
    public: bytes,
    plan: bytes,
    joining: list[tuple[int, bytes, bytes, bytes]],
) -> tuple[float, float]:
    """CPU seconds in which devices that have nobody's card join a round, and bytes that they then
    keep, each. `joining`: device, its private keys and its neighbours' cards."""
    admission, kept = Admission(pinned), []
    spent, before = 0.0, resident()
    for device, identity, agreement, cards in joining:
        keys = DeviceKeys(
            params.federation,
            device,
            Ed25519PrivateKey.from_private_bytes(identity),
            X25519PrivateKey.from_private_bytes(agreement),
        )
        roster = Roster(params.federation, admission)
        roster.admit(keys.card())
        one = Participant(keys, roster, params, public, MemoryJournal())
        start = time.process_time()
        one.join(plan, cards)
        spent += time.process_time() - start
        kept.append(one)
        if len(kept) == 1:  # what all share: the plan, the graph, tables of shares
            before = resident()
    return spent / len(kept), (resident() - before) / (len(kept) - 1)


def first_round(
    meter: Meter,
    params: SecAggParams,
    keys: dict[int, DeviceKeys],
    pinned: dict[int, bytes],
    public: bytes,
) -> str:
    """What a device's first round costs if it has nobody's card, in a process of its own."""
    plan, chosen = meter.server("plan"), list(keys)[:: max(1, len(keys) // 50)][:50]
    joining = [
        (
            device,
            keys[device].identity.private_bytes_raw(),
            keys[device].agreement.private_bytes_raw(),  # type: ignore[union-attr]
            meter.server("cards_for", device),
        )
        for device in chosen
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spent, kept = pool.apply(newcomers, (params, pinned, public, plan, joining))
    size = sum(len(cards) for *_, cards in joining) / len(joining)
    return (
        f"{size / 1e3:.1f} kB of cards and {1e3 * spent:.0f} ms when it knows nobody, which then "
        f"keeps {kept / 1e3:.0f} kB of cards, seeds and the round"
    )


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--lost", type=float, default=0.05)
    parser.add_argument("--lying", action="store_true", help="plan for a server that may lie")
    parser.add_argument("--rounds", type=int, default=2, help="the last one is reported")
    asked = parser.parse_args(arguments)
    count = asked.devices
    params = SecAggParams(
        "bench", count // 2, count // 20, 0.1, sparse=True, honest_server=not asked.lying
    )
    keys = {device: new_keys("bench", device) for device in range(count)}
    pinned = {i: one.identity.public_key().public_bytes_raw() for i, one in keys.items()}
    cards = [one.card() for one in keys.values()]
    secret = Ed25519PrivateKey.generate()
    public = secret.public_key().public_bytes_raw()
    here, there = multiprocessing.get_context("spawn").Pipe()
    told = (there, secret.private_bytes_raw(), params, cards)
    child = multiprocessing.get_context("spawn").Process(target=serve, args=told)
    child.start()
    roster = Roster("bench", Admission(pinned))  # one for all: each card is checked once
    roster.admit_all(cards)
    devices = {
        i: Participant(one, roster, params, public, MemoryJournal(), 512) for i, one in keys.items()
    }
    for round_number in range(asked.rounds):
        meter = Meter(here)
        play(meter, devices, params, round_number, asked.dimension, asked.lost)
        seconds, peak = meter.server("spent")
    first = first_round(meter, params, keys, pinned, public)
    meter.pipe.send(("end",))
    child.join()
    found = params.topology(count)
    print(
        f"{count} devices x {asked.dimension}, {asked.lost:.0%} lost, degree {found.degree}, "
        f"{found.masks} masks: server {seconds:.2f} s, {peak:.0f} MB; a device "
        f"{1e3 * meter.seconds / count:.1f} ms, {meter.up / count / 1e3:.1f} kB up, "
        f"{meter.down / count / 1e3:.1f} kB down; {first}; all devices "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
