"""What large tables of one's own take: processor time and memory of the commands themselves.

    python -m benchmarks.own_data_size [--clients 5000 50000] [--rows 1000000] [--search]

Trains on made-up tables of so many clients with ten rows each, in four rounds (`--search`: with the
settings that a search finds), and predicts and scores so many rows with the last model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

_EACH = 10  # rows of a client
_SETTINGS = {
    "training.rounds": 4,
    "training.local_steps": 5,
    "training.learning_rate": 0.3,
    "privacy.clip_norm": 0.5,
}


def write(path: Path, clients: int) -> Path:
    """Six numbers, a category and a label of two classes."""
    draw, rows = np.random.default_rng(0), clients * _EACH
    numbers, kind = draw.normal(size=(rows, 6)), draw.integers(0, 4, rows)
    scores = numbers @ np.array([1, -1, 0.5, 0, 0, 0]) + (kind == 1) + draw.logistic(size=rows)
    columns = {f"x{place}": pa.array(numbers[:, place].round(3)) for place in range(6)}
    who = pa.array(np.repeat(np.arange(clients), _EACH)).cast(pa.string())
    label = pa.array(np.where(scores > 0, "yes", "no"))
    named = {"who": who, **columns, "kind": pa.array(np.array(list("abcd"))[kind]), "y": label}
    csv.write_csv(pa.table(named), path)
    return path


def measured(*command: object) -> str:
    """Processor seconds and peak memory of a command of fedveil's."""
    child = subprocess.Popen(
        [sys.executable, "-m", "fedveil", *map(str, command)], stdout=subprocess.DEVNULL
    )
    _, code, used = os.wait4(child.pid, 0)
    if code:
        raise SystemExit(f"failed: {command}")
    return f"{used.ru_utime + used.ru_stime:.1f} s of processor, {used.ru_maxrss / 1024:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_data_size", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[5000, 50_000])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--search", action="store_true")
    args = parser.parse_args()
    given = [] if args.search else [f"--set={key}={value}" for key, value in _SETTINGS.items()]
    with tempfile.TemporaryDirectory() as folder:
        for clients in args.clients:
            path, run = write(Path(folder) / "t.csv", clients), Path(folder) / f"run-{clients}"
            named = ("--client-column", "who", "--label", "y", "--no-report", "--quiet")
            used = measured("run", "--data", path, *named, *given, "--output", run)
            print(f"run, {clients:,} clients, {clients * _EACH:,} rows: {used}", flush=True)
        path = write(Path(folder) / "new.csv", args.rows // _EACH)
        used = measured("predict", run, path, "--output", Path(folder) / "out.csv")
        print(f"predict, {args.rows:,} rows: {used}", flush=True)
        print(f"evaluate, {args.rows:,} rows: {measured('evaluate', run, path)}", flush=True)


if __name__ == "__main__":
    main()
