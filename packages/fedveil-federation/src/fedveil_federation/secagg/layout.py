"""The round as both sides compute it: what follows from a plan, how lists are packed, how long a
frame can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import KEY_BYTES, TAG_BYTES
from fedveil.privacy.secure_sums.errors import Malformed
from fedveil.privacy.secure_sums.graph import Graph, round_graph
from fedveil_federation.secagg.messages import (
    Abort,
    Confirm,
    Confirmed,
    Masked,
    RoundPlan,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.pairs import MARK_BYTES, NONCE_BYTES, PRINT_BYTES, SEALED_BYTES
from fedveil_federation.secagg.privacy_terms import MAX_BYTES
from fedveil_federation.secagg.shares import SHARE_BYTES
from fedveil_federation.secagg.wire import WireMessage

Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

SEED_BYTES = 32  # of a sparse graph
STATEMENT_BYTES = 64
_SLACK = 768  # bytes of a frame besides its lists
_PER_NEIGHBOUR: dict[type[WireMessage], int] = {
    Shares: SEALED_BYTES + MARK_BYTES + KEY_BYTES + PRINT_BYTES,
    Sharers: NONCE_BYTES + SEALED_BYTES + MARK_BYTES,
    Survivors: STATEMENT_BYTES,
    Confirm: TAG_BYTES,
    Confirmed: TAG_BYTES,
    Unmask: SHARE_BYTES + 1,
    Masked: 0,
    Abort: 0,
}


@dataclass(frozen=True)
class RoundLayout:
    """A plan with its digest and its graph."""

    plan: RoundPlan
    digest: bytes
    graph: Graph

    def present(self, bitmap: bytes) -> Flags:
        """By member, whether its bit is set; `Malformed` unless there is one for each member."""
        return unpacked(bitmap, len(self.plan.members), "present")

    def statement(self, device: int, sharers: bytes) -> bytes:
        """Return the statement that a device signs with its upload: for which sharers it masked."""
        return derive.digest(b"statement", self.digest, derive.id_bytes(device), sharers)

    def survivors_digest(self, sharers: bytes, survivors: bytes) -> bytes:
        """Binds both bitmaps: devices that agree on it agree on everything so far."""
        return derive.digest(b"survivors", self.digest, sharers, survivors)


def lay_out(plan: RoundPlan, digest: bytes) -> RoundLayout:
    """Lay out a round whose degree is possible for its cohort.

    Args:
        plan: The plan.
        digest: The digest of its frame.

    Returns:
        The plan with its graph.

    Raises:
        Malformed: A sparse graph has no seed, or a complete one has.
    """
    if len(plan.graph) != (0 if plan.degree == len(plan.members) - 1 else SEED_BYTES):
        raise Malformed(f"RoundPlan.graph: a sparse graph has {SEED_BYTES} bytes, others none")
    return RoundLayout(plan, digest, round_graph(plan.members, plan.degree, plan.graph, plan.masks))


def longest(kind: type[WireMessage], members: int, degree: int, vector: int = 0) -> int:
    """Bound the length of a frame before a byte of its body is read.

    Args:
        kind: The message.
        members: The cohort's size.
        degree: The neighbours of each device.
        vector: The bytes of a masked vector; only a `Masked` has one.

    Returns:
        The longest frame of that kind that can be right, in bytes.
    """
    if kind is RoundPlan:
        return _SLACK + MAX_BYTES + 8 * members
    bitmap = members // 8
    return _SLACK + bitmap + _PER_NEIGHBOUR[kind] * degree + (vector if kind is Masked else 0)


def packed(flags: Flags) -> bytes:
    """Return flags as a bitmap, lowest bit of a byte first."""
    return np.packbits(flags, bitorder="little").tobytes()


def unpacked(bitmap: bytes, count: int, name: str) -> Flags:
    """Return a bitmap of `count` places as flags; `Malformed` if it has another length."""
    if len(bitmap) != (count + 7) // 8:
        raise Malformed(f"{name}: {len(bitmap)} bytes for {count} flags")
    flags = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if flags[count:].any():
        raise Malformed(f"{name}: a bit beyond the last one is set")
    return flags[:count].view(np.bool_)


def piece(joined: bytes, size: int, place: int) -> bytes:
    """Return the piece at a place of a packed list."""
    return joined[place * size : (place + 1) * size]


def rows(joined: bytes, size: int, count: int, name: str) -> Bytes:
    """Return a packed list as uint8 [count, size]; `Malformed` if it has another length."""
    if len(joined) != size * count:
        raise Malformed(f"{name}: {len(joined)} bytes, need {size} for each of {count}")
    return np.frombuffer(joined, dtype=np.uint8).reshape(count, size)
