"""What a federation across machines costs, on one machine: `python -m benchmarks.deploy WHAT`.

    rounds      seconds a round for several numbers of sites (--engine https or flare: each site
                has a courier process of its own, with TLS; otherwise requests stay in memory)
    echo        couriers side by side: legs of 100 B, 4 MB and 100 MB to three sites, recovery
                after a kill, memory (--engine for one of them alone)
    memory      of a site's processes, idle and after a run
    ready       seconds until a hub hears all its sites (--sites 3 24)
    recovery    seconds from the restart of a killed party to the next released round
    faults      released rounds and ledgers of hub and sites to which something happens (root)
    secaggplus  the same job as Flower's legacy workflow of SecAgg+, with its own processes

All guards live in this process, so on a few cores their training is one after the other. A round's
time is split: `training` is the time in which guards compute updates, `protocol` the rest of the
time in guards and hub (keys, noise, masks, signatures), `engine` what the courier adds. `processor`
is the processor's time of this process, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.deploy_engines import MemoryCourier
from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.training.engines.isolated import isolated_federation
from fedveil.training.engines.memory import keep_freed_memory
from fedveil_federation.deploy.agreement import ENGINES, Members
from fedveil_federation.deploy.courier import Answer, Courier, Unreachable
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.guard import Guard
from fedveil_federation.deploy.hub import Hub
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.deploy.work import Training
from fedveil_federation.secagg.device_store import DeviceStore, Lock

MODELS = {  # by what it is called here: its name in a recipe, and the shape of an input
    "softmax 784x10": ("logistic", (784,)),
    "CNN, 1 M weights": ("cheng-cnn", (28, 28)),
}
RECIPE = {
    "training.method": "dp-fedavg",
    "privacy.trust": "distributed",
    "training.sampling": "everyone",
    "training.local_steps": 5,
    "training.batch_size": 20,
    "privacy.noise_multiplier": 1.0,
    "privacy.delta": 1e-6,
    "aggregation.secure": "masked",
}
POLICY = {
    "budget": {"epsilon": 1e6, "delta": 0.1},
    "allow": {
        "methods": ["dp-fedavg"],
        "models": ["logistic", "cheng-cnn"],
        "parameters": 2_000_000,
    },
    "cohort": {"minimum": 2},
}
EXAMPLES = 100  # of each site
PROCESSES = ("memory", "ready", "recovery")  # measured with the processes that commands start


class Timed(Courier):
    """Notes how long legs take, and for how long of that a guard is at work."""

    def __init__(self, inner: Courier) -> None:
        self.inner, self.legs, self.guards = inner, 0.0, _Busy()

    def attach(self, site: str, answer: Answer) -> None:
        def timed(frame: bytes) -> bytes:
            with self.guards:
                return answer(frame)

        self.inner.attach(site, timed)

    def detach(self, site: str) -> None:
        self.inner.detach(site)

    def sites(self) -> tuple[str, ...]:
        return self.inner.sites()

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        began = time.perf_counter()
        try:
            return self.inner.ask(frames, seconds)
        finally:
            self.legs += time.perf_counter() - began

    def close(self) -> None:
        self.inner.close()


def measure(folder: Path, sites: int, model: str, rounds: int, inner: Courier) -> dict[str, Any]:
    """Medians over the rounds."""
    names = [f"site-{number}" for number in range(sites)]
    key, lock = Ed25519PrivateKey.generate(), Lock(bytes(32))
    stores, identities = {}, {}
    for number, name in enumerate(names):
        stores[name] = DeviceStore.create(
            folder / f"{name}.db", lock, budget_epsilon=1e9, delta=1e-6
        )
        keys = stores[name].enrol("fedveil/bench", number)
        identities[name] = keys.identity.public_key().public_bytes_raw()
    members = Members("bench", key.public_key().public_bytes_raw(), identities)
    network, shape = MODELS[model]
    data, courier = _rows(sites, shape), Timed(inner)
    training, guards = _Busy(), []
    for number, name in enumerate(names):
        guard = Guard(
            name, members, stores[name], Policy.of(POLICY), isolated_federation(data, number)
        )
        guards.append(guard)
        courier.attach(name, guard.answer)
    values = {**RECIPE, "model.name": network, "training.rounds": rounds}
    recipe = recipes.with_defaults(recipes.parse({}, (), values))
    facts = Facts("bench", "classification", 10, shape, (1,) * sites)
    run = Hub(members, key, courier, folder / "hub").start(recipe, facts, folder / "run")
    found = []
    with _watched(training):
        for report in run:
            clocks = time.perf_counter(), time.process_time()
            found.append((*clocks, training.seconds, courier.legs, courier.guards.seconds))
            if report.dropouts is None or report.dropouts.survivors != sites:
                raise RuntimeError("a site was lost: the round says nothing about time")
    courier.close()
    for guard in guards:
        guard.close()
    # The first round makes keys and samplers, and is left out.
    steps = [[now - then for now, then in zip(b, a, strict=True)] for a, b in pairwise(found)]
    columns = zip(*steps, strict=True)
    whole, processor, trained, legs, working = map(statistics.median, columns)
    engine = max(0.0, legs - working)
    times = {"round": whole, "processor": processor, "training": trained, "engine": engine}
    times["protocol"] = whole - trained - engine
    times = {name: round(value, 3) for name, value in times.items()}
    return {"sites": sites, "model": model, "weights": run.plan.layout.size, **times}


class _Busy:
    """Time in which at least one thread is at work."""

    def __init__(self) -> None:
        self.seconds, self._busy, self._since = 0.0, 0, 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._busy += 1
            if self._busy == 1:
                self._since = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._busy -= 1
            if not self._busy:
                self.seconds += time.perf_counter() - self._since


def _watched(busy: _Busy) -> Any:
    """A stand-in for the method that trains, which notes its time."""
    inner = Training._trained

    def timed(self: Training, *args: Any) -> Any:
        with busy:
            return inner(self, *args)

    return mock.patch.object(Training, "_trained", timed)


def _rows(sites: int, shape: tuple[int, ...]) -> Federation:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(sites * EXAMPLES, *shape)).astype(np.float32)
    targets = draw.integers(0, 10, sites * EXAMPLES)
    owners = np.repeat(np.arange(sites), EXAMPLES)
    test = (inputs[:10].copy(), targets[:10].copy())
    return Federation.from_arrays(inputs, targets, owners, test=test, classes=10)


def time_rounds(args: argparse.Namespace) -> None:
    for sites in args.sites:
        names = [f"site-{number}" for number in range(sites)]
        for model in args.models:
            with tempfile.TemporaryDirectory(prefix="fedveil-") as made, ExitStack() as stack:
                courier: Courier = MemoryCourier()
                if args.engine != "memory":
                    from benchmarks.deploy_engines import engines

                    courier = stack.enter_context(engines(Path(made), names, args.engine))
                shown = measure(Path(made), sites, model, args.rounds, courier)
            print(json.dumps({"engine used": args.engine, **shown}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rounds", "echo", *PROCESSES, "faults", "secaggplus"])
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 50])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--faults", nargs="+", default=[], help="some of them alone")
    parser.add_argument("--engine", choices=["memory", *ENGINES], default="memory")
    args = parser.parse_args()
    keep_freed_memory()  # as hubs and sites do
    if args.what == "rounds":
        time_rounds(args)
    elif args.what == "echo":
        from benchmarks import deploy_echo

        deploy_echo.run(ENGINES if args.engine == "memory" else [args.engine])
    elif args.what in PROCESSES:
        from benchmarks import deploy_processes

        deploy_processes.run(args.what, args.sites)
    elif args.what == "faults":
        from benchmarks import deploy_faults

        deploy_faults.run(args.faults)
    else:
        from benchmarks import deploy_secaggplus

        deploy_secaggplus.run(args.sites, args.models, args.rounds)


if __name__ == "__main__":
    main()
