"""Members that send nonsense: the sum is exact or refused, and who did it is named."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from tests.secagg.play import Play, assemble, peek, plain_sum, small_vectors

from fedveil.privacy.secure_sums.errors import Forged, Malformed, NotReleased
from fedveil_federation.secagg import pairs, wire
from fedveil_federation.secagg.messages import Confirm, Shares, Unmask
from fedveil_federation.secagg.shares import split

VECTORS = small_vectors()
BAD = 50
Spoil = Callable[[Play, int, bytes], bytes]


def near(play: Play, device: int) -> tuple[int, ...]:
    return play.server.layout.graph.neighbours(device)


def random_roots(play, device, frame):
    return play.resend(device, frame, roots=os.urandom(len(peek(frame, Shares).roots)))


def one_root(victim: int) -> Spoil:
    """Contradict one other device about the key of their pair."""

    def spoil(play, device, frame):
        roots = bytearray(peek(frame, Shares).roots)
        masked = play.server.layout.graph.masked(play.server.layout.graph.place(device))
        partners = [n for n, masks in zip(near(play, device), masked, strict=True) if masks]
        roots[16 * partners.index(victim)] ^= 1
        return play.resend(device, frame, roots=bytes(roots))

    return spoil


def garbage_seals(count: int | None = None) -> Spoil:
    """Nothing that can be opened, for the first neighbours or for all."""

    def spoil(play, device, frame):
        sealed = peek(frame, Shares).sealed
        garbage = os.urandom(len(sealed) if count is None else 64 * count)
        return play.resend(device, frame, sealed=garbage + sealed[len(garbage) :])

    return spoil


def unmarked_shares(play, device, frame):
    """Shares that open, but are not those that were marked."""
    nonce, keys = peek(frame, Shares).nonce, play.rounds[device]._pairs
    sealed = [pairs.pads([one.seal], [nonce], [device]) for one in keys.values()]  # of zeros
    return play.resend(device, frame, sealed=b"".join(sealed))


def inconsistent_split(play, device, frame):
    """Properly marked and sealed shares of something else than was committed to."""
    digest, keys = play.server.layout.digest, play.rounds[device]._pairs
    rows = split([bytes(32), bytes(32)], play.server.layout.plan.threshold, len(keys))
    both = {n: row.tobytes() for n, row in zip(keys, rows, strict=True)}
    nonce = peek(frame, Shares).nonce
    sealed = [pairs.xor(both[n], pairs.pads([keys[n].seal], [nonce], [device])) for n in keys]
    marks = [pairs.marks(both[n], digest, [device], [n]) for n in keys]
    return play.resend(device, frame, sealed=b"".join(sealed), marks=b"".join(marks))


def wrong_wraps(play, device, frame):
    return play.resend(device, frame, wrapped=os.urandom(len(peek(frame, Shares).wrapped)))


def random_tags(play, device, frame):
    return play.resend(device, frame, tags=os.urandom(len(peek(frame, Confirm).tags)))


def wrong_answers(play, device, frame):
    answers = bytearray(peek(frame, Unmask).answers)
    answers[::32] = bytes(byte ^ 1 for byte in answers[::32])
    return play.resend(device, frame, answers=bytes(answers))


def made_up_complaint(play, device, frame):
    """Says that it could not open what its first neighbour had dealt."""
    message = peek(frame, Unmask)
    bad = bytes([message.bad[0] | 1]) + message.bad[1:]
    return play.resend(device, frame, bad=bad, answers=message.answers[32:])


def played(
    cast, spoil: Spoil | None, kind: type, culprits=(BAD,), lost=(), round_number: int = 1
) -> tuple[Play, np.ndarray]:
    """A whole round in which the culprits' frames of one kind are spoiled."""
    play = cast.play(round_number=round_number)
    genuine = play.send

    def send(frame: bytes) -> None:
        device = wire.head(frame).device
        bad = spoil is not None and device in culprits and frame[5] == kind.KIND
        genuine(spoil(play, device, frame) if bad else frame)

    play.send = send
    play.share()
    play.upload(VECTORS, lost)
    play.confirm()
    return play, play.unmask()


# What is sent, in which frame; whether its sender is lost; whom the server names.
SURVIVED = {
    "wrong answers": (wrong_answers, Unmask, False, {BAD}),
    "random roots": (random_roots, Shares, False, {BAD}),
    "garbage for two": (garbage_seals(2), Shares, False, {BAD}),
    "garbage for two, then lost": (garbage_seals(2), Shares, True, {BAD}),
    "wrong wraps that nobody needs": (wrong_wraps, Shares, False, set()),
    "random tags": (random_tags, Confirm, False, set()),
    "a made-up complaint": (made_up_complaint, Unmask, False, {10}),
    "nothing wrong": (None, Shares, False, set()),
}


@pytest.mark.parametrize("honest_server", [False, True], ids=["complete", "sparse"])
@pytest.mark.parametrize("name", SURVIVED)
def test_the_sum_is_exact_and_the_sender_is_named(name, honest_server):
    spoil, kind, lost, named = SURVIVED[name]
    if honest_server and kind is Confirm:
        return  # nobody confirms
    count = 40 if honest_server else 9
    cast = assemble(count, min_honest=3, max_dropout=0.3, honest_server=honest_server)
    play, total = played(cast, spoil, kind, lost={BAD} if lost else ())
    assert (play.server.layout.plan.degree < count - 1) is honest_server
    if name == "a made-up complaint":  # the two disagree, and nobody can tell who lies
        named = {near(play, BAD)[0]}
    assert set(play.server.remarks) == named
    out = {BAD} if lost or spoil is random_roots else set()
    assert play.server.survivors == sorted(set(cast.ids) - out)
    assert np.array_equal(total, plain_sum(VECTORS, play.server.survivors))


# What is sent, and whether it matters only if its sender is lost.
LOST = {
    "garbage for all": (garbage_seals(), False),
    "other shares than marked": (unmarked_shares, False),
    "shares of another secret": (inconsistent_split, False),
    "shares of another secret, then lost": (inconsistent_split, True),
    "wrong wraps, then lost": (wrong_wraps, True),
}


@pytest.mark.parametrize("name", LOST)
def test_a_round_that_cannot_be_unmasked_is_not_released_and_names_the_dealer(name):
    spoil, lost = LOST[name]
    cast = assemble(9, min_honest=3, max_dropout=0.3)
    with pytest.raises(NotReleased, match=f"device {BAD}"):
        played(cast, spoil, Shares, lost={BAD} if lost else ())
    rest = [device for device in cast.ids if device != BAD]
    after = cast.play(round_number=2, members=rest)  # whoever runs the server leaves it out
    after.share()
    after.upload(VECTORS)
    after.confirm()
    assert np.array_equal(after.unmask(), plain_sum(VECTORS, rest))


def test_as_many_wrong_answers_as_the_threshold_leaves_over_do_not_matter():
    cast = assemble(9, min_honest=3, max_dropout=0.3)  # threshold 5 of 8
    play, total = played(cast, wrong_answers, Unmask, (10, 20, 30))
    assert np.array_equal(total, plain_sum(VECTORS, cast.ids))
    assert set(play.server.remarks) == {10, 20, 30}
    with pytest.raises(NotReleased, match="shares came, need 5"):
        played(cast, wrong_answers, Unmask, (10, 20, 30, 40), round_number=2)


def test_of_two_that_contradict_each_other_one_sits_out_and_a_lot_decides():
    cast, out = assemble(5, min_honest=3, max_dropout=0.2), []
    for round_number in range(30):
        play, total = played(cast, one_root(20), Shares, round_number=round_number)
        ((device, remark),) = play.server.remarks.items()
        out.append(device)
        other = {20: BAD, BAD: 20}[device]
        assert f"[{other}]" in remark
        assert set(cast.ids) - set(play.server.sharers) == {device}
        assert np.array_equal(total, plain_sum(VECTORS, play.server.sharers))
    assert set(out) == {20, BAD}  # by chance one of them alone in one of 2^29 runs


def test_who_contradicts_most_sits_out_and_too_few_sharers_give_no_sum():
    cast = assemble(9, min_honest=3, colluders=2, max_dropout=0.2)
    play, total = played(cast, one_root(10), Shares, (20, 30))
    assert set(play.server.remarks) == {10}  # two say so; it could as well be the liar
    assert np.array_equal(total, plain_sum(VECTORS, set(cast.ids) - {10}))
    with pytest.raises(NotReleased, match="6 of 9 devices shared, need 8"):
        played(cast, random_roots, Shares, (20, 30, 40), round_number=2)


def test_a_statement_for_other_sharers_is_refused_by_the_server_at_once():
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = cast.play()
    play.share()
    frame = play.rounds[BAD].mask(VECTORS(BAD))
    for statement, error in ((bytes(64), Forged), (b"", Malformed), (bytes(65), Malformed)):
        with pytest.raises(error):
            play.server.receive(play.resend(BAD, frame, statement=statement))
    play.server.receive(frame)


@pytest.mark.parametrize("field", ["sealed", "marks", "wrapped", "roots"])
@pytest.mark.parametrize("length", [0, 1, 63, 65, 1000])
def test_signed_lists_of_another_length_are_malformed(field, length):
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = cast.play()
    play.rounds[BAD] = cast.devices[BAD].join(play.server.plan)
    frame = play.rounds[BAD].shares
    with pytest.raises(Malformed):
        play.server.receive(play.resend(BAD, frame, **{field: os.urandom(length)}))
    play.server.receive(frame)
