"""Models of texts: the LSTM of Liang's Shakespeare task, and one that is linear in its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.core.errors import ConfigError

# Multiplicative hashing: texts that have no row of their own fall on one as if by chance.
_PRIME, _GOLDEN = 2**31 - 1, 1_327_217_885


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


class CharacterNgrams(nn.Module):
    """Scores of the next character as sums of rows of tables: one row for the last character, one
    for the last two, and so on, `hidden[k]` rows for the last k + 1. Starts at zero.

    That is softmax regression on one-hot features of the last characters, which a formula makes
    (more texts than rows share some of them), so the loss is convex, and noise in rows that a text
    does not have leaves its scores alone. Tokens and outputs are those of `CharacterLstm`.
    """

    def __init__(self, characters: int, *, every_position: bool, hidden: Sequence[int]) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise ConfigError(f"model.hidden: rows of each table, at least 1, got {list(hidden)}")
        self.characters = characters
        self.every_position = every_position
        self.tables = nn.ParameterList(torch.zeros(count, characters) for count in hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        looked_up = zip(self.places(tokens), self.tables, strict=True)
        scores = torch.stack([functional.embedding(*one) for one in looked_up])
        return scores.sum(0) / math.sqrt(len(self.tables))  # features of length 1

    def places(self, tokens: Tensor) -> list[Tensor]:
        """Of each table, the row for each position `[n, length]`, or for the last one `[n]`."""
        before = tokens.long().clamp(0, self.characters - 1)
        text, found, base = torch.zeros_like(before), [], self.characters + 1
        for order, table in enumerate(self.tables):
            text = (text * base + before) % _PRIME
            exact = self.characters * base**order <= len(table)  # a row for each text
            places = text if exact else text * _GOLDEN % _PRIME % len(table)
            found.append(places if self.every_position else places[:, -1])
            before = functional.pad(before, (1, -1), value=self.characters)  # one character back
        return found
