"""Federations of cases; the last few are kept, for many cases share one."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.data.federation import Federation
from fedveil.datasets import load
from reproduction.case import Data


@lru_cache(maxsize=2)
def federation_of(data: Data) -> Federation:
    """The federation that a case trains on. Who owns what is the same for every seed."""
    settings: dict[str, Any] = dict(data.settings)
    federation = load(data.source, data.partition, **settings)
    return _shuffled(federation) if data.shuffled else federation


def _shuffled(federation: Federation) -> Federation:
    """The same clients in a random order, drawn once and for all."""
    order = np.random.default_rng(0).permutation(federation.clients)
    starts, sizes = federation.offsets[:-1], federation.sizes
    rows = np.concatenate([np.arange(starts[c], starts[c] + sizes[c]) for c in order])
    return replace(
        federation,
        train=federation.train.take(rows),
        offsets=np.concatenate([[0], np.cumsum(sizes[order])]),
        owners=None if federation.owners is None else federation.owners[order],
    )
