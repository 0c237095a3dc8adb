"""Who is outside the radius of a penalty is told as in exact arithmetic, and quickly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.engines import local_sgd
from fedveil.training.engines.local_sgd import _pull


def outside(row: torch.Tensor, radius: float) -> bool:
    return sum(Fraction(float(x)) ** 2 for x in row) > Fraction(radius) ** 2


@pytest.mark.parametrize("radius", [1e-30, 1e-18, 1e-9, 0.3, 1e9, 1e18])
def test_it_is_the_exact_norm_that_decides(radius: float) -> None:
    draw = np.random.default_rng(3)
    for distance in (0.0, 1e-7, 1e-3, 0.02, 0.5, 1e6):
        for sign in (-1, 1):
            rows = torch.from_numpy(draw.normal(size=(4, 50)))
            lengths = radius * max(0.0, 1 + sign * distance)
            rows = (rows / rows.norm(dim=1, keepdim=True) * lengths).float()
            rule = LocalTraining(LearningRate(0.1), steps=1, penalty=0.5, penalty_radius=radius)
            wanted = [[0.5 * outside(row, radius)] for row in rows]
            assert torch.as_tensor(_pull(rows, rule)).tolist() == wanted, (distance, sign)


def test_a_clear_case_does_not_take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sgd, "row_norms", lambda rows: pytest.fail("the long way"))
    rule = LocalTraining(LearningRate(0.1), steps=1, penalty=0.5, penalty_radius=0.3)
    pulled = _pull(torch.tensor([[0.0, 0.1], [3.0, 4.0]]), rule)
    assert torch.as_tensor(pulled).tolist() == [[0.0], [0.5]]
