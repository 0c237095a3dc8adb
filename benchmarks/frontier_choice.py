"""Would the best recipes' clips be chosen without the test examples?

    python -m benchmarks.frontier_choice mnist-epsilon-1 femnist-epsilon-2

A fifth of the training clients is held out and stands for the test examples; the others train with
the recipe's clip, half of it and twice. The clip is what recipes vary with epsilon: with rounds and
rates as they are it is the length of the way, to which noise is proportional. What was found stands
in results/frontier-choice.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import numpy as np

from benchmarks.frontier import RESULTS, jobs, measured
from fedveil.config.assemble import federation_of
from fedveil.data.assignment import offsets_of
from fedveil.data.federation import Federation

FILE = RESULTS / "frontier-choice.json"
FACTORS = (0.5, 1.0, 2.0)
SEED = 1


def held_out(federation: Federation) -> Federation:
    """Four fifths of the clients; the examples of the others are the test part."""
    order = np.random.default_rng(SEED).permutation(federation.clients)
    kept, out = np.split(order, [federation.clients * 4 // 5])
    kept.sort()

    def rows(clients: np.ndarray) -> np.ndarray:
        spans = [np.arange(*federation.offsets[i : i + 2]) for i in clients]
        return np.concatenate(spans)

    return replace(
        federation,
        train=federation.train.take(rows(kept)),
        test=federation.train.take(rows(out)),
        offsets=offsets_of(federation.sizes[kept]),
        owners=None if federation.owners is None else federation.owners[kept],
        verified=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="+")
    for name in parser.parse_args().recipes:
        recipe = dict(jobs(""))[f"best/{name}"]
        federation, clip = held_out(federation_of(recipe.data)), recipe.privacy.clip_norm
        found = {}
        for factor in FACTORS if clip is not None else ():
            tried = replace(recipe, privacy=replace(recipe.privacy, clip_norm=factor * clip))
            run = measured(tried, SEED, federation)
            found[f"{factor * clip:g}"] = run.get("accuracy", run["loss"])
        every = json.loads(FILE.read_text()) if FILE.exists() else {}
        every[name] = {"own": f"{clip:g}", "held out": found}
        FILE.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")
        print(name, every[name], flush=True)


if __name__ == "__main__":
    main()
