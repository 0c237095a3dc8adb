"""What a plan adds to its guarantee's list, and what makes it uncertified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedveil as fv


@dataclass(frozen=True)
class Quieter(fv.CentralNoise):
    """Says that it adds noise, and adds none."""

    def protect(self, at: fv.RoundNoise, total: Tensor) -> Tensor:
        return torch.zeros(len(total))


@dataclass(frozen=True)
class Longer(fv.Clip):
    """A clip that somebody changed."""


@dataclass(frozen=True)
class Faster(fv.LearningRate):
    """Rates that somebody changed, deep inside a method."""


@dataclass(frozen=True)
class Hopeful(fv.CohortRule):
    """Cohorts that somebody changed."""


class Remembering(nn.Module):
    """A layer that keeps something from one client to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ self.weight


@pytest.fixture(scope="module")
def federation() -> fv.Federation:
    return fv.load("digits", clients=40)


def guarantee_of(
    federation: fv.Federation, model: nn.Module | None = None, **changes: Any
) -> fv.Guarantee:
    clip = changes.pop("clip", fv.Clip(1.0))
    method = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(rate=0.5),
        local=fv.LocalTraining(fv.LearningRate(1.0), epochs=1),
        clip=clip,
    )
    said = {name: changes.pop(name) for name in ("declared", "unprotected") if name in changes}
    made = fv.plan(
        replace(method, **changes),
        federation,
        model or fv.build("auto", federation),
        budget=fv.Budget(epsilon=4),
        **said,
    ).guarantee
    assert made is not None
    return made


def test_parts_that_nobody_proved_certify_nothing(federation):
    assert guarantee_of(federation).certified
    for name, changes in (
        ("Quieter", {"placement": Quieter()}),
        ("Longer", {"clip": Longer(1.0)}),
        ("Faster", {"local": fv.LocalTraining(Faster(1.0), epochs=1)}),
        ("Hopeful", {"cohort": Hopeful(rate=0.5)}),
    ):
        made = guarantee_of(federation, **changes)
        assert not made.certified
        assert f"{name} is none of fedveil's own parts" in made.reason


def test_what_only_sees_releases_may_be_anybodys(federation):
    @dataclass(frozen=True)
    class Slower(fv.Sgd):
        """A server step of one's own: post-processing."""

    assert guarantee_of(federation, optimizer=Slower(0.5)).certified


def test_layers_of_ones_own_are_taken_on_trust_and_named(federation):
    """Whether a layer remembers what it saw cannot be checked; that it was believed is said."""
    own = guarantee_of(federation, nn.Sequential(Remembering()))
    assert any("Layers that are not fedveil's (Remembering)" in one for one in own.rests_on)
    heard = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    heard[1].register_forward_hook(lambda *seen: None)
    changed = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    changed[1].forward = changed[1].forward
    for model in (heard, changed):
        own = guarantee_of(federation, model)
        assert any("Layers that are not fedveil's (Linear)" in one for one in own.rests_on)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    handle = nn.modules.module.register_module_forward_hook(lambda *seen: None)
    try:
        everywhere = guarantee_of(federation, plain)
    finally:
        handle.remove()
    assert any("Layers that are not fedveil's" in one for one in everywhere.rests_on)
    known = guarantee_of(federation, plain)
    assert not any("Layers that are not" in one for one in known.rests_on)


def test_start_shape_and_scale_are_named(federation):
    """Weights trained before on private data would enter without noise: nothing can check it."""
    made = guarantee_of(federation)
    assert "The initial weights were made without the protected data." in made.rests_on
    shape = "The model's shape is public: 8x8 inputs, 10 classes; so is how data are scaled."
    assert shape in made.rests_on
    numbers = fv.Federation.from_arrays(
        np.zeros((40, 3), np.float32), np.arange(40.0), np.arange(40) % 20
    )
    assert any("3 inputs, one number to predict" in one for one in guarantee_of(numbers).rests_on)
