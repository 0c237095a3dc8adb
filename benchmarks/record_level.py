"""Networks at record level: several sites with secret batches, beside Opacus on pooled data.

    python -m benchmarks.record_level                     # what is missing of every task
    python -m benchmarks.record_level adult mnist --seeds 1
    python -m benchmarks.record_level --minutes 8         # start no cell after 8 minutes
    python -m benchmarks.record_level --table             # results/record-level.md again

Sites train by `dp_sgd` with batches that only they know, under a secure sum with noise in shares.
Opacus trains the same network with the same expected batch, rounds, rate and clip on all records in
one place, for the same epsilon and delta by its own accountant (PRV). Both draw Poisson batches.
Rates and clips were tried on MNIST itself, for both alike: this compares systems, and is no private
result. "no noise" is the federation of three sites with the same clip and next to no noise.
"dense" networks have one hidden layer, on CIFAR-10 half a million weights, and train for few short
steps: accuracies are those of networks that have hardly been trained, and only their differences
say something.
Finished cells stand in results/record-level.json and are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

RESULTS = Path(__file__).resolve().parent.parent / "results"
FILE = RESULTS / "record-level.json"
DELTA = 1e-5
EPSILONS = (1.0, 3.0, 8.0)
SITES = (3, 16)


class _Images(nn.Sequential):
    """Convolutions on images that are stored with colours last."""

    def forward(self, images: Tensor) -> Tensor:
        first = images.unsqueeze(1) if images.ndim == 3 else images.movedim(-1, 1)
        outputs: Tensor = super().forward(first.contiguous())
        return outputs


def _mnist() -> nn.Module:
    return _Images(
        nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def _dense(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 10))


def _adult() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 2))


@dataclass(frozen=True)
class Task:
    """A data set, a network and how it is trained.

    Attributes:
        source: Name of the data source.
        network: Builds the network.
        batch: Expected records in a batch, of all sites together.
        rounds: Noisy steps.
        rate: Learning rate.
        clip: Bound of one record's gradient.
    """

    source: str
    network: Callable[[], nn.Module]
    batch: int
    rounds: int
    rate: float
    clip: float


TASKS = {
    "adult": Task("adult", _adult, 1024, 600, 2.0, 0.5),
    "mnist": Task("mnist", _mnist, 512, 600, 2.0, 1.0),
    "mnist, dense": Task("mnist", lambda: _dense(784, 32), 256, 150, 2.0, 1.0),
    "cifar10, dense": Task("cifar10", lambda: _dense(3072, 160), 256, 60, 1.0, 1.0),
}


def started(task: Task, width: int, seed: int) -> nn.Module:
    """Return the network with the first weights of a seed."""
    torch.manual_seed(seed)
    network = task.network()
    if any(isinstance(layer, nn.LazyLinear) for layer in network):
        network(torch.zeros(1, width))
    return network


@cache
def dealt(source: str, count: int, seed: int) -> Any:
    """Return a federation of `count` sites, dealt at random."""
    import fedveil as fv

    return fv.load(source, clients=count, partition="iid", seed=seed)


def sites(task: Task, count: int, epsilon: float | None, seed: int) -> dict[str, float]:
    """Train a federation of `count` sites; an epsilon of None is no noise."""
    import fedveil as fv

    federation = dealt(task.source, count, seed)
    records = int(federation.sizes.sum())
    local = fv.LocalTraining(
        fv.LearningRate(task.rate),
        steps=1,
        batch_size=max(1, round(task.batch / count)),
        batch_rate=task.batch / records,
    )
    method = fv.dp_sgd(
        rounds=task.rounds, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=local,
        clip_norm=task.clip,
    )  # fmt: skip
    budget = fv.Budget(epsilon, DELTA, None if epsilon else 1e-3)
    network = started(task, federation.input_shape[0], seed)
    began = time.monotonic()
    plan = fv.plan(method, federation, network, budget=budget, seed=seed)
    run = fv.Run(plan, every=task.rounds)
    try:
        accuracy = run.finish().accuracy or 0.0
    finally:
        run.close()
    guarantee = plan.guarantee
    return {
        "accuracy": accuracy,
        "epsilon": float("inf") if guarantee is None else guarantee.epsilon,
        "seconds": time.monotonic() - began,
    }


@cache
def pooled(name: str, epsilons: tuple[float, ...], seed: int) -> dict[str, dict[str, float]]:
    """Train with Opacus, in its own environment, on all records of the same federation."""
    from benchmarks.environments import python_of

    federation = dealt(TASKS[name].source, SITES[0], seed)
    arrays = {
        f"{part}_{key}": np.asarray(value)
        for part, own in (("train", federation.train), ("test", federation.test))
        for key, value in (
            ("inputs", federation.model_inputs(own.inputs)), ("targets", own.targets)
        )
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "examples.npz"
        np.savez(file, **arrays)
        command = [python_of("opacus"), "-m", "benchmarks.record_level", name, "--peer", str(file)]
        command += ["--epsilons", *map(str, epsilons), "--seeds", str(seed)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def opacus(task: Task, file: str, epsilon: float, seed: int) -> dict[str, float]:
    """Train with Opacus' PrivacyEngine, by ghost clipping, in this process."""
    from opacus import PrivacyEngine
    from opacus.accountants.utils import get_noise_multiplier
    from torch.utils.data import DataLoader, TensorDataset

    with np.load(file) as arrays:
        x, y, test_x, test_y = (
            torch.from_numpy(np.ascontiguousarray(arrays[key]))
            for key in ("train_inputs", "train_targets", "test_inputs", "test_targets")
        )
    network = started(task, x.shape[1], seed)
    optimizer = torch.optim.SGD(network.parameters(), task.rate)
    began = time.monotonic()
    engine = PrivacyEngine(accountant="prv")
    loader = DataLoader(TensorDataset(x.float(), y.long()), batch_size=task.batch)
    noise = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=DELTA, sample_rate=1 / len(loader), steps=task.rounds,
        accountant="prv",
    )  # fmt: skip
    private, optimizer, criterion, loader = engine.make_private(
        module=network, optimizer=optimizer, data_loader=loader, noise_multiplier=noise,
        max_grad_norm=task.clip, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost",
    )  # fmt: skip
    left = task.rounds
    while left:
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(private(inputs), targets).backward()
            optimizer.step()
            left -= 1
            if not left:
                break
    with torch.no_grad():
        right = [
            (network(part.float()).argmax(1) == labels).sum().item()
            for part, labels in zip(test_x.split(1000), test_y.split(1000), strict=True)
        ]
    return {
        "accuracy": sum(right) / len(test_y),
        "epsilon": float(engine.get_epsilon(DELTA)),
        "seconds": time.monotonic() - began,
    }


def cells(name: str, epsilons: list[float], seeds: list[int]) -> dict[str, Callable[[], Any]]:
    """Return what is to be measured, by the key under which it is kept."""
    task, found = TASKS[name], {}
    for seed in seeds:
        for epsilon in epsilons:
            for count in SITES:
                found[f"{name}, {count} sites, epsilon {epsilon:g}, seed {seed}"] = (
                    lambda c=count, e=epsilon, s=seed: sites(task, c, e, s)
                )
            found[f"{name}, Opacus, epsilon {epsilon:g}, seed {seed}"] = lambda e=epsilon, s=seed: (
                pooled(name, tuple(epsilons), s)[str(e)]
            )
        found[f"{name}, no noise, seed {seed}"] = lambda s=seed: sites(task, SITES[0], None, s)
    return found


def table(kept: dict[str, Any]) -> str:
    """Return the cells as a page: mean and deviation over seeds."""
    lines = [
        "# Record level: secret batches at sites, beside Opacus on pooled records",
        "",
        "Test accuracy in percent, mean and deviation over seeds, delta 1e-5; made by",
        "`python -m benchmarks.record_level`, whose docstring says what is compared.",
        "",
        "| network | epsilon | 3 sites | 16 sites | Opacus, pooled | no noise | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TASKS:
        for epsilon in EPSILONS:
            ways = [f"{count} sites, epsilon {epsilon:g}" for count in SITES]
            ways += [f"Opacus, epsilon {epsilon:g}", "no noise"]
            runs = [
                [100 * one["accuracy"] for key, one in kept.items()
                 if key.startswith(f"{name}, {way}, seed")]
                for way in ways
            ]  # fmt: skip
            if any(runs[:3]):
                shown = " | ".join(
                    "-" if not own else f"{mean(own):.1f}"
                    + (f" ± {stdev(own):.1f}" if len(own) > 1 else "")
                    for own in runs
                )  # fmt: skip
                lines.append(f"| {name} | {epsilon:g} | {shown} | {min(map(len, runs[:3]))} |")
    lines += ["", "Each step takes a batch of about so many records, of all sites together:", ""]
    lines += [f"* {name}: {one.rounds} steps of {one.batch}" for name, one in TASKS.items()]
    return "\n".join(lines) + "\n"


def known() -> dict[str, Any]:
    """Return the finished cells."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record_level")
    parser.add_argument("task", nargs="*", help=", ".join(TASKS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no cell later")
    parser.add_argument("--table", action="store_true", help="write the page, run nothing")
    parser.add_argument("--peer", help=argparse.SUPPRESS)  # in the environment of Opacus
    args = parser.parse_args()
    if args.peer:
        (name,) = args.task
        (seed,) = args.seeds
        print(json.dumps({e: opacus(TASKS[name], args.peer, e, seed) for e in args.epsilons}))
        return
    last = time.monotonic() + 60 * args.minutes
    for name in [] if args.table else args.task or list(TASKS):
        for key, run in cells(name, args.epsilons, args.seeds).items():
            if key not in known() and time.monotonic() < last:
                found = {what: round(value, 4) for what, value in run().items()}
                kept = {**known(), key: found}  # read again: others may have added theirs
                FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
                print(key, found, flush=True)
    FILE.with_suffix(".md").write_text(table(known()))


if __name__ == "__main__":
    main()
