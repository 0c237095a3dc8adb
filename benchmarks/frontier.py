"""How far a budget goes: the recipes in recipes/best, measured and drawn beside the papers' points.

    python -m benchmarks.frontier               # what is missing of every recipe's first seed
    python -m benchmarks.frontier mnist-        # of those whose name begins so: mnist-epsilon-1 ...
    python -m benchmarks.frontier --seeds 3     # of seeds 1, 2 and 3
    python -m benchmarks.frontier --draw        # the pictures, from what was measured

A run that is finished stands in results/frontier.json and is not run again until its recipe
changes; an interrupted command goes on where it stopped. An entry is what
`fedveil run best/NAME --seed SEED` says at its end. The ceiling of a federation is its recipe of
the largest epsilon without clip and noise (`without_noise`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.run import Run

RESULTS = Path(__file__).parent.parent / "results"
FILE = RESULTS / "frontier.json"


def name_of(recipe: str) -> str:
    """best/mnist-writers-epsilon-2 -> mnist-writers"""
    return recipe.removeprefix("best/").rpartition("-epsilon-")[0]


def epsilon_of(recipe: str) -> float:
    return float(recipe.rpartition("-epsilon-")[2])


def ceiling_of(key: str) -> str:
    """The name under which a federation's run without noise is kept."""
    return f"{key}, no noise"


def best_recipes() -> list[str]:
    """By federation, then by epsilon."""
    best = (name for name in recipes.shipped() if name.startswith("best/"))
    return sorted(best, key=lambda name: (name_of(name), epsilon_of(name)))


def jobs(prefix: str) -> list[tuple[str, recipes.Recipe]]:
    """What is to be run under which name: recipes, and a ceiling for every federation."""
    names = best_recipes()
    largest = {name_of(name): name for name in names}
    found = []
    for name in names:
        recipe = recipes.with_defaults(recipes.parse(recipes.read(recipes.shipped()[name])))
        found.append((name, recipe))
        if largest[name_of(name)] == name:
            found.append((ceiling_of(name_of(name)), without_noise(recipe)))
    return [one for one in found if one[0].removeprefix("best/").startswith(prefix)]


def without_noise(recipe: recipes.Recipe) -> recipes.Recipe:
    """No clip, no noise. A server's rate for updates cut to one length is too much for whole ones:
    momentum takes its place."""
    plain = recipes.without_privacy(recipe)
    if plain.server.learning_rate > 1:
        plain = replace(plain, server=replace(plain.server, learning_rate=1.0, momentum=0.9))
    return recipes.with_defaults(plain)


def version_of(recipe: recipes.Recipe) -> str:
    """Changes with any setting of a recipe, and neither with its comments, with what it was tuned
    on, nor with settings that fedveil has learnt since and the recipe leaves alone."""
    usual = recipes.to_table(recipes.Recipe())
    recipe = replace(recipe, seed=None, privacy=replace(recipe.privacy, tuned_on=()))
    own = {
        f"{name}.{key}": value
        for name, section in recipes.to_table(recipe).items()
        for key, value in section.items()
        if usual.get(name, {}).get(key) != value
    }
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]


def measured(
    recipe: recipes.Recipe, seed: int, federation: Federation | None = None
) -> dict[str, Any]:
    """What a run of the recipe finds: on its own data, unless others are given."""
    table = {**recipes.to_table(recipe), "seed": seed}
    chosen, began = recipes.parse(table), time.monotonic()
    plan = plan_of(chosen, federation_of(chosen.data) if federation is None else federation)
    run = Run(plan, every=plan.method.rounds)
    try:
        found = run.finish()
    finally:
        run.close()
    return {
        **({} if found.accuracy is None else {"accuracy": round(found.accuracy, 5)}),
        "loss": float(f"{found.loss:.5g}"),
        "epsilon": None if plan.guarantee is None else round(plan.guarantee.epsilon, 5),
        "seconds": round(time.monotonic() - began),
    }


def kept() -> dict[str, Any]:
    """Name -> recipe's version, and what each seed's run found."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def current() -> dict[str, Any]:
    """The same, without what was found by recipes that have changed since."""
    versions = {name: version_of(recipe) for name, recipe in jobs("")}
    return {name: one for name, one in kept().items() if versions.get(name) == one["recipe"]}


def _own(every: dict[str, Any], name: str, version: str) -> dict[str, Any]:
    """What is known of a recipe as it is now."""
    own: dict[str, Any] = every.get(name, {})
    return own if own.get("recipe") == version else {"recipe": version, "seeds": {}}


def measure(prefix: str, seeds: int) -> None:
    """Runs what is missing, every recipe once before any is repeated."""
    for seed in map(str, range(1, seeds + 1)):
        for name, recipe in jobs(prefix):
            version = version_of(recipe)
            if seed in _own(kept(), name, version)["seeds"]:
                continue
            found = measured(recipe, int(seed))
            every = kept()  # again: another process may have added to it meanwhile
            every[name] = _own(every, name, version)
            every[name]["seeds"][seed] = found
            written = FILE.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
            os.replace(written, FILE)
            print(name, "seed", seed, found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("prefix", nargs="?", default="")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args()
    if given.draw:
        from benchmarks.frontier_pictures import draw

        draw()
    else:
        measure(given.prefix, given.seeds)


if __name__ == "__main__":
    main()
