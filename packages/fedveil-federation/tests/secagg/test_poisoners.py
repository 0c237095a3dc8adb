"""Members that send nonsense: the round goes on, they are named, and honest ones never are."""

from __future__ import annotations

import itertools
import os
import stat
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.derive import id_bytes
from fedveil.privacy.secure_sums.errors import (
    Doubted,
    Forged,
    NotReleased,
    OutOfTurn,
    RuleBroken,
    SecureAggregationError,
)
from fedveil_federation.secagg import pairs, wire
from fedveil_federation.secagg.blame import Fault, Wrong, given, proven
from fedveil_federation.secagg.messages import (
    Confirm,
    Disclosure,
    Masked,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.relay import Kept
from fedveil_federation.secagg.server import Server
from fedveil_federation.secagg.shares import split

VECTORS = small_vectors()
BAD = 50


def resend(play, device: int, frame: bytes, **changes: object) -> bytes:
    """A frame with other content, signed by its device all the same."""
    kind = {4: Shares, 6: Masked, 8: Confirm, 10: Unmask, 15: Disclosure}[frame[5]]
    message = replace(peek(frame, kind), **changes)
    if kind is Unmask and "signature" not in changes:
        said = (message.survivors, message.bad, message.accepted, message.answers)
        stated = given(message.plan, device, *said)
        message = replace(message, signature=play.cast.devices[device].keys.identity.sign(stated))
    return wire.seal(message, play.signer(device, frame[5]))


def shared(cast, spoil=lambda play, device, frame: frame, culprits=(BAD,), **details):
    """Leg 1, the culprits' shares spoiled; then everybody who may takes the others' shares."""
    play = cast.play(**details)
    for device in cast.ids:
        play.rounds[device] = cast.devices[device].join(play.server.plan)
        frame = play.rounds[device].shares
        play.send(spoil(play, device, frame) if device in culprits else frame)
    play.server.close_sharing()
    play.take_sharers()
    return play


def finished(play, silent=frozenset()) -> np.ndarray:
    play.upload(VECTORS, silent)
    play.confirm()
    return play.unmask()


def wrong_shares(play, device: int) -> bytes:
    frame = play.rounds[device].unmask(play.server.confirmed_for(device))
    answers = bytearray(peek(frame, Unmask).answers)
    for at in range(0, len(answers), 32):
        answers[at] ^= 1
    return resend(play, device, frame, answers=bytes(answers))


def test_one_wrong_share_among_eighteen_right_ones_does_not_matter():
    # Twenty devices, threshold 10: everybody's secret is held by 19.
    cast = assemble(20, min_honest=8, max_dropout=0.4)
    play = cast.play()
    assert play.server.layout.plan.threshold == 10
    play.share()
    play.upload(VECTORS, silent={10, 20})
    play.confirm()
    for device in play.server.confirmed:
        if device == BAD:
            play.send(wrong_shares(play, BAD))
        else:
            play.send(play.rounds[device].unmask(play.server.confirmed_for(device)))
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, play.server.survivors))
    assert {fault.device for fault in play.server.faults} == {BAD}
    assert {fault.wrong for fault in play.server.faults} == {Wrong.SHARE}
    assert all(proven(f, play.server.layout, play.server.identities) for f in play.server.faults)
    assert cast.server.judge(play.server) == [BAD]
    with pytest.raises(ConfigError, match="device 50 was evicted: device 50 gave another share"):
        cast.play(round_number=2)
    rest = [device for device in cast.ids if device != BAD]
    after = cast.play(round_number=2, members=rest)
    after.share()
    assert np.array_equal(finished(after), plain_sum(VECTORS, rest))


def test_a_wrong_share_under_no_signature_costs_its_sender_its_place_all_the_same():
    # The signature inside is checked when it is needed; the server knows whose frame it was.
    cast = assemble(9, min_honest=3, max_dropout=0.3)
    play = shared(cast)
    play.upload(VECTORS)
    play.confirm()
    for device in play.server.confirmed:
        if device == BAD:
            frame = wrong_shares(play, BAD)
            play.send(resend(play, BAD, frame, signature=bytes(64)))
        else:
            play.send(play.rounds[device].unmask(play.server.confirmed_for(device)))
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, cast.ids))
    assert not play.server.faults
    assert play.server.unsigned == {BAD}
    assert cast.server.judge(play.server) == [BAD]


def test_a_dealer_that_copies_a_mark_frames_no_holder():
    # Dealer 10 signs a second `Shares` in which its mark for 30 is the one that 20 made for 30.
    # Whatever is put together of that and of what 30 signed, 30 has answered properly.
    cast = assemble(6, min_honest=3, colluders=1)
    play = shared(cast)
    assert np.array_equal(finished(play), plain_sum(VECTORS, cast.ids))
    layout, holder, dealer, copied = play.server.layout, 30, 10, 20
    unmask = next(f for f in play.frames if f[5] == Unmask.KIND and wire.head(f).device == holder)
    dealt = {d: peek(play.server.dealt_by(d), Shares) for d in cast.ids}

    def mark(d: int) -> bytes:
        at = 32 * layout.rank(d, holder)
        return dealt[d].marks[at : at + 32]

    near = layout.graph.neighbours(holder)
    changed = bytearray(dealt[dealer].marks)
    at = 32 * layout.rank(dealer, holder)
    changed[at : at + 32] = mark(copied)
    forged = wire.seal(
        replace(dealt[dealer], marks=bytes(changed)), cast.devices[dealer].keys.identity
    )
    ids = b"".join(id_bytes(d) for d in near)
    swapped = ids[8:16] + ids[:8] + ids[16:]
    marks = b"".join(map(mark, near))
    for about, frames, values in itertools.product(
        cast.ids,
        ((unmask,), (forged, unmask), (unmask, forged), (play.server.dealt_by(dealer), unmask)),
        ((marks,), (ids, marks), (swapped, marks), (marks, ids), (ids, mark(copied) + marks[32:])),
    ):
        fault = Fault(holder, about, Wrong.SHARE, layout.digest, frames, values)
        assert not proven(fault, layout, play.server.identities)


def test_as_many_wrong_shares_as_the_threshold_leaves_over_do_not_matter():
    cast = assemble(9, min_honest=3, max_dropout=0.3)  # threshold 5 of 8
    play = cast.play()
    play.share()
    play.upload(VECTORS)
    play.confirm()
    liars = {10, 20, 30}
    for device in play.server.confirmed:
        honest = play.rounds[device].unmask
        frame = (
            wrong_shares(play, device)
            if device in liars
            else honest(play.server.confirmed_for(device))
        )
        play.send(frame)
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, cast.ids))
    # One conviction each is enough: evidence about every pair would fill the server's memory.
    assert sorted(fault.device for fault in play.server.faults) == sorted(liars)
    play = cast.play(round_number=2)
    play.share()
    play.upload(VECTORS)
    play.confirm()
    for device in play.server.confirmed:
        spoil = device in liars | {40}
        honest = play.rounds[device].unmask
        play.send(
            wrong_shares(play, device) if spoil else honest(play.server.confirmed_for(device))
        )
    with pytest.raises(NotReleased, match="shares came, need 5"):
        play.server.finish()
    assert {fault.device for fault in play.server.faults} == liars | {40}


def random_checks(play, device: int, frame: bytes) -> bytes:
    return resend(play, device, frame, checks=os.urandom(len(peek(frame, Shares).checks)))


def test_random_checks_cost_their_sender_its_place_and_nobody_else():
    cast = assemble(20, min_honest=8, max_dropout=0.4)
    for round_number in range(3):
        play = shared(cast, random_checks, round_number=round_number)
        assert set(cast.ids) - set(play.server.sharers) == {BAD}
        assert play.server.suspects == {BAD}
        assert np.array_equal(finished(play), plain_sum(VECTORS, set(cast.ids) - {BAD}))
        assert cast.server.judge(play.server) == ([BAD] if round_number == 2 else [])
    with pytest.raises(ConfigError, match="at odds with others in 3 rounds"):
        cast.play(round_number=9)


def one_check(victim: int, field: str = "checks"):
    def spoil(play, device: int, frame: bytes) -> bytes:
        said, layout = bytearray(getattr(peek(frame, Shares), field)), play.server.layout
        rank = layout.rank if field == "checks" else layout.mask_rank
        said[16 * rank(device, victim)] ^= 1
        return resend(play, device, frame, **{field: bytes(said)})

    return spoil


@pytest.mark.parametrize("field", ["checks", "roots"])
def test_two_at_odds_lose_the_mask_between_them_and_both_stay(field):
    cast = assemble(8, min_honest=4, max_dropout=0.25)
    play = shared(cast, one_check(20, field))
    assert play.server.sharers == cast.ids
    assert 20 not in play.rounds[BAD]._partners
    assert BAD not in play.rounds[20]._partners
    assert np.array_equal(finished(play), plain_sum(VECTORS, cast.ids))
    assert play.server.odds == {20: {BAD}, BAD: {20}}
    assert not play.server.suspects
    assert not play.server.faults
    # The same with either of them lost: nobody had applied that mask.
    for round_number, lost in ((2, 20), (3, BAD)):
        play = shared(cast, one_check(20, field), round_number=round_number)
        total = finished(play, {lost})
        assert np.array_equal(total, plain_sum(VECTORS, set(cast.ids) - {lost}))


def test_a_device_leaves_out_a_mask_only_if_the_neighbour_itself_signed_other_keys():
    cast = assemble(8, min_honest=4, max_dropout=0.25)
    play = cast.play()
    for device in cast.ids:
        play.rounds[device] = cast.devices[device].join(play.server.plan)
        frame = play.rounds[device].shares
        play.send(one_check(10)(play, device, frame) if device == 20 else frame)
    play.server.close_sharing()
    victim, message = play.rounds[10], peek(play.server.sharers_for(10), Sharers)
    with pytest.raises(RuleBroken, match=r"mask with device 20 .* nothing shows that it lies"):
        victim.take_sharers(play.server.sharers_for(10))
    for proper in (play.rounds[20].shares, play.server.dealt_by(30)):
        with pytest.raises(RuleBroken, match="agrees with this one"):
            victim.take_odds(proper)
    (shown,) = play.server.odds_for(10)
    assert victim.expects(shown[: wire.HEADER]) == len(shown)
    forged = bytearray(shown)
    forged[-1] ^= 1
    with pytest.raises(Forged):
        victim.take_odds(bytes(forged))
    other = cast.play(round_number=2).server.plan
    with pytest.raises(OutOfTurn):
        victim.take_odds(cast.devices[20].join(other).shares)
    victim.take_odds(shown)
    with pytest.raises(RuleBroken, match="mask with device 30"):
        victim.take_sharers(play.lie(without_two(message)))
    victim.take_sharers(play.server.sharers_for(10))
    victim.take_odds(shown)  # once more changes nothing
    assert 20 not in victim._partners


def without_two(message: Sharers) -> Sharers:
    """The first neighbour is left out already; the second is to be as well."""
    return replace(
        message,
        off=b"\x03",
        nonces=message.nonces[16:],
        sealed=message.sealed[64:],
        marks=message.marks[32:],
    )


@pytest.mark.parametrize("colluders", [0, 1])
def test_liars_beyond_those_that_may_collude_do_not_count_for_the_noise(colluders):
    cast = assemble(6, min_honest=5 - colluders, colluders=colluders, max_dropout=1 / 6)
    play = shared(cast, one_check(10), culprits=(20,))
    play.upload(VECTORS, silent={60})
    told = play.server.survivors_for(10)  # five, as many as are needed, but one of them lies
    if colluders:
        play.rounds[10].confirm(told)
    else:
        with pytest.raises(RuleBroken, match="4 survivors may be honest or collude, need 5"):
            play.rounds[10].confirm(told)


@pytest.mark.parametrize("honest_server", [True, False], ids=["honest", "lying"])
def test_as_many_liars_as_may_collude_put_no_honest_device_out_of_a_round(honest_server):
    # They flip their checks about one chosen device.
    cast = assemble(40, min_honest=20, colluders=3, max_dropout=0.1, honest_server=honest_server)
    victim, graphs = 300, []
    for round_number in (1, 2):
        play = cast.play(round_number)
        layout = play.server.layout
        assert layout.plan.degree < 39
        graphs.append(layout.graph.neighbours(victim))
        liars = set(graphs[0][:3])
        for device in cast.ids:
            play.rounds[device] = cast.devices[device].join(play.server.plan)
            frame = play.rounds[device].shares
            lies = device in liars & set(graphs[-1])
            play.send(one_check(victim)(play, device, frame) if lies else frame)
        play.server.close_sharing()
        assert play.server.sharers == cast.ids
        play.take_sharers()
        assert not liars & set(play.rounds[victim]._partners)
        assert np.array_equal(finished(play), plain_sum(VECTORS, cast.ids))
        assert not play.server.suspects
        assert cast.server.judge(play.server) == []
    assert graphs[0] != graphs[1]  # one in which devices were at odds is not used again


def test_who_contradicts_more_devices_than_may_collude_is_found_out_over_the_rounds():
    # One lie a round, about another neighbour each time: never enough in one round.
    cast = assemble(9, min_honest=3, colluders=2, max_dropout=0.2)
    gone = []
    for round_number, victim in enumerate((10, 20, 30, 40, 60)):
        play = shared(cast, one_check(victim), round_number=round_number)
        assert not play.server.suspects
        assert np.array_equal(finished(play), plain_sum(VECTORS, cast.ids))
        gone.append(cast.server.judge(play.server))
    assert gone == [[], [], [], [], [BAD]]  # the third victim is one too many; three such rounds


def test_a_round_that_is_judged_again_counts_once(tmp_path):
    cast = assemble(9, min_honest=3, max_dropout=0.2)
    for round_number in range(3):
        play = shared(cast, random_checks, round_number=round_number)
        assert play.server.suspects == {BAD}
        for again in range(5):
            gone = cast.server.judge(play.server)
            assert gone == ([BAD] if (round_number, again) == (2, 0) else [])


def test_what_a_server_holds_against_devices_outlives_it(tmp_path):
    cast = assemble(9, min_honest=3, colluders=2, max_dropout=0.2)
    gone = []
    for round_number, victim in enumerate((10, 20, 30, 40, 60)):
        cast.server = Server(cast.server.key, cast.server.roster, cast.params, tmp_path)
        play = shared(cast, one_check(victim), round_number=round_number)
        finished(play)
        gone.append(cast.server.judge(play.server))
        play.server.discard_log()
    assert gone == [[], [], [], [], [BAD]]
    after = Server(cast.server.key, cast.server.roster, cast.params, tmp_path)
    assert after.evicted == cast.server.evicted
    with pytest.raises(ConfigError, match="device 50 was evicted"):
        after.open(9, cast.ids, 5, 32)
    (memory,) = tmp_path.iterdir()
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600
    for damaged in (b"", b"[]", b'{"version": 1}', memory.read_bytes()[:-2], b"\xff"):
        memory.write_bytes(damaged)
        with pytest.raises(ConfigError, match="damaged"):
            Server(cast.server.key, cast.server.roster, cast.params, tmp_path)


def test_a_device_that_is_left_too_few_holders_by_liars_sits_the_round_out_and_is_not_blamed():
    # Seven devices, threshold 5 of 6: two liars leave 10 with four holders of its shares, and no
    # sum could be had if it stayed.
    cast = assemble(7, min_honest=3, colluders=2, max_dropout=1 / 7)
    play = shared(cast, one_check(10), culprits=(20, 30))
    assert play.server.layout.plan.threshold == 5
    assert set(cast.ids) - set(play.server.sharers) == {10}
    assert np.array_equal(finished(play), plain_sum(VECTORS, play.server.sharers))
    assert not play.server.suspects


def test_nobody_is_put_out_of_a_round_that_is_lost_anyway():
    # Who has too few holders goes one by one: in a large cohort that takes a minute for nothing.
    cast = assemble(12, min_honest=3, colluders=2, max_dropout=0.2)
    play = cast.play()
    for device in cast.ids[:7]:
        frame = cast.devices[device].join(play.server.plan).shares
        play.send(one_check(10)(play, device, frame) if device == BAD else frame)
    with pytest.raises(NotReleased, match="7 of 12 devices shared, need 10"):
        play.server.close_sharing()
    assert play.server.sharers == cast.ids[:7]
    assert play.server.odds == {10: {BAD}, BAD: {10}}


def test_doubts_that_are_made_up_harm_nobody_but_who_makes_them():
    for details in (
        {"count": 40, "min_honest": 10, "colluders": 2, "max_dropout": 0.2},
        {"count": 12, "min_honest": 3, "colluders": 4},
    ):
        cast = assemble(**details)
        liars = cast.ids[:2]
        for round_number in (1, 2, 3):
            play = shared(cast, round_number=round_number)
            play.upload(VECTORS)
            for liar in liars:
                told = play.server.survivors_for(liar, [*cast.ids, 5, -1])
                near = play.server.layout.graph.neighbours(liar)
                assert peek(told, Survivors).doubted == near
            play.confirm()
            assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))
            gone = cast.server.judge(play.server)
        assert gone == liars


def test_bad_tags_stop_nobody_and_make_their_sender_suspect():
    cast = assemble(8, min_honest=4, max_dropout=0.25)
    play = shared(cast)
    for device in cast.ids:
        frame = play.rounds[device].mask(VECTORS(device))
        if device == BAD:
            frame = resend(play, BAD, frame, tags=os.urandom(16 * 7))
        play.send(frame)
    play.server.close_upload()
    for device in cast.ids:
        if device != BAD:
            with pytest.raises(Doubted) as refusal:
                play.rounds[device].confirm(play.server.survivors_for(device))
            assert refusal.value.devices == (BAD,)
        reply = play.confirmation(device)
        if device == BAD:
            reply = resend(play, BAD, reply, tags=os.urandom(16 * 7))
        play.send(reply)
    play.server.close_confirmation()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))
    assert play.server.suspects == {BAD}
    assert not play.server.faults


def test_a_statement_for_other_sharers_is_refused_by_the_server_at_once():
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = shared(cast)
    frame = play.rounds[BAD].mask(VECTORS(BAD))
    with pytest.raises(Forged, match="masked for other sharers"):
        play.server.receive(resend(play, BAD, frame, statement=bytes(64)))
    play.server.receive(frame)


def garbage_seals(victims=None):
    def spoil(play, device: int, frame: bytes) -> bytes:
        sealed = bytearray(peek(frame, Shares).sealed)
        for place, neighbour in enumerate(play.server.layout.graph.neighbours(device)):
            if victims is None or neighbour in victims:
                sealed[64 * place : 64 * (place + 1)] = os.urandom(64)
        return resend(play, device, frame, sealed=bytes(sealed))

    return spoil


def settled(play) -> list[Fault]:
    """Every complaint followed up, as a server does."""
    found = []
    for holder, dealer in play.server.disputes:
        frame = play.rounds[holder].disclose(play.server.dealt_by(dealer))
        fault = play.server.settle(frame)
        if fault is not None:
            found.append(fault)
    return found


def test_garbage_for_a_few_costs_nothing_and_convicts_its_sender():
    cast = assemble(9, min_honest=3, max_dropout=0.3)
    play = shared(cast, garbage_seals({20, 30}))
    assert BAD not in play.held(20)
    assert np.array_equal(finished(play, silent={BAD}), plain_sum(VECTORS, set(cast.ids) - {BAD}))
    assert play.server.disputes == [(20, BAD), (30, BAD)]
    found = settled(play)
    assert {(fault.device, fault.about, fault.wrong) for fault in found} == {
        (BAD, 20, Wrong.SEAL),
        (BAD, 30, Wrong.SEAL),
    }
    assert cast.server.judge(play.server) == [BAD]


def test_garbage_for_all_costs_one_round_and_convicts_its_sender():
    cast = assemble(9, min_honest=3, max_dropout=0.3)
    play = shared(cast, garbage_seals())
    with pytest.raises(NotReleased, match="device 50: 0 shares came"):
        finished(play)
    assert {fault.device for fault in settled(play)} == {BAD}
    assert cast.server.judge(play.server) == [BAD]
    rest = [device for device in cast.ids if device != BAD]
    after = cast.play(round_number=2, members=rest)
    after.share()
    assert np.array_equal(finished(after), plain_sum(VECTORS, rest))


def sealed_properly_but_wrong(play, device: int, frame: bytes) -> bytes:
    """Shares that open, but are not those that were marked."""
    nonce, keys = peek(frame, Shares).nonce, play.rounds[device]._pairs
    sealed = [pairs.pads([one.seal], [nonce], [device]) for one in keys.values()]  # of zeros
    return resend(play, device, frame, sealed=b"".join(sealed))


def test_shares_other_than_marked_are_noticed_by_their_holders():
    cast = assemble(6, min_honest=3, max_dropout=0.2)
    play = shared(cast, sealed_properly_but_wrong)
    assert all(BAD not in play.held(d) for d in cast.ids)
    with pytest.raises(NotReleased):
        finished(play)
    assert {fault.device for fault in settled(play)} == {BAD}


def inconsistent_split(play, device: int, frame: bytes) -> bytes:
    """Properly marked and sealed shares of something else than was committed to."""
    digest, keys = play.server.layout.digest, play.rounds[device]._pairs
    neighbours = play.server.layout.graph.neighbours(device)
    rows = split([bytes(32), bytes(32)], play.server.layout.plan.threshold, len(neighbours))
    both = {n: row.tobytes() for n, row in zip(neighbours, rows, strict=True)}
    nonce = peek(frame, Shares).nonce
    sealed = [pairs.xor(both[n], pairs.pads([keys[n].seal], [nonce], [device])) for n in neighbours]
    marks = [pairs.marks(both[n], digest, [device], [n]) for n in neighbours]
    return resend(play, device, frame, sealed=b"".join(sealed), marks=b"".join(marks))


def test_shares_that_do_not_make_the_committed_secret_convict_the_dealer():
    cast = assemble(6, min_honest=3, max_dropout=0.2)
    for round_number, silent in ((1, set()), (2, {BAD})):
        play = shared(cast, inconsistent_split, round_number=round_number)
        with pytest.raises(NotReleased, match="device 50 dealt shares that do not fit"):
            finished(play, silent)
        (fault,) = play.server.faults
        assert (fault.device, fault.wrong) == (BAD, Wrong.SPLIT)
        assert proven(fault, play.server.layout, play.server.identities)
    assert cast.server.judge(play.server) == [BAD]


def wrong_wraps(play, device: int, frame: bytes) -> bytes:
    return resend(play, device, frame, wrapped=os.urandom(len(peek(frame, Shares).wrapped)))


def test_a_wrong_recovery_key_convicts_the_lost_device():
    cast = assemble(6, min_honest=3, max_dropout=0.2)
    play = shared(cast, wrong_wraps)
    with pytest.raises(NotReleased, match="device 50 left a wrong key for device 10"):
        finished(play, {BAD})
    (fault,) = play.server.faults
    assert (fault.device, fault.about, fault.wrong) == (BAD, 10, Wrong.WRAP)
    assert cast.server.judge(play.server) == [BAD]
    # While it stays, nobody needs that key.
    again = assemble(6, min_honest=3, max_dropout=0.2)
    play = shared(again, wrong_wraps)
    assert np.array_equal(finished(play), plain_sum(VECTORS, again.ids))


def test_a_complaint_about_proper_shares_proves_nothing():
    cast = assemble(6, min_honest=3, max_dropout=0.2)
    play = shared(cast)
    play.upload(VECTORS)
    play.confirm()
    for device in cast.ids:
        frame = play.rounds[device].unmask(play.server.confirmed_for(device))
        if device == BAD:  # says that 10 had sealed nonsense to it
            kept, bad = play.server._kept, np.zeros(5, dtype=np.bool_)
            bad[0] = True  # its first neighbour
            accepted = kept.layout.accepted(*kept.accepted(kept.places[BAD], bad))
            answers = peek(frame, Unmask).answers[32:]
            frame = resend(play, BAD, frame, bad=b"\x01", accepted=accepted, answers=answers)
        play.send(frame)
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, cast.ids))
    with pytest.raises(RuleBroken, match="no complaint"):
        play.rounds[BAD].disclose(play.server.dealt_by(10))
    layout = play.server.layout
    for key in (os.urandom(32), cast.devices[BAD].agree(10, 1)):
        shown = Disclosure(layout.digest, BAD, 10, key)
        assert play.server.settle(wire.seal(shown, cast.devices[BAD].keys.identity)) is None
    keys = pairs.pair_keys(cast.devices[BAD].agree(10, 1), layout.digest)
    true = Disclosure(layout.digest, BAD, 10, keys.seal)
    assert play.server.settle(wire.seal(true, cast.devices[BAD].keys.identity)) is None
    assert not play.server.faults
    assert cast.server.judge(play.server) == []


def test_a_server_that_passes_on_nonsense_learns_no_key():
    # It would love to see the key under which 20 sealed its shares to 10.
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = cast.play()
    play.send_shares()
    message = peek(play.server.sharers_for(10), Sharers)
    lie = replace(message, sealed=os.urandom(64) + message.sealed[64:])
    play.rounds[10].take_sharers(play.lie(lie))
    with pytest.raises(RuleBroken, match="device 20 had sealed proper shares"):
        play.rounds[10].disclose(play.server.dealt_by(20))
    changed = bytearray(play.server.dealt_by(20))
    changed[-1] ^= 1
    with pytest.raises(Exception, match="signature"):
        play.rounds[10].disclose(bytes(changed))
    with pytest.raises(RuleBroken, match="no complaint"):
        play.rounds[10].disclose(play.server.dealt_by(30))


def test_evidence_convicts_nobody_else_and_not_for_another_round():
    cast = assemble(9, min_honest=3, max_dropout=0.3)
    play = shared(cast, garbage_seals({20}))
    play.upload(VECTORS, silent={BAD})
    play.confirm()
    for device in play.server.confirmed:
        honest = play.rounds[device].unmask
        frame = (
            wrong_shares(play, device)
            if device == 10
            else honest(play.server.confirmed_for(device))
        )
        play.send(frame)
    play.server.finish()
    settled(play)
    layout, identities = play.server.layout, play.server.identities
    assert {fault.wrong for fault in play.server.faults} == {Wrong.SHARE, Wrong.SEAL}
    other = cast.play(round_number=2).server
    for fault in play.server.faults:
        assert proven(fault, layout, identities)
        assert not proven(fault, other.layout, other.identities)
        for innocent in set(cast.ids) - {fault.device}:
            assert not proven(replace(fault, device=innocent), layout, identities)
        for about in set(cast.ids) - {fault.about, fault.device}:
            assert not proven(replace(fault, about=about), layout, identities) or (
                fault.wrong is Wrong.SHARE  # it spoiled all of them
            )
        for wrong in set(Wrong) - {fault.wrong}:
            assert not proven(replace(fault, wrong=wrong), layout, identities)
        for place in range(len(fault.frames)):
            frames = list(fault.frames)
            frames[place] = frames[place][:-1] + bytes([frames[place][-1] ^ 1])
            assert not proven(replace(fault, frames=tuple(frames)), layout, identities)
        for values in ((), (b"",), (os.urandom(48),), fault.values * 2):
            if values != fault.values and fault.values:
                assert not proven(replace(fault, values=values), layout, identities)
    play.server.faults = [replace(fault, device=70) for fault in play.server.faults]
    assert cast.server.judge(play.server) == []


def test_honest_devices_give_no_evidence_against_themselves():
    cast = assemble(7, min_honest=3, max_dropout=2 / 7)
    play = cast.play()
    play.share(silent={70})
    finished(play, {60})
    assert not play.server.faults
    assert not play.server.suspects
    assert not play.server.disputes
    assert cast.server.judge(play.server) == []
    layout, identities = play.server.layout, play.server.identities
    frames = {d: play.server.dealt_by(d) for d in play.server.sharers}
    for device in play.server.survivors:
        for wrong in Wrong:
            fault = Fault(device, 10, wrong, layout.digest, (frames[device],) * 3, (b"",) * 2)
            assert not proven(fault, layout, identities)


def test_a_disclosure_out_of_place_is_refused():
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = shared(cast, garbage_seals({20}))
    finished(play)
    frame = play.rounds[20].disclose(play.server.dealt_by(BAD))
    stranger = cast.play(round_number=3).server
    with pytest.raises(OutOfTurn):
        stranger.settle(frame)
    with pytest.raises(OutOfTurn, match="has not complained"):
        play.server.settle(resend(play, 20, frame, dealer=10))
    with pytest.raises(OutOfTurn, match="has not shared"):
        play.server.dealt_by(11)
    assert play.server.settle(frame) is not None


@pytest.mark.parametrize("round_number", range(6))
def test_a_sparse_round_survives_every_kind_of_poison(round_number):
    cast = assemble(40, min_honest=10, colluders=2, max_dropout=0.2)
    spoil = (random_checks, one_check, garbage_seals, None, None, None)[round_number]
    play = cast.play(round_number=round_number)
    neighbours = play.server.layout.graph.neighbours(BAD)
    assert play.server.layout.plan.degree < 39
    if spoil is one_check:
        spoil = one_check(neighbours[0])
    elif spoil is garbage_seals:
        spoil = garbage_seals(set(neighbours[:3]))
    for device in cast.ids:
        play.rounds[device] = cast.devices[device].join(play.server.plan)
        frame = play.rounds[device].shares
        play.send(spoil(play, device, frame) if device == BAD and spoil else frame)
    play.server.close_sharing()
    play.take_sharers()
    play.upload(VECTORS, silent=set(cast.ids[-3:]))
    play.confirm()
    for device in play.server.confirmed:
        honest = play.rounds[device].unmask
        bad = device == BAD and spoil is None
        play.send(wrong_shares(play, device) if bad else honest(play.server.confirmed_for(device)))
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, play.server.survivors))
    settled(play)
    assert {fault.device for fault in play.server.faults} <= {BAD}
    assert play.server.suspects <= {BAD}


def test_one_disclosure_is_settled_without_walking_over_all_complaints(monkeypatch):
    # Colluders may complain about everybody: thousands of pairs in a large cohort.
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = shared(cast, garbage_seals({20}))
    finished(play)
    frame = play.rounds[20].disclose(play.server.dealt_by(BAD))
    monkeypatch.setattr(Kept, "disputes", lambda _: pytest.fail("all of them"))
    assert play.server.settle(frame) is not None


@pytest.mark.parametrize("field", ["sealed", "marks", "checks", "wrapped", "roots"])
@pytest.mark.parametrize("length", [0, 1, 63, 65, 10_000])
def test_signed_lists_of_any_length_end_in_a_typed_refusal(field, length):
    # No server takes such a frame; one that lies may show it to a neighbour, or a judge.
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = shared(cast, garbage_seals({10}))
    finished(play)
    odd = resend(play, BAD, play.server.dealt_by(BAD), **{field: os.urandom(length)})
    layout, identities = play.server.layout, play.server.identities
    with suppress(SecureAggregationError):
        play.rounds[10].disclose(odd)
    with suppress(SecureAggregationError):
        play.rounds[10].take_odds(odd)
    honest = play.rounds[10].disclose(play.server.dealt_by(BAD))
    key = peek(honest, Disclosure).key
    for frames in ((odd, honest), (odd, odd), (odd,), ()):
        for values in ((), (b"self",), (key,), (b"pair", *(id_bytes(10) + key,) * 3)):
            for wrong in Wrong:
                for device, about in ((BAD, 10), (10, BAD), (BAD, BAD), (11, 10)):
                    fault = Fault(device, about, wrong, layout.digest, frames, values)
                    assert proven(fault, layout, identities) in (False, True)
                    assert device == BAD or not proven(fault, layout, identities)
