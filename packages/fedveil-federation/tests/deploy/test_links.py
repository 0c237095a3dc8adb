"""Real HTTPS between hub and hospitals over links that are cut or slow, and by clocks that differ.

Guards and hub are in this process, their couriers are processes, and a TCP proxy lies between them.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from tests.deploy.hospitals import POLICY, SITES, Hospitals, hospitals
from tests.deploy.victims import wait_for

from benchmarks.deploy_engines import free_port
from benchmarks.deploy_links import Link
from fedveil_federation.cli.hub import finish
from fedveil_federation.deploy import certificates, state_dirs
from fedveil_federation.deploy.courier_process import CourierProcess
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.sockets import SocketCourier

SECRET = {"training__batches": "poisson", "training__batch_size": 20, "privacy__epsilon": 8.0}
ZERO_OUT = POLICY.replace("[allow]", 'adjacency = "zero-out"\n\n[allow]')


@contextmanager
def over_https(made: Hospitals, port: int) -> Iterator[None]:
    """Let hub and sites of a federation talk by couriers' processes."""
    made.hub.listen_at(port)
    parties = [CourierProcess(home) for home in (made.hub, *made.homes.values())]
    ends = {site: SocketCourier(home.socket, home.courier) for site, home in made.homes.items()}
    made.courier = SocketCourier(made.hub.socket, made.hub.courier)
    stop = threading.Event()

    def tend() -> None:
        while not stop.wait(0.2):
            for party in parties:
                party.keep_running()

    for party in parties:
        party.keep_running()
    tending = threading.Thread(target=tend, daemon=True)
    tending.start()
    try:
        for site in SITES:
            made.sites[site] = SiteService(made.homes[site])
            ends[site].attach("fedveil", made.sites[site].answer)
        wait_for(lambda: set(made.courier.sites()) == set(SITES))
        yield
    finally:
        stop.set()
        tending.join()
        for end in ends.values():
            end.close()
        for party in parties:
            party.stop()
        for service in made.sites.values():
            service.close()


def test_hospitals_train_on_secret_batches_over_a_bad_link() -> None:
    """Slow, and cut every few messages: all rounds are released, and paid for once."""
    with tempfile.TemporaryDirectory(prefix="fedveil-") as folder:  # short, for sockets lie in it
        port = free_port()
        link = Link(port, lasts=(8_000, 40_000), piece=8_000, delay=0.002)
        made = hospitals(Path(folder), ZERO_OUT, address=f"localhost:{link.port}")
        try:
            with over_https(made, port):
                service = made.service(finish)
                wait_for(lambda: service._meet() or made.hub.members is not None)
                members = made.hub.members
                assert members is not None
                wait_for(lambda: service._meet() or all(h.proposed for h in made.homes.values()))
                for home in made.homes.values():
                    home.trust(members.fingerprint)
                wait_for(service._meet)
                made.queue(**SECRET)
                wait_for(lambda: service.step() and service.queue.ended("first"), 600)
                assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
                assert 'fedveil_hub_rounds_total{released="yes"} 3' in service.counters.text()
                assert 'released="no"' not in service.counters.text()
                spent = {home.store().ledger.spent() for home in made.homes.values()}
                paid = [list(home.store().ledger.runs().values()) for home in made.homes.values()]
                assert (paid, len(spent)) == ([[3]] * 3, 1)
                promise = json.loads((made.hub.runs / "first" / "guarantee.json").read_text())
                assert (promise["certified"], promise["unit"]) == (True, "record")
                # The model comes over the same link.
                wait_for(lambda: service._meet() and len(models(made)) == 3)
        finally:
            link.close()
        assert link.cuts > 2


def models(made: Hospitals) -> list[Path]:
    return [one for home in made.homes.values() for one in (home.path / "models").glob("first-*")]


class Shifted(datetime):
    """A clock that jumps to and fro by up to twenty hours."""

    shifts = iter(())

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(hours=next(cls.shifts))


def test_clocks_that_jump_and_differ_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at a clock, at the hub or a site, is up to twenty hours off."""
    draw = random.Random(3)
    monkeypatch.setattr(Shifted, "shifts", iter(lambda: draw.uniform(-20, 20), None))
    for module in (certificates, state_dirs):
        monkeypatch.setattr(module, "datetime", Shifted)
    monkeypatch.setattr("time.time", lambda: Shifted.now(UTC).timestamp())
    made = hospitals(tmp_path, address="localhost:8002")
    try:
        made.meet()
        made.queue()
        service = made.service()
        service.step()
        assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
        assert 'fedveil_hub_rounds_total{released="yes"} 3' in service.counters.text()
        ledgers = [home.store().ledger.runs().values() for home in made.homes.values()]
        assert [list(one) for one in ledgers] == [[3]] * 3
    finally:
        made.close()
