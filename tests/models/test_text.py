"""The character model with other widths than the paper's."""

from __future__ import annotations

import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.models.text import CharacterLstm


@pytest.mark.parametrize("hidden", [(16,), (16, 16)])
def test_parameters_of_an_lstm_counted_by_hand(hidden: tuple[int, ...]) -> None:
    model = CharacterLstm(30, every_position=True, hidden=hidden)
    width = hidden[0]
    layers = sum(4 * width * (before + width + 2) for before in (8, *hidden[:-1]))
    wanted = 30 * 8 + layers + 30 * (width + 1)
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted
    assert model(torch.zeros(2, 5, dtype=torch.uint8)).shape == (2, 5, 30)


@pytest.mark.parametrize("hidden", [(16, 8), (0,), ()])
def test_layers_of_different_or_no_width_are_refused(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="one width"):
        CharacterLstm(30, every_position=True, hidden=hidden)
