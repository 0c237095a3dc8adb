"""What modules draw by themselves."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from fedveil.training.models.structure import drawing_from


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


def test_threads_do_not_draw_from_each_other() -> None:
    """They share torch's generator: three guards in one process made three different adapters."""
    begun, inside, done = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        assert begun.wait(60)
        with drawing_from(2):
            inside.set()
            assert done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    with drawing_from(1):
        begun.set()
        inside.wait(0.2)  # as long as a thread that could come in may take
        found = torch.rand(5)
        done.set()
    thread.join()
    assert torch.equal(found, drawn(1))
