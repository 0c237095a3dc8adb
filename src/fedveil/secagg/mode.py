"""How a simulated secure sum is carried out."""

from __future__ import annotations

from enum import Enum


class Mode(Enum):
    FULL = "full"  # keys, shares and masks
    MODELLED = "modelled"  # their effect alone: the same integers under the same conditions
