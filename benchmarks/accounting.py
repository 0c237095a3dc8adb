"""How long privacy questions take: `python -m benchmarks.accounting [--json]`.

Cold is a process of its own, imports included; warm is a first question in a running process;
repeated is the same question again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

COLD = {
    "account, Poisson, 1000 rounds": (
        "account --noise-multiplier 1.0 --sampling poisson --rate 0.01 --rounds 1000 --delta 1e-5"
    ),
    "account, fixed size, 200 rounds": (
        "account --noise-multiplier 2.0 --sampling fixed --clients 2000 --cohort 100 --rounds 200"
        " --delta 2.34e-4"
    ),
    "calibrate, Poisson, 1000 rounds": (
        "calibrate --epsilon 4 --delta 1e-5 --sampling poisson --rate 0.01 --rounds 1000"
    ),
}


def best(run: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of several calls."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return min(taken)


def cold(command: str) -> float:
    arguments = [sys.executable, "-m", "fedveil", *command.split(), "--json"]
    return best(lambda: subprocess.run(arguments, check=True, capture_output=True), 3)


def repeated() -> float:
    from fedveil.core.units import Adjacency, Trust, Unit
    from fedveil.privacy.accounting import PrivacyModel, Release, account
    from fedveil.privacy.mechanisms import Gaussian
    from fedveil.privacy.sampling import Poisson

    privacy_model = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)

    def ask() -> object:
        release = Release(Gaussian(1.0), Poisson(0.01), 1000)
        return account([release], privacy_model=privacy_model, delta=1e-5)

    ask()
    return best(ask, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seconds = {name: cold(command) for name, command in COLD.items()}
    seconds["the same question again, in process"] = repeated()
    if args.json:
        print(json.dumps(seconds, indent=2))
        return
    for name, value in seconds.items():
        print(f"{name:<40} {value:10.6f} s")


if __name__ == "__main__":
    main()
