"""Class names that are bought, with the program's own noise: how often one unit's are published.

The other checks couple the noise of two worlds, and what is published follows from exact formulas
there. Here nothing is replaced: a unit with names that nobody else has buys many times.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from scipy.stats import beta

from fedveil.core.units import Trust, Unit
from fedveil.data.dp_schema import Offer, buy

ALARM = 1e-6  # the probability with which a correct program is taken for a wrong one
_FAILURE, _PURCHASES = 0.1, 250


def publication_rate(values: int) -> tuple[float, float]:
    """How often a name of one unit with so many of its own came out, at least, and how often it
    may: an exact lower bound (Clopper and Pearson 1934) that is too high with probability ALARM."""
    others = ["yes", "no"] * 60
    labels = pa.chunked_array([[*others, *(f"own {number:03d}" for number in range(values))]])
    owners = np.array([*range(len(others)), *[len(others)] * values])
    published = 0
    for seed in range(_PURCHASES):
        offer = Offer(Unit.CLIENT, Trust.CENTRAL, 5.0, _FAILURE, seed=seed)
        columns = buy({"y": labels}, "y", owners, offer, ".").columns
        names = columns["y"].categories if "y" in columns else ()
        published += any(name.startswith("own") for name in names)
    least = beta.ppf(ALARM, published, _PURCHASES - published + 1) if published else 0.0
    return float(least), _FAILURE
