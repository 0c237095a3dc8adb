"""For all tests of federations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any

import pytest
from tests.deploy.hospitals import forget_rows

from fedveil_federation.deploy import certificates, hub_service


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


@cache
def _keys(make: Any) -> Iterator[Any]:
    return cycle([make() for _ in range(9)])


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """RSA keys take a while to make: nine serve all tests in turn, more than one federation has."""
    made = _keys(certificates._new_key)
    monkeypatch.setattr(certificates, "_new_key", lambda: next(made))
