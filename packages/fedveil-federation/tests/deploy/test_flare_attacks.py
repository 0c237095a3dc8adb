"""A hub, a fellow site and a local user who send everything that FLARE knows to real couriers.

Rows and keys of a site hold a canary. Nothing that comes back may hold it, and nothing but answers
of the guard comes back at all. The same attack on FLARE's own client reads the canary.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.victims import CANARY, Victims, of_hub, running, victims, wait_for

__all__ = ["victims"]
pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None,
    reason="nvflare is not installed: pip install 'fedveil-federation[flare]'",
)
ENGINE = "flare"


def attacked(settings: str) -> dict[str, Any]:
    """What an attacker's own process has to say at its end."""
    command = [sys.executable, "-m", "tests.deploy.flare_attacker", "attack", settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_the_attack_reads_rows_and_keys_of_flares_own_client(victims: Victims) -> None:
    """So nothing that comes back in the other tests is due to fedveil's courier."""
    own = victims.settings("north", "server", "server", "north")
    command = [sys.executable, "-m", "tests.deploy.flare_attacker", "victim", own]
    victim = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = attacked(victims.settings("server", "north", "north", "hub"))
    finally:
        victim.kill()
        victim.wait()
    said = json.dumps(found["arrived"])
    assert CANARY in said
    assert "PRIVATE KEY" in said
    assert found["topics"] > 50


def test_a_hub_gets_answers_of_the_guard_and_nothing_else(victims: Victims) -> None:
    with running(victims.site):
        found = attacked(victims.settings("server", "north", "north", "hub"))
    assert found["sent"] > 1000
    # One request was of fedveil's own kind. The hub had not signed it, and the guard said so.
    (answer,) = found["arrived"]
    assert answer["headers"] == {"kind": "answer", "number": "1000000"}
    check_secrets(victims, found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["north", "server"])
def test_a_fellow_site_gets_nothing_under_an_honest_hub(victims: Victims, target: str) -> None:
    with running(victims.hub, victims.site):
        found = attacked(victims.settings("south", "server", target, "south"))
    assert found["sent"] > 1000
    assert found["arrived"] == []


def test_a_site_cannot_take_another_sites_name(victims: Victims) -> None:
    with running(victims.hub, victims.site):
        hub = of_hub(victims)
        wait_for(lambda: hub.sites() == ("north",))
        found = attacked(victims.settings("east", "server", "server", "south"))
        assert hub.sites() == ("north",)
    assert found["arrived"] == []


def check_secrets(victims: Victims, found: dict[str, Any]) -> None:
    said = "".join(one["payload"] for one in found["arrived"])
    for place in victims.secrets:
        for line in Path(place).read_text().splitlines():
            assert len(line) < 12 or line not in said
    assert CANARY not in said
