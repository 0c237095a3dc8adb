"""A passive server with colluders, and servers that lie: what they can and cannot learn."""

from __future__ import annotations

import copy
import itertools
import random
from dataclasses import replace
from functools import partial

import networkx as nx
import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.privacy.secure_sums.errors import (
    Forged,
    NotReleased,
    OutOfTurn,
    RuleBroken,
    SecureAggregationError,
)
from fedveil.privacy.secure_sums.masks import apply_masks
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import pairs, wire
from fedveil_federation.secagg.messages import (
    Confirm,
    Confirmed,
    Masked,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.relay import Recovery

VECTORS = small_vectors()


# --- the passive server and its colluders ---------------------------------------------------------


def recovered(play, device: int, survived: bool) -> bytes:
    """A secret from the shares that the server was given, whichever kind they are of."""
    kept = play.server._kept
    claimed = np.zeros(len(kept.places), dtype=np.bool_)
    claimed[kept.places[device]] = survived
    return Recovery(kept, claimed).secret(kept.places[device])


class Spy:
    """Everything a passive server and its colluding devices hold after a round."""

    def __init__(self, play, colluders) -> None:
        self.play, self.colluders = play, colluders
        self.layout = play.server.layout
        self.roots = {c: {n: k.root for n, k in play.rounds[c]._pairs.items()} for c in colluders}

    def known_root(self, a: int, b: int) -> bytes | None:
        """The key of a pair, if a colluder is in it or one of the two was lost."""
        for own, other in ((a, b), (b, a)):
            if own in self.colluders:
                return self.roots[own][other]
            server = self.play.server
            if own in server.sharers and own not in server.survivors:
                secret = recovered(self.play, own, False)
                rank = self.layout.graph.neighbours(own).index(other)
                wrapped = server._kept.wrapped[server._kept.places[own]].tobytes()
                return pairs.wrap(wrapped, secret)[32 * rank : 32 * rank + 32]
        return None

    def strip(self, device: int, own_mask: bool = True) -> np.ndarray:
        """A device's upload without every mask that the spies can compute."""
        frame = next(
            f for f in self.play.frames if f[5] == Masked.KIND and peek(f, Masked).device == device
        )
        words = np.frombuffer(peek(frame, Masked).vector, "<u4").copy()
        added, subtracted = [], []
        if own_mask:
            secret = recovered(self.play, device, True)
            subtracted.append(pairs.self_mask_key(secret))
        for other in self.layout.graph.neighbours(device):
            root = self.known_root(device, other)
            if root is not None:
                (subtracted if device < other else added).append(pairs.mask_key(root))
        apply_masks(words, added, subtracted)
        return words


def watched_round(vectors, colluders, dimension, round_number=1):
    """Six devices; 60 shares and is then lost."""
    cast = assemble(6, min_honest=2, colluders=2, max_dropout=1 / 6)
    play = cast.play(round_number=round_number, dimension=dimension)
    play.share()
    spy = Spy(play, colluders)
    play.upload(vectors, silent={60})
    play.confirm()
    total = play.unmask()
    return spy, total


DIMENSION = 60_000


def extreme_vectors(device: int) -> np.ndarray:
    """Inputs that would jump to the eye: constants of opposite sign, and a ramp."""
    ramp = np.arange(DIMENSION, dtype=np.int64)
    return {30: np.full(DIMENSION, 2**28), 40: np.full(DIMENSION, -(2**28)), 50: ramp}.get(
        device, np.full(DIMENSION, 12345)
    )


def moved_vectors(device: int) -> np.ndarray:
    """Other inputs of the honest devices with the same honest sum."""
    ramp = np.arange(DIMENSION, dtype=np.int64)
    return {30: ramp, 40: np.zeros(DIMENSION, np.int64), 50: np.zeros(DIMENSION, np.int64)}.get(
        device, np.full(DIMENSION, 12345)
    )


def cells(words: list[np.ndarray], shift: int) -> np.ndarray:
    """Counts of (3 bits of the first, 3 bits of the second) at a position."""
    a, b = ((w >> np.uint32(shift)) & np.uint32(7) for w in words)
    return np.bincount(a * 8 + b, minlength=64)


def simulated_view(honest_sum: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """What the simulator writes, knowing the honest sum alone: uniform terms of that sum."""
    first, second = (rng.integers(0, 2**32, DIMENSION, dtype=np.uint32) for _ in range(2))
    return [first, second, honest_sum.astype(np.uint32) - first - second]


# Each test below makes at most 24 comparisons at level 1e-7: false alarm below 3e-6.
LEVEL = 1e-7
SHIFTS = (0, 8, 16, 29)


def distinguishable(view: list[np.ndarray], other: list[np.ndarray]) -> bool:
    for first, second in itertools.combinations(range(3), 2):
        for shift in SHIFTS:
            table = [
                cells([view[first], view[second]], shift),
                cells([other[first], other[second]], shift),
            ]
            if chi2_contingency(table).pvalue < LEVEL:
                return True
    return False


@pytest.mark.parametrize("vectors", [extreme_vectors, moved_vectors])
def test_the_view_of_server_and_colluders_is_that_of_a_simulator_knowing_the_honest_sum(vectors):
    spy, total = watched_round(vectors, {10, 20}, DIMENSION)
    honest = [30, 40, 50]
    assert np.array_equal(total, plain_sum(vectors, [10, 20, *honest]))
    view = [spy.strip(device) for device in honest]
    honest_sum = plain_sum(vectors, honest)
    assert np.array_equal(sum(view[1:], view[0]), honest_sum.astype(np.uint32))
    assert not distinguishable(view, simulated_view(honest_sum, np.random.default_rng(11)))
    for words in view:
        for shift in SHIFTS:
            pairs_of_neighbours = cells([words[:-1:2], words[1::2]], shift)
            assert chisquare(pairs_of_neighbours).pvalue > LEVEL


def test_two_sets_of_inputs_with_one_sum_cannot_be_told_apart():
    views = []
    for vectors in (extreme_vectors, moved_vectors):
        spy, _ = watched_round(vectors, {10, 20}, DIMENSION)
        views.append([spy.strip(device) for device in (30, 40, 50)])
    assert not distinguishable(*views)


def test_control_with_one_honest_device_among_colluders_the_spies_read_it():
    # The same stripping exposes the vector when everybody else colludes.
    spy, _ = watched_round(extreme_vectors, {10, 20, 40, 50}, DIMENSION)
    assert np.array_equal(spy.strip(30), extreme_vectors(30).astype(np.uint32))


def test_control_a_missing_pair_mask_would_be_noticed():
    spy, _ = watched_round(extreme_vectors, {10, 20}, DIMENSION)
    view = [spy.strip(device) for device in (30, 40, 50)]
    leaky = [extreme_vectors(30).astype(np.uint32), view[1], view[0] + view[2] - view[1]]
    honest_sum = plain_sum(extreme_vectors, (30, 40, 50))
    assert distinguishable(leaky, simulated_view(honest_sum, np.random.default_rng(12)))


def test_pair_masks_of_different_rounds_and_purposes_are_unrelated():
    cast = assemble(3)
    masks = []
    for round_number, purpose in ((1, "update"), (1, "clip"), (2, "update")):
        play = cast.play(round_number=round_number, purpose=purpose, dimension=DIMENSION)
        root = cast.devices[10].join(play.server.plan)._pairs[20].root
        words = np.zeros(DIMENSION, "<u4")
        apply_masks(words, [pairs.mask_key(root)], [])
        masks.append(words)
    for first, second in itertools.combinations(masks, 2):
        for shift in SHIFTS:
            assert chisquare(cells([first, second], shift)).pvalue > LEVEL
            assert chisquare(cells([first, first - second], shift)).pvalue > LEVEL


# --- late, repeated and foreign messages ----------------------------------------------------------


def test_a_vector_that_comes_after_its_device_was_declared_lost_stays_hidden():
    cast = assemble(6, min_honest=2, colluders=2, max_dropout=1 / 6)
    play = cast.play(dimension=DIMENSION)
    play.share()
    spy = Spy(play, {10, 20})
    late = play.rounds[60].mask(extreme_vectors(30))
    play.upload(extreme_vectors, silent={60})
    with pytest.raises(OutOfTurn, match="too late"):
        play.server.receive(late)
    play.confirm()
    with pytest.raises(OutOfTurn, match="too late"):
        play.server.receive(late)
    total = play.unmask()
    assert np.array_equal(total, plain_sum(extreme_vectors, [10, 20, 30, 40, 50]))
    # All its pair masks are known by now; its own mask is not, and no share of it was given.
    play.frames.append(late)
    words = spy.strip(60, own_mask=False)
    for shift in SHIFTS:
        assert chisquare(cells([words[:-1:2], words[1::2]], shift)).pvalue > LEVEL
    recovered(play, 60, False)
    with pytest.raises(NotReleased):
        recovered(play, 60, True)


def test_a_sum_is_unmasked_once_and_in_its_turn():
    """A second unmasking would take the masks off twice, and an early one takes none off."""
    play = assemble(4).play()
    for step in (play.share, partial(play.upload, VECTORS), play.confirm):
        with pytest.raises(OutOfTurn, match="UNMASKING"):
            play.server.finish()
        step()
    total = play.unmask()
    assert np.array_equal(total, plain_sum(VECTORS, play.cast.ids))
    with pytest.raises(OutOfTurn, match="OVER"):
        play.server.finish()


def test_replayed_frames_change_nothing():
    cast = assemble(4)
    old = cast.play(round_number=1)
    old.share()
    old.upload(VECTORS)
    old.confirm()
    old.unmask()
    new = cast.play(round_number=2)

    def replay() -> None:
        for frame in old.frames:
            with pytest.raises(OutOfTurn):
                new.server.receive(frame)
        for frame in new.frames:
            new.server.receive(frame)

    replay()
    new.share()
    replay()
    new.upload(VECTORS)
    replay()
    new.confirm()
    replay()
    assert np.array_equal(new.unmask(), plain_sum(VECTORS, cast.ids))


def test_a_confirmation_of_other_survivors_is_refused_by_the_server():
    cast = assemble(4)
    play = cast.play()
    play.share()
    play.upload(VECTORS)
    frame = play.rounds[10].confirm(play.server.survivors_for(10))
    with pytest.raises(Forged, match="device 10 acts on other survivors"):
        play.server.receive(play.resend(10, frame, survivors=bytes(32)))
    play.server.receive(frame)


def test_a_stranger_and_a_member_speaking_for_another_are_refused():
    cast = assemble(4)
    play = cast.play(members=cast.ids[:3])
    outsider = cast.play(round_number=2)
    stranger = cast.devices[40].join(outsider.server.plan).shares
    with pytest.raises(OutOfTurn, match="not in this round"):
        play.server.receive(stranger)
    message = peek(cast.devices[10].join(play.server.plan).shares, Shares)
    impostor = cast.devices[20].keys.identity
    with pytest.raises(Forged):
        play.server.receive(wire.seal(message, impostor))


# --- a server that tells devices different things -------------------------------------------------


def lie_about_survivors(cast, play, told: dict[int, frozenset[int]], colluders: set[int]):
    """Tell each device its own list, then show it every confirmation of that list.

    Colluders confirm every list. Returns, by device that answered, the list it acted on.
    """
    layout, server = play.server.layout, play.server
    sharers = server._kept.sharers
    statements = {
        d: server._kept.statements[server._kept.places[d]].tobytes() for d in server.survivors
    }
    digests, acted = {}, {}
    for device, listed in told.items():
        alive = [n for n in layout.graph.neighbours(device) if n in listed]
        signed = b"".join(statements[n] for n in alive)
        frame = Survivors(layout.digest, device, play.bitmap(listed), signed)
        digests[device] = layout.survivors_digest(sharers, play.bitmap(listed))
        try:
            play.rounds[device].confirm(play.lie(frame))
        except RuleBroken:
            digests[device] = b""
    for device, listed in told.items():
        if device in colluders or not digests[device]:
            continue
        agreeing = [
            n
            for n in layout.graph.neighbours(device)
            if n in listed and (n in colluders or digests.get(n) == digests[device])
        ]
        tags = b"".join(play.rounds[n]._tag(device, n, digests[device]) for n in agreeing)
        frame = Confirmed(layout.digest, device, play.bitmap(agreeing), tags)
        # The tags of honest neighbours must be computed before those unmask and forget their keys.
        acted[device] = (play.lie(frame), listed)
    answered = {}
    for device, (frame, listed) in acted.items():
        try:
            play.rounds[device].unmask(frame)
        except SecureAggregationError:
            continue
        answered[device] = listed
    return answered


@pytest.mark.parametrize("colluders", [set(), {20}])
def test_no_split_of_the_cohort_yields_both_kinds_of_share_of_one_device(colluders):
    # Complete graph, all ways to tell some devices that 60 survived and others that it is lost.
    everybody = frozenset({10, 20, 30, 40, 50, 60})
    without = everybody - {60}
    base = assemble(6, min_honest=3, colluders=len(colluders), max_dropout=1 / 6)
    honest = sorted(without - colluders)
    for round_number, choice in enumerate(
        itertools.product((everybody, without), repeat=len(honest))
    ):
        play = base.play(round_number=round_number)
        play.share()
        play.upload(VECTORS)
        told = dict(zip(honest, choice, strict=True)) | dict.fromkeys(colluders, everybody)
        answered = lie_about_survivors(base, play, told, colluders)
        threshold = play.server.layout.plan.threshold
        self_shares = len(colluders) + sum(60 in listed for listed in answered.values())
        pair_shares = len(colluders) + sum(60 not in listed for listed in answered.values())
        assert self_shares < threshold or pair_shares < threshold
        assert len(set(answered.values())) <= 1  # all who act, act on one list
        if len(set(choice)) == 1:  # an honest server is served
            assert sorted(answered) == honest


def test_devices_told_of_different_sharers_do_not_unmask_each_other():
    cast = assemble(6, min_honest=3, max_dropout=1 / 6)
    play = cast.play()
    play.send_shares()
    for device in cast.ids:
        frame = play.server.sharers_for(device)
        if device == 10:  # told that 60 never shared: its mask would lack that pair
            message = peek(frame, Sharers)
            present = play.bitmap({10, 20, 30, 40, 50})
            message = replace(
                message,
                present=present,
                nonces=message.nonces[:64],
                sealed=message.sealed[: 4 * 64],
                marks=message.marks[:128],
            )
            frame = play.lie(message)
        play.rounds[device].take_sharers(frame)
    frame = play.rounds[10].mask(VECTORS(10))
    with pytest.raises(Forged, match="masked for other sharers"):
        play.server.receive(frame)  # an honest server notices at once
    # A lying server passes on what 10 has signed, or what 20 has; the neighbours see through both.
    kept, statement = play.server._kept, peek(frame, Masked).statement
    kept.statements[0] = np.frombuffer(statement, np.uint8)
    kept.uploaded[0] = True
    for device in (20, 30, 40, 50, 60):
        play.server.receive(play.rounds[device].mask(VECTORS(device)))
    play.server.close_upload()
    for made_up in (kept.statements[0], kept.statements[1], np.uint8(0)):
        kept.statements[0] = made_up
        for device in (30, 40, 50, 60):
            with pytest.raises(Forged, match="device 10 was told of other sharers"):
                play.rounds[device].confirm(play.server.survivors_for(device))


class TwoFaced:
    """A server that lies to the devices of one round, with colluders that help it.

    Every device is a real state machine, and what is counted are shares that really left. The
    cohort is cut into groups; each is told its own lists. Colluders confirm any list, and give both
    kinds of share.
    """

    def __init__(self, cast, play, colluders, rng: random.Random) -> None:
        self.cast, self.play, self.colluders, self.rng = cast, play, colluders, rng
        self.layout, self.threshold = play.server.layout, play.server.layout.plan.threshold

    def told(self, count: int, most: int) -> dict[int, frozenset[int]]:
        """By device the list that it is told, one of so many, each with a few devices left out."""
        ids, rng = self.cast.ids, self.rng
        lists = [frozenset(ids) - set(rng.sample(ids, rng.randint(0, most))) for _ in range(count)]
        return {device: rng.choice(lists) for device in ids}

    def share(self, told: dict[int, frozenset[int]]) -> None:
        """Each device learns of its own list of sharers, and masks."""
        play, near = self.play, self.layout.graph.neighbours
        play.send_shares()
        self.vectors: dict[int, Masked] = {}
        self.masked_for: dict[int, frozenset[int]] = {}
        for device in self.cast.ids:
            message = peek(play.server.sharers_for(device), Sharers)
            listed = told[device] | {device}
            kept = [rank for rank, n in enumerate(near(device)) if n in listed]

            def cut(joined: bytes, size: int, kept=kept) -> bytes:
                return b"".join(joined[size * rank :][:size] for rank in kept)

            lie = replace(
                message,
                present=play.bitmap(listed),
                nonces=cut(message.nonces, 16),
                sealed=cut(message.sealed, 64),
                marks=cut(message.marks, 32),
            )
            try:
                play.rounds[device].take_sharers(play.lie(lie))
            except RuleBroken:
                continue
            self.vectors[device] = peek(play.rounds[device].mask(VECTORS(device)), Masked)
            self.masked_for[device] = listed

    def finish(self, told: dict[int, frozenset[int]]) -> dict[int, tuple[frozenset[int], Unmask]]:
        """Each device learns of its own list of survivors; what those that act on it answer."""
        play, layout, confirmed = self.play, self.layout, {}
        for device in self.vectors:
            one = play.rounds[device]
            listed = (told[device] | {device}) & self.masked_for[device]
            alive = [n for n in one._partners if n in listed]
            signed = b"".join(self._statement(n) for n in alive)
            lie = Survivors(layout.digest, device, play.bitmap(listed), signed)
            try:
                frame = one.confirm(play.lie(lie))
            except SecureAggregationError:
                continue
            confirmed[device] = (listed, peek(frame, Confirm), alive)
        answers = {}
        frames = {d: self._shown(d, *confirmed[d][:2], confirmed) for d in confirmed}
        for device, frame in frames.items():
            try:
                reply = play.rounds[device].unmask(frame)
            except SecureAggregationError:
                continue
            answers[device] = (confirmed[device][0], peek(reply, Unmask))
        return {d: found for d, found in answers.items() if d not in self.colluders}

    def _statement(self, author: int) -> bytes:
        return self.vectors[author].statement if author in self.vectors else bytes(64)

    def _shown(self, device: int, listed, own: Confirm, confirmed) -> bytes:
        """Every tag that can be had for this device's list."""
        one, tags, shown = self.play.rounds[device], b"", []
        for n in one._partners:
            if n not in listed:
                continue
            if n in self.colluders and n in self.play.rounds:
                tags += self.play.rounds[n]._tag(device, n, own.survivors)
                shown.append(n)
            elif n in confirmed and confirmed[n][1].survivors == own.survivors:
                tags += confirmed[n][1].tags[16 * confirmed[n][2].index(device) :][:16]
                shown.append(n)
        message = Confirmed(self.layout.digest, device, self.play.bitmap(shown), tags)
        return self.play.lie(message)

    def learnt(self, answers) -> tuple[set[int], set[int]]:
        """Honest devices whose own mask, and whose pair masks, can be computed."""
        both = []
        for survived in (True, False):
            found = set()
            for device in set(self.vectors) - self.colluders:
                near = self.layout.graph.neighbours(device)
                gave = sum(
                    n in answers
                    and device in self.play.rounds[n]._partners
                    and (device in answers[n][0]) == survived
                    for n in near
                )
                if gave + len(self.colluders & set(near)) >= self.threshold:
                    found.add(device)
            both.append(found)
        return both[0], both[1]

    def groups(self, own: set[int], lost: set[int]) -> list[set[int]]:
        """Sets of honest devices whose sum shows: no mask that is unknown leaves them."""
        honest = set(self.vectors) - self.colluders - lost
        joined = nx.Graph()
        joined.add_nodes_from(honest)
        hidden = honest - own
        for device in honest:
            for n in self.play.rounds[device]._partners:
                if n in self.colluders or n in lost:
                    continue  # that mask is known
                if n in honest and device in self.play.rounds[n]._partners:
                    joined.add_edge(device, n)
                else:  # nobody else applied it: it hides this device for ever
                    hidden.add(device)
        return [c for c in nx.connected_components(joined) if not c & hidden]


def test_no_lie_about_sharers_and_survivors_shows_both_masks_of_a_device_or_a_small_group():
    rng = random.Random(3)
    cast = assemble(14, min_honest=9, colluders=2, max_dropout=0.2)
    most, everybody, shown = cast.params.losses(14), frozenset(cast.ids), []
    for round_number, (sharers, survivors) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)] * 3):
        colluders = set(rng.sample(cast.ids, 2))
        server = TwoFaced(cast, cast.play(round_number), colluders, rng)
        told = server.told(sharers, most) if sharers > 1 else dict.fromkeys(cast.ids, everybody)
        server.share(told)
        answers = server.finish(server.told(survivors, most))
        own, lost = server.learnt(answers)
        assert not own & lost
        assert len({listed for listed, _ in answers.values()}) <= 1  # all who act, act on one list
        shown += [len(group) for group in server.groups(own, lost)]
    assert shown  # some of these servers learn a sum
    assert min(shown) >= cast.params.min_honest


def test_control_with_a_low_threshold_different_lists_show_both_masks(monkeypatch):
    """Devices and server that agree on a threshold below the one that their terms ask for."""
    usual = SecAggParams.topology
    monkeypatch.setattr(SecAggParams, "check", lambda *_: None)
    monkeypatch.setattr(SecAggParams, "topology", lambda *a: replace(usual(*a), threshold=4))
    cast = assemble(14, min_honest=9, colluders=1, max_dropout=0.2)
    server = TwoFaced(cast, cast.play(), {10}, random.Random(5))
    everybody = frozenset(cast.ids)
    server.share(dict.fromkeys(cast.ids, everybody))
    half, gone = set(cast.ids[:7]), frozenset(cast.ids[8:10])
    told = {device: everybody - gone if device in half else everybody for device in cast.ids}
    own, lost = server.learnt(server.finish(told))
    assert own & lost


def test_every_frame_of_a_round_hides_the_secrets_it_carries():
    # No share, root or secret of an honest pair appears in clear in what the server relays.
    cast = assemble(4)
    play = cast.play()
    play.share()
    kept = copy.copy(play.rounds[10])
    assert kept._held is not None
    shares = [row.tobytes() for row in kept._held.shares]
    assert len(shares) == 3
    play.upload(VECTORS)
    play.confirm()
    wire_bytes = b"".join(play.frames)
    for keys in kept._pairs.values():
        for secret in (keys.seal, keys.root, keys.tag):
            assert secret not in wire_bytes
    for both in shares:
        assert both[:32] not in wire_bytes
        assert both[32:] not in wire_bytes
    play.unmask()
    opened = b"".join(play.frames)
    for both in shares:
        assert both[:32] in opened  # survivors: the share of their own mask
        assert both[32:] not in opened  # never the other kind
