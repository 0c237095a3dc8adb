"""The engine of long experiments rounds gradients, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import nn

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine, choose
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.images import ChannelsFirst, ChengCnn
from fedveil.training.models.structure import drawing_from
from fedveil_lab.reproduction.bfloat16 import NAME, LinearOfImages, channels_last
from fedveil_lab.reproduction.pages import find

SIZES = (9, 3, 14)


def job(rule: LocalTraining, module: nn.Module | None = None) -> Job:
    draw, total = np.random.default_rng(1), sum(SIZES)
    images = draw.uniform(size=(total, 12, 12)).astype(np.float32)
    examples = Examples(images, draw.integers(0, 5, total))
    offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
    with drawing_from(0):
        module = module or ChannelsFirst(ChengCnn((1, 12, 12), 5))
    federation = Federation(examples, offsets, examples, Task.CLASSIFICATION, 5)
    return Job(federation, module, layout_of(module), rule, UpdatePipeline(), Randomness(2))


def test_a_linear_layer_of_images_is_flatten_and_linear() -> None:
    torch.manual_seed(0)
    layer, images = nn.Linear(24, 5).double(), torch.randn(7, 4, 2, 3).double()
    own = LinearOfImages(layer, channels=4)
    found, wanted = own(images), layer(images.flatten(1))
    torch.testing.assert_close(found, wanted)
    found.square().sum().backward()
    gradient = own.weight.grad
    assert gradient is not None
    layer.zero_grad()
    wanted.square().sum().backward()
    torch.testing.assert_close(gradient.flatten(1), layer.weight.grad)


def test_the_copy_is_the_same_function_of_parameters_of_the_same_names_and_order() -> None:
    module = job(LocalTraining(LearningRate(0.1), steps=1)).module
    own = channels_last(module)
    assert any(isinstance(layer, LinearOfImages) for layer in own.modules())
    mine, theirs = dict(own.named_parameters()), dict(module.named_parameters())
    assert list(mine) == list(theirs)
    for name, parameter in mine.items():
        assert torch.equal(parameter.flatten(), theirs[name].flatten()), name
    images = torch.rand(3, 12, 12)
    torch.testing.assert_close(own(images), module(images))


@pytest.mark.parametrize("penalty", [0.0, 0.4])
def test_a_gradient_is_off_by_roundings_to_eight_bits(penalty: float) -> None:
    """On the way through two smooth layers and back, what a weight's gradient is made of is rounded
    about eight times, by 2^-9 of it at most: by 1.6 % in all, and by 3.2 % after two steps.

    (Pooling and ReLU have kinks, where rounding may send all of a gradient another way.)"""
    rule = LocalTraining(LearningRate(0.1), steps=2, batch_size=4, penalty=penalty)
    with drawing_from(0):
        smooth = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(600, 5))
    one = job(rule, ChannelsFirst(smooth))
    request = RoundRequest(flatten(one.module), np.arange(len(SIZES)), 0)
    exact = sum_of(build_engine(one, "sequential"), request)
    rounded = sum_of(build_engine(one, NAME), request)
    off = float((rounded.total - exact.total).norm() / exact.total.norm())
    assert 1e-5 < off < 0.032  # single precision would be off by 1e-6
    torch.testing.assert_close(rounded.norms, exact.norms, rtol=0.032, atol=0)


def test_protected_runs_do_not_have_it_and_nobody_has_it_unasked() -> None:
    plain = job(LocalTraining(LearningRate(0.1), steps=1))
    assert choose(plain).name != NAME
    with pytest.raises(ConfigError, match="protected runs compute in float32"):
        choose(replace(plain, isolated=True), NAME)


def test_the_page_says_in_what_arithmetic_it_was_run() -> None:
    from fedveil_lab.reproduction.experiment import Scale

    page = find("cheng-own-size")
    assert all(dict(case.values)["engine.name"] == NAME for case in page.cases(Scale.FULL))
    assert any("bfloat16" in difference.here for difference in page.differences)
