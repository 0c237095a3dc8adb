"""Refusal of recipe keys that nothing reads.

A key that is accepted and ignored stands in the run's recipe as if it had been obeyed. Whether a
method reads a key is not declared but tried: the method is built with other values of the key, and
if the same method comes out of all of them, the key is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from typing import Any

from fedveil.core.errors import ConfigError, FedveilError
from fedveil.methods.recipes.sections import DataSection, Recipe
from fedveil.methods.registry import METHODS, method_of
from fedveil.planning.recipe import with_defaults

# Sections whose keys become parts of a method, and what the plan reads beside the method.
SECTIONS = ("training", "privacy", "aggregation", "server", "voting")
_OF_THE_PLAN = {f"training.{name}" for name in ("method", "class_weights", "batches", "batch_rate")}
_OF_THE_BUDGET = {f"privacy.{name}" for name in ("epsilon", "delta", "noise_multiplier")}
_OF_THE_BUDGET |= {
    f"privacy.{name}"
    for name in ("arithmetic", "budgets", "epsilon_column", "tuned_on", "trusted_parts")
}
# Words that exist to be refused with a reason where there is noise; nothing implements them.
_OF_NOBODY = ("training.upload", "server.smoothing_place")
# Keys that describe a table or pictures, and mean nothing for a named source.
_OF_FILES = (
    *("client_column", "person_column", "records_per_person", "epsilon_column", "label"),
    *("label_separator", "file_labels", "image_size"),
    *("schema", "statistics", "classes", "columns", "bought", "task", "test_file"),
    *("text_columns", "text_encoder"),
)


def refuse_unread(recipe: Recipe) -> None:
    """Refuse keys that change nothing of what a recipe runs.

    Args:
        recipe: One with its defaults filled in.

    Raises:
        ConfigError: A key differs from its default, and neither the method nor the plan reads it.
    """
    entry = METHODS.find(recipe.training.method, "training.method")
    read = _OF_THE_PLAN | (_OF_THE_BUDGET if entry.private else set())
    built = method_of(recipe)
    local, training = built.local, recipe.training
    # A method with one round, or with one step in it, may be told so.
    runs = {"rounds": built.rounds, "local_steps": local.steps, "batch_size": local.batch_size}
    read |= {f"training.{name}" for name, done in runs.items() if getattr(training, name) == done}
    for key, others in _changed(recipe, read):
        if key in _OF_NOBODY or all(_method(other) == built for other in others):
            raise ConfigError(
                f"{key}: method {entry.name} does not read it beside the other settings. "
                "Remove it, or choose a method that does: fedveil methods"
            )


def refuse_file_keys(data: DataSection) -> None:
    """Refuse keys about a table or pictures beside a named source.

    Raises:
        ConfigError: Such a key is set.
    """
    for name in _OF_FILES:
        if getattr(data, name):
            raise ConfigError(
                f"data.{name}: is about a file, and data.source {data.source} is none. "
                "Remove it, or set data.file"
            )


def _changed(recipe: Recipe, read: Collection[str]) -> Iterator[tuple[str, tuple[Recipe, Recipe]]]:
    """Yield each key that is not at its default, with recipes that set it to two other values.

    Keys in `read` are left out, and what the defaults fill in: it stands in the recipes that runs
    write.
    """
    for section in SECTIONS:
        given, empty = getattr(recipe, section), getattr(Recipe(), section)
        for field in fields(given):
            value, usual = getattr(given, field.name), getattr(empty, field.name)
            if value != usual and f"{section}.{field.name}" not in read:

                def changed(to: Any, name: str = field.name, given: Any = given) -> Recipe:
                    return replace(recipe, **{section: replace(given, **{name: to})})  # noqa: B023

                without = with_defaults(changed(usual))
                if getattr(getattr(without, section), field.name) != value:
                    yield f"{section}.{field.name}", (without, changed(_another(value)))


def _another(value: Any) -> Any:
    """Return another value of the same kind; a word that no key knows, so that readers refuse."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return 0.75 * value or 0.25 if isinstance(value, float) else f"not {value}"


def _method(recipe: Recipe) -> Any:
    """Return the method of a recipe; None where it refuses the value that it reads."""
    try:
        return method_of(recipe)
    except FedveilError:
        return None
