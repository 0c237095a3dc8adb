"""Sites and hub as the processes that commands start: memory, time until ready, recovery.

memory      of one site's processes, before its first run, at work, and when it has rested
ready       from the start of all processes of a founded federation until the hub hears all
            sites, for several numbers of sites
recovery    from the restart of a killed party in the middle of a run to the next released round
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from benchmarks.deploy_engines import (
    COLUMNS,
    POLICY,
    free_port,
    memory_of,
    processor_of,
    show_table,
)
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.state_dirs import Bundle, HubHome, SiteHome
from tools import demo

REST = 20  # seconds
ROWS = 32_000  # of the demo's three sites together
KILLS = 3  # of each party


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(one) for one in said.stdout.split()]


# --- memory -------------------------------------------------------------------------------------


def _of(playing: demo.Demo, site: str) -> dict[str, str]:
    pid = playing.processes[site].pid
    (courier,) = children(pid)
    found = {"guard": memory_of(pid), "courier": memory_of(courier)}
    return {
        name: f"{one.resident} / {one.proportional} / {one.private}" for name, one in found.items()
    }


def _heard(playing: demo.Demo, site: str) -> None:
    """Wait until the site has answered the hub."""
    counters = playing.folder / site / "metrics.prom"
    counters.unlink(missing_ok=True)
    playing.wait(f"{site} to hear the hub", counters.exists)


def _until_rest(playing: demo.Demo, site: str) -> dict[str, str]:
    """Return memory at the last look before the site started itself again."""
    pid, looks = playing.processes[site].pid, list[dict[str, str]]()
    courier = children(pid)

    def rested() -> bool:
        if children(pid) == courier:
            looks.append(_of(playing, site))
        return children(pid) != courier

    playing.wait(f"{site} to rest", rested)
    return looks[-1]


def memory() -> None:
    """Print what one site of the demo holds: resident, by fair share of what is shared, private."""
    with _demo() as playing:
        playing.kill("north")
        playing.start("north", "--rest", str(REST))
        _heard(playing, "north")
        waiting = _of(playing, "north")
        _train(playing, "first")
        worked = _until_rest(playing, "north")
        _heard(playing, "north")
        rested = _of(playing, "north")
    found = {"waiting": waiting, "after a run": worked, "rested": rested}
    show_table(
        ["MB: resident / proportional / private", "guard", "courier"],
        [[name, one["guard"], one["courier"]] for name, one in found.items()],
    )


# --- ready --------------------------------------------------------------------------------------


def ready(sizes: Sequence[int]) -> None:
    """Print how long federations of these sizes take to start.

    Args:
        sizes: numbers of sites.
    """
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
            playing = demo.Demo(Path(made))
            try:
                rows.append(_started(playing, size))
            finally:
                playing.close()
    show_table(["sites", "s until all are there", "CPU s of all processes"], rows)


def _started(playing: demo.Demo, size: int) -> list[object]:
    """Return the number of sites, seconds and processor seconds until the hub hears all."""
    names = [f"s{number}" for number in range(size)]
    with mock.patch.dict(os.environ, playing.environment):  # notes lie where the sites look
        _found(playing.folder, names)
    counters = playing.folder / "hospitals" / "metrics.prom"
    began = time.perf_counter()
    for name in ("hospitals", *names):
        playing.start(name)
    line = f"fedveil_hub_sites_present {size}"
    playing.wait("all sites", lambda: counters.exists() and line in counters.read_text())
    seconds = time.perf_counter() - began
    parents = [process.pid for process in playing.processes.values()]
    used = sum(processor_of(pid) for parent in parents for pid in (parent, *children(parent)))
    return [size, round(seconds, 1), round(used, 1)]


def _found(folder: Path, names: Sequence[str]) -> None:
    """Found a federation whose owners have confirmed the members' list."""
    hub = HubHome.create(
        folder / "hospitals",
        "hospitals",
        f"localhost:{free_port()}",
        names,
        label="y",
        columns=COLUMNS,
    )
    (folder / "policy.toml").write_text(POLICY)
    homes, identities = [], {}
    for number, name in enumerate(names):
        bundle = Bundle.read(hub.path / "bundles" / f"{name}.bundle")
        rows = folder / f"{name}.csv"
        rows.write_text("x,y\n" + "".join(f"0.{row},{row % 2}\n" for row in range(number, 500)))
        homes.append(SiteHome.create(folder / name, bundle, rows, folder / "policy.toml"))
        keys = homes[-1].keys(homes[-1].store())
        identities[name] = keys.identity.public_key().public_bytes_raw()
    agreement = hub.agreement
    listed = Members(agreement.name, bytes.fromhex(agreement.hub), identities, agreement.digest)
    for home in (hub, *homes):
        home.keep_members(listed)


# --- recovery -----------------------------------------------------------------------------------


def recovery() -> None:
    """Print how long the demo's run stands still when a site or the hub is killed and restarted."""
    rows = []
    with _demo(rounds=100) as playing:
        wanted = ("--name", "first", "--home", "hospitals", "--detach")
        playing.fedveil("federation", "run", "recipe.toml", *wanted)
        playing.wait("the first rounds", lambda: playing.rounds("first") >= 2)
        for name in ("south", "hospitals"):
            seconds = sorted(_killed(playing, name) for _ in range(KILLS))
            shown = " / ".join(f"{one:.1f}" for one in seconds)
            rows.append(["a site" if name == "south" else "the hub", shown])
    show_table(["killed and restarted", f"s to the next released round, {KILLS} times"], rows)


def _killed(playing: demo.Demo, name: str) -> float:
    """Return the seconds from the restart of a killed party to the next round that is released."""
    before = playing.rounds("first")
    playing.wait("a round", lambda: playing.rounds("first") > before)
    playing.kill(name)
    before, began = playing.rounds("first"), time.perf_counter()
    playing.start(name)
    playing.wait("a round", lambda: playing.rounds("first") > before)
    return time.perf_counter() - began


# --- the demo -----------------------------------------------------------------------------------


@contextmanager
def _demo(rounds: int = 4) -> Iterator[demo.Demo]:
    """The hub and three hospitals of `make demo`, whose owners have confirmed each other."""
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        playing = demo.Demo(Path(made))
        try:
            demo.found(playing, rounds, ROWS, f"localhost:{free_port()}")
            for name in ("hospitals", *demo.SITES):
                playing.start(name)
            demo.confirm(playing)
            yield playing
        finally:
            playing.close()


def _train(playing: demo.Demo, name: str) -> None:
    wanted = ("--name", name, "--home", "hospitals", "--detach")
    playing.fedveil("federation", "run", "recipe.toml", *wanted)
    ended = playing.folder / "hospitals" / "queue" / f"{name}.ended.json"
    playing.wait("the end of the run", ended.exists)
    if (outcome := json.loads(ended.read_text()))["outcome"] != "done":
        raise SystemExit(f"the run was {outcome['outcome']}: {outcome['reason']}")


def run(what: str, sizes: Sequence[int]) -> None:
    """Measure one of the three.

    Args:
        what: "memory", "ready" or "recovery".
        sizes: numbers of sites, for "ready".
    """
    measures: dict[str, Callable[[], None]] = {
        "memory": memory,
        "ready": lambda: ready(sizes),
        "recovery": recovery,
    }
    measures[what]()
