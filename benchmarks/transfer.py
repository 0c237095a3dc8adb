"""What public weights are worth: digits 0 to 4 are public, 5 to 9 are learnt in private.

    python -m benchmarks.transfer

A small convolutional network learns the public digits without noise; then 1,000 clients train
one for the other five digits at client-level epsilon 1, starting from nothing or from the public
one, as a whole, its last layer, or adapters. Simulations; all settings but the learning rates and
clips are the same.
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
from fedveil.models.frozen import adapt, freeze

HALF = 5
CLIENTS = 1000
PUBLIC_STEPS, PUBLIC_BATCH, PUBLIC_RATE = 1500, 128, 1e-3
ROUNDS, LOCAL_STEPS, EPSILON, DELTA = 40, 5, 1.0, 1e-5


@dataclass(frozen=True)
class Way:
    """What is trained in private, and how fast."""

    name: str
    model: nn.Module
    rate: float
    clip: float


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
    module = fv.build("cnn-lean", federation, hidden=(16, 32))
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
    new = fv.build("cnn-lean", private, hidden=(16, 32))
    head = freeze(copy.deepcopy(public), ["backbone"])
    adapted = adapt(freeze(copy.deepcopy(public), ["backbone"]), 2)
    return [
        Way("all of it, from nothing", new, 0.3, 1.0),
        Way("all of it, from the public network", copy.deepcopy(public), 0.1, 0.3),
        Way("its last layer", head, 0.3, 0.5),
        Way("its last layer and adapters of rank 2", adapted, 0.3, 0.5),
    ]


def accuracy(way: Way, federation: fv.Federation, noise: bool) -> float:
    method = fv.dp_fedavg(
        rounds=ROUNDS,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(way.rate), steps=LOCAL_STEPS),
        clip=fv.Clip(way.clip),
    )
    budget = fv.Budget(epsilon=EPSILON, delta=DELTA)
    if not noise:
        budget = fv.Budget(noise_multiplier=1e-6, delta=DELTA)
    plan = fv.plan(method, federation, copy.deepcopy(way.model), budget=budget, seed=1)
    return float(fv.Run(plan).finish().accuracy or 0.0)


def main() -> None:
    whole = fv.load("mnist", "iid", clients=CLIENTS)
    public, private = part(whole, True), part(whole, False)
    network = trained_in_public(public)
    print(
        "| trained in private | weights | epsilon 1 | without noise |\n|---|---|---|---|",
        flush=True,
    )
    for way in ways(network, private):
        size = sum(p.numel() for p in way.model.parameters() if p.requires_grad)
        found = [f"{100 * accuracy(way, private, noise):.1f} %" for noise in (True, False)]
        print(f"| {way.name} | {size:,} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
