"""The courier inside one process keeps the contract; envelopes are read strictly."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.deploy.courier import Courier, MemoryCourier
from fedveil.deploy.envelope import BadFrame, Message, seal, unseal
from tests.deploy.courier_suite import CourierSuite


class TestMemoryCourier(CourierSuite):
    def make(self) -> Courier:
        return MemoryCourier()


KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()


def test_a_message_comes_out_as_it_went_in() -> None:
    message = Message({"kind": "open", "round": 3}, (b"", b"\x00\xff", b"x" * 1000))
    assert unseal(seal(message, KEY), [PUBLIC]) == message
    assert unseal(seal(message, KEY, b"request"), [PUBLIC], b"request") == message


def test_every_changed_byte_is_noticed() -> None:
    frame = seal(Message({"kind": "open"}, (b"abc",)), KEY)
    for at in range(len(frame)):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        with pytest.raises(BadFrame):
            unseal(changed, [PUBLIC])
    for end in range(len(frame)):
        with pytest.raises(BadFrame):
            unseal(frame[:end], [PUBLIC])


def test_a_reply_answers_one_request_and_is_no_request() -> None:
    frame = seal(Message({"status": "done"}), KEY, b"request")
    for other in (b"", b"another request"):
        with pytest.raises(BadFrame, match="not signed"):
            unseal(frame, [PUBLIC], other)


def test_strangers_and_giants_are_refused() -> None:
    frame = seal(Message({"kind": "hello"}), KEY)
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(BadFrame, match="not signed"):
        unseal(frame, [stranger])
    with pytest.raises(BadFrame, match="at most 10"):
        unseal(frame, [PUBLIC], most=10)
