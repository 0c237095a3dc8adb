"""The character model of Liang's Shakespeare task."""

from __future__ import annotations

from torch import Tensor, nn


class CharacterLstm(nn.Module):
    """Embedding of 8, two LSTM layers of 256, one score for each character.

    Reads token ids `[n, length]`. `every_position` scores the character after each prefix,
    `[n, length, characters]`; otherwise the one after the whole text, `[n, characters]`.
    """

    def __init__(self, characters: int, *, every_position: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, characters)
        self.every_position = every_position

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens.long()))
        scores: Tensor = self.output(states if self.every_position else states[:, -1])
        return scores
