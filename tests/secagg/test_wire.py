"""The wire format takes what it wrote, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.secagg import messages, wire
from fedveil.secagg.errors import Forged, Malformed, SecureAggregationError

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KINDS = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, wire.Message) and kind is not wire.Message
]
EXAMPLES = [
    messages.KeyCard("f", 1, 1, bytes(32), bytes(32), b""),
    messages.Leave("f", 2**63 - 1, 2**32 - 1),
    messages.Plan("f", 2**62 - 1, "update", (1, 2, 2**63 - 1), bytes(32), 5, 32, 2, 2, 3),
    messages.Shares(bytes(32), 0, bytes(64), b"", b"x", b"yz"),
    messages.Sharers(bytes(32), 0, b"\1", b""),
    messages.Masked(bytes(32), 0, b"", bytes(1000)),
    messages.Survivors(bytes(32), 0, b"\1", b""),
    messages.Confirm(bytes(32), 0, bytes(32), b""),
    messages.Confirmed(bytes(32), 0, b"\1", b""),
    messages.Unmask(bytes(32), 0, b""),
]


def frame_of(kind: int, body: bytes, key: Ed25519PrivateKey = KEY) -> bytes:
    """Any body at all, properly signed."""
    signature = key.sign(wire._signed(kind, hashlib.sha256(body).digest()))
    return wire.MAGIC + bytes((wire.VERSION, kind)) + signature + body


def test_every_kind_has_an_example_and_its_own_number():
    assert {type(e) for e in EXAMPLES} == set(KINDS)
    assert sorted(kind.KIND for kind in KINDS) == list(range(1, 11))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_messages_come_back_equal_and_verified(message):
    frame = wire.seal(message, KEY)
    assert wire.read(frame, type(message), len(frame)) == message
    wire.verify(frame, KEY.public_key())
    with pytest.raises(Malformed, match="at most"):
        wire.read(frame, type(message), len(frame) - 1)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_one_changed_bit_anywhere_is_malformed_or_forged(message):
    frame = wire.seal(message, KEY)
    for place in range(min(len(frame), 200)):
        changed = bytearray(frame)
        changed[place] ^= 1 << (place % 8)
        with pytest.raises((Malformed, Forged)):
            _open(bytes(changed), type(message))


def _open(frame: bytes, kind: type[wire.Message]) -> None:
    wire.read(frame, kind, 10**6)
    wire.verify(frame, KEY.public_key())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_cut_or_longer_frame_is_malformed(message):
    frame = wire.seal(message, KEY)
    for size in [*range(0, 75), len(frame) - 1]:
        with pytest.raises(Malformed):
            wire.read(frame[:size], type(message), 10**6)
    for extra in (b"\0", b"\xc0", frame):
        with pytest.raises(Malformed):
            wire.read(frame + extra, type(message), 10**6)


WRONG = {
    "str": [b"f", 1, None, "", "x" * 129, ["f"]],
    "int": ["1", b"1", None, True, -1, 2**63, 1.0, [1]],
    "bytes": ["text", 1, None, [1, 2]],
    "tuple[int, ...]": [[], [1, 1], [2, 1], [-1, 2], [True, 2], [1, "2"], 5, list(range(20000))],
}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_field_refuses_wrong_types_and_ranges(message):
    specs = dataclasses.fields(message)
    values = [getattr(message, spec.name) for spec in specs]
    for place, spec in enumerate(specs):
        for wrong in WRONG[spec.type]:
            body = msgpack.packb([*values[:place], wrong, *values[place + 1 :]])
            with pytest.raises(Malformed, match=spec.name):
                wire.read(frame_of(message.KIND, body), type(message), 10**6)
    for body in (values[:-1], [*values, 0], {"a": 1}, 7):
        with pytest.raises(Malformed, match="need a list of"):
            wire.read(frame_of(message.KIND, msgpack.packb(body)), type(message), 10**6)


def test_fields_of_fixed_size_refuse_any_other():
    for size in (0, 31, 33):
        body = msgpack.packb([bytes(size), 0, b""])
        with pytest.raises(Malformed, match="plan: need 32 bytes"):
            wire.read(frame_of(10, body), messages.Unmask, 10**6)


def test_a_signature_counts_for_one_kind_only():
    # Survivors and Confirmed have the same fields; one must not pass for the other.
    survivors = messages.Survivors(bytes(32), 0, b"\1", b"")
    frame = bytearray(wire.seal(survivors, KEY))
    frame[5] = messages.Confirmed.KIND
    with pytest.raises(Forged):
        _open(bytes(frame), messages.Confirmed)


def test_the_version_is_named_when_it_is_not_ours():
    frame = bytearray(wire.seal(EXAMPLES[0], KEY))
    frame[4] = 2
    with pytest.raises(Malformed, match="version 2"):
        wire.read(bytes(frame), messages.KeyCard, 10**6)


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(KINDS), body=st.binary(max_size=300))
def test_arbitrary_bodies_are_malformed_or_valid_but_never_anything_else(kind, body):
    with contextlib.suppress(SecureAggregationError):
        wire.read(frame_of(kind.KIND, body or b"\0"), kind, 10**6)


@pytest.mark.parametrize("frame", [None, 5, "FVSA", bytearray(100), memoryview(bytes(100)), [1]])
def test_what_is_not_bytes_is_malformed(frame):
    with pytest.raises(Malformed):
        wire.read(frame, messages.Plan, 10**6)
