"""The fast form of a network is the same function with the same gradient and the same names.

Convolutions through the Fourier transform are compared with torch's own in double precision.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.engines import fourier
from fedveil.training.engines.kernels import tuned
from fedveil.training.models.images import ChannelsFirst, ChengCnn, FuCnn, SmallCnn, WideCnn
from fedveil.training.models.residual import ResNet18


def _error(found: Tensor, exact: Tensor) -> float:
    """The largest error, in units of the largest entry."""
    return float((found - exact).abs().max() / exact.abs().max())


def _gradients(convolve: object, *arguments: Tensor) -> tuple[Tensor, ...]:
    *leaves, along = (argument.detach() for argument in arguments)
    for leaf in leaves:
        leaf.requires_grad_()
    outputs = convolve(*leaves)  # type: ignore[operator]
    return (outputs.detach(), *torch.autograd.grad(outputs, leaves, along.view_as(outputs)))


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    count, into, out = (draw(st.integers(1, 4)) for _ in range(3))
    kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    image = draw(st.integers(kernel[0], 9)), draw(st.integers(kernel[1], 9))
    padding = draw(st.integers(0, kernel[0] - 1)), draw(st.integers(0, kernel[1] - 1))
    return (count, into, *image), (out, into, *kernel), padding


@settings(max_examples=150, deadline=None)
@given(shapes(), st.integers(0, 2**31))
def test_outputs_and_all_gradients_equal_those_of_torch(
    shape: tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]], seed: int
) -> None:
    image, kernel, padding = shape
    torch.manual_seed(seed)
    images, weight, bias = torch.randn(image), torch.randn(kernel), torch.randn(kernel[0])
    exact = functional.conv2d(images.double(), weight.double(), bias.double(), padding=padding)
    along = torch.randn(exact.shape)
    arguments = (images, weight, bias, along)
    expected = _gradients(
        lambda x, w, b: functional.conv2d(x, w, b, padding=padding),
        *(argument.double() for argument in arguments),
    )
    found = _gradients(lambda x, w, b: fourier.convolve(x, w, b, padding), *arguments)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=2e-5)


def test_rounding_errors_are_no_larger_than_those_of_torch() -> None:
    torch.manual_seed(0)
    images, weight, bias = torch.randn(64, 32, 14, 14), torch.randn(64, 32, 5, 5), torch.randn(64)
    arguments = (images, weight, bias, torch.randn(64, 64, 14, 14))

    def by_torch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.conv2d(x, w, b, padding=2)

    exact = _gradients(by_torch, *(argument.double() for argument in arguments))
    plain = _gradients(by_torch, *arguments)
    found = _gradients(lambda x, w, b: fourier.convolve(x, w, b, (2, 2)), *arguments)
    for ours, theirs, truth in zip(found, plain, exact, strict=True):
        assert _error(ours, truth) < max(2 * _error(theirs, truth), 5e-7)


def test_only_what_needs_a_gradient_gets_one() -> None:
    images, weight = torch.randn(2, 8, 6, 6), torch.randn(4, 8, 3, 3, requires_grad=True)
    fourier.convolve(images, weight, None, (1, 1)).sum().backward()
    expected = weight.grad
    assert images.grad is None
    assert expected is not None
    weight.grad = None
    functional.conv2d(images, weight, padding=1).sum().backward()
    torch.testing.assert_close(expected, weight.grad, rtol=1e-4, atol=1e-4)


def test_it_is_chosen_where_it_gains_and_nowhere_else() -> None:
    def pays(count: int, into: int, out: int, size: int, kernel: int) -> bool:
        images, weight = (count, into, size, size), (out, into, kernel, kernel)
        return fourier.pays(torch.Size(images), torch.Size(weight), (kernel // 2, kernel // 2))

    gains = [(64, 32, 64, 14, 5), (50, 32, 64, 16, 5), (50, 256, 256, 8, 3), (50, 128, 128, 16, 3)]
    losses = [(5, 128, 256, 16, 3), (50, 16, 32, 28, 3), (10, 256, 256, 28, 3)]
    assert all(pays(*shape) for shape in gains)
    assert not any(pays(*shape) for shape in losses)
    assert not pays(10_000, 32, 64, 14, 5)  # the spectra would take a gigabyte


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Conv2d(8, 8, 3, dilation=2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(8, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 3, padding=3),
        nn.Conv2d(8, 8, 1),
        nn.Conv2d(3, 8, 5),
    ],
    ids=str,
)
def test_other_layers_stay_as_they_are(layer: nn.Conv2d) -> None:
    assert type(tuned(nn.Sequential(layer))[0]) is nn.Conv2d


def test_without_gradients_images_go_through_in_pieces() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(32, 64, 5, padding=2)
    fast = tuned(nn.Sequential(layer))
    images = torch.randn(300, 32, 14, 14)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), layer(images), rtol=1e-4, atol=1e-5)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small": (lambda: SmallCnn((1, 12, 12), 5), (9, 1, 12, 12)),
    "fu": (lambda: FuCnn((3, 12, 12), 5), (9, 3, 12, 12)),
    "cheng": (lambda: ChengCnn((1, 12, 12), 5), (9, 1, 12, 12)),
    "ReLU before pooling": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3),
            nn.ReLU(),
            nn.MaxPool2d(2, padding=1),
            nn.Flatten(),
            nn.LazyLinear(5),
        ),
        (9, 2, 12, 12),
    ),
    "through the transform": (lambda: ChannelsFirst(WideCnn((1, 28, 28), 10)), (64, 28, 28)),
    "residual": (lambda: ResNet18((3, 16, 16), 10), (50, 3, 16, 16)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_equal_up_to_rounding(name: str) -> None:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    network, images = build(), torch.randn(shape)
    labels = torch.arange(shape[0]) % network(images).shape[1]  # lazy layers take their size
    fast = tuned(network)
    transformed = [one for one in fast.modules() if isinstance(one, fourier.Conv2d)]
    assert len(transformed) == 1 or name != "through the transform"
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in network.named_parameters()]
    with torch.no_grad():
        torch.testing.assert_close(fast(images), network(images), rtol=1e-4, atol=1e-5)
    for module in (network, fast):
        functional.cross_entropy(module(images), labels).backward()
    for (key, slow), quick in zip(network.named_parameters(), fast.parameters(), strict=True):
        assert _error(quick.grad, slow.grad) < (1e-3 if name == "residual" else 1e-4), key


class TakesApart(nn.Module):
    """Uses two of its three layers, as only its own code can know."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, images: Tensor) -> Tensor:
        return self.body[1](self.body[0](images))  # type: ignore[no-any-return]


def test_a_module_with_code_of_its_own_stays_as_it_is() -> None:
    module, images = TakesApart(), torch.randn(2, 1, 6, 6)
    assert torch.equal(tuned(module)(images), module(images))


def test_pooling_moves_before_relu_unless_somebody_watches() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    assert isinstance(tuned(network)[1], nn.MaxPool2d)
    assert isinstance(network[1], nn.ReLU)  # the original stays as it is
    network[1].register_forward_hook(lambda module, inputs, output: None)
    assert isinstance(tuned(network)[1], nn.ReLU)
