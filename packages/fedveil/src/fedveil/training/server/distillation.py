"""A global model from public inputs and released votes (AE-DPFL)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedveil.data.federation import Task
from fedveil.training.models.flat import Layout
from fedveil.training.models.losses import example_losses
from fedveil.training.server.optimizers import State


@dataclass(frozen=True, eq=False)
class Distillation:
    """Trains the shared model on public inputs labelled by the most votes: post-processing.

    Adam on shuffled batches; the order comes from a public seed.
    """

    module: nn.Module = field(repr=False)
    layout: Layout = field(repr=False)
    inputs: Tensor = field(repr=False)  # [questions, ...], as the model sees them
    classes: int
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int = 0

    def start(self, weights: Tensor) -> State:
        return {}

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights from the released histogram `update` `[questions * classes]`."""
        labels = update.view(len(self.inputs), self.classes).argmax(dim=1)
        module = copy.deepcopy(self.module).train()
        trained = weights.clone().requires_grad_()
        optimizer = torch.optim.Adam([trained], lr=self.learning_rate)
        order = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epochs):
            shuffled = torch.randperm(len(labels), generator=order)
            for begin in range(0, len(labels), self.batch_size):
                rows = shuffled[begin : begin + self.batch_size]
                optimizer.zero_grad()
                scores = functional_call(module, self.layout.views(trained), (self.inputs[rows],))
                loss = example_losses(Task.CLASSIFICATION, scores, labels[rows]).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return trained.detach(), {}
