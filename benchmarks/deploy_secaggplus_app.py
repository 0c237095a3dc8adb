"""The app of `deploy_secaggplus`, in Flower's own environment: models and steps as there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid
from torch import nn

EXAMPLES, STEPS, BATCH = 100, 5, 20


def network(model: str) -> nn.Module:
    torch.manual_seed(0)
    if model.startswith("softmax"):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 11 * 11, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def arrays(module: nn.Module) -> list[Any]:
    return [value.detach().numpy() for value in module.parameters()]


class Site(NumPyClient):
    def __init__(self, number: int, model: str) -> None:
        self._number, self._model = number, model

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
        module = network(self._model)
        with torch.no_grad():
            for own, new in zip(module.parameters(), parameters, strict=True):
                own.copy_(torch.from_numpy(np.asarray(new, np.float32)))
        draw = torch.Generator().manual_seed(self._number)
        inputs = torch.randn(EXAMPLES, 1, 28, 28, generator=draw)
        targets = torch.randint(0, 10, (EXAMPLES,), generator=draw)
        steps = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(STEPS):
            part = slice(step * BATCH, (step + 1) * BATCH)
            steps.zero_grad()
            nn.functional.cross_entropy(module(inputs[part]), targets[part]).backward()
            steps.step()
        return arrays(module), EXAMPLES, {}


def _client(context: Context) -> Any:
    model = str(context.run_config["model"])
    return Site(int(context.node_config["number"]), model).to_client()


client = ClientApp(client_fn=_client, mods=[secaggplus_mod])
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, seconds = context.run_config, []
    sites = int(config["sites"])
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=sites,
        min_available_clients=sites,
        initial_parameters=ndarrays_to_parameters(arrays(network(str(config["model"])))),
    )
    # Everybody shares with everybody, and two thirds reconstruct, as in fedveil's job.
    sums = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.67, max_weight=EXAMPLES)

    def timed(grid: Grid, context: Context) -> None:
        began = time.perf_counter()
        sums(grid, context)
        seconds.append(time.perf_counter() - began)

    legacy = LegacyContext(
        context=context, config=ServerConfig(num_rounds=int(config["rounds"])), strategy=strategy
    )
    DefaultWorkflow(fit_workflow=timed)(grid, legacy)
    place = Path(str(config["output"]))
    place.with_suffix(".part").write_text(json.dumps(seconds))
    place.with_suffix(".part").rename(place)
