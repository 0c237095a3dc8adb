"""The commands as an engineer types them: answers, one-line errors, exit codes. No engine runs."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from tests.deploy.hospitals import COLUMNS, POLICY, SITES, table

from fedveil.cli import main
from fedveil_federation.deploy.certificates import Pair, days_left, renewed
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.state_dirs import HubHome, SiteHome, keep_pair

SHELL = [word for site in SITES for word in ("--site", site)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the engineers have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(tomli_w.dumps({"columns": COLUMNS}))
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "patients.csv").write_text(table(50, 1))
    return tmp_path


def answer(capsys: Any, *words: str) -> Any:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refusal(capsys: Any, *words: str) -> str:
    """The one line of a command that fails."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("fedveil: ")
    return str(line)


def init(capsys: Any, *more: str) -> Any:
    words = ("federation", "init", "hospitals", "--hub", "localhost:8002", *SHELL)
    return answer(capsys, *words, "--schema", "schema.toml", "--label", "ill", *more)


def join(capsys: Any, *more: str) -> Any:
    words = ("site", "join", "hospitals/bundles/north.bundle", "--data", "patients.csv")
    return answer(capsys, *words, "--policy", "policy.toml", *more)


def test_from_nothing_to_a_site(here: Path, capsys: Any) -> None:
    made = init(capsys)
    assert list(made["bundles"]) == list(SITES)
    joined = join(capsys, "--schema", "schema.toml")
    assert (joined["rows"], joined["inputs"], joined["label"]) == (50, 5, "ill")
    ledger = answer(capsys, "site", "ledger", "--home", "north")
    assert (ledger["epsilon"], ledger["budget_epsilon"], ledger["unit"]) == (0.0, 50.0, "record")
    home = ("--home", "north")
    assert answer(capsys, "site", "pause", *home)["stopped"] == "paused by its owner"
    assert answer(capsys, "site", "resume", *home)["stopped"] == ""
    assert answer(capsys, "site", "renew", *home)["stopped"] == ""
    assert "left" in answer(capsys, "site", "leave", *home)["stopped"]
    assert "left" in refusal(capsys, "site", "start", *home)
    for root in (here / "hospitals", here / "north"):
        for path in root.rglob("*"):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_site_whose_patients_have_several_visits(here: Path, capsys: Any) -> None:
    init(capsys)
    (here / "policy.toml").write_text(POLICY.replace('"record"', '"person"'))
    lines = (here / "patients.csv").read_text().splitlines()
    visits = [f"{line.rpartition(',')[0]},p{n % 7}" for n, line in enumerate(lines[1:49])]
    nobody = [f"{line.rpartition(',')[0]}," for line in lines[49:]]
    (here / "patients.csv").write_text("\n".join([lines[0], *visits, *nobody]) + "\n")
    joined = join(capsys, "--person-column", "patient")
    assert (joined["rows"], joined["persons"], joined["inputs"]) == (48, 7, 5)
    assert "2 of 50 rows name no person" in joined["notes"][0]
    assert len(np.unique(SiteHome(here / "north").rows().train.persons)) == 7
    assert answer(capsys, "site", "ledger", "--home", "north")["unit"] == "person"
    again = ("site", "join", "hospitals/bundles/south.bundle", "--data", "patients.csv")
    for column in ("age", "ill", "nowhere"):  # an input, the label, no column
        said = refusal(capsys, *again, "--policy", "policy.toml", "--person-column", column)
        assert column in said


def test_mistakes_get_one_line_that_says_what_to_do(here: Path, capsys: Any) -> None:
    said = refusal(capsys, "federation", "init", "hospitals", *SHELL)
    assert "--hub: say which" in said
    init(capsys)
    assert "exists already" in refusal(
        *(capsys, "federation", "init", "hospitals", "--hub", "localhost:1", *SHELL),
        *("--schema", "schema.toml", "--label", "ill"),
    )
    bundle = "hospitals/bundles/north.bundle"
    joining = ("site", "join", bundle, "--policy", "policy.toml", "--data")
    assert "nobody.csv" in refusal(capsys, *joining, "nobody.csv")
    (here / "other.toml").write_text(tomli_w.dumps({"columns": {**COLUMNS, "age": COLUMNS["ill"]}}))
    said = refusal(capsys, *joining, "patients.csv", "--schema", "other.toml")
    assert "something else than the bundle's schema" in said
    (here / "policy.toml").write_text(POLICY.replace("[lifetime]", "[liftime]"))
    assert "unknown key" in refusal(capsys, *joining, "patients.csv")
    without = POLICY.replace("[lifetime]\nepsilon = 50.0", "[lifetime]")
    (here / "policy.toml").write_text(without)
    assert "all runs together may cost" in refusal(capsys, *joining, "patients.csv")
    assert not (here / "north").exists()
    (here / "policy.toml").write_text(POLICY)
    assert "not the directory of a site" in refusal(capsys, "site", "ledger")
    join(capsys)
    assert "no list yet" in refusal(capsys, "site", "members", "--home", "north")
    assert "no list yet" in refusal(capsys, "site", "trust", "abc", "--home", "north")
    home = ("--home", "hospitals")
    assert "not in the queue" in refusal(capsys, "federation", "stop", "x", *home)
    assert "neither stopped" in refusal(capsys, "federation", "resume", "x", *home)
    assert "need one of" in refusal(capsys, "site", "fly")


def test_a_guessed_schema_is_agreed_on_by_nobody(here: Path, capsys: Any) -> None:
    """`fedveil data schema` drafts one from a site's own rows, and marks what it took from them."""
    drafted = {"columns": {**COLUMNS, "age": {**COLUMNS["age"], "guess": True}}}
    (here / "drafted.toml").write_text(tomli_w.dumps(drafted))
    usual = ("--hub", "localhost:8002", *SHELL, "--schema", "drafted.toml", "--label", "ill")
    said = refusal(capsys, "federation", "init", "hospitals", *usual)
    assert "column 'age' is a guess from somebody's rows" in said
    assert not (here / "hospitals").exists()


def test_a_site_that_was_away_when_its_certificate_expired_gets_another(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init(capsys)
    join(capsys)
    hub, site = HubHome(here / "hospitals"), SiteHome(here / "north")
    old = site.certificate
    keep_pair(site.path, "site", Pair(renewed(hub.authority, old.certificate, days=0), old.key))
    assert days_left(site.certificate.certificate) < 0
    SiteService(site).welcome()
    assert "fedveil federation renew north" in caplog.text
    capsys.readouterr()  # where the log goes to stderr
    taking = ("site", "renew", "--home", "north", "--certificate")
    assert "none of north, south, east" in refusal(
        capsys, "federation", "renew", "west", "--home", "hospitals"
    )
    other = answer(capsys, "federation", "renew", "south", "--home", "hospitals")["certificate"]
    assert "not for 'north'" in refusal(capsys, *taking, other)
    made = answer(capsys, "federation", "renew", "north", "--home", "hospitals")["certificate"]
    assert answer(capsys, *taking, made)["site"] == "north"
    assert days_left(site.certificate.certificate) > 364
    assert site.certificate.key == old.key
    assert "lasts no longer" in refusal(capsys, *taking, made)
