"""How long a frame can be at most, known before a byte of its body is read."""

from __future__ import annotations

from fedveil.privacy.secure_sums.derive import KEY_BYTES, TAG_BYTES
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.draw import DRAW_BYTES
from fedveil_federation.secagg.merkle import HASH_BYTES
from fedveil_federation.secagg.messages import (
    Cards,
    Commitments,
    Confirm,
    Confirmed,
    Invitation,
    Masked,
    RoundPlan,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.pairs import MARK_BYTES, NONCE_BYTES, PRINT_BYTES, SEALED_BYTES
from fedveil_federation.secagg.privacy_terms import MAX_BYTES
from fedveil_federation.secagg.roster import CARD_LIMIT
from fedveil_federation.secagg.shares import SHARE_BYTES

SLACK = 768  # bytes of a frame besides its lists
DEALT_BYTES = SEALED_BYTES + MARK_BYTES + PRINT_BYTES  # per neighbour
MASK_BYTES = KEY_BYTES + PRINT_BYTES  # per neighbour that it masks with
STATEMENT_BYTES = 64

_PER_NEIGHBOUR: dict[type[wire.WireMessage], int] = {
    Shares: DEALT_BYTES + MASK_BYTES,
    Sharers: NONCE_BYTES + SEALED_BYTES + MARK_BYTES + 1,
    Masked: TAG_BYTES,
    Survivors: TAG_BYTES + 8 + STATEMENT_BYTES,
    Confirm: TAG_BYTES,
    Confirmed: TAG_BYTES,
    Unmask: SHARE_BYTES + 1,
}


def from_server(kind: type[wire.WireMessage], members: int, degree: int) -> int:
    """The longest frame of a round that a server can send to a device."""
    return SLACK + members // 8 + _PER_NEIGHBOUR[kind] * degree


def from_device(kind: type[wire.WireMessage], degree: int, vector: int) -> int:
    """The longest frame of a round that a device can send; `vector` in bytes."""
    return SLACK + _PER_NEIGHBOUR[kind] * degree + (vector if kind is Masked else 0)


def opening(kind: type[wire.WireMessage], members: int, degree: int, drawers: int) -> int:
    """The longest frame that opens a round."""
    if kind is Cards:
        levels = max(1, members - 1).bit_length()
        return SLACK + (1 + degree + drawers) * (CARD_LIMIT + levels * HASH_BYTES)
    per_drawer = {RoundPlan: 8 + DRAW_BYTES, Commitments: 8 + KEY_BYTES, Invitation: 0}[kind]
    return SLACK + MAX_BYTES + 8 * members + per_drawer * drawers
