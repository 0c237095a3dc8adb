"""Constants of the features that drawings make, looked for on digits and on test images.

    python -m benchmarks.frontier_features

How much drawings are bent, how thick the pen is, how large a patch is: each was asked in turn, from
round numbers, below and above, most at half and at twice; on scikit-learn's digits, enlarged to
the size of MNIST's, and on the first half of CIFAR-10's test images. The score is the mean of both
accuracies; where nothing is better by `MARGIN`, a constant stays. Trials stand in
results/frontier-search.json; `fedveil.models` has what was found (`tests/docs/test_frontier.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import interpolate, pad

from benchmarks.frontier import measured
from benchmarks.frontier_proxies import half_of_the_tests
from benchmarks.frontier_search import (
    Climb,
    Question,
    Search,
    Settings,
    keep,
    kept,
    noise_for,
    searched,
)
from fedveil.data.examples import Examples, Task
from fedveil.data.federation import Federation, Scaling
from fedveil.data.partition import IID, Dirichlet, Partition
from fedveil.data.sources import find
from fedveil.planning import recipe as recipes
from fedveil.training.models import drawings, patches, whitening
from fedveil.training.models.features import FeatureMap, Featurizer, ScatteringFeatures
from fedveil.training.models.patches import PatchFeatures

NAME = "features"
EPSILON, DELTA, ROUNDS = 2.0, 1e-5, 30
MARGIN = 0.005  # about the deviation of a difference by chance
MODULES = {"drawings": drawings, "whitening": whitening, "patches": patches}
# Where each begins, and what else it may be.
BOTH: Mapping[str, tuple[float, ...]] = {
    "drawings._BEND": (0.1, 0.05, 0.2),
    "drawings._SHIFT": (0.05, 0.025, 0.1),
    "whitening._RIDGE": (1.0, 0.5, 2.0),
    "whitening._TIMES": (5, 3, 10),
    "whitening._SHARE": (0.5, 0.25, 1.0),
}
WRITING: Mapping[str, tuple[float, ...]] = {
    "drawings._PEN": (0.05, 0.025, 0.1),
    "drawings._CURVES": (3, 2, 6),
    "drawings._JOINED": (0.5, 0.0, 1.0),
    "drawings._MARGIN": (0.2, 0.1, 0.3),
}
PHOTOS: Mapping[str, tuple[float, ...]] = {
    "patches.PATCH": (6, 4, 8),
    "patches._GRID": (2, 1, 3),
    "patches._LEAST": (0.25, 0.1, 0.5),
    "patches._SMALL": (0.1, 0.05, 0.2),
    "patches._CONTRAST": (0.1, 0.05, 0.2),
    "patches._FAINT": (0.0, 0.25, 0.5),
    "drawings._RADIUS": (2.0, 1.0, 4.0),
    "drawings._FLAT": (0.5, 0.25, 1.0),
    "drawings._SHADE": (0.02, 0.01, 0.04),
    "drawings._COLOUR": (0.2, 0.1, 0.4),
    "drawings._LIGHT": (0.1, 0.05, 0.2),
}
EVERY = {**BOTH, **WRITING, **PHOTOS}
PARTS = {"writing": {*BOTH, *WRITING}, "photos": {*BOTH, *PHOTOS}}
SEARCH = Search(
    {"writing.way": 128.0, "photos.way": 128.0, **{key: one[0] for key, one in EVERY.items()}},
    (
        Climb("writing.way"),
        Climb("photos.way"),
        *(
            Question(tuple({key: value} for value in values), margin=MARGIN)
            for key, values in EVERY.items()
        ),
    ),
)


@cache
def pictures(part: str) -> tuple[Examples, Scaling | None]:
    if part == "photos":
        return half_of_the_tests()
    train = find("digits").pool().train
    small = torch.from_numpy(np.array(train.inputs, np.float32).reshape(-1, 1, 8, 8)) / 16
    large = interpolate(small, (20, 20), mode="bilinear")  # NIST's are 20 x 20 in 28 x 28, too
    return Examples(pad(large, (4, 4, 4, 4))[:, 0].numpy(), train.targets), None


def features_of(part: str) -> FeatureMap:
    return PatchFeatures(mirror=True) if part == "photos" else ScatteringFeatures(whiten="strokes")


@contextmanager
def constants(chosen: Settings) -> Iterator[None]:
    with ExitStack() as stack:
        for key, value in chosen.items():
            module, name = key.split(".")
            stack.enter_context(patch.object(MODULES[module], name, value))
        made = (whitening._turn, patches._filters)
        for one in made:
            one.cache_clear()
        try:
            yield
        finally:
            for one in made:
                one.cache_clear()


def accuracy(part: str, way: float, chosen: Settings) -> float:
    """Of a training on one half of the pictures, measured on the other, and the other way round."""
    examples, scaling = pictures(part)
    photos = part == "photos"
    partition: Partition = Dirichlet(100, 1.0) if photos else IID(100)
    clients = 2000 if photos else 1000  # whose noise the average of the updates is to have
    with constants(chosen):
        shape = examples.inputs.shape[1:]
        seen = Featurizer(features_of(part), scaling, shape)(examples.inputs)
    recipe = recipes.with_defaults(
        recipes.parse(
            {
                "data": {"source": "cifar10" if photos else "digits"},
                "training": {
                    "method": "dp-fedavg",
                    "rounds": ROUNDS,
                    "sampling": "everyone",
                    "local_steps": 8,
                    "learning_rate": 8.0,
                },
                "server": {"average": "polynomial"},
                "privacy": {
                    "delta": DELTA,
                    "clip_norm": way / ROUNDS,
                    "noise_multiplier": noise_for(EPSILON, DELTA, ROUNDS, 100 / clients),
                },
            }
        )
    )
    halves = np.array_split(np.random.default_rng(0).permutation(len(seen)), 2)
    found = []
    for train, test in (halves, halves[::-1]):
        federation = Federation.from_arrays(
            seen[train],
            examples.targets[train],
            partition=partition,
            test=(seen[test], examples.targets[test]),
            task=Task.CLASSIFICATION,
            classes=10,
            public=True,
        )
        found.append(measured(recipe, 1, federation)["accuracy"])
    return float(np.mean(found))


def of_part(part: str, settings: Settings) -> Settings:
    """What a part's accuracy depends on."""
    return {key: settings[key] for key in sorted(PARTS[part])}


def key_of(part: str, settings: Settings) -> str:
    own = {"way": settings[f"{part}.way"], **of_part(part, settings)}
    return f"{part}: " + ", ".join(f"{key} {value:g}" for key, value in own.items())


class Trials:
    def score(self, epsilon: float, chosen: Settings) -> float:
        return float(np.mean([self.part(part, chosen) for part in PARTS]))

    def part(self, part: str, chosen: Settings) -> float:
        key = key_of(part, chosen)
        found = kept().get(NAME, {}).get("trials", {}).get(key)
        if found is None:
            found = accuracy(part, chosen[f"{part}.way"], of_part(part, chosen))
            keep(NAME, "trials", key, round(found, 5))
            print(key, f"{found:.4f}", flush=True)
        return float(found)


def main() -> None:
    found = searched(SEARCH, EPSILON, SEARCH.begin, Trials())
    keep(NAME, "chosen", f"{EPSILON:g}", found)
    print(found)


if __name__ == "__main__":
    main()
