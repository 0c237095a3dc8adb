"""Flower: FedAvg with its fixed-clipping differential privacy, two Ray actors of one core each.

Its fastest shape: clipping on the clients (in parallel), no federated evaluation, a short
polling interval, silent logs, data and model kept by each actor between messages.
"""

from __future__ import annotations

import logging
import os
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks import models
from benchmarks.clock import Clock
from benchmarks.systems import Unsupported
from benchmarks.workloads import Workload, draw


class Enough(Exception):
    """Ends the server's loop."""


@cache
def prepared(workload: Workload) -> tuple[nn.Module, list[list[tuple[Tensor, Tensor]]]]:
    """Model and batches, made once in every actor."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return models.build(workload), models.client_batches(workload, draw(workload))


client = ClientApp(mods=[fixedclipping_mod])


@client.train()
def train(message: Message, context: Context) -> Message:
    workload = Workload.from_json(str(message.content["config"]["workload"]))
    module, clients = prepared(workload)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=workload.learning_rate)
    for _ in range(workload.epochs):
        for inputs, targets in clients[int(context.node_config["partition-id"])]:
            optimizer.zero_grad()
            models.loss(workload, module(inputs), targets).backward()
            optimizer.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": workload.records}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def server(workload: Workload, clock: Clock) -> ServerApp:
    class Timed(DifferentialPrivacyClientSideFixedClipping):
        def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
            result = super().aggregate_train(server_round, replies)
            if result[0] is None:
                raise RuntimeError("a Flower client failed; its log is on stderr")
            clock.lap()
            if clock.enough:
                raise Enough
            return result

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.01  # it polls for replies, every 0.1 s unless told
        average = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
        )
        strategy = Timed(average, workload.noise_multiplier, workload.clip_norm, workload.cohort)
        try:
            strategy.start(
                grid,
                ArrayRecord(models.build(workload).state_dict()),
                num_rounds=clock.span.rounds,
                train_config=ConfigRecord({"workload": workload.to_json()}),
            )
        except Enough:
            return

    return app


def run(workload: Workload, variant: str, clock: Clock) -> None:
    if workload.per_example:
        raise Unsupported("Flower has no per-example clipping of its own")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    actors = os.cpu_count() or 1
    clock.configuration = f"{actors} actors x 1 thread"
    run_simulation(
        server(workload, clock),
        client,
        num_supernodes=workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": actors,
                "include_dashboard": False,
                "log_to_driver": False,
            },
        },
    )
