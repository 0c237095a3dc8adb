"""The same run over NVIDIA FLARE: provisioned, mTLS, separate processes, a network of their own.

Set FEDVEIL_FLARE to the `bin` folder of an environment with nvflare 2.9.0 (`fedveil[flare]`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedveil
from fedveil.config.assemble import plan_of
from fedveil.core.randomness import Randomness
from fedveil.deploy.courier import Unreachable
from fedveil.deploy.sockets import SocketCourier
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from tests.deploy.world import facts_of, recipe_of, world

BIN = os.environ.get("FEDVEIL_FLARE", "")
pytestmark = pytest.mark.skipif(not BIN, reason="FEDVEIL_FLARE names no environment with nvflare")

SITES = ("site-0", "site-1", "site-2")
SECONDS = 120.0
PROJECT = """
api_version: 3
name: test
description: test
participants:
  - {name: localhost, type: server, org: hub, fed_learn_port: 8202}
  - {name: site-0, type: client, org: a}
  - {name: site-1, type: client, org: b}
  - {name: site-2, type: client, org: c}
  - {name: admin@hub.org, type: admin, org: hub, role: project_admin}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: grpc}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


@pytest.fixture
def courier(tmp_path: Path) -> Iterator[SocketCourier]:
    """FLARE's server and three clients, started and connected."""
    paths = [BIN, os.environ["PATH"]]
    source = str(Path(str(fedveil.__file__)).parents[1])
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": source}
    (tmp_path / "project.yml").write_text(PROJECT)
    subprocess.run(
        [f"{BIN}/nvflare", "provision", "-p", "project.yml", "-w", "ws", "--force"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
    )
    parties, sockets = tmp_path / "ws" / "test" / "prod_00", tmp_path / "s"
    for party in ("localhost", *SITES):
        hub = party == "localhost"
        local = parties / party / "local"
        document = json.loads((local / "resources.json.default").read_text())
        kept = [part for part in document["components"] if part["id"] != "site_log_streamer"]
        kind = "HubRelay" if hub else "SiteRelay"
        own = {"socket": str(sockets / f"{'hub' if hub else party}.sock")}
        kept.append({"id": "fedveil", "path": f"fedveil.deploy.flare.{kind}", "args": own})
        document |= {"components": kept, "class_list_enforcement_mode": "enforce"}
        (local / "resources.json").write_text(json.dumps(document))
    starts = [f"bash {parties}/{party}/startup/sub_start.sh --once &" for party in SITES]
    starts.insert(0, f"bash {parties}/localhost/startup/sub_start.sh --once &")
    script = "ip link set lo up\n" + "\n".join(starts) + "\nwait\n"
    with (tmp_path / "flare.log").open("w") as log:
        flare = subprocess.Popen(
            ["unshare", "-rn", "bash", "-c", script],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    made = SocketCourier(sockets / "hub.sock", sockets)
    try:
        _wait_for_sites(made)
        yield made
    finally:
        made.close()
        os.killpg(flare.pid, signal.SIGKILL)
        flare.wait()


def _wait_for_sites(courier: SocketCourier) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            if courier.sites() == SITES:
                return
        except Unreachable:
            pass
        time.sleep(0.2)
    pytest.fail("FLARE did not start")


def test_the_same_weights_over_flare(
    courier: SocketCourier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(tmp_path, seed=11, courier=courier)
    try:
        recipe = recipe_of()
        run = made.hub(SECONDS).start(recipe, facts_of(made.data), tmp_path / "run")
        run.finish()
    finally:
        made.close()
    assert run.guarantee is not None
    assert run.guarantee.certified
    monkeypatch.setattr(Plan, "randomness", property(lambda self: Randomness(11)))
    alone = Run(plan_of(recipe, made.data))
    alone.finish()
    assert torch.equal(run.state.weights, alone.state.weights)
