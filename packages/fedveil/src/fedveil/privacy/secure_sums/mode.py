"""How sums are hidden from the server of a run on one machine."""

from __future__ import annotations

from enum import StrEnum


class SecureMode(StrEnum):
    """How a run on one machine hides single uploads from its server.

    `MASKED`: the protocol is carried out, with keys, shares and masks. `IDEAL`: the same integers,
    sums and refusals without the masks, which is faster. `NONE`: no secure sum.
    """

    MASKED = "masked"  # keys, shares and masks: every one is made and removed
    IDEAL = "ideal"  # what they achieve: the same integers, sums and refusals, without any mask
    NONE = "none"
