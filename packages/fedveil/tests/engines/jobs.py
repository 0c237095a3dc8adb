"""What engines are held to: models, local rules and shapings. One line adds another."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import (
    GradientClip,
    LearningRate,
    LocalTraining,
    Schedule,
)
from fedveil.training.client.rotation import Rotation
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.contract import Job
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.images import ChannelsFirst, SmallCnn
from fedveil.training.models.zoo import Linear, Mlp

SIZES = (7, 1, 12, 5, 5, 3, 20, 2)
RATE = LearningRate(0.2)
DECAY = LearningRate(0.2, Schedule.INVERSE, 3.0)

RULES = {
    "full batch, one step": LocalTraining(RATE, steps=1),
    "full batch, three steps, decaying": LocalTraining(DECAY, steps=3),
    "one epoch of batches": LocalTraining(RATE, epochs=1, batch_size=4),
    "epochs of batches, decaying": LocalTraining(DECAY, epochs=2, batch_size=4),
    "two epochs, weight decay": LocalTraining(RATE, epochs=2, batch_size=4, weight_decay=0.1),
    "steps over several epochs": LocalTraining(RATE, steps=9, batch_size=3),
    "fewer steps than an epoch has": LocalTraining(RATE, steps=2, batch_size=2),
    "batches as large as some clients": LocalTraining(RATE, epochs=3, batch_size=5),
    "drop last": LocalTraining(RATE, steps=5, batch_size=4, drop_last=True),
    "momentum": LocalTraining(RATE, epochs=2, batch_size=4, momentum=0.9, weight_decay=0.1),
    "FedProx": LocalTraining(RATE, epochs=2, batch_size=4, penalty=0.5),
    "BLUR (Cheng)": LocalTraining(RATE, steps=8, batch_size=4, penalty=2.0, penalty_radius=0.3),
    "BLUR, decay": LocalTraining(
        RATE, steps=6, batch_size=4, penalty=1.0, penalty_radius=0.2, weight_decay=0.2
    ),
    "BLUR, momentum, decay": LocalTraining(
        RATE, steps=6, batch_size=4, penalty=1.0, penalty_radius=0.2, momentum=0.5, weight_decay=0.2
    ),
    "projection (Liang)": LocalTraining(RATE, epochs=2, batch_size=4, projection_radius=0.1),
    "whole gradient, L2 (Fu)": LocalTraining(DECAY, steps=4, gradient_clip=GradientClip(0.5)),
    "whole gradient, L1 (Fu)": LocalTraining(DECAY, steps=4, gradient_clip=GradientClip(0.5, 1)),
    "whole gradient, decay, noise": LocalTraining(
        RATE,
        steps=4,
        batch_size=3,
        gradient_clip=GradientClip(0.5),
        gradient_noise=0.1,
        weight_decay=0.3,
    ),
    "whole gradient, decay, momentum, penalty": LocalTraining(
        RATE,
        epochs=2,
        batch_size=3,
        gradient_clip=GradientClip(0.3),
        momentum=0.5,
        weight_decay=0.3,
        penalty=0.5,
        penalty_radius=0.05,
    ),
    "per example": LocalTraining(
        RATE, steps=4, batch_size=3, gradient_clip=GradientClip(0.5, per_example=True)
    ),
    "per example, L1": LocalTraining(
        RATE, steps=4, batch_size=3, gradient_clip=GradientClip(0.9, 1, per_example=True)
    ),
    "per example, noisy (Hu)": LocalTraining(
        RATE,
        steps=4,
        batch_size=3,
        gradient_clip=GradientClip(0.5, per_example=True),
        gradient_noise=0.3,
        weight_decay=0.1,
    ),
    "per example, exact noise": LocalTraining(
        RATE,
        epochs=2,
        batch_size=3,
        gradient_clip=GradientClip(0.5, per_example=True),
        gradient_noise=0.3,
        gradient_grid=2.0**-22,
    ),
    "per example, the last noise comes later (Hu)": LocalTraining(
        RATE,
        epochs=2,
        batch_size=3,
        gradient_clip=GradientClip(0.5, per_example=True),
        gradient_noise=0.3,
        last_step_noise=False,
    ),
}
SHAPINGS = {
    "nothing": UpdatePipeline(),
    "clip": UpdatePipeline(Clip(0.2, 2)),
    "clip L1": UpdatePipeline(Clip(0.2, 1)),
    "capped weights": UpdatePipeline(Clip(0.2, 2), weight_cap=6),
    "weights without clip": UpdatePipeline(weight_cap=6),
    "LUS (Cheng)": UpdatePipeline(Clip(0.2, 2), sparsity=0.7),
}
GRIDS = {  # sums of integers, which a reference in floats cannot give
    "grid": UpdatePipeline(Clip(0.2, 2), granularity=2.0**-20),
    "grid, L1, weights": UpdatePipeline(Clip(0.2, 1), weight_cap=6, granularity=2.0**-20),
    "LUS on a grid": UpdatePipeline(Clip(0.2, 2), sparsity=0.7, granularity=2.0**-20),
    "rotated (ddgauss)": UpdatePipeline(Clip(0.2, 2), granularity=2.0**-18, rotation=Rotation(3)),
    "rounded at random (ddgauss)": UpdatePipeline(
        Clip(0.2, 2), granularity=2.0**-12, rotation=Rotation(3), rounding_beta=0.6
    ),
}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Task]] = {
    "linear": (lambda: Linear(3, 1), (3,), Task.REGRESSION),
    "wide linear": (lambda: Linear(40, 1), (40,), Task.REGRESSION),
    "linear without bias": (lambda: nn.Linear(6, 1, bias=False), (6,), Task.REGRESSION),
    "softmax": (lambda: Linear(5, 3), (5,), Task.CLASSIFICATION),
    "wide softmax": (lambda: Linear(36, 3), (6, 6), Task.CLASSIFICATION),
    "softmax without bias": (lambda: nn.Linear(30, 3, bias=False), (30,), Task.CLASSIFICATION),
    "mlp": (lambda: Mlp(12, (5, 4), 3), (12,), Task.CLASSIFICATION),
    "tanh mlp": (
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 1)),
        (4,),
        Task.REGRESSION,
    ),
    "wide mlp": (lambda: Mlp(36, (5, 4), 3), (6, 6), Task.CLASSIFICATION),
    "wide tanh mlp": (
        lambda: nn.Sequential(
            nn.Linear(40, 6, bias=False), nn.Tanh(), nn.Linear(6, 5), nn.Linear(5, 1, bias=False)
        ),
        (40,),
        Task.REGRESSION,
    ),
    "own module": (lambda: Residual(), (6,), Task.CLASSIFICATION),
    "cnn": (lambda: ChannelsFirst(SmallCnn((1, 4, 4), 3)), (4, 4), Task.CLASSIFICATION),
    "colour cnn": (
        lambda: ChannelsFirst(
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(4, 3, 2, bias=False),
                nn.GroupNorm(3, 3),
                nn.Flatten(),
                nn.Linear(12, 3),
            )
        ),
        (6, 6, 2),
        Task.CLASSIFICATION,
    ),
    "lstm": (lambda: Recurrent(), (5,), Task.SEQUENCE),
}
SLOW = ("cnn", "colour cnn", "lstm")  # models on which a few rules stand for all
FEW = ("two epochs, weight decay", "BLUR (Cheng)", "per example, noisy (Hu)")


class Residual(nn.Module):
    """A module of a user's own, which no engine knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.outer(x + torch.sigmoid(self.inner(x)))
        return scores


class Recurrent(nn.Module):
    """The character model in small."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.output = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.output(self.lstm(self.embedding(tokens))[0])
        return scores


@cache
def make_job(
    model: str,
    rule: LocalTraining,
    pipeline: UpdatePipeline,
    sizes: tuple[int, ...] = SIZES,
    bytes_: bool = False,
) -> Job:
    """A job on random data; with `bytes_`, inputs are stored as bytes and scaled."""
    build, shape, task = MODELS[model]
    draw = np.random.default_rng(1)
    total = sum(sizes)
    inputs: np.ndarray = draw.normal(size=(total, *shape)).astype(np.float32)
    scaling = None
    if bytes_:
        inputs = draw.integers(0, 256, size=(total, *shape)).astype(np.uint8)
        scaling = Scaling(np.float32(128), np.full(shape, 1 / 64, np.float32))
    targets: np.ndarray = draw.integers(0, 3, total)
    if task is Task.SEQUENCE:
        inputs, targets = (draw.integers(0, 3, (total, *shape)) for _ in range(2))
    if task is Task.REGRESSION:
        targets = draw.normal(size=total).astype(np.float32)
    examples = Examples(inputs, targets)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    classes = 0 if task is Task.REGRESSION else 3
    federation = Federation(examples, offsets, examples, task, classes, scaling=scaling)
    torch.manual_seed(0)
    module = build()
    return Job(federation, module, layout_of(module), rule, pipeline, Randomness(5))


def start_of(job: Job) -> Tensor:
    noise = torch.randn(job.layout.size, generator=torch.Generator().manual_seed(3))
    return flatten(job.module) + 0.1 * noise
