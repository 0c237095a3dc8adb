"""What public weights are worth: digits 0 to 4 are public, 5 to 9 are learnt in private.

    python -m benchmarks.transfer

A small network learns the public digits of scikit-learn's set without noise; then 100 clients of
about seven images train one for the other five digits at client-level epsilon 1 and 8. They start
from nothing or from the public one, and train all of it, its last layer, or adapters too.
Simulations, the mean of three seeds; all settings are the same.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import fedveil as fv
from fedveil.data.examples import Examples
from fedveil.training.models.frozen import adapt, freeze

HALF = 5
PUBLIC_STEPS, PUBLIC_BATCH, PUBLIC_RATE = 500, 64, 3e-3
ROUNDS, LOCAL_STEPS, RATE, EPSILONS, DELTA = 20, 4, 0.5, (1.0, 8.0), 1e-5
CLIP, WIDTHS, SEEDS = 1.0, (256,), 3


@dataclass(frozen=True)
class Way:
    """What is trained in private."""

    name: str
    model: nn.Module


def part(federation: fv.Federation, public: bool) -> fv.Federation:
    """The federation of one half of the classes, its clients as they were."""

    def own(examples: Examples) -> tuple[Examples, npt.NDArray[np.int64]]:
        rows = np.flatnonzero((examples.targets < HALF) == public)
        inputs = np.asarray(federation.model_inputs(examples.inputs[rows]), np.float32)
        return Examples(inputs, examples.targets[rows].astype(np.int64) % HALF), rows

    train, rows = own(federation.train)
    owners = np.repeat(np.arange(federation.clients), federation.sizes)[rows]
    return fv.Federation.from_arrays(
        train.inputs, train.targets, owners, test=own(federation.test)[0], classes=HALF
    )


def trained_in_public(federation: fv.Federation) -> nn.Module:
    """A network for the public half, by plain Adam."""
    module = fv.build("mlp", federation, hidden=WIDTHS)
    inputs = torch.from_numpy(federation.train.inputs)
    labels = torch.from_numpy(federation.train.targets)
    draw = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(module.parameters(), PUBLIC_RATE)
    for _ in range(PUBLIC_STEPS):
        rows = torch.randint(len(labels), (PUBLIC_BATCH,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return module


def ways(public: nn.Module, private: fv.Federation) -> list[Way]:
    new = fv.build("mlp", private, hidden=WIDTHS)
    head = freeze(copy.deepcopy(public), ["backbone"])
    adapted = adapt(freeze(copy.deepcopy(public), ["backbone"]), 2)
    return [
        Way("all of it, from nothing", new),
        Way("all of it, from the public network", copy.deepcopy(public)),
        Way("its last layer", head),
        Way("its last layer and adapters of rank 2", adapted),
    ]


def accuracy(way: Way, federation: fv.Federation, epsilon: float | None, seed: int) -> float:
    """On the test images; an epsilon of None is next to no noise."""
    method = fv.dp_fedavg(
        rounds=ROUNDS,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(RATE), steps=LOCAL_STEPS),
        clip=fv.Clip(CLIP),
    )
    budget = fv.Budget(epsilon, DELTA, None if epsilon else 1e-6)
    plan = fv.plan(method, federation, copy.deepcopy(way.model), budget=budget, seed=seed)
    return float(fv.Run(plan).finish().accuracy or 0.0)


def main() -> None:
    whole = fv.load("digits")
    public, private = part(whole, True), part(whole, False)
    network = trained_in_public(public)
    print(
        "| trained in private | weights | epsilon 1 | 8 | no noise |\n|---|---|---|---|---|",
        flush=True,
    )
    for way in ways(network, private):
        size = sum(p.numel() for p in way.model.parameters() if p.requires_grad)
        found = [
            f"{100 * np.mean([accuracy(way, private, each, seed) for seed in range(SEEDS)]):.1f} %"
            for each in (*EPSILONS, None)
        ]
        print(f"| {way.name} | {size:,} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
