"""Resident memory of one site's processes: before its first run, after it, and when it has rested.

The processes are those of `make demo`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.deploy_engines import free_port, memory_of
from tools import demo

REST = 20  # seconds
ROWS = 32_000  # of the three sites together


def _children(pid: int) -> list[int]:
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(one) for one in said.stdout.split()]


def _of(playing: demo.Demo, site: str) -> dict[str, int]:
    pid = playing.processes[site].pid
    guard, engine = memory_of(pid), sum(memory_of(child) for child in _children(pid))
    return {"guard": guard, "engine": engine, "together": guard + engine}


def _heard(playing: demo.Demo, site: str) -> None:
    """Wait until the site has answered the hub."""
    counters = playing.folder / site / "metrics.prom"
    counters.unlink(missing_ok=True)
    playing.wait(f"{site} to hear the hub", counters.exists)


def _until_rest(playing: demo.Demo, site: str, engine: list[int]) -> dict[str, int]:
    """Memory at the last look before the site started itself again, with another engine."""
    pid, looks = playing.processes[site].pid, list[dict[str, int]]()

    def rested() -> bool:
        looks.append(_of(playing, site))
        return _children(pid) != engine

    playing.wait(f"{site} to rest", rested)
    if len(looks) < 2:
        raise SystemExit(f"{site} rested before it was looked at: the machine is too busy")
    return looks[-2]


def run() -> None:
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        playing = demo.Demo(Path(made))
        try:
            demo.found(playing, 4, ROWS, f"localhost:{free_port()}")
            for name in ("hospitals", *demo.SITES):
                playing.start(name)
            demo.confirm(playing)
            playing.kill("north")
            playing.start("north", "--rest", str(REST))
            _heard(playing, "north")
            idle, engine = _of(playing, "north"), _children(playing.processes["north"].pid)
            wanted = ("--name", "first", "--home", "hospitals")
            playing.fedveil("federation", "run", "recipe.toml", *wanted, "--detach")
            ended = playing.folder / "hospitals" / "queue" / "first.ended.json"
            playing.wait("the end of the run", ended.exists)
            if (outcome := json.loads(ended.read_text()))["outcome"] != "done":
                raise SystemExit(f"the run was {outcome['outcome']}: {outcome['reason']}")
            after = _until_rest(playing, "north", engine)
            _heard(playing, "north")
            rested = _of(playing, "north")
        finally:
            playing.close()
    print(json.dumps({"idle": idle, "after a run": after, "rested": rested}))
