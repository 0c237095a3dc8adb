"""The units are ones that systemd takes, and start what the commands know."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.paths import ROOT

from fedveil.cli import parser_of

FOLDER = ROOT / "packaging"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))


def _service(unit: Path) -> configparser.SectionProxy:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(unit)
    return read["Service"]


def _command(unit: Path) -> list[str]:
    return shlex.split(_service(unit)["ExecStart"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    program, kind, *words = _command(unit)
    assert Path(program).name == "fedveil"
    args = parser_of(kind).parse_args(words)
    if "courier" in unit.stem:  # reads what its party's unit shares with it, and nothing else
        assert args.action == "courier"
        party = _service(unit.with_name(f"fedveil-{kind}.service"))
        assert party["ExecStart"].endswith(f"--courier {args.dir}")
        assert party["User"] != _service(unit)["User"]
        assert "/var/lib/fedveil" in _service(unit)["InaccessiblePaths"]
        return
    assert args.action == "start"
    assert _service(unit)["SuccessExitStatus"] == "130"  # as `main` ends when it is told to stop
    assert Path("/var/lib/fedveil") in args.home.parents


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # with a program that is installed
        there = unit.read_text().replace(_command(unit)[0], shutil.which("true") or "/bin/true")
        (tmp_path / unit.name).write_text(there)
    units = map(str, sorted(tmp_path.glob("*.service")))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_installs_what_is_pinned_and_starts_the_command_as_a_plain_account() -> None:
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    words = [word for word, _ in steps]
    assert words == ["ARG", "FROM", "ARG", "COPY", "COPY", "RUN", "USER", "WORKDIR", "ENTRYPOINT"]
    copied = [word for step, files in steps if step == "COPY" for word in files.split()[:-1]]
    assert all((FOLDER.parent / word).exists() for word in copied)
    said = dict(steps)  # type: ignore[arg-type]
    assert "--constraint /source/constraints.txt" in said["RUN"]
    assert (FOLDER.parent / "constraints.txt").is_file()
    assert said["USER"] == "fedveil"
    assert said["ENTRYPOINT"] == '["/opt/fedveil/bin/fedveil"]'
