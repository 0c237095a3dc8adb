"""Faults played with the processes that commands start: what is released, and what is paid."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from benchmarks import deploy_faults
from benchmarks.deploy_faults import FAULTS, ROUNDS, Faults

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("cc") is None,
        reason="needs root for a small disk, and a C compiler for a shifted clock",
    ),
]
LOST = {"lie": 6}  # rounds; others lose the one under way, and one that was joined early


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with deploy_faults.federation() as made:
        yield made


@pytest.mark.parametrize("name", FAULTS)
def test_all_other_rounds_are_released_and_no_site_pays_twice(name: str, faults: Faults) -> None:
    lived = faults.lived(name)
    print(lived)
    assert lived.outcome == ("stopped" if name == "backup" else "done")
    assert lived.released + lived.lost == ROUNDS or name == "backup"
    assert lived.lost <= LOST.get(name, 2)
    assert len(set(lived.paid)) == 1
    assert lived.released <= lived.paid[0] <= lived.released + lived.lost
