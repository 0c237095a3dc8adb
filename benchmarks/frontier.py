"""How far a budget goes: the recipes in recipes/best, measured and drawn beside the papers' points.

    python -m benchmarks.frontier             # every recipe once, seed 1: results/frontier.json
    python -m benchmarks.frontier mnist-      # those whose name begins so
    python -m benchmarks.frontier --draw      # results/frontier-*.png from what was measured

A line of the file is what `fedveil run best/NAME --seed 1` says at its end. The ceiling is the same
recipe without clip and noise.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.config import recipe as recipes
from fedveil.config.assemble import federation_of, plan_of
from fedveil.run.run import Run

RESULTS = Path(__file__).parent.parent / "results"
FILE = RESULTS / "frontier.json"


@dataclass(frozen=True)
class Point:
    """A paper's result: at the epsilon it claims, and at the one that its noise is worth here
    (docs/results.md; Cheng's with c2 = 1, which the paper leaves open)."""

    label: str
    accuracy: float
    claimed: float
    true: float


@dataclass(frozen=True)
class Federation:
    title: str
    points: tuple[Point, ...] = ()
    reproduced: tuple[tuple[float, float], ...] = ()  # certified epsilon, accuracy: docs/results.md


FEDERATIONS = {
    "mnist": Federation(
        "MNIST, 1,000 clients of 50 images",
        (Point("Liang et al.", 85.3, 9.0, 0.5), Point("Liang et al.", 83.3, 6.0, 0.27)),
        ((6.0, 85.5),),
    ),
    "mnist-writers": Federation("MNIST by its 539 writers", (), ((8.0, 90.4),)),
    "femnist": Federation(
        "FEMNIST, 300 writers, 62 classes",
        (Point("Cheng et al., 3,400 writers", 78.1, 8.0, 56.0),),
        ((8.0, 57.6),),
    ),
    "cifar-even": Federation(
        "CIFAR-10, 2,000 clients of 25, Dirichlet 1",
        (Point("Cheng et al.", 63.7, 8.0, 1039.0),),
        ((8.0, 32.9),),
    ),
    "cifar-uneven": Federation(
        "CIFAR-10, 2,000 clients of 25, Dirichlet 0.1",
        (Point("Cheng et al.", 59.0, 8.0, 1039.0),),
        ((8.0, 24.7),),
    ),
    "adult": Federation("Adult, 16 devices, one record", (), ((1.0, 81.1), (4.0, 83.1))),
}


def name_of(recipe: str) -> str:
    """best/mnist-writers-epsilon-2 -> mnist-writers"""
    return recipe.removeprefix("best/").rpartition("-epsilon-")[0]


def measured(name: str, *, noise: bool = True) -> dict[str, Any]:
    """One run of a recipe, or of the same training without clip and noise."""
    table = recipes.read(recipes.shipped()[name])
    chosen = recipes.with_defaults(recipes.parse(table, (), {"seed": 1}))
    if not noise:
        chosen = recipes.with_defaults(recipes.without_privacy(chosen))
    plan, began = plan_of(chosen, federation_of(chosen.data)), time.monotonic()
    run = Run(plan, every=plan.method.rounds)
    try:
        found = run.finish()
    finally:
        run.close()
    return {
        "accuracy": found.accuracy,
        "loss": found.loss,
        "epsilon": None if plan.guarantee is None else plan.guarantee.epsilon,
        "rounds": plan.method.rounds,
        "seconds": round(time.monotonic() - began),
    }


def measure(prefix: str) -> None:
    kept: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in recipes.shipped():
        if not name.startswith(f"best/{prefix}"):
            continue
        kept[name] = measured(name)
        ceiling = f"{name_of(name)}, without noise"
        if name.endswith("-epsilon-8"):
            kept[ceiling] = measured(name, noise=False)
        FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(name, kept[name], flush=True)


def draw() -> None:
    """A picture for each federation: accuracy against certified epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kept = json.loads(FILE.read_text())
    for key, federation in FEDERATIONS.items():
        own = sorted(
            (found["epsilon"], 100 * found["accuracy"])
            for name, found in kept.items()
            if name.startswith("best/") and name_of(name) == key
        )
        if not own:
            continue
        figure, axis = pyplot.subplots(figsize=(4.6, 3.2))
        axis.plot(*zip(*own, strict=True), "ko-", label="best recipe, certified")
        ceiling = kept.get(f"{key}, without noise")
        if ceiling is not None:
            axis.axhline(100 * ceiling["accuracy"], color="0.5", ls=":", label="the same, no noise")
        if federation.reproduced:
            at = zip(*federation.reproduced, strict=True)
            axis.plot(*at, "s", color="#1f6fb4", label="the papers' method, certified")
        for point in federation.points:
            axis.plot(point.claimed, point.accuracy, "^", color="#c23b22", mfc="none")
            axis.annotate(point.label, (point.claimed, point.accuracy), fontsize=7)
            axis.plot(point.true, point.accuracy, "v", color="#c23b22")
            line = [point.claimed, point.true], [point.accuracy] * 2
            axis.plot(*line, "--", color="#c23b22", lw=0.8)
        axis.set(xscale="log", xlabel="epsilon", ylabel="test accuracy, %", title=federation.title)
        axis.legend(fontsize=7, frameon=False)
        figure.tight_layout()
        figure.savefig(RESULTS / f"frontier-{key}.png", dpi=150, metadata={"Software": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("prefix", nargs="?", default="")
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args()
    if given.draw:
        draw()
    else:
        measure(given.prefix)


if __name__ == "__main__":
    main()
