"""Faults as a hub and three hospitals live through them: released rounds, and what was paid.

One federation of the processes that commands start, behind a TCP proxy; a run for each fault. A
full disk is a small file system in memory, which takes root; another clock is a library that is put
before the system's for one process; another version, and a site that lies, are patches that its
process loads at the start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.deploy_engines import free_port, show_table
from benchmarks.deploy_links import Link
from fedveil_federation.deploy.facts import plan_digest
from fedveil_federation.deploy.hub import DOCUMENT
from tools import demo

ROUNDS, ROWS = 12, 6_000
FAULT = 15.0  # seconds
DISK = "disk"  # where the file system is that gets full
LIFETIME = demo.POLICY.replace("epsilon = 6.0", "epsilon = 100.0")

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static const long shift = SHIFT;
int clock_gettime(clockid_t id, struct timespec *to) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, to);
    if (!failed && id == CLOCK_REALTIME) to->tv_sec += shift;
    return failed;
}
int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed && to) { to->tv_sec = now.tv_sec; to->tv_usec = now.tv_nsec / 1000; }
    return failed;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""
VERSION = """
import importlib.metadata as _metadata
_known = _metadata.version
_metadata.version = lambda name: "{0}" if name == "fedveil" else _known(name)
"""
LIAR = """
import sys
if "start" in sys.orig_argv:
    from fedveil_federation.deploy.guard import Guard

    def masked(self, work, device, request):
        sums, row = work.summands(request), work.row(request)
        by = 1 << (sums.integers.grid.bits - 2)
        return bytes(device.mask(sums.upload(self.number, row) + by))

    Guard._masked = masked
"""


@dataclass(frozen=True)
class Lived:
    """What a run has come to in which something happened."""

    released: int
    lost: int  # rounds that released nothing
    paid: tuple[int, ...]  # rounds in the ledger of each site
    outcome: str
    seconds: float

    def row(self) -> list[object]:
        """Return what the table has of it."""
        paid = ", ".join(map(str, self.paid))
        return [
            f"{self.released} of {ROUNDS}",
            self.lost,
            paid,
            self.outcome,
            f"{self.seconds:.0f}",
        ]


class Faults:
    """A founded federation, and what happens to it."""

    def __init__(self, playing: demo.Demo, link: Link) -> None:
        self.playing, self.link = playing, link
        self.folder = playing.folder

    # --- what goes wrong --------------------------------------------------------------------------

    def restart(self, name: str, **variables: str) -> None:
        """Kill a party (-9) and start it with these variables in its environment alone."""
        self.playing.kill(name)
        self.start(name, **variables)

    def start(self, name: str, **variables: str) -> None:
        self.playing.variables[name] = variables
        more = ("--listen", str(self.link.target)) if name == "hospitals" else ()
        self.playing.start(name, *more)

    def patched(self, name: str, text: str) -> str:
        """Return a folder from which a process loads a patch when it starts."""
        folder = self.folder / "patches" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sitecustomize.py").write_text(text)
        return str(folder)

    def clock(self, hours: int) -> str:
        """Return a library that shifts the clock of a process."""
        source, library = self.folder / f"clock{hours}.c", self.folder / f"clock{hours}.so"
        source.write_text(CLOCK.replace("SHIFT", str(3600 * hours)))
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        return str(library)

    def fill_disk(self) -> None:
        """South has no room for a while."""
        ballast = self.folder / DISK / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:  # full
                pass
        time.sleep(FAULT)
        ballast.unlink()

    def version(self, number: str) -> None:
        """South runs another version for a while."""
        self.restart("south", PYTHONPATH=self.patched(number, VERSION.format(number)))
        time.sleep(FAULT)
        self.restart("south")

    def shift_clocks(self) -> None:
        """The hub is 20 hours behind, and south 20 hours before east."""
        self.restart("hospitals", LD_PRELOAD=self.clock(-20))
        self.restart("south", LD_PRELOAD=self.clock(20))

    def cut_link(self) -> None:
        """Nobody reaches the hub for a while."""
        self.link.cut()
        time.sleep(FAULT)
        self.link.mend()

    def bad_link(self) -> None:
        """Every step of 16 kB takes 20 ms, and every 50 to 200 kB the connection is lost."""
        self.link.lasts, self.link.piece, self.link.delay = (50_000, 200_000), 16_000, 0.02
        self.link.cut()
        self.link.mend()

    def lie(self) -> None:
        """South adds a quarter of the integers' range until the run stops; then it is honest."""
        self.restart("south", PYTHONPATH=self.patched("liar", LIAR))
        self.playing.wait("the run to stop", lambda: self.outcome("lie"))
        if self.outcome("lie") != "stopped":
            raise SystemExit("the run went on with a site that lies")
        self.restart("south")
        self.playing.fedveil("federation", "resume", "lie", "--home", "hospitals")

    def restore(self) -> None:
        """South's directory is put back from a backup before the run, and brought up to date.

        It takes a fresh key for masks, so the run under way has to be stopped.
        """
        self.playing.kill("south")
        home, copy = self.folder / DISK / "south", self.folder / "backup"
        for old in home.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(copy, home, dirs_exist_ok=True)
        self.start("south")
        refused = self.playing.processes["south"].wait(120)
        if not refused:
            raise SystemExit("a site started from a backup")
        self.playing.fedveil("site", "restore", "--home", self.home("south"))
        self.start("south")
        waiting = self.folder / "hospitals" / "queue" / "backup.waiting"
        told = "a key for masks that this site has renewed"
        self.playing.wait("the reason", lambda: waiting.exists() and told in waiting.read_text())
        self.playing.fedveil("federation", "stop", "backup", "--home", "hospitals")

    # --- a run ------------------------------------------------------------------------------------

    def home(self, site: str) -> str:
        return f"{DISK}/south" if site == "south" else site

    def outcome(self, run: str) -> str:
        """How a run has ended; empty while it goes on."""
        path = self.folder / "hospitals" / "queue" / f"{run}.ended.json"
        try:
            return str(json.loads(path.read_text())["outcome"])
        except (OSError, ValueError):
            return ""

    def lived(self, name: str) -> Lived:
        """Carry out a run in which the fault of this name happens."""
        self._back_up()
        began = time.perf_counter()
        wanted = ("--name", name, "--home", "hospitals", "--detach")
        self.playing.fedveil("federation", "run", "recipe.toml", *wanted)
        self.playing.wait(name, lambda: self.playing.rounds(name) >= ROUNDS // 4)
        FAULTS[name][1](self)
        self.playing.wait(f"the end of {name}", lambda: self.outcome(name))
        seconds = time.perf_counter() - began
        self._mend()
        lines = self.lines(name)
        lost = sum(bool(line["dropouts"].get("not_released")) for line in lines)
        paid = tuple(self.paid(site, name) for site in demo.SITES)
        return Lived(len(lines) - lost, lost, paid, self.outcome(name), seconds)

    def _mend(self) -> None:
        self.link.lasts, self.link.piece, self.link.delay = None, 0, 0.0
        for name in [name for name, one in self.playing.variables.items() if one]:
            self.restart(name)

    def _back_up(self) -> None:
        copy = self.folder / "backup"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / DISK / "south", copy, ignore=shutil.ignore_patterns("*.sock"))

    def lines(self, run: str) -> list[dict[str, Any]]:
        path = self.folder / "hospitals" / "runs" / run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def ledger(self, site: str) -> dict[str, Any]:
        found: dict[str, Any] = self.playing.fedveil("site", "ledger", "--home", self.home(site))
        return found

    def paid(self, site: str, run: str) -> int:
        """How many rounds of a run are in a site's ledger."""
        document = self.folder / "hospitals" / "runs" / run / DOCUMENT
        digest = plan_digest(document.read_bytes())
        return sum(one["rounds"] for one in self.ledger(site)["runs"] if one["run"] == digest)


@contextmanager
def federation() -> Iterator[Faults]:
    """The demo's hub and hospitals behind a proxy; south has a file system of its own."""
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        folder = Path(made)
        (folder / DISK).mkdir()
        options = ["-t", "tmpfs", "-o", "size=64m", "none", str(folder / DISK)]
        subprocess.run(["mount", *options], check=True)
        link, playing = Link(free_port(), port=free_port()), demo.Demo(folder)
        try:
            demo.found(playing, ROUNDS, ROWS, f"localhost:{link.port}", LIFETIME)
            (folder / "south").rename(folder / "moved")
            shutil.copytree(folder / "moved", folder / DISK / "south")
            shutil.rmtree(folder / "moved")
            (folder / "south").symlink_to(folder / DISK / "south")
            faults = Faults(playing, link)
            for name in ("hospitals", *demo.SITES):
                faults.start(name)
            demo.confirm(playing)
            yield faults
        finally:
            playing.close()
            link.close()
            subprocess.run(["umount", "-l", str(folder / DISK)], check=True)


FAULTS: dict[str, tuple[str, Callable[[Faults], None]]] = {
    "nothing": ("nothing", lambda faults: None),
    "site": ("a site is killed (-9)", lambda faults: faults.restart("south")),
    "hub": ("the hub is killed (-9)", lambda faults: faults.restart("hospitals")),
    "disk": ("a site's disk is full for 15 s", Faults.fill_disk),
    "series": ("a site runs another series for 15 s", lambda faults: faults.version("0.9.0")),
    "patch": ("a site is upgraded within the series", lambda faults: faults.version("0.2.9")),
    "cut": ("nobody reaches the hub for 15 s", Faults.cut_link),
    "slow": ("connections are slow and are lost every 50 to 200 kB", Faults.bad_link),
    "clock": ("the clocks of the hub and a site differ by 40 h", Faults.shift_clocks),
    "lie": ("a site sends other integers, later honest ones", Faults.lie),
    "backup": ("a site is put back from a backup and restored", Faults.restore),
}


def run(names: Sequence[str] = ()) -> None:
    """Print the table of faults.

    Args:
        names: of the faults; none for all.
    """
    columns = ["released", "lost", "paid by north, south, east", "outcome", "s"]
    with federation() as faults:
        show_table(
            ["what happens", *columns],
            ([FAULTS[name][0], *faults.lived(name).row()] for name in names or FAULTS),
        )
        spent = {site: faults.ledger(site)["epsilon"] for site in demo.SITES}
        print("lifetime epsilon:", ", ".join(f"{site} {one:.3f}" for site, one in spent.items()))
