"""The messages of version 5, in the order of a round.

`plan` or `identity` is the 32 bytes in the frame's header, `device` the author or the addressee
there. Lists over a device's neighbours follow ascending ids. `present` is a bitmap over
the plan's members, other bitmaps run over a device's neighbours (bit i of the stream, lowest bit of
a byte first, for number i). From `Sharers` on frames carry a `Stamp` instead of a signature, except
`Abort`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.privacy.secure_sums.params import MAX_COHORT, MAX_DIMENSION
from fedveil_federation.secagg.ratchet import ROUNDS
from fedveil_federation.secagg.wire import (
    WireMessage,
    bytes_field,
    context_field,
    device_field,
    ids_field,
    int_field,
    text_field,
)


@dataclass(frozen=True)
class KeyCard(WireMessage):
    """Device to everybody, once: its keys of one version, signed by its identity."""

    KIND: ClassVar[int] = 1
    federation: str = text_field(128)
    device: int = device_field()
    version: int = int_field(1, (1 << 32) - 1)
    identity: bytes = context_field()  # Ed25519 public key
    agreement: bytes = bytes_field(32)  # X25519 public key


@dataclass(frozen=True)
class RoundPlan(WireMessage):
    """Server to the cohort: a round and everything fixed about it, signed by the server."""

    KIND: ClassVar[int] = 3
    federation: str = text_field(128)
    round_number: int = int_field(0, ROUNDS - 1)
    purpose: str = text_field(64)
    members: tuple[int, ...] = ids_field(MAX_COHORT)
    roster: bytes = bytes_field(32)  # digest of the members' key cards
    params: bytes = bytes_field(32)  # digest of the terms that both sides have agreed on
    exchange: bytes = bytes_field(32)  # the server's X25519 key, see `session.py`
    dimension: int = int_field(1, MAX_DIMENSION)
    bits: int = int_field(32, 64)
    degree: int = int_field(1, MAX_COHORT)  # neighbours that hold a device's shares
    masks: int = int_field(1, MAX_COHORT)  # how many of them, the nearest, it masks with
    threshold: int = int_field(1, MAX_COHORT)
    min_survivors: int = int_field(1, MAX_COHORT)
    privacy: bytes = bytes_field()  # what taking part costs (`PrivacyTerms`), or nothing
    graph: bytes = bytes_field()  # the seed of a sparse graph, 32 bytes; nothing for a complete one


@dataclass(frozen=True)
class Shares(WireMessage):
    """Device to server: what lets the others finish without it."""

    KIND: ClassVar[int] = 4
    plan: bytes = context_field()
    device: int = device_field()
    exchange: bytes = bytes_field(32)  # X25519 key of the frames that follow
    commitments: bytes = bytes_field(64)  # to the self secret and to the pair secret
    nonce: bytes = bytes_field(16)
    sealed: bytes = bytes_field()  # per neighbour: both shares, encrypted to it
    marks: bytes = bytes_field()  # per neighbour: fingerprints of both shares
    wrapped: bytes = bytes_field()  # per mask: the pair's root, under the pair secret
    roots: bytes = bytes_field()  # per mask: a fingerprint of the pair's root


@dataclass(frozen=True)
class Sharers(WireMessage):
    """Server to device: who has shared, and the shares meant for this device."""

    KIND: ClassVar[int] = 5
    plan: bytes = context_field()
    device: int = device_field()
    present: bytes = bytes_field()
    nonces: bytes = bytes_field()  # of each neighbour that has shared
    sealed: bytes = bytes_field()  # by those
    marks: bytes = bytes_field()  # what they say the shares are


@dataclass(frozen=True)
class Masked(WireMessage):
    """Device to server: the masked vector."""

    KIND: ClassVar[int] = 6
    plan: bytes = context_field()
    device: int = device_field()
    statement: bytes = bytes_field()  # for which sharers it masked, signed, or nothing
    vector: bytes = bytes_field()


@dataclass(frozen=True)
class Survivors(WireMessage):
    """Server to device: whose vectors the sum holds."""

    KIND: ClassVar[int] = 7
    plan: bytes = context_field()
    device: int = device_field()
    present: bytes = bytes_field()
    statements: bytes = bytes_field()  # of each surviving neighbour, or nothing


@dataclass(frozen=True)
class Confirm(WireMessage):
    """Device to server, for its neighbours: the one list of survivors it will act on."""

    KIND: ClassVar[int] = 8
    plan: bytes = context_field()
    device: int = device_field()
    survivors: bytes = bytes_field(32)
    tags: bytes = bytes_field()  # for each surviving neighbour


@dataclass(frozen=True)
class Confirmed(WireMessage):
    """Server to device: which neighbours act on the same list."""

    KIND: ClassVar[int] = 9
    plan: bytes = context_field()
    device: int = device_field()
    present: bytes = bytes_field()
    tags: bytes = bytes_field()  # from each neighbour that has confirmed


@dataclass(frozen=True)
class Unmask(WireMessage):
    """Device to server: one share for each neighbour whose shares it holds, of the kind owed."""

    KIND: ClassVar[int] = 10
    plan: bytes = context_field()
    device: int = device_field()
    survivors: bytes = bytes_field(32)  # the list it acts on
    bad: bytes = bytes_field()  # bitmap: neighbours that have shared, but nothing that fits
    answers: bytes = bytes_field()  # for each of the others: the share that is owed


@dataclass(frozen=True)
class Abort(WireMessage):
    """Server to the cohort: this round gives no sum."""

    KIND: ClassVar[int] = 16
    plan: bytes = context_field()
