"""What a recipe without a clip reaches: with 1 in all rounds, and with one that falls from there.

    python -m benchmarks.clip_default [--seeds 3]

The default job's digits: 100 clients, half of them in each of 60 rounds, three local epochs,
averaged models, in networks, rates and budgets that nobody has tuned. Accuracy in percent.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.run import Run, Speed

JOB = (
    "training.rounds=60",
    "training.rate=0.5",
    "training.local_epochs=3",
    "server.average=polynomial",
)
RATES = {"logistic": (0.1, 0.5, 2.0), "mlp": (0.1, 0.5)}
EPSILONS = (1, 4, 8)
QUANTILES = (0.2, 0.3, 0.5)


def accuracy(settings: tuple[str, ...], seed: int) -> float:
    recipe = recipes.as_run(recipes.parse({}, settings, {"seed": seed}))
    plan = plan_of(recipe, federation_of(recipe.data))
    run = Run(plan, speed=Speed(processes=1), every=recipe.training.rounds)
    try:
        return 100 * (run.finish().accuracy or 0.0)
    finally:
        run.close()


def rows(seeds: int) -> Iterator[tuple[str, ...]]:
    ways = {"clip 1": ("privacy.clip_norm=1",), "default": ()}
    ways |= {
        f"quantile {q}": (
            "privacy.clip_norm=1",
            f"privacy.clip_quantile={q}",
            "privacy.clip_highest=1",
        )
        for q in QUANTILES
    }
    ways["quantile 0.5, may rise"] = ("privacy.clip_norm=1", "privacy.clip_quantile=0.5")
    yield ("model", "rate", "epsilon", *ways)
    found = []
    for model, rates in RATES.items():
        batch = () if model == "logistic" else ("training.batch_size=8",)
        for rate in rates:
            for epsilon in EPSILONS:
                case = (f"model.name={model}", f"training.learning_rate={rate}", *batch)
                case += (f"privacy.epsilon={epsilon}", *JOB)
                found.append(
                    [
                        np.mean([accuracy((*case, *way), seed) for seed in range(seeds)])
                        for way in ways.values()
                    ]
                )
                yield (model, f"{rate:g}", f"{epsilon}", *(f"{share:.1f}" for share in found[-1]))
    yield ("mean", "", "", *(f"{share:.1f}" for share in np.mean(found, axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clip_default", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    for row in rows(parser.parse_args().seeds):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
