"""Flower's SecAgg+ (its legacy workflow) on the job of the rounds' benchmark.

A SuperLink, a SuperNode for each site and an app, each as its command starts it, without TLS.
`quick` shortens the one interval that can be set (of SuperExec, to 0.05 s).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.deploy_engines import accepts, free_port
from benchmarks.environments import python_of

APP = Path(__file__).parent / "deploy_secaggplus_app.py"
PROJECT = """\
[project]
name = "secaggplus"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmarks"
[tool.flwr.app.components]
serverapp = "deploy_secaggplus_app:server"
clientapp = "deploy_secaggplus_app:client"
[tool.flwr.app.config]
sites = 3
rounds = 3
model = ""
output = ""
"""


def run(sites: Sequence[int], models: Sequence[str], rounds: int) -> None:
    for number in sites:
        for model in models:
            for quick in (False, True):
                with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
                    seconds = _timed(Path(made), number, model, rounds, quick)
                shown = {"sites": number, "model": model, "quick": quick, "rounds": seconds}
                print(json.dumps({"engine used": "flower, SecAgg+", **shown}), flush=True)


def _timed(folder: Path, sites: int, model: str, rounds: int, quick: bool) -> list[float]:
    """Seconds of each round."""
    programs = Path(python_of("flower")).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    if quick:
        environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"
    port, output, processes = free_port(), folder / "rounds.json", list[subprocess.Popen[bytes]]()

    def start(*command: str) -> None:
        with (folder / f"{len(processes)}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [str(programs / command[0]), *command[1:]],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    hub = f"127.0.0.1:{port}"
    off = "--disable-runtime-dependency-installation"
    try:
        start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port), off)
        _until(lambda: accepts(port), 300)
        for number in range(sites):
            own = ("--host", "127.0.0.1", "--port", str(free_port()))
            node = f"number={number}"
            start("flower-supernode", "--insecure", "--superlink", hub, *own, "--node-config", node)
        app = folder / "app"
        app.mkdir()
        shutil.copy(APP, app / APP.name)
        (app / "pyproject.toml").write_text(PROJECT)
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "hub"\n[superlink.hub]\naddress = "{hub}"\ninsecure = true\n'
        )
        wanted = f'sites={sites} rounds={rounds} model="{model}" output="{output}"'
        start("flwr", "run", str(app), "hub", "--run-config", wanted)
        _until(output.exists, 3600)
        found: list[float] = json.loads(output.read_text())
        return found
    finally:
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def _until(ready: object, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        if time.monotonic() > until:
            raise TimeoutError("Flower did not get there")
        time.sleep(0.2)
