"""Speed of secure aggregation on one core: `python -m benchmarks.secagg [--json]`.

Includes whole rounds against Flower's SecAgg+ in turns (its own environment is made on first use;
`--without-flower` leaves it out). Seconds are CPU time, best of several repeats, as other work may
run at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.privacy.secure_sums.masks import apply_masks
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil.privacy.secure_sums.stopwatch import Stopwatch
from fedveil_federation.secagg.masked import Simulation

ROOT = Path(__file__).resolve().parent.parent
FLOWER = ROOT / ".benchmarks" / "environments" / "flower"
FLOWER_VERSION = "flwr==1.41.*"


@dataclass(frozen=True)
class Figure:
    """One measurement, the best of several; `target` is what it must not fall behind."""

    what: str
    value: float
    unit: str
    target: str = ""
    reached: bool | None = None
    detail: dict[str, float] = field(default_factory=dict)


def sparse_terms(cohort: int) -> SecAggParams:
    """5 % colluders, 10 % losses, and a server that does not lie, as Flower's SecAgg+ assumes."""
    return SecAggParams("bench", cohort // 2, cohort // 20, 0.1, sparse=True, honest_server=True)


def simulated(params: SecAggParams) -> Simulation:
    return Simulation(params, Stopwatch(clock=time.process_time))


def mask_rate() -> Figure:
    """Keystream generated and accumulated, 100 masks of a million 32-bit words."""
    total = np.zeros(1_000_000, dtype="<u4")
    keys = [os.urandom(16) for _ in range(100)]
    best = min(_timed(lambda: apply_masks(total, keys[:50], keys[50:])) for _ in range(25))
    rate = 100 * total.nbytes / best / 1e9
    return Figure("masks, accumulated", rate, "GB/s", ">= 3", rate >= 3)


def one_device() -> Figure:
    """A device with 100 neighbours masks, signs and frames a million parameters."""
    simulation = simulated(SecAggParams("bench", min_honest=50, sparse=False))
    vector = np.arange(1_000_000, dtype=np.int64)
    best = float("inf")
    for round_number in range(6):
        opened = simulation.open(round_number, range(101), vector.size, 32)
        best = min(best, _timed(lambda o=opened: o._devices[0].mask(vector)))  # type: ignore
    return Figure("one device, 100 neighbours, 1 M parameters", best, "s", "< 0.2", best < 0.2)


def server(dropout: float, limit: float) -> Figure:
    """100 devices x 1 M parameters: what the server does, answers of the devices included."""
    simulation = simulated(sparse_terms(100))
    results = [
        _round(simulation, round_number, 100, 1_000_000, dropout) for round_number in range(2)
    ]
    best = min(results, key=_server_seconds)
    seconds = _server_seconds(best)
    what = f"server, 100 devices x 1 M, {dropout:.0%} lost, degree {best['degree']:.0f}"
    return Figure(what, seconds, "s", f"< {limit:g}", seconds < limit, best)


def whole_round() -> Figure:
    """1000 devices x 100 k parameters, 5 % lost, everything simulated."""
    simulation = simulated(sparse_terms(1000))
    results = [_round(simulation, round_number, 1000, 100_000, 0.05) for round_number in range(3)]
    best = min(results, key=lambda r: r["total"])
    what = f"masked round, 1000 devices x 100 k, 5% lost, degree {best['degree']:.0f}"
    return Figure(what, best["total"], "s", "< 5.3", best["total"] < 5.3, best)


def against_flower(repeats: int = 3) -> list[Figure]:
    """Whole rounds in turns: same cohort, parameters, lost devices, neighbours and threshold."""
    cohort, dimension, dropout = 100, 100_000, 0.1
    params = sparse_terms(cohort)
    topology = params.topology(cohort)
    job = {
        "cohort": cohort,
        "degree": topology.degree,
        "threshold": topology.threshold,
        "dimension": dimension,
        "lost": _lost(cohort, dropout),
    }
    simulation = simulated(params)
    ours, theirs = [], []
    with subprocess.Popen(
        [_flower_python(), str(ROOT / "benchmarks" / "secagg_flower.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as flower:
        if flower.stdin is None or flower.stdout is None:
            raise RuntimeError("no pipe to Flower's process")
        for round_number in range(repeats):
            ours.append(_round(simulation, round_number, cohort, dimension, dropout))
            flower.stdin.write(json.dumps(job) + "\n")
            flower.stdin.flush()
            answer = json.loads(flower.stdout.readline())
            if not answer["exact"]:
                raise RuntimeError("Flower's sum is wrong: the comparison is not fair")
            theirs.append(answer)
        flower.stdin.close()
    mine = min(ours, key=lambda r: r["total"])
    other = min(theirs, key=lambda r: r["total"])
    ratio = other["total"] / mine["total"]
    masking = other["seconds"]["mask"] / mine["mask"]
    case = f"{cohort} devices x {dimension // 1000} k, {dropout:.0%} lost, degree {job['degree']}"
    name = f"Flower {other['version']} SecAgg+"
    return [
        Figure(f"fedveil, {case}", mine["total"], "s", detail=mine),
        Figure(f"{name}, {case}", other["total"], "s", detail=other["seconds"]),
        Figure(f"{name} / fedveil, whole round", ratio, "x", ">= 40", ratio >= 40),
        Figure(f"{name} / fedveil, masking alone", masking, "x"),
    ]


def _round(
    simulation: Simulation, round_number: int, cohort: int, dimension: int, dropout: float
) -> dict[str, float]:
    base = np.arange(dimension, dtype=np.int64) % 1000
    lost = frozenset(_lost(cohort, dropout))
    dropouts = Dropouts(before_upload=lost)
    simulation.watch.seconds.clear()
    opened = simulation.open(round_number, range(cohort), dimension, 32, dropouts)
    for device in opened.wanted:
        opened.add(device, base + device)
    result = opened.finish()
    alive = [device for device in range(cohort) if device not in lost]
    if not np.array_equal(result.total, base * len(alive) + sum(alive)):
        raise RuntimeError("the sum is wrong")
    degree = simulation.params.topology(cohort).degree
    seconds = dict(simulation.watch.seconds)
    return seconds | {"total": sum(seconds.values()), "degree": float(degree)}


def _lost(cohort: int, dropout: float) -> list[int]:
    """The same devices for every system, spread over the ids."""
    count = round(cohort * dropout)
    return [int(i * cohort / count) for i in range(count)] if count else []


def _server_seconds(seconds: dict[str, float]) -> float:
    return seconds["add"] + seconds["confirm"] + seconds["unmask"]


def _timed(work: object) -> float:
    start = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - start


def _flower_python() -> str:
    python = FLOWER / "bin" / "python"
    if not python.exists():
        print(f"Setting up Flower in {FLOWER}...", file=sys.stderr)
        venv.create(FLOWER, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", FLOWER_VERSION], check=True)
    return str(python)


def figures(with_flower: bool) -> list[Figure]:
    found = [
        mask_rate(),
        one_device(),
        server(0.0, 2.0),
        server(0.1, 10.0),
        whole_round(),
    ]
    return found + (against_flower() if with_flower else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--without-flower", action="store_true", help="leave the comparison out")
    arguments = parser.parse_args()
    measured = figures(not arguments.without_flower)
    if arguments.json:
        print(json.dumps({"secagg": [asdict(figure) for figure in measured]}))
        return
    for figure in measured:
        verdict = {None: "", True: "reached", False: "MISSED"}[figure.reached]
        wanted = f"(target {figure.target}) {verdict}" if figure.target else ""
        print(f"{figure.what:72} {figure.value:9.3f} {figure.unit:5} {wanted}")
        if figure.detail:
            parts = (f"{k} {v:.3g}" for k, v in figure.detail.items() if k != "degree")
            print(f"    {', '.join(parts)}")


if __name__ == "__main__":
    main()
