"""Bugs to be found: a detector that nobody saw detect is no detector.

Each is a context that puts one mistake into the program: some were there once, the others are of
the same kinds. `plant` says within how many pairs of the cases that it can concern, from case 0 on,
the search must find it: about four times as many as it took when this was written.
"""

from . import (  # noqa: F401
    bought,
    coins,
    doors,
    isolation,
    noise,
    outside,
    parts,
    persons,
    sensitivity,
)
from .registry import AMONG, MOST, NEAR, PLANTED, WHERE

__all__ = ["AMONG", "MOST", "NEAR", "PLANTED", "WHERE"]
