"""What a federation costs as it grows: `python -m benchmarks.scale sums|phones|mailbox`.

`sums` plays rounds of named institutions as deployments do, everybody masking with everybody under
a hub that may lie: CPU seconds and memory of the hub's side, and what a site computes, sends and
gets. `phones` gives the server of a sparse sum frames of stand-ins, as `benchmarks.secagg_server`
does. `mailbox` connects so many sites to the HTTPS courier of a hub: its memory and CPU seconds,
before and after a leg to all of them. Each prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.deploy_engines import COLUMNS, free_port, memory_of
from benchmarks.secagg_cost import Meter, play, serve
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.deploy import certificates
from fedveil_federation.deploy.courier import HUB, Settings
from fedveil_federation.deploy.courier_process import CourierProcess
from fedveil_federation.deploy.https import SiteLink
from fedveil_federation.deploy.sockets import SocketCourier
from fedveil_federation.deploy.state_dirs import Bundle, HubHome
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Roster


def _row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _table(*heads: str) -> None:
    _row(*heads)
    _row(*["---"] * len(heads))


def sums(sizes: Sequence[int], dimension: int) -> None:
    """Print what the second round of a secure sum costs hub and sites; all are there."""
    _table("sites", "hub, CPU s", "hub, MB", "a site, CPU ms", "it sends, kB", "it gets, kB")
    for count in sizes:
        params = SecAggParams("bench", max(2, count // 2), min(1, count - 2), max_dropout=0.0)
        keys = {number: new_keys("bench", number) for number in range(count)}
        pinned = {i: one.identity.public_key().public_bytes_raw() for i, one in keys.items()}
        cards = [one.card() for one in keys.values()]
        secret = Ed25519PrivateKey.generate()
        public = secret.public_key().public_bytes_raw()
        here, there = multiprocessing.get_context("spawn").Pipe()
        told = (there, secret.private_bytes_raw(), params, cards)
        child = multiprocessing.get_context("spawn").Process(target=serve, args=told)
        child.start()
        roster = Roster("bench", pinned)
        roster.admit(*cards)
        sites = {
            number: Participant(one, roster, params, public, MemoryJournal(), 4 * count)
            for number, one in keys.items()
        }
        for number in range(2):
            meter = Meter(here)
            play(meter, sites, params, number, dimension, 0.0)
            seconds, peak = meter.server("spent")
        meter.pipe.send(("end",))
        child.join()
        up, down = meter.up / count / 1e3, meter.down / count / 1e3
        own = f"{1e3 * meter.seconds / count:.1f}"
        _row(count, f"{seconds:.2f}", f"{peak:.0f}", own, f"{up:.1f}", f"{down:.1f}")


def phones(sizes: Sequence[int], dimension: int) -> None:
    """Print what `benchmarks.secagg_server` says, each in a process of its own."""
    for count in sizes:
        words = ("--devices", str(count), "--dimension", str(dimension))
        subprocess.run([sys.executable, "-m", "benchmarks.secagg_server", *words], check=True)


def mailbox(sizes: Sequence[int], size: int) -> None:
    """Print what the hub's courier costs with so many sites, all of which answer a leg."""
    _table("sites", "MB before", "MB connected", f"MB after {size:,} B", "CPU s", "leg, s")
    for count in sizes:
        with tempfile.TemporaryDirectory(prefix="fedveil-") as folder:
            names = tuple(f"site-{number}" for number in range(count))
            _row(count, *_one_mailbox(Path(folder), names, bytes(size)))


def _one_mailbox(folder: Path, names: tuple[str, ...], frame: bytes) -> list[str]:
    with _one_key():
        schema = {"label": "y", "columns": COLUMNS}
        address = f"localhost:{free_port()}"
        hub = HubHome.create(folder / "h", "bench", address, names, **schema)
    process = CourierProcess(hub)
    process.keep_running()
    courier = SocketCourier(hub.socket, hub.courier)
    links = []
    try:
        _until(lambda: courier.sites() == ())
        before = memory_of(process.pid).resident
        for name in names:
            place = folder / name
            place.mkdir()
            bundle = Bundle.read(hub.path / "bundles" / f"{name}.bundle")
            (place / "authority.crt").write_text(bundle.authority)
            (place / "link.crt").write_text(bundle.pair.certificate)
            (place / "link.pem").write_text(bundle.pair.key)
            settings = Settings("https", HUB, names, "localhost", hub.port, "", 1 << 30)
            links.append(SiteLink(replace(settings, name=name), place, lambda asked: asked))
            links[-1].start()
        _until(lambda: len(courier.sites()) == len(names))
        connected = memory_of(process.pid).resident
        spent, began = _cpu(process.pid), time.monotonic()
        answers = courier.ask(dict.fromkeys(names, frame), 600.0)
        seconds = time.monotonic() - began
        if any(answer != frame for answer in answers.values()):
            raise SystemExit("not every site has answered")
        spent = _cpu(process.pid) - spent
        after = memory_of(process.pid).resident
    finally:
        for link in links:
            link.stop()
        process.stop()
    return [str(before), str(connected), str(after), f"{spent:.2f}", f"{seconds:.2f}"]


@contextmanager
def _one_key() -> Iterator[None]:
    """Make one RSA key for all parties: a thousand take minutes."""
    make = certificates._new_key
    certificates._new_key = cache(make)
    try:
        yield
    finally:
        certificates._new_key = make


def _cpu(pid: int | None) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def _until(ready: Callable[[], bool], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ready():
                return
        except Exception:
            pass
        time.sleep(0.1)
    raise SystemExit("waited too long; is the machine busy?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("sums", "phones", "mailbox"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 24, 100])
    parser.add_argument("--dimension", type=int, default=10_000, help="weights, or bytes")
    args = parser.parse_args()
    {"sums": sums, "phones": phones, "mailbox": mailbox}[args.what](args.sizes, args.dimension)


if __name__ == "__main__":
    main()
