"""The couriers' contract over real processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.deploy.courier_suite import CourierSuite

from benchmarks.deploy_engines import Homes, engines
from fedveil_federation.deploy.courier import Courier

SITES = ("a", "b", "c", "quick", "slow")


@contextmanager
def connected(engine: str = "https") -> Iterator[Homes]:
    """A hub and all sites that the suite attaches."""
    with (
        tempfile.TemporaryDirectory(prefix="fedveil-") as made,  # short: sockets lie in it
        engines(Path(made), SITES, engine) as courier,
    ):
        yield courier


class EngineSuite(CourierSuite):
    """Its module has a fixture `running`, of the couriers' processes."""

    @pytest.fixture(autouse=True)
    def use(self, running: Homes) -> None:
        self.running = running

    def make(self) -> Courier:
        return self.running
