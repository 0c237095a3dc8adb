"""Settings of a recipe that a pilot chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedveil.config.recipe import Recipe

_TRAINING = ("learning_rate", "rounds", "local_steps", "penalty", "sparsity")


@dataclass(frozen=True)
class Candidate:
    """Settings that a trial is made with, by the recipe's names. None: not this method's."""

    local_steps: int
    rounds: int
    learning_rate: float
    clip_norm: float
    cohort: int | None = None
    server_learning_rate: float | None = None
    smoothing: float | None = None
    penalty: float | None = None
    sparsity: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The settings that are set."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def total_steps(self) -> int:
        return self.local_steps * self.rounds

    def uploads(self, everyone: int) -> int:
        """Updates sent in all; `everyone` is the cohort where all clients always take part."""
        return self.rounds * (everyone if self.cohort is None else self.cohort)


def recipe_with_settings(recipe: Recipe, candidate: Candidate) -> Recipe:
    """The recipe with a candidate's settings."""
    settings = candidate.to_dict()
    changes = {name: settings[name] for name in _TRAINING if name in settings}
    if candidate.cohort is not None:
        changes |= {"cohort": candidate.cohort, "rate": None}
    named = {"learning_rate": "server_learning_rate", "smoothing": "smoothing"}
    server = {key: settings[name] for key, name in named.items() if name in settings}
    return replace(
        recipe,
        training=replace(recipe.training, local_epochs=None, **changes),
        server=replace(recipe.server, **server),
        privacy=replace(recipe.privacy, clip_norm=candidate.clip_norm),
    )
