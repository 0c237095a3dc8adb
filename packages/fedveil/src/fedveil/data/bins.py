"""Numbers cut into bins: how many, and where.

A linear model on bins follows any curve of a single number, and every record has the same length
whatever its values, so that little or nothing has to be clipped. Cut points come from what is
public about a column, or from noisy votes that were bought; the label is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedveil.data.schema import Column, Kind

FEWEST, MOST = 4, 32
# Bins of all columns together grow with the units' signal beside the noise to this power. Chosen
# on the tables CHOSEN_ON of benchmarks/own_data_peers.py.
_GROWTH, _UNITS = 2 / 3, 6.0

Floats = npt.NDArray[np.float64]


def bins_for(units: int, columns: int, noise_multiplier: float) -> int:
    """Return how many bins a number is cut into.

    Args:
        units: How many protected units (records or clients) there are; public.
        columns: How many columns are inputs.
        noise_multiplier: Noise on a sum / sensitivity of one unit that the whole budget buys.
    """
    together = (units / (_UNITS * noise_multiplier)) ** _GROWTH
    return int(np.clip(round(together / max(1, columns)), FEWEST, MOST))


def with_cuts(columns: Mapping[str, Column], bins: int) -> dict[str, Column]:
    """Return the columns with numbers and dates cut where their public description suggests.

    Cuts are equally spaced between `min` and `max`, or at the quantiles of a normal distribution
    with this `mean` and `std`. Columns that have cut points keep them.
    """
    from scipy.special import ndtri  # 20 MB, which a site that only reads its rows does without

    found = dict(columns)
    for name, column in columns.items():
        if column.kind not in (Kind.NUMBER, Kind.DATE) or column.cuts:
            continue
        if column.min is not None and column.max is not None:
            cuts = np.linspace(column.min, column.max, bins + 1)[1:-1]
        else:
            cuts = column.centre + column.width * ndtri(np.arange(1, bins) / bins)
        found[name] = replace(column, cuts=tuple(cuts.tolist()), missing=True)
    return found


def cuts_at_quantiles(edges: Floats, masses: Floats, bins: int) -> tuple[float, ...]:
    """Return about `bins - 1` of the inner edges, with about the same mass between any two.

    A cell with more than its share, as the zeros of a column that is mostly zero, becomes a bin of
    its own, and the others share the rest.

    Args:
        edges: Increasing edges of cells, `[cells + 1]`.
        masses: Not negative, `[cells]`.
        bins: How many bins to make.
    """
    heavy = masses >= masses.sum() / bins
    rest = masses[~heavy].sum() / max(1, bins - int(heavy.sum()))
    cuts, held = list[float](), 0.0
    for cell in range(len(masses) - 1):
        held += masses[cell]
        full = heavy[cell] or (heavy[cell + 1] and held > 0) or held >= rest
        if full and held > 0:
            cuts.append(float(edges[cell + 1]))
            held = 0.0
    return tuple(cuts)
