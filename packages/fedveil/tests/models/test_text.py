"""The character model with other widths than the paper's."""

from __future__ import annotations

import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.training.models.text import CharacterLstm, CharacterNgrams


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


def grams(tokens: torch.Tensor, length: int) -> list[tuple[int, ...]]:
    """The last characters before every place of every text, the latest first; -1 is none."""
    rows = [[-1] * length + row for row in tokens.tolist()]
    return [tuple(row[end : end - length : -1]) for row in rows for end in range(length, len(row))]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_text_has_a_row_of_its_own_if_there_are_enough(length: int) -> None:
    tokens = torch.randint(0, 4, (300, 6), generator=torch.Generator().manual_seed(1))
    sizes = (4, 20, 100)[:length]
    places = CharacterNgrams(4, every_position=True, hidden=sizes).places(tokens)[-1]
    pairs = set(zip(grams(tokens, length), places.flatten().tolist(), strict=True))
    assert len(pairs) == len({gram for gram, _ in pairs}) == len({place for _, place in pairs})
    assert 0 <= int(places.min()) <= int(places.max()) < sizes[-1]


def test_texts_without_rows_of_their_own_share_rows_as_by_chance() -> None:
    """Of n rows, m texts leave n (1 - 1/n)^m empty on average, give or take less than sqrt(n)."""
    rows, tokens = 1000, torch.randint(0, 50, (400, 8), generator=torch.Generator().manual_seed(2))
    for length in (2, 3, 6):
        model = CharacterNgrams(50, every_position=True, hidden=(rows,) * length)
        places = model.places(tokens)[-1]
        texts, used = len(set(grams(tokens, length))), len(places.unique())
        assert abs(used - rows * (1 - (1 - 1 / rows) ** texts)) < 5 * rows**0.5
        assert 0 <= int(places.min()) <= int(places.max()) < rows


def test_n_grams_learn_a_chain_that_remembers_two_characters() -> None:
    """Up to its entropy: the next character is one of two, by what the last two are."""
    draw = torch.Generator().manual_seed(3)
    rule, texts = torch.randint(0, 5, (5, 5, 2), generator=draw), torch.zeros(200, 41).long()
    for end in range(41):
        last = texts[:, end - 1] * (end > 0), texts[:, end - 2] * (end > 1)
        texts[:, end] = rule[last][range(200), torch.randint(0, 2, (200,), generator=draw)]
    entropy = float((rule[..., 0] != rule[..., 1]).float()[texts[:, 1:-1], texts[:, :-2]].mean())
    model = CharacterNgrams(5, every_position=True, hidden=(5, 30))
    steps = torch.optim.LBFGS(model.parameters(), max_iter=60)

    def loss() -> torch.Tensor:
        scores = model(texts[:, :-1]).movedim(-1, 1)[..., 1:]
        return torch.nn.functional.cross_entropy(scores, texts[:, 2:])

    def closure() -> torch.Tensor:
        steps.zero_grad()
        found = loss()
        found.backward()
        return found

    steps.step(closure)
    # Some 25 free probabilities of 7,800 characters fit chance by about 25 / 15,600 nats.
    assert float(loss().detach()) == pytest.approx(entropy * 0.6931, abs=0.02)


@pytest.mark.parametrize("hidden", [(), (4, 0)])
def test_tables_without_rows_are_refused(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="rows"):
        CharacterNgrams(4, every_position=True, hidden=hidden)
