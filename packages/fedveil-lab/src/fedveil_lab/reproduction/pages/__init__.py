"""The experiments by name, as `PAPER.toml` describes them."""

from __future__ import annotations

from difflib import get_close_matches

from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.experiment import Experiment, read_pages

EXPERIMENTS: dict[str, Experiment] = {
    page.name: page for paper in ("fu", "hu", "liang", "cheng") for page in read_pages(paper)
}


def find(name: str) -> Experiment:
    """Return the experiment of a name.

    Raises:
        ConfigError: No experiment has the name; the message proposes the nearest one.
    """
    if name not in EXPERIMENTS:
        near = get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see fedveil reproduce list"
        raise ConfigError(f"experiment {name!r} is unknown: {hint}")
    return EXPERIMENTS[name]
