"""Frames in chunks arrive whole, within a fixed memory, whatever else is sent."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.secagg.play import assemble, plain_sum, small_vectors

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import Forged, Malformed, OutOfTurn, SecureAggregationError
from fedveil_federation.secagg.chunks import Assembler, chunks

DIMENSION = 3000
VECTORS = small_vectors(DIMENSION)


def uploading():
    """A round in which all have shared, and everybody's masked vector."""
    cast = assemble(4)
    play = cast.play(dimension=DIMENSION)
    play.share()
    frames = {i: play.rounds[i].mask(VECTORS(i)) for i in cast.ids}
    return cast, play, frames


def finish(cast, play) -> None:
    play.server.close_upload()
    play.confirm()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))


@pytest.mark.parametrize("size", [114, 1000, 12345, 10**6])
def test_interleaved_chunks_of_all_devices_give_the_exact_sum(size):
    cast, play, frames = uploading()
    assembler = Assembler(play.server.expects, 4 * len(frames[10]), size)
    waiting = {i: list(chunks(frame, size)) for i, frame in frames.items()}
    rng = random.Random(size)
    while any(waiting.values()):
        sender = rng.choice([i for i, left in waiting.items() if left])
        chunk = waiting[sender].pop(0)
        whole = assembler.take(sender, chunk)
        if whole is None and rng.random() < 0.2:
            assert assembler.take(sender, chunk) is None  # sent again
        assert (whole is not None) == (not waiting[sender])
        if whole is not None:
            assert whole == frames[sender]
            play.server.receive(whole)
    assert assembler.held == 0
    finish(cast, play)


def test_all_who_send_at_once_get_through_a_small_memory():
    # Each sends its next chunk in turn, and starts again when it is told to.
    frames = {i: bytes([i]) * 5000 for i in range(14)}
    most = 12_500
    assembler = Assembler(lambda _: 5000, most, 500)
    assembler._opening = lambda *_: 5000  # these are no frames of a round
    at, done = dict.fromkeys(frames, 0), set()
    for _ in range(200):
        for i in set(frames) - done:
            try:
                whole = assembler.take(i, list(chunks(frames[i], 500))[at[i]])
            except OutOfTurn:
                at[i] = 0
            else:
                at[i] += 1
                done |= {i} if whole == frames[i] else set()
            assert assembler.held <= most
    assert done == set(frames)
    assert assembler.held == 0


def test_who_has_stalled_keeps_nobody_out_once_it_is_dropped():
    cast, play, frames = uploading()
    assembler = Assembler(play.server.expects, int(1.5 * len(frames[10])), 1000)
    parts = {i: list(chunks(frame, 1000)) for i, frame in frames.items()}
    for chunk in parts[10][:-1]:
        assembler.take(10, chunk)
    with pytest.raises(OutOfTurn, match="later"):
        assembler.take(20, parts[20][0])
    assert assembler.begun == [10]
    assembler.drop(10)
    assembler.drop(30)  # it had begun nothing
    assert assembler.begun == []
    with pytest.raises(OutOfTurn, match="from its start"):
        assembler.take(10, parts[10][-1])
    for i in cast.ids:
        for chunk in parts[i]:
            whole = assembler.take(i, chunk)
        play.server.receive(whole)
    finish(cast, play)


def test_chunks_that_cannot_be_right_are_refused_and_change_nothing():
    cast, play, frames = uploading()
    assembler = Assembler(play.server.expects, 10**5, 1000)
    first, second, *_ = chunks(frames[10], 1000)
    for sender, chunk, error in (
        (10, b"", Malformed),
        (10, bytes(8), Malformed),
        (10, bytes(1009), Malformed),
        (10, first[:60], Malformed),  # less than a header
        (10, bytes(8) + bytes(500), Malformed),
        (20, first, Forged),  # another device's frame
        (10, second, OutOfTurn),  # before the first one
        (10, first[:8] + play.rounds[10].shares[:46] + b"\xff" * 4 + bytes(64), Malformed),
        (10, bytearray(first), Malformed),
        (10, b"\xff" * 8 + b"x", OutOfTurn),
    ):
        with pytest.raises(error):
            assembler.take(sender, chunk)
    assert assembler.held == 0
    assembler.take(10, first)
    with pytest.raises(OutOfTurn, match="1000 bytes came"):
        assembler.take(10, (2000).to_bytes(8, "little") + b"x")
    length = len(frames[10])
    for chunk in list(chunks(frames[10], 1000))[1:-1]:
        assembler.take(10, chunk)
    with pytest.raises(Malformed, match="more bytes"):
        assembler.take(10, (length - length % 1000).to_bytes(8, "little") + bytes(1000))
    assert assembler.held == 0
    for i in cast.ids:
        for chunk in chunks(frames[i], 1000):
            whole = assembler.take(i, chunk)
        play.server.receive(whole)
    finish(cast, play)
    with pytest.raises(Malformed, match="at most 100 are held"):
        Assembler(lambda _: 10**6, 100).take(10, first)
    with pytest.raises(ConfigError, match="header"):
        list(chunks(frames[10], 50))


def test_a_slipped_in_chunk_costs_a_second_try_and_nothing_else():
    cast, play, frames = uploading()
    assembler = Assembler(play.server.expects, 10**6, 1000)
    first, _, *rest = chunks(frames[10], 1000)
    assembler.take(10, first)
    assembler.take(10, (1000).to_bytes(8, "little") + bytes(1000))
    for chunk in rest:
        whole = assembler.take(10, chunk)
    with pytest.raises(SecureAggregationError):
        play.server.receive(whole)
    for i in cast.ids:
        for chunk in chunks(frames[i], 1000):
            whole = assembler.take(i, chunk)
        play.server.receive(whole)
    finish(cast, play)


def test_a_first_chunk_that_comes_twice_does_not_start_the_frame_again():
    cast, play, frames = uploading()
    assembler = Assembler(play.server.expects, 10**6, 1000)
    first, second, *rest = chunks(frames[10], 1000)
    for chunk in (first, second, first, second, *rest[:-1]):
        assert assembler.take(10, chunk) is None
    assert assembler.take(10, rest[-1]) == frames[10]
    assert assembler.held == 0
    # Another frame of the device begins anew, and so does one in which bytes were wrong.
    other = cast.play(round_number=2)
    fresh = Assembler(lambda _: len(frames[10]), 10**6, 1000)
    fresh.take(10, first)
    fresh.take(10, second)
    begun = frames[10][:6] + bytes([frames[10][6]]) + other.server.plan[7:1000]
    fresh.take(10, bytes(8) + begun[:7] + frames[10][7:14] + begun[14:])
    assert fresh.held < 1000
    with pytest.raises(OutOfTurn):
        fresh.take(10, rest[0])
    for chunk in (first, second[:8] + bytes(1000)):
        fresh.take(10, chunk)
    with pytest.raises(OutOfTurn, match="from its start"):
        fresh.take(10, second)
    for chunk in (first, second, *rest):
        whole = fresh.take(10, chunk)
    assert whole == frames[10]
