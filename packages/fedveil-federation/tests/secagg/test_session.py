"""Frames between a device and the server carry stamps: what they are worth, and to whom."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from cryptography.exceptions import InvalidSignature
from tests.secagg.play import assemble, peek, small_vectors

from fedveil.privacy.secure_sums.errors import ForeignKey, Forged, OutOfTurn
from fedveil_federation.secagg import session, wire
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.messages import Masked, RoundPlan, Shares

VECTORS = small_vectors()


def test_a_stamp_holds_for_its_key_and_bytes_alone():
    stamp, other = session.Stamp(os.urandom(32)), session.Stamp(os.urandom(32))
    made = stamp.sign(b"data")
    stamp.verify(made, b"data")
    assert len(made) == 64
    for key, signature, data in (
        (other, made, b"data"),
        (stamp, made, b"Data"),
        (stamp, made[:-1] + bytes([made[-1] ^ 1]), b"data"),
        (stamp, bytes(64), b"data"),
        (stamp, b"", b"data"),
    ):
        with pytest.raises(InvalidSignature):
            key.verify(signature, data)
    assert stamp.digest(b"body") != other.digest(b"body")
    assert len({stamp.digest(bytes(size)) for size in range(40)}) == 40  # lengths count too
    assert stamp.key.hex() not in f"{stamp!r}"


def shared():
    cast = assemble(4)
    play = cast.play()
    play.share()
    return cast, play


def test_nobody_else_stamps_a_devices_frames_and_neither_direction_serves_for_the_other():
    _, play = shared()
    frame = play.rounds[10].mask(VECTORS(10))
    message = peek(frame, Masked)
    for key in (
        play.rounds[20]._session.up,
        play.rounds[10]._session.down,
        play.cast.devices[10].keys.identity,  # its own signature: not what this frame carries
        play.cast.server.key,
    ):
        with pytest.raises(Forged):
            play.server.receive(wire.seal(message, key))
    told = play.server.sharers_for(20)
    for rounds in (play.rounds[10], play.rounds[30]):
        with pytest.raises(OutOfTurn):
            rounds.take_sharers(told)
    play.server.receive(frame)


@pytest.mark.parametrize("weak", [bytes(32), (1).to_bytes(32, "little")])
def test_weak_keys_are_refused_and_cost_nothing(weak):
    # A point of small order gives a result that everybody knows.
    cast = assemble(4)
    play = cast.play()
    plan = peek(play.server.plan, RoundPlan)
    journal = cast.devices[10]._journal
    with pytest.raises(ForeignKey, match="weak X25519 key"):
        cast.devices[10].join(wire.seal(replace(plan, exchange=weak), cast.server.key))
    assert isinstance(journal, MemoryJournal)
    assert not journal._progress  # the round was not claimed
    play.rounds[10] = cast.devices[10].join(play.server.plan)
    message = replace(peek(play.rounds[10].shares, Shares), exchange=weak)
    with pytest.raises(ForeignKey, match="weak X25519 key"):
        play.server.receive(wire.seal(message, cast.devices[10].keys.identity))
    play.server.receive(play.rounds[10].shares)  # nothing was kept of the other one
