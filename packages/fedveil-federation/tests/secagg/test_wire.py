"""The wire format takes what it wrote, and nothing else."""

from __future__ import annotations

import contextlib
import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy.secure_sums.errors import Forged, Malformed, SecureAggregationError
from fedveil_federation.secagg import messages, wire

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KINDS = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type)
    and issubclass(kind, wire.WireMessage)
    and kind is not wire.WireMessage
]
HASHES = (bytes(32), bytes(32), bytes(32))
PLAN = ("f", 2**32 - 1, "update", (1, 2, 2**63 - 1), *HASHES, 5, 32, 2, 2, 2, 3, b"", b"")
EXAMPLES = [
    messages.KeyCard("f", 1, 1, bytes(32), bytes(32)),
    messages.RoundPlan(*PLAN),
    messages.Shares(bytes(32), 0, bytes(32), bytes(64), bytes(16), b"", b"x", b"...", b""),
    messages.Sharers(bytes(32), 0, b"\1", b"", b"", b""),
    messages.Masked(bytes(32), 0, bytes(64), bytes(1000)),
    messages.Survivors(bytes(32), 0, b"\1", b""),
    messages.Confirm(bytes(32), 0, bytes(32), b""),
    messages.Confirmed(bytes(32), 0, b"\1", b""),
    messages.Unmask(bytes(32), 0, bytes(32), b"\0", b""),
    messages.Abort(bytes(32)),
]


def frame_of(kind: int, body: bytes, key: wire.Signer = KEY, like: bytes = bytes(114)) -> bytes:
    """Any body at all, properly signed; device and context as in the frame `like`."""
    claims = bytes((wire.VERSION, kind)) + like[6:46] + len(body).to_bytes(4, "little")
    signature = key.sign(wire._signed(claims, wire.covered(key, body)))
    return wire.MAGIC + claims + signature + body


def read(frame: bytes, kind: type[wire.WireMessage], limit: int = 10**6) -> wire.WireMessage:
    return wire.read(frame, kind, limit, KEY.public_key())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_messages_come_back_equal_and_verified(message):
    frame = wire.seal(message, KEY)
    assert read(frame, type(message), len(frame)) == message
    assert wire.head(frame[: wire.HEADER]).size == len(frame)
    with pytest.raises(Malformed, match="at most"):
        read(frame, type(message), len(frame) - 1)
    with pytest.raises(Forged):
        wire.read(frame, type(message), 10**6, Ed25519PrivateKey.generate().public_key())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_one_changed_bit_anywhere_is_malformed_or_forged(message):
    frame = wire.seal(message, KEY)
    for place in range(min(len(frame), 300)):
        changed = bytearray(frame)
        changed[place] ^= 1 << (place % 8)
        with pytest.raises((Malformed, Forged)):
            read(bytes(changed), type(message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_signed_body_cut_or_longer_is_malformed(message):
    _, body = wire.encoded(message)
    like = wire.seal(message, KEY)
    for wrong in [body[:size] for size in range(len(body))] + [body + b"\0", body + body + b"\1"]:
        with pytest.raises(Malformed):
            read(frame_of(message.KIND, wrong, like=like), type(message))


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


WRONG_IDS = {
    "none": number(0, 4),
    "too many": number(2**14 + 1, 4) + b"\1" + number(1) + b"\1" * 2**14,
    "standing still": number(3, 4) + b"\1" + number(1) + b"\1\0",
    "wider than needed": number(2, 4) + b"\2" + number(1) + number(9, 2),
    "a width of three": number(2, 4) + b"\3" + number(1) + number(9, 3),
    "cut": number(3, 4) + b"\1" + number(1) + b"\1",
    "beyond the last id": number(2, 4) + b"\1" + number(2**63 - 1) + b"\1",
    "around the corner": number(3, 4) + b"\x08" + number(1) + number(2**64 - 1) * 2,
}


@pytest.mark.parametrize("name", WRONG_IDS)
def test_ids_that_are_none_are_malformed(name):
    codec = wire.ids_field(2**14).metadata["codec"]
    with pytest.raises(Malformed, match="ids"):
        codec.take(wire.Reader(memoryview(WRONG_IDS[name])), "ids")


def test_fields_out_of_range_are_malformed():
    for codec, wrong in (
        (wire.int_field(2, 5), [number(1), number(6), number(2**64 - 1)]),
        (wire.text_field(4), [number(0, 4), number(5, 4) + b"abcde", number(2, 4) + b"\xff\xfe"]),
        (wire.bytes_field(), [number(2**32 - 1, 4) + b"x", number(2, 4) + b"x"]),
        (wire.bytes_field(3), [b"", b"ab"]),
    ):
        for body in wrong:
            with pytest.raises(Malformed, match="field"):
                codec.metadata["codec"].take(wire.Reader(memoryview(body)), "field")


def test_a_signature_counts_for_one_kind_device_round_and_length_only():
    # Survivors and Confirmed have the same fields; one must not pass for the other.
    survivors = messages.Survivors(bytes(32), 0, b"\1", b"")
    frame = bytearray(wire.seal(survivors, KEY))
    frame[5] = messages.Confirmed.KIND
    with pytest.raises(Forged):
        read(bytes(frame), messages.Confirmed)
    for place in (6, 13, 14, 45):
        frame = bytearray(wire.seal(survivors, KEY))
        frame[place] ^= 1
        with pytest.raises(Forged):
            read(bytes(frame), messages.Survivors)


@settings(max_examples=120, deadline=None)
@given(kind=st.sampled_from(KINDS), body=st.binary(max_size=300))
def test_arbitrary_bodies_are_malformed_or_valid_but_never_anything_else(kind, body):
    with contextlib.suppress(SecureAggregationError):
        read(frame_of(kind.KIND, body), kind)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_what_was_read_is_written_alike(message):
    # One message has one form, so a digest of the bytes is a digest of the message.
    rng = random.Random(1)
    _, body = wire.encoded(message)
    for _ in range(300):
        changed = bytearray(body)
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        frame = frame_of(message.KIND, bytes(changed))
        with contextlib.suppress(SecureAggregationError):
            assert wire.encoded(read(frame, type(message)))[1] == bytes(changed)
