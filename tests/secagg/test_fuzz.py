"""Whatever arrives: a typed error, nothing changed, no hang, and the exact sum afterwards."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil.secagg import wire
from fedveil.secagg.errors import NotReleased, SecureAggregationError
from tests.secagg.play import Play, assemble, plain_sum, small_vectors
from tests.secagg.test_wire import frame_of

VECTORS = small_vectors()
CORPUS = {
    name: bytes.fromhex(content)
    for name, content in json.loads(
        (Path(__file__).parent / "corpus" / "frames.json").read_text()
    ).items()
}


def attack(receive: Callable[[bytes], object], frames: list[bytes]) -> None:
    """Every frame must end in a typed error."""
    for frame in frames:
        with pytest.raises(SecureAggregationError):
            receive(frame)


def play_under_attack(spoil: Callable[[bytes], list[bytes]]) -> tuple[Play, np.ndarray]:
    """A round in which every genuine frame is preceded by spoiled ones."""
    cast = assemble(4, min_honest=2, max_dropout=0.25)
    play = cast.play()
    server = play.server
    for device in cast.ids:
        attack(cast.devices[device].join, spoil(server.plan))
        play.rounds[device] = cast.devices[device].join(server.plan)
        attack(server.receive, spoil(play.rounds[device].shares))
        play.send(play.rounds[device].shares)
    server.close_sharing()
    for device in cast.ids:
        frame = server.sharers_for(device)
        attack(play.rounds[device].take_sharers, spoil(frame))
        play.rounds[device].take_sharers(frame)
    for device in cast.ids[:3]:
        frame = play.rounds[device].mask(VECTORS(device))
        attack(server.receive, spoil(frame))
        play.send(frame)
    server.close_upload()
    for device in server.survivors:
        frame = server.survivors_for(device)
        attack(play.rounds[device].confirm, spoil(frame))
        reply = play.rounds[device].confirm(frame)
        attack(server.receive, spoil(reply))
        play.send(reply)
    server.close_confirmation()
    for device in server.confirmed:
        frame = server.confirmed_for(device)
        attack(play.rounds[device].unmask, spoil(frame))
        reply = play.rounds[device].unmask(frame)
        attack(server.receive, spoil(reply))
        play.send(reply)
    return play, server.finish()


def expect_exact(spoil: Callable[[bytes], list[bytes]]) -> None:
    play, total = play_under_attack(spoil)
    assert np.array_equal(total, plain_sum(VECTORS, play.server.survivors))


def test_the_corpus_changes_nothing():
    expect_exact(lambda _: list(CORPUS.values()))


def test_the_corpus_enrols_and_removes_nobody():
    cast = assemble(3)
    attack(cast.server.roster.admit, list(CORPUS.values()))
    attack(cast.server.roster.withdraw, list(CORPUS.values()))
    assert len(cast.server.roster) == 3


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_cut_grown_and_flipped_frames_change_nothing(seed):
    rng = random.Random(seed)

    def spoil(frame: bytes) -> list[bytes]:
        flipped = bytearray(frame)
        flipped[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        start = rng.randrange(len(frame))
        stretch = bytearray(frame)
        noise = rng.randbytes(rng.randint(1, 40))
        stretch[start : start + len(noise)] = noise
        return [
            bytes(flipped),
            frame[: rng.randrange(len(frame))],
            frame + rng.randbytes(rng.randint(1, 50)),
            frame[:start] + rng.randbytes(1) + frame[start:],
            bytes(stretch) if bytes(stretch) != frame else frame[:-1],
            frame * 2,
            frame + bytes(10**6),
        ]

    expect_exact(spoil)


def test_frames_of_other_kinds_and_rounds_change_nothing():
    old, _ = play_under_attack(lambda _: [])
    plan = old.server.plan
    sent = [*old.frames, plan]
    rng = random.Random(3)
    expect_exact(lambda frame: [f for f in rng.sample(sent, 6) if f[5] != frame[5]])


# A refused frame, or a refusing device, is a loss, as for a real server.
REFUSED_OR_REFUSING = contextlib.suppress(SecureAggregationError)


# --- members that sign nonsense -------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=80)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(data=st.data())
def test_signed_nonsense_of_a_member_never_yields_a_wrong_sum(data):
    # One member's frame of a random leg has one field replaced, and is signed properly.
    cast = assemble(4, min_honest=2, max_dropout=0.25)
    play = cast.play()
    culprit = data.draw(st.sampled_from(cast.ids))
    leg = data.draw(st.sampled_from([4, 6, 8, 10]))
    rng = random.Random(data.draw(st.integers(0, 2**32)))

    def send(sender: int, frame: bytes) -> None:
        if frame[5] == leg and sender == culprit:
            fields = msgpack.unpackb(frame[wire.HEADER :])
            place = data.draw(st.integers(0, len(fields) - (2 if leg == 6 else 1)))
            old = fields[place]
            if isinstance(old, bytes) and old and rng.random() < 0.5:
                flipped = bytearray(old)
                flipped[rng.randrange(len(old))] ^= 1 << rng.randrange(8)
                fields[place] = bytes(flipped)
            else:
                fields[place] = data.draw(VALUES)
            body = msgpack.packb(fields)
            frame = frame_of(leg, body, cast.devices[culprit].keys.identity)
        play.send(frame)

    try:
        for sender in cast.ids:
            play.rounds[sender] = cast.devices[sender].join(play.server.plan)
            with REFUSED_OR_REFUSING:
                send(sender, play.rounds[sender].shares)
        play.server.close_sharing()
        for device in play.server.sharers:
            frame = play.server.sharers_for(device)
            with REFUSED_OR_REFUSING:
                play.rounds[device].take_sharers(frame)
        for sender in play.server.sharers:
            with REFUSED_OR_REFUSING:
                send(sender, play.rounds[sender].mask(VECTORS(sender)))
        play.server.close_upload()
        for sender in play.server.survivors:
            frame = play.server.survivors_for(sender)
            with REFUSED_OR_REFUSING:
                send(sender, play.rounds[sender].confirm(frame))
        play.server.close_confirmation()
        for sender in play.server.confirmed:
            frame = play.server.confirmed_for(sender)
            with REFUSED_OR_REFUSING:
                send(sender, play.rounds[sender].unmask(frame))
        total = play.server.finish()
    except NotReleased:
        return
    assert np.array_equal(total, plain_sum(VECTORS, play.server.survivors))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_signed_nonsense_of_the_server_makes_a_device_refuse(data):
    cast = assemble(3)
    plan = cast.play().server.plan
    fields = msgpack.unpackb(plan[wire.HEADER :])
    place = data.draw(st.integers(0, len(fields) - 1))
    fields[place] = data.draw(VALUES)
    frame = frame_of(3, msgpack.packb(fields), cast.server.key)
    try:
        cast.devices[10].join(frame)
    except SecureAggregationError:
        return
    # What was accepted is a plan this device could have been sent: only free fields differ.
    assert place in (1, 2, 5, 9) or fields == msgpack.unpackb(plan[wire.HEADER :])
