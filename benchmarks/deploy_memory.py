"""Resident memory of one site's processes: before its first run, after it, and when it has rested.

The processes are those of `make demo`, with all of Adult's rows dealt to three sites.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.deploy_engines import memory_of
from tools import demo

REST = 20  # seconds


def _children(pid: int) -> list[int]:
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(one) for one in said.stdout.split()]


def _of(playing: demo.Demo, site: str) -> dict[str, int]:
    pid = playing.processes[site].pid
    guard, engine = memory_of(pid), sum(memory_of(child) for child in _children(pid))
    return {"guard": guard, "engine": engine, "together": guard + engine}


def run() -> None:
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        playing = demo.Demo(Path(made))
        try:
            demo.found(playing, 4, None, "flare")
            demo.confirm(playing)
            playing.kill("north")
            playing.start("north", "--rest", str(REST))
            log = Path(made) / "north" / "metrics.prom"
            log.unlink()
            playing.wait("north", log.exists)  # it has answered a hello
            wanted = ("--name", "adult", "--home", "hospitals")
            idle = _of(playing, "north")
            playing.fedveil("federation", "run", "recipe.toml", *wanted)
            after = _of(playing, "north")
            playing.wait(
                "north to rest", lambda: _of(playing, "north")["guard"] < after["guard"] / 2
            )
            time.sleep(30)  # until its engine is connected again
            rested = _of(playing, "north")
        finally:
            playing.close()
    print(json.dumps({"idle": idle, "after a run": after, "rested": rested}))
