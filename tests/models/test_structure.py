"""What modules draw by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedveil.models.structure import drawing_from


def drawn(seed: int) -> Tensor:
    with drawing_from(seed):
        return torch.rand(5)


def test_draws_follow_the_seed_and_leave_every_generator_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def touched(seed: int) -> None:
        raise AssertionError("the generators of GPUs are the user's")

    torch.manual_seed(3)
    wanted, state = torch.rand(5), torch.random.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched)
    assert torch.equal(drawn(3), wanted)
    assert not torch.equal(drawn(4), wanted)
    assert torch.equal(torch.random.get_rng_state(), state)
