"""The experiments by name."""

from __future__ import annotations

from difflib import get_close_matches

from fedveil.errors import BadInput
from fedveil.experiments.experiment import Experiment
from fedveil.experiments.pages import fu_lending, hu_adult, liang_mnist

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for page in (liang_mnist, fu_lending, hu_adult)
    for experiment in page.EXPERIMENTS
}


def find(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        near = get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see fedveil reproduce list"
        raise BadInput(f"experiment {name!r} is unknown: {hint}")
    return EXPERIMENTS[name]
