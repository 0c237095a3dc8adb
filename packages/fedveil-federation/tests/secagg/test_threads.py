"""Frames that race through real threads: one list, one kind of share, one vector, one claim."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.privacy.secure_sums.errors import SecureAggregationError
from fedveil_federation.secagg.journal import Claim, MemoryJournal
from fedveil_federation.secagg.messages import Confirmed, Masked, Survivors
from fedveil_federation.secagg.server import Phase, ServerRound

VECTORS = small_vectors()
THREADS = 8


@pytest.fixture(autouse=True)
def switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def race(acts: list[Callable[[], object]]) -> list[object]:
    """Run all at once; results in order, typed refusals as the exceptions they are."""
    results: list[object] = [None] * len(acts)
    gate = threading.Barrier(len(acts))

    def run(place: int) -> None:
        gate.wait()
        try:
            results[place] = acts[place]()
        except SecureAggregationError as refusal:
            results[place] = refusal

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def good(results: list[object]) -> list[object]:
    return [result for result in results if not isinstance(result, Exception)]


def test_a_device_confirms_one_of_two_lists():
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    frames = 0
    for round_number in range(15):
        play = cast.play(round_number=round_number)
        play.share()
        play.upload(VECTORS)
        server = play.server
        for device in (10, 20, 30, 40):
            honest = server.survivors_for(device)
            message = peek(honest, Survivors)
            shorter = play.bitmap({10, 20, 30, 40})
            lie = play.lie(replace(message, present=shorter, statements=message.statements[:192]))
            acts = [lambda f=f, r=play.rounds[device]: r.confirm(f) for f in (honest, lie) * 4]
            replies = good(race(acts))
            frames += len(acts)
            assert len(replies) == 4  # those to one of the two lists, all the same
            assert len(set(replies)) == 1
    assert frames == 480


def test_a_round_is_claimed_by_one_of_many_threads():
    journal = MemoryJournal()
    for round_number in range(60):
        acts = [
            lambda i=i, r=round_number: (
                journal.claim(Claim("f", r, "update", bytes([i]), 10)) or True
            )
            for i in range(THREADS)
        ]
        assert len(good(race(acts))) == 1


def test_a_server_takes_frames_of_all_devices_at_once_and_each_once():
    cast = assemble(12, min_honest=4, max_dropout=0.2)
    for round_number in range(3):
        play = cast.play(round_number=round_number, dimension=2000)
        play.rounds = {d: cast.devices[d].join(play.server.plan) for d in cast.ids}
        vectors = small_vectors(2000)

        def deliver(frames: list[bytes], play=play) -> None:
            found = race([lambda f=f: play.server.receive(f) for f in frames for _ in range(3)])
            assert len(good(found)) == 3 * len(frames)  # the same frame again changes nothing

        deliver([joined.shares for joined in play.rounds.values()])
        play.server.close_sharing()
        for device in cast.ids:
            play.rounds[device].take_sharers(play.server.sharers_for(device))
        deliver([play.rounds[d].mask(vectors(d)) for d in cast.ids[:10]])
        play.server.close_upload()
        deliver([play.rounds[d].confirm(play.server.survivors_for(d)) for d in cast.ids[:10]])
        play.server.close_confirmation()
        deliver([play.rounds[d].unmask(play.server.confirmed_for(d)) for d in cast.ids[:10]])
        total = play.server.finish()
        assert np.array_equal(total, plain_sum(vectors, cast.ids[:10]))


def test_a_vector_that_races_with_the_close_is_in_the_sum_or_refused():
    cast = assemble(6, min_honest=2, max_dropout=0.4)
    for round_number in range(20):
        play = cast.play(round_number=round_number)
        play.share()
        late = play.rounds[60].mask(VECTORS(60))
        for device in cast.ids[:5]:
            play.send(play.rounds[device].mask(VECTORS(device)))
        race([partial(play.server.receive, late), play.server.close_upload])
        play.confirm()
        assert np.array_equal(play.unmask(), plain_sum(VECTORS, play.server.survivors))


@pytest.mark.parametrize("honest_server", [False, True])
def test_who_asks_the_moment_a_phase_opens_is_told_what_everybody_is(monkeypatch, honest_server):
    # Another thread may come between any two statements of a close.
    cast = assemble(4, min_honest=2, honest_server=honest_server)
    play, told, close = cast.play(), {}, ServerRound._close

    def watched(self, *arguments):
        close(self, *arguments)
        ask = {
            Phase.CONFIRMATIONS: self.survivors_for,
            Phase.UNMASKING: self.survivors_for if honest_server else self.confirmed_for,
        }.get(self.phase, self.sharers_for)
        told[self.phase] = [ask(device) for device in cast.ids]

    monkeypatch.setattr(ServerRound, "_close", watched)
    play.share()
    play.upload(VECTORS)
    if not honest_server:
        for device, frame in zip(cast.ids, told[Phase.CONFIRMATIONS], strict=True):
            play.send(play.rounds[device].confirm(frame))
        play.server.close_confirmation()
    for device, frame in zip(cast.ids, told[Phase.UNMASKING], strict=True):
        play.send(play.rounds[device].unmask(frame))
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, cast.ids))


def test_racing_unmaskings_give_the_same_answer_once():
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    for round_number in range(10):
        play = cast.play(round_number=round_number)
        play.share()
        play.upload(VECTORS, silent={50})
        play.confirm()
        for device in (10, 20, 30, 40):
            frame = play.server.confirmed_for(device)
            message = peek(frame, Confirmed)
            without = play.bitmap({10, 20, 30, 40} - {device})
            fewer = play.lie(replace(message, present=without))
            acts = [lambda f=f, r=play.rounds[device]: r.unmask(f) for f in (frame, fewer) * 4]
            answers = set(good(race(acts)))
            assert len(answers) == 1
            play.server.receive(answers.pop())
        assert np.array_equal(play.server.finish(), plain_sum(VECTORS, [10, 20, 30, 40]))


def test_a_mask_covers_one_vector():
    cast = assemble(4)
    for round_number in range(15):
        play = cast.play(round_number=round_number, dimension=4000)
        play.share()
        vectors = [np.full(4000, value, dtype=np.int64) for value in range(THREADS)]
        acts = [lambda v=v, r=play.rounds[10]: r.mask(v) for v in vectors]
        masked = good(race(acts))
        assert len(masked) == 1
        assert peek(masked[0], Masked).device == 10


def test_a_device_joins_one_of_two_cohorts():
    cast = assemble(6)
    for round_number in range(40):
        plans = [
            cast.play(round_number=round_number, members=members).server.plan
            for members in (cast.ids, cast.ids[:5])
        ]
        acts = [lambda f=f: cast.devices[10].join(f) for f in plans * 4]
        joined = {id(found) for found in good(race(acts))}
        assert len(joined) == 1
