"""Federated evaluation: one record moves one count, whatever model the hub sends.

`Scoring.terms` accounts a record that moves one count to another cell (L2 at most 2 under replace).
Rows must not move to other places of a batch because one of them cannot be used: kernels round
otherwise there, and weights that cancel turn a rounding into another bin. The hub chooses them.
"""

import numpy as np
import torch

import fedveil as fv
from fedveil.run.evaluation import rows_at_once
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.scoring import Scoring, _counts, held_out

ROWS, WIDTH = 4000, 30


def table(labels: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """What one site counts, before its noise share."""
    data = fv.Federation.from_arrays(
        inputs[:4],
        np.array([0, 1, 0, 1]),
        np.zeros(4, np.int64),
        test=(inputs, labels),
        task="classification",
        classes=2,
    )
    model = torch.nn.Linear(WIDTH, 2)
    with torch.no_grad():  # two columns of ten categories each, which add up to the same
        model.weight.zero_(), model.bias.zero_()
        model.weight[1, :10], model.weight[1, 20:] = 2.0**26, -(2.0**26)
        model.weight[1, 10:20] = torch.linspace(-4, 4, 10)
    asked = Scoring(Facts("f", "classification", 2, (WIDTH,), (ROWS,) * 3), 1.0, 1e-5)
    return _counts(model.eval(), held_out(data), asked, rows_at_once(model, (WIDTH,)))


def test_one_held_out_record_moves_one_count() -> None:
    draw = np.random.default_rng(0)
    inputs, labels = np.zeros((ROWS, WIDTH), np.float32), draw.integers(0, 2, ROWS)
    inputs[np.arange(ROWS), draw.integers(0, 10, ROWS)] = 1
    inputs[np.arange(ROWS), 20 + draw.integers(0, 10, ROWS)] = 1
    inputs[:, 10:20] = draw.normal(size=(ROWS, 10))
    other = labels.copy()
    other[5] = -1  # the neighbour: this record's label is missing
    moved = np.linalg.norm((table(labels, inputs) - table(other, inputs)).astype(float))
    assert moved <= 2.0  # 20 to 45 if rows move
