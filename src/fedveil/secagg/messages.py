"""The messages of version 1, in the order of a round.

Lists over a device's neighbours follow ascending ids; `Sharers`, `Survivors` and `Confirmed` carry
a bitmap over the plan's members (bit i of the stream, lowest bit of a byte first, for member i).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.secagg.terms import MAX_COHORT
from fedveil.secagg.wire import MAX_ID, Message, bytes_field, ids_field, int_field, text_field

MAX_DIMENSION = 1 << 28  # a vector of 64-bit words still fits one msgpack field


@dataclass(frozen=True)
class KeyCard(Message):
    """Device to everybody, once: its keys of one version, signed by its identity."""

    KIND: ClassVar[int] = 1
    federation: str = text_field(128)
    device: int = int_field(0, MAX_ID)
    version: int = int_field(1, (1 << 32) - 1)
    identity: bytes = bytes_field(32)  # Ed25519 public key
    agreement: bytes = bytes_field(32)  # X25519 public key
    certificate: bytes = bytes_field()  # the authority's signature, or empty


@dataclass(frozen=True)
class Leave(Message):
    """Device to everybody: every key up to this version is withdrawn."""

    KIND: ClassVar[int] = 2
    federation: str = text_field(128)
    device: int = int_field(0, MAX_ID)
    version: int = int_field(1, (1 << 32) - 1)


@dataclass(frozen=True)
class Plan(Message):
    """Server to the cohort: a round and everything fixed about it, signed by the server."""

    KIND: ClassVar[int] = 3
    federation: str = text_field(128)
    round: int = int_field(0, (1 << 62) - 1)
    purpose: str = text_field(64)
    members: tuple[int, ...] = ids_field(MAX_COHORT)
    roster: bytes = bytes_field(32)  # digest of the members' key cards
    dimension: int = int_field(1, MAX_DIMENSION)
    bits: int = int_field(32, 64)
    degree: int = int_field(1, MAX_COHORT)
    threshold: int = int_field(1, MAX_COHORT)
    min_survivors: int = int_field(1, MAX_COHORT)


@dataclass(frozen=True)
class Shares(Message):
    """Device to server: what lets the others finish without it."""

    KIND: ClassVar[int] = 4
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    commitments: bytes = bytes_field(64)  # to the self secret and to the pair secret
    sealed: bytes = bytes_field()  # per neighbour: both shares, encrypted to it
    wrapped: bytes = bytes_field()  # per neighbour: the pair's root, under the pair secret
    checks: bytes = bytes_field()  # per neighbour: a fingerprint of that root


@dataclass(frozen=True)
class Sharers(Message):
    """Server to device: who has shared, and the shares meant for this device."""

    KIND: ClassVar[int] = 5
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    present: bytes = bytes_field()
    sealed: bytes = bytes_field()  # from each neighbour that has shared


@dataclass(frozen=True)
class Masked(Message):
    """Device to server: the masked vector."""

    KIND: ClassVar[int] = 6
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    tags: bytes = bytes_field()  # for each neighbour that has shared: whom this mask counts on
    vector: bytes = bytes_field()


@dataclass(frozen=True)
class Survivors(Message):
    """Server to device: whose vectors the sum holds."""

    KIND: ClassVar[int] = 7
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    present: bytes = bytes_field()
    tags: bytes = bytes_field()  # from each surviving neighbour


@dataclass(frozen=True)
class Confirm(Message):
    """Device to server, for its neighbours: the one list of survivors it will act on."""

    KIND: ClassVar[int] = 8
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    survivors: bytes = bytes_field(32)
    tags: bytes = bytes_field()  # for each surviving neighbour


@dataclass(frozen=True)
class Confirmed(Message):
    """Server to device: which neighbours act on the same list."""

    KIND: ClassVar[int] = 9
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    present: bytes = bytes_field()
    tags: bytes = bytes_field()  # from each neighbour that has confirmed


@dataclass(frozen=True)
class Unmask(Message):
    """Device to server: one share for each neighbour that had shared, of the kind it is owed."""

    KIND: ClassVar[int] = 10
    plan: bytes = bytes_field(32)
    device: int = int_field(0, MAX_ID)
    shares: bytes = bytes_field()
