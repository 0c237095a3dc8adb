"""Guarantees of things on disk: a run, from its ledger; a recipe, from its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.errors import BadInput, FedveilError

if TYPE_CHECKING:
    from fedveil.privacy.guarantee import Guarantee


def guarantee_of(path: Path, epsilon: float | None = None) -> Guarantee:
    """What a run directory has spent, or what a recipe would (within `epsilon`, if given)."""
    if not path.exists():
        raise BadInput(f"{path}: no such run directory or recipe")
    return _of_run(path) if path.is_dir() else _of_recipe(path, epsilon)


def _of_run(path: Path) -> Guarantee:
    """Recomputed from the ledger alone; it must not exceed what the run promised."""
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.ledger import read

    if not (path / "recipe.toml").exists():
        raise BadInput(f"{path}: not a run directory (no recipe.toml)")
    if not (path / "ledger.jsonl").exists():
        raise BadInput(f"{path}: its method adds no noise and promises nothing, so has no ledger")
    spent = read(path / "ledger.jsonl").guarantee()
    if spent is None:
        raise BadInput(f"{path}: nothing has been released yet")
    try:
        document = json.loads((path / "guarantee.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}/guarantee.json: cannot be read ({error})") from None
    promised = Guarantee.from_dict(document)
    complete = spent.rounds == promised.rounds
    if spent.epsilon > promised.epsilon or (complete and spent != promised):
        raise FedveilError(
            f"{path}: the ledger proves epsilon {spent.epsilon:.6g}, guarantee.json says "
            f"{promised.epsilon:.6g}; do not rely on this run"
        )
    return spent


def _of_recipe(path: Path, epsilon: float | None) -> Guarantee:
    from fedveil import recipe as recipes
    from fedveil.assemble import federation_of, plan_of

    values = {} if epsilon is None else {"privacy.epsilon": epsilon}
    recipe = recipes.with_defaults(recipes.parse(recipes.read(path), (), values))
    guarantee = plan_of(recipe, federation_of(recipe.data)).guarantee
    if guarantee is None:
        raise BadInput(f"{path}: method {recipe.training.method!r} adds no noise: no guarantee")
    return guarantee
