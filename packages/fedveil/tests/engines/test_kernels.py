"""The fast form of a network is the same function with the same gradient and the same names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedveil.training.engines.kernels import tuned
from fedveil.training.models.images import ChengCnn, FuCnn, SmallCnn

NETWORKS = {
    "small": lambda: SmallCnn((1, 12, 12), 5),
    "fu": lambda: FuCnn((3, 12, 12), 5),
    "cheng": lambda: ChengCnn((1, 12, 12), 5),
    "ReLU before pooling": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.LazyLinear(5)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_equal_up_to_rounding(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    channels = next(network.children()).in_channels
    images, labels = torch.randn(9, channels, 12, 12), torch.arange(9) % 5
    network(images)  # lazy layers take their size
    fast = tuned(network)
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in network.named_parameters()]
    torch.testing.assert_close(fast(images), network(images), rtol=1e-5, atol=1e-6)
    for module in (network, fast):
        nn.functional.cross_entropy(module(images), labels).backward()
    for (key, slow), quick in zip(network.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(quick.grad, slow.grad, rtol=1e-4, atol=1e-6, msg=key)


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
