"""Whatever arrives: a typed error, nothing changed, no hang, and the exact sum afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.secagg.play import KINDS, Play, assemble, plain_sum, small_vectors
from tests.secagg.test_wire import frame_of

from fedveil.privacy.secure_sums.errors import NotReleased, SecureAggregationError
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.messages import RoundPlan

VECTORS = small_vectors()
CORPUS = {
    f"{path.stem}: {name}": bytes.fromhex(content)
    for path in sorted((Path(__file__).parent / "corpus").glob("*.json"))
    for name, content in json.loads(path.read_text()).items()
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


def test_the_corpus_enrols_nobody():
    cast = assemble(3)
    attack(cast.server.roster.admit, list(CORPUS.values()))
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


def spoiled(frame: bytes, kind: type[wire.WireMessage], rng: random.Random) -> bytes:
    """The body of a frame with one field changed: flipped, cut, grown or replaced."""
    message = wire.parse(frame, kind)
    names = [
        spec.name
        for spec in dataclasses.fields(message)
        if spec.metadata["codec"] not in (wire.DEVICE, wire.CONTEXT) and spec.name != "vector"
    ]
    name = rng.choice(names)
    old = getattr(message, name)
    codec = dataclasses.fields(message)[
        [spec.name for spec in dataclasses.fields(message)].index(name)
    ].metadata["codec"]
    packed = codec.pack(old)
    changed = bytearray(packed)
    way = rng.randrange(4)
    if way == 0 and changed:
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif way == 1:
        changed = bytearray(rng.randbytes(rng.randint(0, 80)))
    elif way == 2 and isinstance(old, bytes):
        changed = bytearray(codec.pack(rng.randbytes(len(old))))
    else:
        changed = bytearray(packed[: rng.randrange(len(packed) + 1)])
    _, body = wire.encoded(message)
    before = body.index(packed) if packed else 0
    return body[:before] + bytes(changed) + body[before + len(packed) :]


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
            body = spoiled(frame, KINDS[leg], rng)
            frame = frame_of(leg, body, play.signer(culprit, leg), frame)
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


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_signed_nonsense_of_the_server_makes_a_device_refuse(seed):
    cast = assemble(3)
    plan = cast.play().server.plan
    body = spoiled(plan, RoundPlan, random.Random(seed))
    frame = frame_of(3, body, cast.server.key)
    try:
        cast.devices[10].join(frame)
    except SecureAggregationError:
        return
    # What was accepted is a plan this device could have been sent: only free fields differ.
    old, new = wire.parse(plan, RoundPlan), wire.parse(frame, RoundPlan)
    free = {"round_number", "purpose", "dimension", "bits", "min_survivors", "threshold"}
    free |= {"exchange"}  # another key, and no frame of the session would hold
    differing = {n for n in vars(old) if getattr(old, n) != getattr(new, n)}
    assert differing <= free
    assert new.threshold >= old.threshold


def test_the_long_fuzzer_finds_nothing_in_a_short_run():
    from tests.secagg.fuzz import run  # imports this module

    seen = run(frames=1500, rounds=12, seed=7)
    assert seen["rounds"] >= 12
    assert seen["frames"] >= 1500
    assert seen["released"] >= 3
