"""The workloads' models as one would write them in PyTorch: what every peer trains."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads import Data, Workload


class ChannelsFirst(nn.Module):
    """Images come as `[n, height, width, channels]`."""

    def forward(self, images: Tensor) -> Tensor:
        return images.movedim(-1, 1).contiguous()


class Lstm(nn.Module):
    """Predicts the next character at every position: embedding 8, two layers of 256."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.output(self.lstm(self.embedding(tokens))[0])
        return scores


class Block(nn.Module):
    """Two 3x3 convolutions with group norm around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(2, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(2, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(2, after)
            )

    def forward(self, images: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


def resnet18(channels: int, outputs: int) -> nn.Module:
    """ResNet-18 for small images: a 3x3 stem, no first pooling."""
    layers: list[nn.Module] = [
        ChannelsFirst(),
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(2, 64),
        nn.ReLU(),
    ]
    before = 64
    for after in (64, 128, 256, 512):
        layers += [Block(before, after, 1 if after == 64 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two 5x5 convolutions with 32 and 64 channels, each pooled, and a hidden layer of 512."""
    height, width, channels = shape
    return nn.Sequential(
        ChannelsFirst(),
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    )


def build(workload: Workload) -> nn.Module:
    """A freshly initialised model, the same in every process."""
    torch.manual_seed(0)
    features = math.prod(workload.inputs)
    if workload.model == "cnn":
        return cnn(workload.inputs, workload.outputs)
    if workload.model == "lstm":
        return Lstm(workload.outputs)
    if workload.model == "resnet18":
        return resnet18(workload.inputs[-1], workload.outputs)
    layers: list[nn.Module] = []
    for width in workload.hidden:
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, workload.outputs))


def loss(workload: Workload, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch."""
    if workload.regression:
        return functional.mse_loss(outputs.squeeze(-1), targets)
    if workload.sequence:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    return functional.cross_entropy(outputs, targets)


def client_batches(workload: Workload, data: Data) -> list[list[tuple[Tensor, Tensor]]]:
    """Every client's batches of one pass, as views of the data."""

    def cut(client: int) -> list[tuple[Tensor, Tensor]]:
        inputs, targets = (
            torch.split(torch.from_numpy(part), workload.batch_size)
            for part in data.of_client(client, workload.records)
        )
        return list(zip(inputs, targets, strict=True))

    return [cut(client) for client in range(workload.clients)]
