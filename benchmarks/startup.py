"""What it takes until a command answers, in seconds of processor.

    python -m benchmarks.startup [--runs 5] [--before DIR]

Each command runs in a process of its own, several times, those of another checkout in between. The
best of all runs is shown: whatever else a machine does only adds to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.before import sources_of

COMMANDS = {
    "import fedveil": ["-c", "import fedveil"],
    "fedveil --help": ["-m", "fedveil", "--help"],
    "fedveil run --help": ["-m", "fedveil", "run", "--help"],
    "fedveil account": [
        *("-m", "fedveil", "account", "--noise-multiplier", "1", "--rate", "0.1"),
        *("--rounds", "10", "--delta", "1e-5"),
    ],
}


def seconds(root: Path, words: list[str]) -> float:
    """Return the processor time of a command of the checkout at `root`."""
    path = os.pathsep.join(map(str, sources_of(root)))
    child = subprocess.Popen(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )
    _, code, used = os.wait4(child.pid, 0)
    if code:
        raise SystemExit(f"failed: {' '.join(words)}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, measured in between")
    args = parser.parse_args()
    roots = [Path(__file__).resolve().parents[1], *filter(None, [args.before])]
    for name, words in COMMANDS.items():
        rounds = [[seconds(root, words) for root in roots] for _ in range(args.runs)]
        best = [min(times) for times in zip(*rounds, strict=True)]
        print(f"{name:<20}", "  ".join(f"{1000 * one:6.0f} ms" for one in best))


if __name__ == "__main__":
    main()
