"""Opacus: DP-SGD on each client in turn, updates averaged.

One wrapped module and optimiser for all clients, flat copies of the weights between them, on one
thread or (`threads`) all of them. Ghost clipping is fastest for most networks; the variant `hooks`
forms gradients of single examples instead. Recurrent layers are Opacus' own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks import models
from benchmarks.clock import Clock
from benchmarks.systems import Unsupported
from benchmarks.workloads import Workload, draw

Step = Callable[[Tensor, Tensor], None]


def run(workload: Workload, variant: str, clock: Clock) -> None:
    if not workload.per_example:
        raise Unsupported("Opacus is for per-example clipping")
    warnings.filterwarnings("ignore")
    clients = models.client_batches(workload, draw(workload))
    network = models.build(workload)
    if isinstance(network, models.Lstm):
        network.lstm = DPLSTM(8, 256, num_layers=2, batch_first=True)
    parameters = list(network.parameters())
    step = (by_hooks if variant == "hooks" else by_ghost_norms)(workload, network)
    shared = parameters_to_vector(parameters).detach()
    while not clock.enough:
        total = torch.zeros_like(shared)
        for batches in clients:
            vector_to_parameters(shared.clone(), parameters)
            for _ in range(workload.epochs):
                for inputs, targets in batches:
                    step(inputs, targets)
            total += parameters_to_vector(parameters).detach() - shared
        shared += total / len(clients)
        clock.lap()


def by_ghost_norms(workload: Workload, network: nn.Module) -> Step:
    """Two backward passes: one for norms, one for the clipped sum."""
    module = GradSampleModuleFastGradientClipping(
        network, max_grad_norm=workload.clip_norm, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=workload.learning_rate),
        noise_multiplier=workload.noise_multiplier,
        max_grad_norm=workload.clip_norm,
        expected_batch_size=workload.batch_size,
    )
    criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        outputs = module(inputs)
        if workload.sequence:
            criterion(outputs.flatten(0, 1), targets.flatten(), shape=outputs.shape).backward()
        else:
            criterion(outputs, targets).backward()
        optimizer.step()

    return step


def by_hooks(workload: Workload, network: nn.Module) -> Step:
    """One backward pass, with gradients of single examples."""
    module = GradSampleModule(network)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=workload.learning_rate),
        noise_multiplier=workload.noise_multiplier,
        max_grad_norm=workload.clip_norm,
        expected_batch_size=workload.batch_size,
    )

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        models.loss(workload, module(inputs), targets).backward()
        optimizer.step()

    return step
