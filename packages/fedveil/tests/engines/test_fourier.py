"""Convolutions through the Fourier transform against torch's own, in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.engines import fourier
from fedveil.training.engines.kernels import tuned
from fedveil.training.models.images import ChannelsFirst, WideCnn
from fedveil.training.models.residual import ResNet18

WIDE = (torch.Size((64, 32, 14, 14)), torch.Size((64, 32, 5, 5)), (2, 2))


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


def test_the_network_of_fedavg_trains_the_same_through_it() -> None:
    torch.manual_seed(0)
    network = ChannelsFirst(WideCnn((1, 28, 28), 10))
    fast = tuned(network)
    layers = [child for child in fast.modules() if isinstance(child, fourier.Conv2d)]
    assert len(layers) == 1
    assert fourier.pays(*WIDE)
    images, labels = torch.randn(64, 28, 28), torch.arange(64) % 10
    with torch.no_grad():
        torch.testing.assert_close(fast(images), network(images), rtol=1e-4, atol=1e-5)
    for module in (network, fast):
        functional.cross_entropy(module(images), labels).backward()
    _assert_same_gradients(network, fast, 1e-4)


def test_without_gradients_images_go_through_in_pieces() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(32, 64, 5, padding=2)
    fast = tuned(nn.Sequential(layer))
    images = torch.randn(300, 32, 14, 14)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), layer(images), rtol=1e-4, atol=1e-5)


def test_residual_network_keeps_its_gradient() -> None:
    torch.manual_seed(0)
    network = ResNet18((3, 16, 16), 10)
    fast = tuned(network)
    images, labels = torch.randn(50, 3, 16, 16), torch.arange(50) % 10
    for module in (network, fast):
        functional.cross_entropy(module(images), labels).backward()
    _assert_same_gradients(network, fast, 1e-3)


def _assert_same_gradients(slow: nn.Module, quick: nn.Module, tolerance: float) -> None:
    for (name, one), other in zip(slow.named_parameters(), quick.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        assert _error(other.grad, one.grad) < tolerance, name
