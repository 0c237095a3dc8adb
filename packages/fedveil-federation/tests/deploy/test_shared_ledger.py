"""Several federations on the same rows are charged to one lifetime's ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import POLICY, SITES, Hospitals, forget_rows, hospitals

from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil_federation.deploy.agreement import Agreement
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.state_dirs import Bundle, HubHome, SiteHome


def second(made: Hospitals, name: str = "clinics") -> Hospitals:
    """Another hub's federation of the same hospitals, which nobody has joined yet."""
    first = made.hub.agreement
    schema = {"label": first.label, "columns": first.columns}
    hub = HubHome.create(made.folder / name, name, "localhost:8003", SITES, **schema)
    return Hospitals(made.folder, hub, {})


def joined(made: Hospitals, other: Hospitals, site: str, **how: Any) -> SiteHome:
    bundle = Bundle.read(other.hub.path / "bundles" / f"{site}.bundle")
    path = made.folder / f"{site}-of-{other.hub.agreement.name}"
    data, policy = made.folder / f"{site}.csv", made.folder / "policy.toml"
    return SiteHome.create(path, bundle, data, policy, **how)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Hospitals]:
    found = hospitals(tmp_path, POLICY.replace("epsilon = 50.0", "epsilon = 20.0"))
    yield found
    found.close()


def test_two_federations_spend_one_budget(made: Hospitals, capsys: Any) -> None:
    made.meet()
    made.queue()
    made.service().step()
    alone = made.homes["north"].store().ledger.spent()
    other = second(made)
    other.homes = {site: joined(made, other, site, ledger=made.homes[site]) for site in made.homes}
    try:
        other.meet()
        other.queue("second", privacy__epsilon=10.0)
        service = other.service()
        service.step()
        assert service.queue.ended("second") == {"outcome": "done", "reason": ""}
        for home in (made.homes["north"], other.homes["north"]):
            assert main(["site", "ledger", "--home", str(home.path), "--json"]) == 0
            document = json.loads(capsys.readouterr().out)
            runs = [(one["name"], one["with"], one["rounds"]) for one in document["runs"]]
            assert sorted(runs) == [("first", "hospitals", 3), ("second", "clinics", 3)]
            assert document["epsilon"] > alone
        other.queue("third")  # fits into a budget that nobody else has spent from
        service.step()
        ended = service.queue.ended("third")
        assert ended is not None
        assert (ended["outcome"], "budget" in ended["reason"]) == ("refused", True)
    finally:
        other.close()


def test_the_same_rows_get_no_second_ledger(made: Hospitals) -> None:
    other = second(made)
    north, copy = made.homes["north"], made.folder / "copy.csv"
    with pytest.raises(ConfigError, match="--ledger"):
        joined(made, other, "north")
    copy.write_bytes(north.data.read_bytes())
    north.data.rename(made.folder / "moved.csv")
    copy.rename(north.data)  # another file of the same content
    with pytest.raises(ConfigError, match="--ledger"):
        joined(made, other, "north")
    assert not (made.folder / "north-of-clinics").exists()
    home = joined(made, other, "north", ledger=north)
    assert home.store().ledger.path == north.store_path
    # A third federation may name either of the two.
    third = second(made, "offices")
    assert joined(made, third, "north", ledger=home).ledger == north.path


def test_the_key_of_a_store_may_lie_elsewhere(made: Hospitals) -> None:
    """Such as where systemd puts what it has decrypted."""
    key, other = made.folder / "elsewhere.key", second(made)
    forget_rows()
    home = joined(made, other, "south", key=key)
    assert not (home.path / "store.key").exists()
    SiteHome(home.path).store()
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read it"):
        SiteHome(home.path).store()
    key.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        SiteHome(home.path).store()


def test_a_directory_that_was_moved_is_charged_still(made: Hospitals) -> None:
    north = made.homes["north"].path.rename(made.folder / "elsewhere")
    SiteService(SiteHome(north)).close()
    with pytest.raises(ConfigError, match=f"--ledger {north}"):
        joined(made, second(made), "north")


@pytest.mark.parametrize(
    "change",
    [
        ("epsilon = 20.0\ndelta = 1e-4\n\n[allow]", "epsilon = 20.0\ndelta = 1e-6\n\n[allow]"),
        ("[allow]", 'adjacency = "replace"\n[allow]'),
    ],
)
def test_a_ledger_that_promises_less_than_a_policy_says_is_not_shared(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    wanted = POLICY.replace("epsilon = 50.0", "epsilon = 20.0")
    made = hospitals(tmp_path, wanted.replace("[allow]", 'adjacency = "zero-out"\n[allow]'))
    assert wanted.replace(*change) != wanted
    (made.folder / "policy.toml").write_text(wanted.replace(*change))
    with pytest.raises(ConfigError, match=r"policy: lifetime\."):
        joined(made, second(made), "north", ledger=made.homes["north"])


def test_two_federations_of_one_name_do_not_share_a_ledger(made: Hospitals) -> None:
    """Keys and numbers of rounds go by the federation's name."""
    agreement = Agreement.of({**made.hub.agreement.to_table(), "address": "localhost:8009"})
    bundle = Bundle.read(made.hub.path / "bundles" / "north.bundle")
    again = Bundle(bundle.site, agreement, bundle.pair, bundle.authority)
    north, policy = made.homes["north"], made.folder / "policy.toml"
    with pytest.raises(ConfigError, match="name of its own"):
        SiteHome.create(made.folder / "again", again, north.data, policy, ledger=north)
    # The same one may be joined again, such as with another bundle: as who it was before.
    home = SiteHome.create(made.folder / "again", bundle, north.data, policy, ledger=north)
    before = north.keys(north.store()).identity.private_bytes_raw()
    assert home.keys(home.store()).identity.private_bytes_raw() == before
