"""A site's directory that was put back from a backup: nothing that was spent is forgotten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import SITES, Hospitals, hospitals

from fedveil.cli import main
from fedveil.core.errors import ConfigError, FedveilError
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.state_dirs import SiteHome


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hospitals]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = hospitals(tmp_path)
    found.meet()
    yield found
    found.close()


def trained(made: Hospitals, name: str) -> None:
    made.queue(name)
    service = made.service()
    service.step()
    assert service.queue.ended(name) == {"outcome": "done", "reason": ""}


def put_back(made: Hospitals) -> Path:
    """North is put back to what it was before its second run."""
    north, backup = made.homes["north"].path, made.folder / "backup"
    trained(made, "first")
    shutil.copytree(north, backup)
    trained(made, "second")
    made.end("north")
    shutil.rmtree(north)
    shutil.copytree(backup, north)
    return north


def restored(capsys: Any, *words: str) -> Any:
    assert main(["site", "restore", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_backup_is_refused_until_it_is_restored_and_then_knows_all(
    made: Hospitals, capsys: Any
) -> None:
    spent = [made.homes[site].store().ledger.spent() for site in SITES[1:]]
    north = put_back(made)
    with pytest.raises(FedveilError, match="older copy"):
        SiteService(SiteHome(north))
    assert restored(capsys, "--home", str(north))["events"] > 0
    ledger = SiteHome(north).store().ledger
    assert ledger.runs() == made.homes["south"].store().ledger.runs()
    assert ledger.spent() == made.homes["south"].store().ledger.spent() > max(spent)
    made.start("north")  # and it takes part again, with a fresh key for masks
    trained(made, "third")
    assert list(SiteHome(north).store().ledger.runs().values()) == [3, 3, 3]


def test_without_the_copy_of_its_events_nothing_is_allowed_any_more(
    made: Hospitals, capsys: Any
) -> None:
    """The directory was put back on another machine."""
    north = put_back(made)
    shutil.rmtree(made.folder / "state")
    with pytest.raises(ConfigError, match="site restore"):
        SiteService(SiteHome(north))
    assert main(["site", "restore", "--home", str(north)]) == 2
    restored(capsys, "--home", str(north), "--exhaust")
    made.start("north")
    made.queue("third")
    service = made.service()
    service.step()
    ended = service.queue.ended("third")
    assert ended is not None
    assert ended["outcome"] == "refused"
    assert sum(SiteHome(north).store().ledger.runs().values()) == 3  # what it knows of


def test_a_site_does_not_start_where_its_note_cannot_be_written(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a unit that makes the account's home read-only; root may write anywhere."""
    made.end("north")
    ledgers = made.folder / "state" / "fedveil" / "ledgers"
    for place in ledgers.iterdir():
        place.unlink()
        place.mkdir()
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        SiteService(made.homes["north"])


def test_a_copy_of_events_of_another_ledger_is_refused(made: Hospitals) -> None:
    north = put_back(made)
    ledgers = sorted((made.folder / "state" / "fedveil" / "ledgers").glob("*.events"))
    for place in ledgers:
        others = [one for one in ledgers if one != place]
        shutil.copy(others[0], place.with_suffix(".kept"))
    for place in ledgers:
        place.with_suffix(".kept").replace(place)
    with pytest.raises(ConfigError, match="not an older copy"):
        SiteHome(north).restore(exhaust=False)
