"""Votes of locally trained models on public, unlabelled inputs (AE-DPFL)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedveil.training.models.flat import Layout
from fedveil.training.models.losses import class_scores


@dataclass(frozen=True, eq=False)
class Ballot:
    """Each client gives every public input one vote: the class that its own model scores highest.

    A ballot has Euclidean length sqrt(inputs), whatever the client's data.
    """

    module: nn.Module = field(repr=False)
    inputs: Tensor = field(repr=False)  # [inputs, ...], as the model sees them
    classes: int

    @property
    def width(self) -> int:
        return len(self.inputs) * self.classes

    def __call__(self, weights: Tensor, layout: Layout, granularity: float | None) -> Tensor:
        """Votes of models `[clients, parameters]` as rows `[clients, inputs * classes]`: ones and
        zeros, or whole numbers of grid steps."""
        module = copy.deepcopy(self.module).eval()
        votes = torch.zeros(len(weights), len(self.inputs), self.classes)
        with torch.no_grad():
            for ballot, row in zip(votes, weights, strict=True):
                own = row.clone()  # in memory of its own, so that no place in a chunk shows
                asked = self.inputs.clone()  # a module may change what it reads
                scores = functional_call(module, layout.views(own), (asked,))
                ballot.scatter_(1, class_scores(scores).argmax(dim=1, keepdim=True), 1.0)
        rows = votes.flatten(1)
        return rows if granularity is None else (rows / granularity).round().long()
