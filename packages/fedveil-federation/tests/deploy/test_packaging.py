"""Units, containers, chart and dashboard: they start commands, and ask for counters, that exist."""

from __future__ import annotations

import configparser
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.hospitals import hospitals
from tests.paths import ROOT

from fedveil.cli import parser_of
from tools import demo

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


def test_the_demo_in_containers_starts_commands_that_exist() -> None:
    """Couriers have a network and nothing else; everybody else has no network."""
    document = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services, shared = document["services"], set(document["volumes"])
    for name, one in services.items():
        mounted = {volume.partition(":")[0] for volume in one["volumes"]}
        assert mounted - {"../tools/demo.py"} <= shared
        if "entrypoint" in one:
            done = subprocess.run(
                [sys.executable, ROOT / "tools" / "demo.py", "demo", *one["command"], "--help"],
                capture_output=True,
            )
            assert done.returncode == 0
            assert one["network_mode"] == "none"
            continue
        kind, *words = one["command"]
        args = parser_of(kind).parse_args(words)
        courier = name.endswith("-courier")
        assert args.action == ("courier" if courier else "start")
        assert one.get("user", "fedveil") == ("courier" if courier else "fedveil")
        assert ("networks" in one, one.get("network_mode")) == (
            courier,
            None if courier else "none",
        )
        assert ("parties" in mounted) is not courier
        assert mounted - {"parties"} == {name.removesuffix("-courier")}
    parties = {name for name in services if f"{name}-courier" in services}
    assert parties == {"hub", *demo.SITES}
    address = services["found"]["command"][-1]
    assert services["hub-courier"]["networks"]["federation"]["aliases"] == [address.split(":")[0]]


CHART = FOLDER / "helm"


def rendered(template: Path, **changed: str) -> list[Any]:
    """What helm makes of a template that knows values, the release's name and simple conditions."""
    values = yaml.safe_load((CHART / "values.yaml").read_text()) | changed

    def value(path: str) -> str:
        found = {"Values": values, "Release": {"Name": "one"}}
        for name in path.strip().removeprefix(".").split("."):
            found = found[name]
        return str(found)

    def chosen(part: re.Match[str]) -> str:
        asked = part[1].split()
        holds = value(asked[-1]) if asked[0] != "eq" else value(asked[1]) == asked[2].strip('"')
        return part[2] if holds else ""

    text = re.sub(
        r"\n\{\{- if ([^}]*)\}\}(.*?)\n\{\{- end \}\}",
        chosen,
        template.read_text(),
        flags=re.DOTALL,
    )
    text = re.sub(r"\{\{ (\.[\w.]+) \}\}", lambda part: value(part[1]), text)
    assert "{{" not in text
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize(("role", "rows"), [("site", "north-rows"), ("hub", "")])
def test_the_chart_starts_two_accounts_of_one_party(role: str, rows: str) -> None:
    (stateful,) = rendered(CHART / "templates" / "statefulset.yaml", role=role, rows=rows)
    pod = stateful["spec"]["template"]["spec"]
    party, courier = pod["containers"]
    assert stateful["spec"]["replicas"] == 1
    for container, action in ((party, "start"), (courier, "courier")):
        kind, *words = map(str, container["args"])
        assert (kind, parser_of(kind).parse_args(words).action) == (role, action)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    accounts = [one["securityContext"]["runAsUser"] for one in (party, courier)]
    text = (FOLDER / "Containerfile").read_text()
    assert [f"--uid {one}" in text for one in accounts] == [True, True]
    assert len(set(accounts)) == 2
    assert [mount["name"] for mount in courier["volumeMounts"]] == ["shared"]
    known = {one["name"] for one in pod["volumes"]}
    known |= {one["metadata"]["name"] for one in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in party["volumeMounts"]} == known
    policy, *service = rendered(CHART / "templates" / "network.yaml", role=role)
    assert bool(policy["spec"]["ingress"]) is (role == "hub")
    assert bool(policy["spec"]["egress"]) is (role == "site")
    assert [one["kind"] for one in service] == (["Service"] if role == "hub" else [])


def _names(text: str) -> set[str]:
    return set(re.findall(r"\bfedveil_(?:hub|site)_\w+", text))


def test_dashboard_and_alerts_ask_for_counters_that_the_programs_write(tmp_path: Path) -> None:
    """Of a hub and sites that have trained once, with a refusal and a failure on the way."""
    made = hospitals(tmp_path)
    try:
        made.meet()
        made.queue()
        service, site = made.service(), made.sites["north"]
        service.step()
        site.answer(b"nonsense")
        site._responder.counters.add("failures")  # as for a fault of its own
        site._accounted = site._written = -math.inf
        service.hellos()
        written = _names(service.counters.text())
        written |= _names((made.homes["north"].path / "metrics.prom").read_text())
    finally:
        made.close()
    board = json.loads((FOLDER / "monitoring" / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert _names(" ".join(asked)) == written
    (group,) = yaml.safe_load((FOLDER / "monitoring" / "alerts.yaml").read_text())["groups"]
    assert _names(" ".join(rule["expr"] for rule in group["rules"])) <= written
