"""Guarantees of things on disk: a run, from its ledger; a recipe, from its plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes
from fedveil.privacy.rounding import at_most
from fedveil.run.directory import (
    LEDGER,
    PROMISE,
    RECIPE,
    examined,
    read_result,
    stored_recipe,
)

if TYPE_CHECKING:
    from fedveil.methods.recipes.sections import Recipe
    from fedveil.privacy.guarantee import Guarantee


Progress = dict[str, Any]  # how far a run has come, and what that would cost


def unfinished(progress: Progress) -> str:
    """Return what must be known of a guarantee beside how far its run has come, or ""."""
    begun, planned = progress["rounds_begun"], progress["rounds_planned"]
    if begun == planned:
        return ""
    return (
        f"Unfinished: {begun} of {planned} rounds were begun. The guarantee is about all "
        f"{planned}, for a run that is stopped after somebody has looked at it costs its whole "
        "plan. Had it been fixed beforehand that it ends here, its rounds would cost epsilon "
        f"{at_most(progress['not_certified_epsilon_of_rounds_begun'])}; that is not certified."
    )


def recipe_of(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe in a file, of a name, or of a run directory."""
    table = stored_recipe(path) if path.is_dir() else recipes.read(path)
    return recipes.as_run(recipes.parse(table, changes))


def guarantee_of(path: Path, epsilon: float | None = None) -> tuple[Guarantee, Progress | None]:
    """Return the guarantee of a run directory with its progress, or that of a recipe.

    Args:
        path: A run directory or a recipe.
        epsilon: The budget of a recipe, if not its own.
    """
    path = recipes.recipe_file(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory or recipe")
    if path.is_dir() and epsilon is not None:
        raise ConfigError(
            f"--epsilon: {path} is a run, whose budget is spent. Name its recipe instead "
            f"({path / RECIPE})."
        )
    return _of_run(path) if path.is_dir() else (_of_recipe(path, epsilon), None)


def _of_run(path: Path) -> tuple[Guarantee, Progress]:
    """Recompute the guarantee from the ledger, with which everything else in the run must agree."""
    present = [name for name in (LEDGER, PROMISE, RECIPE) if (path / name).exists()]
    if present == [RECIPE]:
        raise ConfigError(f"{path}: has no ledger, so nothing is guaranteed")
    if LEDGER not in present and RECIPE not in present:
        raise ConfigError(f"{path}: not a run directory (no {RECIPE})")
    ledger = examined(path)
    progress = {"rounds_begun": ledger.reserved, "rounds_planned": ledger.header.rounds}
    return ledger.guarantee(), progress | {"not_certified_epsilon_of_rounds_begun": ledger.spent()}


def _of_recipe(path: Path, epsilon: float | None) -> Guarantee:
    from fedveil.planning.assemble import federation_of, plan_of

    values = {} if epsilon is None else {"privacy.epsilon": epsilon}
    recipe = recipes.as_run(recipes.parse(recipes.read(path), (), values))
    guarantee = plan_of(recipe, federation_of(recipe.data)).guarantee
    if guarantee is None:
        raise ConfigError(
            f"{path}: method {recipe.training.method!r} adds no noise and guarantees nothing; "
            "choose a private method"
        )
    return guarantee


def way_to_certify(path: Path) -> str | None:
    """Return the command that a run directory names to be certified, if it names one."""
    return (read_result(path) or {}).get("certify") if path.is_dir() else None
