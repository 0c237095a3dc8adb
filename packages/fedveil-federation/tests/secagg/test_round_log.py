"""A hub that is killed at any moment goes on with its round, or ends it; nobody is asked twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.secagg.play import assemble, plain_sum, small_vectors
from tests.secagg.stores import new_store, terms_for

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import (
    Forged,
    NotReleased,
    OutOfTurn,
    SecureAggregationError,
)
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.messages import Abort
from fedveil_federation.secagg.round_log import MAGIC, RoundLog
from fedveil_federation.secagg.server import Phase, Server, ServerRound

VECTORS = small_vectors()


class Hub:
    """A server whose process ends and starts again whenever `crashes` says so.

    Devices keep their last frame and send it again until the server is in the next phase.
    """

    def __init__(self, cast, logs, crashes: Callable[[], bool], lost=()) -> None:
        cast.server.logs = logs
        self.cast, self.crashes, self.lost = cast, crashes, lost
        self.round = cast.server.open(1, cast.ids, 5, 32)
        self.named: dict[tuple[str, int], bytes] = {}

    def step(self) -> None:
        if self.crashes():
            os.close(self.round._log._handle)  # the process is gone, and its memory with it
            server = self.cast.server
            (self.round,) = Server(server.key, server.roster, server.params, server.logs).resume()

    def tell(self, what: str, device: int) -> bytes:
        """What a device is sent; after a restart it must be the same, byte for byte."""
        self.step()
        frame = getattr(self.round, what)(device)
        assert self.named.setdefault((what, device), frame) == frame
        return frame

    def take(self, frame: bytes) -> None:
        self.step()
        self.round.receive(frame)
        self.step()
        self.round.receive(frame)  # no answer had come: sent again, counted once

    def close(self) -> None:
        self.step()
        if self.round.phase in (Phase.SHARES, Phase.VECTORS, Phase.CONFIRMATIONS):
            self.round.close()
        self.step()

    def play(self) -> np.ndarray:
        devices = {i: d.join(self.round.plan) for i, d in self.cast.devices.items()}
        for device in devices.values():
            self.take(device.shares)
        self.close()
        for i, device in devices.items():
            device.take_sharers(self.tell("sharers_for", i))
            if i not in self.lost:
                self.take(device.mask(VECTORS(i)))
        self.close()
        alive = {i: device for i, device in devices.items() if i not in self.lost}
        for i, device in alive.items():
            self.take(device.confirm(self.tell("survivors_for", i)))
        self.close()
        for i, device in alive.items():
            self.take(device.unmask(self.tell("confirmed_for", i)))
        self.step()
        return self.round.finish()


def test_a_hub_that_ends_at_any_one_moment_gives_the_same_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # processes end here, not machines
    moment, done = 0, False
    while not done:
        cast, seen = assemble(4, max_dropout=0.25), iter(range(10**6))
        hub = Hub(cast, tmp_path / str(moment), lambda m=moment, s=seen: next(s) == m, (20,))
        total = hub.play()
        assert np.array_equal(total, plain_sum(VECTORS, [10, 30, 40]))
        done = next(seen) <= moment  # that moment never came
        moment += 1
    assert moment > 30


def test_a_hub_that_ends_at_every_moment_gives_the_same_sum(tmp_path):
    cast = assemble(4, max_dropout=0.25)
    hub = Hub(cast, tmp_path, lambda: True, (30,))
    assert np.array_equal(hub.play(), plain_sum(VECTORS, [10, 20, 40]))
    assert hub.round.remarks == {}
    (path,) = tmp_path.glob("*.round")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    hub.round.discard_log()
    assert list(tmp_path.iterdir()) == []


def logged(tmp_path, **options):
    cast = assemble(4, max_dropout=0.25, **options)
    cast.server.logs = tmp_path
    play = cast.play()
    (path,) = tmp_path.glob("*.round")
    return cast, play, path


def resumed(cast) -> ServerRound:
    (found,) = cast.server.resume()
    return found


def test_a_log_torn_at_any_byte_is_cut_there_and_devices_send_again(tmp_path):
    cast, play, path = logged(tmp_path)
    play.share()
    play.upload(VECTORS)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for cut in sorted({*rng.integers(len(MAGIC), len(whole), 60).tolist(), 0, 4, len(whole) - 1}):
        path.write_bytes(whole[:cut])
        opened = cast.server.resume()
        if not opened:  # the plan itself was torn: the round had never begun
            assert not path.exists()
            continue
        (again,) = opened
        sent = {wire.head(frame).device for frame in play.frames if frame[5] == 4}
        assert set(again.sharers) <= sent
        for frame in play.frames:
            if again.phase == frame[5]:
                again.receive(frame)
                if not again.missing and again.phase in (Phase.SHARES, Phase.VECTORS):
                    again.close()
        assert again.phase is Phase.CONFIRMATIONS
        assert again.survivors_for(10) == play.server.survivors_for(10)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes(bytes(flipped))
    assert len(resumed(cast).survivors) < 4  # what follows the damage is not believed


def test_a_log_put_back_gets_no_second_kind_of_share(tmp_path):
    # A disk that forgot a synced close: the restarted server names other survivors.
    cast, play, path = logged(tmp_path)
    play.share()
    before = path.read_bytes()
    play.upload(VECTORS)
    for device in cast.ids:
        play.send(play.rounds[device].confirm(play.server.survivors_for(device)))
    path.write_bytes(before)
    again = resumed(cast)
    for frame in play.frames:
        if frame[5] == Phase.VECTORS and wire.head(frame).device != 40:
            again.receive(frame)
    again.close_upload()
    for device in (10, 20, 30):
        with pytest.raises(OutOfTurn):
            play.rounds[device].confirm(again.survivors_for(device))
    with pytest.raises(NotReleased):
        again.close_confirmation()
    # The devices finish the first list, and that one only.
    play.server.close_confirmation()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))


def test_a_log_of_another_server_or_other_terms_is_refused(tmp_path):
    cast, _, path = logged(tmp_path)
    with pytest.raises(Forged):
        ServerRound.resume(path, Ed25519PrivateKey.generate(), cast.params)
    other = assemble(4, max_dropout=0.2).params
    with pytest.raises(ConfigError, match="other terms"):
        ServerRound.resume(path, cast.server.key, other)
    path.write_bytes(b"something else entirely")
    with pytest.raises(ConfigError, match="another program"):
        cast.server.resume()


def test_a_round_whose_log_cannot_be_written_ends(tmp_path, monkeypatch):
    cast, play, _ = logged(tmp_path)
    shares = [cast.devices[i].join(play.server.plan).shares for i in cast.ids]
    play.server.receive(shares[0])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RoundLog, "append", full)
    with pytest.raises(NotReleased, match="No space left"):
        play.server.receive(shares[1])
    assert play.server.phase is Phase.OVER
    with pytest.raises(ConfigError, match="No space left"):
        cast.play(round_number=2)


def test_an_aborted_round_stays_so_and_devices_accept_it(tmp_path):
    stores = {i: new_store(tmp_path / "devices" / str(i)) for i in (10, 20, 30, 40)}
    cast = assemble(4, max_dropout=0.25, min_honest=3, journal=stores.__getitem__)
    cast.server.logs = tmp_path / "logs"
    play = cast.play(privacy=terms_for())
    play.share()
    play.send(play.rounds[10].mask(VECTORS(10)))
    stranger = wire.seal(Abort(play.server.layout.digest), Ed25519PrivateKey.generate())
    with pytest.raises(Forged):
        play.rounds[20].abort(stranger)
    other = wire.seal(Abort(bytes(32)), cast.server.key)
    with pytest.raises(OutOfTurn):
        play.rounds[20].abort(other)
    notice = resumed(cast).abort()
    assert resumed(cast).phase is Phase.OVER
    assert resumed(cast).abort() == notice
    for device in cast.ids:
        play.rounds[device].abort(notice)
        play.rounds[device].abort(notice)
        with pytest.raises(OutOfTurn):
            play.rounds[device].mask(VECTORS(device))
    assert stores[10].ledger.spent() > 0  # its vector had left
    assert stores[20].ledger.spent() == 0
    with pytest.raises(OutOfTurn):
        resumed(cast).close()


def test_what_closes_a_phase_is_on_disk_before_anybody_is_told(tmp_path, monkeypatch):
    cast, synced = assemble(3), []
    cast.server.logs = tmp_path
    play = cast.play()
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    for close in (play.share, lambda: play.upload(VECTORS), play.confirm, play.server.abort):
        close()
        assert synced.pop() == path.stat().st_size  # all of it, and nothing was written since
        assert not synced


def _serve(key: bytes, logs, cast, pipe, number: int) -> None:
    """A hub's process: does what it is told, until it is killed."""
    server = Server(
        Ed25519PrivateKey.from_private_bytes(key), cast.server.roster, cast.params, logs
    )
    opened = server.resume()
    here = opened[0] if opened else server.open(number, cast.ids, 5, 32)
    while True:
        name, arguments = pipe.recv()
        try:
            found = getattr(here, name)
            pipe.send(found(*arguments) if callable(found) else found)
        except SecureAggregationError as error:
            pipe.send(error)


def test_killed_processes_of_a_hub_give_the_same_sum(tmp_path):
    cast = assemble(4, max_dropout=0.25)
    context = multiprocessing.get_context("fork")
    rng, key = np.random.default_rng(5), cast.server.key.private_bytes_raw()
    state: dict = {"kills": 0}

    def start(number: int) -> None:
        state["pipe"], theirs = context.Pipe()
        logs = tmp_path / str(number)
        arguments = (key, logs, cast, theirs, number)
        state["process"] = context.Process(target=_serve, args=arguments)
        state["process"].start()

    def ask(number: int, name: str, *arguments: object):
        """Ask until an answer comes; a quarter of the processes is killed first."""
        while True:
            state["pipe"].send((name, arguments))
            if rng.random() < 0.25:  # before, while or after it works
                os.kill(state["process"].pid, signal.SIGKILL)
                state["process"].join()
                state["kills"] += 1
                start(number)
                continue
            return state["pipe"].recv()

    for number in (1, 2, 3):
        start(number)
        devices = {i: d.join(ask(number, "plan")) for i, d in cast.devices.items()}
        for device in devices.values():
            ask(number, "receive", device.shares)
        ask(number, "close_sharing")  # OutOfTurn if it was closed before the process died
        for i, device in devices.items():
            device.take_sharers(ask(number, "sharers_for", i))
            if i != 30:
                ask(number, "receive", device.mask(VECTORS(i)))
        ask(number, "close_upload")
        for i in (10, 20, 40):
            ask(number, "receive", devices[i].confirm(ask(number, "survivors_for", i)))
        ask(number, "close_confirmation")
        for i in (10, 20, 40):
            ask(number, "receive", devices[i].unmask(ask(number, "confirmed_for", i)))
        assert np.array_equal(ask(number, "finish"), plain_sum(VECTORS, [10, 20, 40]))
        os.kill(state["process"].pid, signal.SIGKILL)
        state["process"].join()
    assert state["kills"] > 5


@pytest.mark.parametrize("fails", ["fsync", "write"])
def test_a_log_that_could_not_be_begun_is_not_in_the_way_of_the_next_try(
    tmp_path, monkeypatch, fails
):
    cast = assemble(4)
    cast.server.logs = tmp_path / "logs"

    def full(*_):
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/dev/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, fails, full)
        with pytest.raises(ConfigError, match="No space left"):
            cast.server.open(1, cast.ids, 5, 32)
    assert list(cast.server.logs.iterdir()) == []
    assert len(os.listdir("/dev/fd")) <= before
    cast.server.open(1, cast.ids, 5, 32)  # the very same plan
    with pytest.raises(ConfigError, match="exists"):
        cast.server.open(1, cast.ids, 5, 32)
    assert len(cast.server.resume()) == 1


def test_a_log_is_read_in_the_memory_of_one_frame(tmp_path):
    cast = assemble(12, min_honest=4)
    cast.server.logs = tmp_path
    play = cast.play(dimension=50_000)
    play.share()
    play.upload(small_vectors(50_000))
    vector = 4 * 50_000
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size > 12 * vector
    tracemalloc.start()
    try:
        again = resumed(cast)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert again.survivors == cast.ids
    assert peak < 5 * vector  # the total, the frame, its vector


def test_logs_that_cannot_be_used_stay_open_nowhere(tmp_path):
    cast, _, path = logged(tmp_path)
    before = len(os.listdir("/dev/fd"))
    path.write_bytes(b"something else entirely")
    with pytest.raises(ConfigError, match="another program"):
        cast.server.resume()
    path.write_bytes(MAGIC)
    assert cast.server.resume() == []
    assert len(os.listdir("/dev/fd")) <= before


def test_after_an_abort_no_share_is_given(tmp_path):
    cast, play, _ = logged(tmp_path)
    play.share()
    play.upload(VECTORS)
    play.confirm()
    frames = {i: play.server.confirmed_for(i) for i in cast.ids}
    notice = play.server.abort()
    for device in cast.ids:
        play.rounds[device].abort(notice)
        with pytest.raises(OutOfTurn):
            play.rounds[device].unmask(frames[device])
    with pytest.raises(OutOfTurn):
        play.server.finish()
