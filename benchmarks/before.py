"""This tree and an earlier commit in turns: `python -m benchmarks.before COMMIT [W1 W2 ...]`.

Both trees keep their rounds ready, each in one process, and are asked in turns for a bunch of them,
so that a busy machine slows both. Printed are the shortest time of a round in either tree, and
their ratio; below 1 this tree is the faster one.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
CHILD = """
import sys, time
from types import SimpleNamespace
from benchmarks.systems import fedveil
from benchmarks.workloads import WORKLOADS

class Clock:
    # Rounds go on until a bunch is over; then the next line on stdin starts another one.
    span, enough = SimpleNamespace(rounds=200_000), False
    begun, last, shortest = 0.0, 0.0, 1e9

    def lap(self):
        now = time.perf_counter()
        self.shortest = min(self.shortest, now - self.last)
        if now - self.begun > 0.25:
            print(self.shortest, flush=True)
            self.enough, self.shortest = not sys.stdin.readline(), 1e9
            self.begun = time.perf_counter()
        self.last = time.perf_counter()

name, _, variant = sys.argv[1].partition(":")
fedveil.run(WORKLOADS[name], variant, Clock())
"""


@contextmanager
def tree_at(commit: str) -> Iterator[Path]:
    """The package and the benchmarks of a commit, in a folder that is gone afterwards."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def sources_of(tree: Path) -> list[Path]:
    """Return the source folders of a checkout, also of one from before there were packages."""
    return [path for path in (tree / "src", *sorted(tree.glob("packages/*/src"))) if path.exists()]


def child(tree: Path, program: str, *arguments: object) -> subprocess.Popen[str]:
    """A program of this tree that answers each line with the seconds it took."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*sources_of(tree), tree]))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seconds(process: subprocess.Popen[str]) -> float:
    """What the shortest round of one more bunch of a tree takes."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("no pipe to the tree's process")
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def ratio(tree: Path, workload: str, turns: int) -> str:
    with child(tree, CHILD, workload) as before, child(ROOT, CHILD, workload) as now:
        for process in (before, now):
            if process.stdout is None or not process.stdout.readline():  # warm
                return f"{workload}: one of the trees cannot run it"
        old, new = zip(*((seconds(before), seconds(now)) for _ in range(turns)), strict=True)
        for process in (before, now):
            process.kill()  # the last bunch has begun already
    best = min(old), min(new)
    return (
        f"{workload}: before {1000 * best[0]:.3f} ms, now {1000 * best[1]:.3f} ms, "
        f"ratio {best[1] / best[0]:.3f}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("workloads", nargs="*", help="by name, or with :protected")
    parser.add_argument("--turns", type=int, default=12)
    asked = parser.parse_args(arguments)
    with tree_at(asked.commit) as tree:
        for workload in asked.workloads or WORKLOADS:
            print(ratio(tree, workload, asked.turns), flush=True)


if __name__ == "__main__":
    main()
