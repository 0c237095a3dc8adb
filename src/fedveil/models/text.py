"""The character model of Liang's Shakespeare task."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedveil.core.errors import ConfigError


class CharacterLstm(nn.Module):
    """Embedding of 8, LSTM layers (the paper's: two of 256), one score for each character.

    Reads token ids `[n, length]`. `every_position` scores the character after each prefix,
    `[n, length, characters]`; otherwise the one after the whole text, `[n, characters]`.
    """

    def __init__(
        self, characters: int, *, every_position: bool, hidden: Sequence[int] = (256, 256)
    ) -> None:
        super().__init__()
        width = hidden[0] if hidden else 0
        if width < 1 or any(other != width for other in hidden):
            raise ConfigError(f"model.hidden: LSTM layers of one width, got {list(hidden)}")
        self.embedding = nn.Embedding(characters, 8)
        self.lstm = nn.LSTM(8, width, num_layers=len(hidden), batch_first=True)
        self.output = nn.Linear(width, characters)
        self.every_position = every_position

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens.long()))
        scores: Tensor = self.output(states if self.every_position else states[:, -1])
        return scores
