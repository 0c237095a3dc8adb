"""For all tests of federations."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.deploy.hospitals import forget_rows

from fedveil_federation.deploy import hub_service


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Commands make new files their owner's alone, for the whole process."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def rows() -> None:
    forget_rows()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's sites are not away."""
    monkeypatch.setattr(hub_service, "_HELLO", 600.0)
