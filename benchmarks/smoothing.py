"""Speed of Laplacian smoothing on one core: `python -m benchmarks.smoothing [--json]`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from scipy import fft

from fedveil.training.server.smoothing import smooth

STRENGTH = 1.0
# The last is a prime: an unlucky length for a Fourier transform.
LENGTHS = (1_000_000, 10_000_000, 9_999_991)


Floats = npt.NDArray[np.float32]


def by_fourier(vector: Floats) -> Floats:
    """The papers' way: divide by the eigenvalues of the ring's matrix."""
    waves = 2 * np.pi * np.arange(len(vector) // 2 + 1) / len(vector)
    eigenvalues = (1 + 2 * STRENGTH * (1 - np.cos(waves))).astype(np.float32)
    smoothed: Floats = fft.irfft(fft.rfft(vector) / eigenvalues, len(vector))
    return smoothed


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    work()  # factors are made once and kept
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def figures() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for length in LENGTHS:
        vector = np.random.default_rng(0).standard_normal(length, dtype=np.float32)
        ways = {
            "tridiagonal solve": partial(smooth, vector, STRENGTH),
            "Fourier transform": partial(by_fourier, vector),
        }
        for way, work in ways.items():
            seconds = best_seconds(work, 5)
            found.append({"what": f"{way}, {length:,} weights", "value": seconds, "unit": "s"})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    measured = figures()
    if parser.parse_args().json:
        print(json.dumps({"smoothing": measured}))
        return
    for figure in measured:
        print(f"{figure['what']:40} {figure['value']:9.4f} {figure['unit']}")


if __name__ == "__main__":
    main()
