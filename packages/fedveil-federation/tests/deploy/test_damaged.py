"""A file of a hub's or a site's directory that is damaged: one line that names it, and no more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import Hospitals, hospitals

from fedveil.cli import main
from fedveil_federation.deploy import courier_process, hub_service, sockets
from fedveil_federation.deploy.state_dirs import Home, SiteHome

SITE = [("site", word) for word in ("members", "ledger", "pause", "renew", "start", "leave")]
HUB = [
    ("federation", "status"),
    ("federation", "run", "dp-sgd", "--detach"),
    ("federation", "evaluate", "first"),
    ("federation", "resume", "first"),
    ("hub", "start"),
]
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "gone": Path.unlink,
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 3),
    "another": lambda path: path.write_text('{"a": 1}' if path.suffix == ".json" else "a = 1\n"),
}


class Idle:
    """A courier that has nothing to do, and is interrupted when it is to go on."""

    def __init__(self, home: Any) -> None:
        self.home, self.kept = home, 0

    def keep_running(self) -> None:
        self.kept += 1
        courier_process.write_kit(self.home)
        if self.kept == 2:
            raise KeyboardInterrupt

    def stop(self) -> None:
        pass


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Hospitals:
    """A federation whose owners have met, with a run that was stopped."""
    folder = tmp_path_factory.mktemp("hospitals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        made = hospitals(folder)
        made.meet()
        made.queue()
        queue, home = made.service().queue, made.homes["north"]
        job = queue.next()
        assert job is not None
        queue.end(job, "stopped")
        home.keep_plan("0" * 64, b"{}", "first")
        made.start("north")
        made.service().hellos()  # for which it has worked out what was spent
        made.close()
    return made


def _names(home: Home) -> list[Path]:
    named = (path.relative_to(home.path) for path in home.path.rglob("*") if path.is_file())
    return sorted(name for name in named if name.parts[0] not in ("courier", "runs"))


def _fails(home: Home, damage: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> set[str]:
    """Every file damaged in turn, every command on it; the files that some command complains of."""
    monkeypatch.setattr(courier_process, "CourierProcess", Idle)
    monkeypatch.setattr(sockets, "check_free", lambda port: None)
    monkeypatch.setattr(hub_service, "_HELLO", 0.1)
    for module in ("site", "hub"):
        monkeypatch.setattr(f"fedveil_federation.cli.{module}._PAUSE", 0.0)
    # A command that would wait for the hub has nothing to complain of.
    monkeypatch.setattr("fedveil_federation.cli.federation.time.sleep", _interrupted)
    folder, found = home.path.parent / "copy", set()
    site = isinstance(home, SiteHome)
    for name in _names(home):
        for words in SITE if site else HUB:
            shutil.copytree(home.path, folder)
            state = folder.with_name("copied-state")  # no copy is noticed as one
            shutil.copytree(folder.with_name("state"), state)
            monkeypatch.setenv("XDG_STATE_HOME", str(state))
            DAMAGES[damage](folder / name)
            code, said = main([*words, "--home", str(folder)]), capsys.readouterr().err
            lines = [line for line in said.splitlines() if not line.startswith(("{", "waiting:"))]
            assert code in (0, 1, 2, 130), (name, words, said)
            if code:
                assert len(lines) == 1, (name, words, said)
                assert lines[0].startswith("fedveil: "), (name, words, said)
            if code in (1, 2):
                found.add(str(name))
            for copied in (folder, state):
                shutil.rmtree(copied)
    return found


def _interrupted(seconds: float) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("damage", DAMAGES)
def test_commands_of_a_site_say_in_one_line_which_file_is_damaged(
    damage: str, used: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    found = _fails(used.homes["north"], damage, monkeypatch, capsys)
    needed = {"site.toml", "policy.toml", "own.crt", "own.pem", "store.key", "store.db"}
    if damage != "gone":  # the list could be confirmed again
        needed.add("members.toml")
    assert needed <= found
    # What was only kept to be shown is missed by nobody.
    assert not found & {"metrics.prom", "spent.json", "members-proposed.toml"}
    assert not any(name.startswith("plans") for name in found)


@pytest.mark.parametrize("damage", DAMAGES)
def test_commands_of_a_hub_say_in_one_line_which_file_is_damaged(
    damage: str, used: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    found = _fails(used.hub, damage, monkeypatch, capsys)
    assert {"federation.toml", "hub.key", "hub.crt", "hub.pem", "authority.crt"} <= found
    assert "bundles/north.crt" in found
    assert "queue/first.ended.json" in found
    assert not found & {"metrics.prom", "bundles/north.bundle"}
