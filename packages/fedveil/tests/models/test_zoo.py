"""Models by name: the sizes the papers state, and shapes that fit the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation, Task
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.zoo import MODELS, build


def federation(
    shape: tuple[int, ...], classes: int, task: Task = Task.CLASSIFICATION
) -> Federation:
    if task is Task.SEQUENCE:
        examples = Examples(np.zeros((2, *shape), np.int64), np.zeros((2, *shape), np.int64))
    elif task is Task.REGRESSION:
        examples = Examples(np.zeros((2, *shape), np.float32), np.zeros(2, np.float32))
    else:
        examples = Examples(np.zeros((2, *shape), np.float32), np.zeros(2, np.int64))
    return Federation(examples, np.array([0, 1, 2]), examples, task, classes)


GREY, COLOUR = (28, 28), (32, 32, 3)

# Stated in the papers, or (where a paper says "about") the published network of that size.
STATED = {
    "Fu, linear regression": ("linear", (10,), 0, 11),
    "Fu, FEMNIST": ("fu-cnn", GREY, 62, 214_590),
    "Liang, MNIST softmax regression": ("logistic", GREY, 10, 7_850),
    "Liang, SVHN, about 3.4 M": ("liang-cnn", COLOUR, 10, 3_431_754),
    "Cheng, EMNIST, about 1.0 M": ("cheng-cnn", GREY, 62, 1_018_174),
    "Cheng, CIFAR-10": ("cheng-cnn", COLOUR, 10, 1_405_258),
    "Cheng, ResNet-18, 11.1 M": ("resnet18", COLOUR, 10, 11_173_962),
    "few weights, EMNIST": ("cnn-lean", GREY, 62, 16 * 50 + 16 * 145 + 62 * 257),
    "few weights, CIFAR-10": ("cnn-lean", COLOUR, 10, 16 * 148 + 16 * 145 + 10 * 257),
    "FedAvg's CNN": ("cnn-wide", GREY, 10, 1_663_370),
    "Hu, Adult": ("hu-mlp", (105,), 2, 105 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2),
    # Keras counts 820,522 for 90 characters; torch keeps a second bias vector in each layer.
    "LSTM": ("lstm", (80,), 90, 820_522 + 2 * 4 * 256),
}


@pytest.mark.parametrize(("name", "shape", "classes", "count"), STATED.values(), ids=STATED.keys())
def test_models_have_the_stated_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, count: int
) -> None:
    task = Task.REGRESSION if classes == 0 else Task.CLASSIFICATION
    assert layout_of(build(name, federation(shape, classes, task))).size == count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(8, 8), GREY, COLOUR, (12, 10, 1)], ids=str)
def test_image_models_score_every_class(name: str, shape: tuple[int, ...]) -> None:
    if name in ("linear", "lstm", "ngrams"):
        pytest.skip("not for images")
    if name in ("resnet18", "liang-cnn") and shape == GREY:
        pytest.skip("covered by the other shapes")
    model = build(name, federation(shape, 7))
    with torch.no_grad():
        assert model(torch.rand(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("name", ["lstm", "ngrams"])
def test_models_of_texts_score_one_or_every_next_character(name: str) -> None:
    tokens = torch.randint(0, 30, (2, 5))
    with torch.no_grad():
        last = build(name, federation((5,), 30))
        every = build(name, federation((5,), 30, Task.SEQUENCE))
        for one, other in zip(last.parameters(), every.parameters(), strict=True):
            other.copy_(one.normal_())  # tables start at zero
        assert last(tokens.float()).shape == (2, 30)  # classification inputs come as floats
        scores = every(tokens)
        assert scores.shape == (2, 5, 30)
        # The same network: its score after the whole text is the last of its scores.
        torch.testing.assert_close(scores[:, -1], last(tokens))
        # A later character must not change an earlier score.
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % 30
        torch.testing.assert_close(every(changed)[:, :-1], scores[:, :-1])


def test_initial_weights_depend_on_the_seed_alone() -> None:
    data = federation((8, 8), 3)
    torch.manual_seed(1)
    first = flatten(build("mlp", data, seed=4))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(first, flatten(build("mlp", data, seed=4)))
    assert torch.equal(before, torch.get_rng_state())  # nobody else's randomness is touched
    assert not torch.equal(first, flatten(build("mlp", data, seed=5)))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "task", "said"),
    [
        ("magic", (8, 8), 3, Task.CLASSIFICATION, "resnet18"),
        ("cheng-cnn", (5, 5), 3, Task.CLASSIFICATION, "too small"),
        ("fu-cnn", (3, 9), 3, Task.CLASSIFICATION, "too small"),
        ("cnn", (64,), 3, Task.CLASSIFICATION, "images"),
        ("lstm", (8, 8), 3, Task.CLASSIFICATION, "token"),
        ("linear", (4,), 3, Task.CLASSIFICATION, "logistic"),
        ("logistic", (4,), 0, Task.REGRESSION, "linear"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(
    name: str, shape: tuple[int, ...], classes: int, task: Task, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build(name, federation(shape, classes, task))


def test_running_statistics_are_refused() -> None:
    with pytest.raises(ConfigError, match="group normalisation"):
        layout_of(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)))
