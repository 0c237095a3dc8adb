"""Speed of noise, clipping and snapping on one core: `python -m benchmarks.noise [--json]`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


from fedveil.core.randomness import system_stream
from fedveil.privacy.clipping import Clip, clip_rows
from fedveil.privacy.noise.grid import choose_granularity, protect_sum, snap_rows
from fedveil.privacy.noise.integers import discrete_gaussian, rounded_gaussian, rounded_laplace
from fedveil.privacy.noise.simulated import gaussian, laplace

REPEATS = 7


@dataclass(frozen=True)
class Figure:
    """One measurement: the best of several repeats."""

    what: str
    items: int
    seconds: float
    million_per_second: float
    target: float | None  # million per second that must be reached


def measure(what: str, items: int, work: Callable[[], object], target: float | None) -> Figure:
    work()  # tables are built, memory is touched
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return Figure(what, items, best, items / best / 1e6, target)


def figures() -> list[Figure]:
    stream = system_stream()
    count = 10_000_000
    found = []
    for std in (0.5, 8.0, 64.0, 1000.0, 2.0**20, 2.0**30):
        target = 20.0 if std == 64.0 else None
        found.append(
            measure(
                f"exact discrete Gaussian, std {std:g}",
                count,
                lambda std=std: discrete_gaussian(stream, count, std),
                target,
            )
        )
    for std in (64.0, 2.0**20):
        found.append(
            measure(
                f"exact rounded Gaussian, std {std:g}",
                count,
                lambda std=std: rounded_gaussian(stream, count, std),
                None,
            )
        )
    for scale in (64.0, 2.0**20):
        found.append(
            measure(
                f"exact rounded Laplace, scale {scale:g}",
                count,
                lambda scale=scale: rounded_laplace(stream, count, scale),
                None,
            )
        )
    found.append(measure("float32 Gaussian", count, lambda: gaussian(stream, count, 1.0), 120.0))
    found.append(measure("float32 Laplace", count, lambda: laplace(stream, count, 1.0), None))

    vector = gaussian(stream, count, 1.0)
    work = vector.copy()

    def clip_again() -> None:
        work[0] = 1e6  # outside again, so that both passes happen
        clip_rows(work[None], Clip(1.0), in_place=True)

    found.append(measure("L2 clip of one float32 vector, in place", count, clip_again, None))
    rows = vector[: 50 * 7850].reshape(50, 7850)
    clip = Clip(1.0)
    found.append(
        measure("L2 clip of rows 50 x 7850", rows.size, lambda: clip_rows(rows, clip), None)
    )
    step = choose_granularity(1.0, 1.0, rows.shape[1], len(rows))
    found.append(
        measure(
            "clip and snap of rows 50 x 7850",
            rows.size,
            lambda: snap_rows(rows, step, clip),
            None,
        )
    )
    total = snap_rows(rows, step, clip).sum(axis=0)
    found.append(
        measure(
            "protected sum of 7850 coordinates",
            total.size,
            lambda: protect_sum(total, 1.0, step, stream),
            None,
        )
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    arguments = parser.parse_args()
    measured = figures()
    if arguments.json:
        print(json.dumps({"noise": [asdict(figure) for figure in measured]}))
        return
    for figure in measured:
        wanted = f"  (target {figure.target:g})" if figure.target else ""
        print(
            f"{figure.what:42} {figure.million_per_second:8.1f} M/s "
            f"{figure.seconds * 1e3:9.2f} ms{wanted}"
        )


if __name__ == "__main__":
    main()
