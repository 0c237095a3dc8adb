"""The experiments by name."""

from __future__ import annotations

from difflib import get_close_matches

from fedveil.core.errors import ConfigError
from reproduction.experiment import Experiment
from reproduction.pages import (
    cheng_images,
    cheng_own_size,
    fu_femnist,
    fu_lending_figures,
    hu_figures,
    hu_readings,
    liang_control,
    liang_demonstration,
    liang_mnist,
    liang_networks,
)

_PAGES = (
    *(fu_lending_figures, fu_femnist, hu_figures, hu_readings),
    *(liang_demonstration, liang_mnist, liang_control, liang_networks),
    *(cheng_images, cheng_own_size),
)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for page in _PAGES for experiment in page.EXPERIMENTS
}


def find(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        near = get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see fedveil reproduce list"
        raise ConfigError(f"experiment {name!r} is unknown: {hint}")
    return EXPERIMENTS[name]
