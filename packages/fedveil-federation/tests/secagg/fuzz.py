"""Long fuzzing: `python -m tests.secagg.fuzz [--frames N] [--rounds N] [--seed S] [--state FILE]`.

Plays random rounds (complete and sparse graphs, servers trusted and not, keys renewed between
rounds, devices lost at every leg, a member that signs nonsense, a hub that restarts from its log)
and throws mutated frames at every receiver on the way. It fails at the first wrong sum, untyped
error, hang, remark about honest devices alone, or accepted frame that nobody had signed. Then it
reports what it did, with the peak of memory after a tenth of the rounds and after all.

Rounds come in batches, each with a seed of its own: a failure names its batch, which
`--batch NUMBER` plays again. With `--state` what was done is kept after every batch, and the same
command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from tests.secagg.play import KINDS, Cast, Play, assemble, plain_sum, small_vectors
from tests.secagg.test_fuzz import CORPUS, spoiled
from tests.secagg.test_wire import frame_of

from fedveil.privacy.secure_sums.errors import NotReleased, SecureAggregationError
from fedveil_federation.secagg.device import DeviceRound

VECTORS = small_vectors()
SLOWEST = 60.0  # CPU seconds for one round: beyond it something hangs
BATCH = 50  # rounds of one cast


class Fuzzer:
    """Counts what was thrown and what became of it."""

    def __init__(self, seed: int, per_frame: int) -> None:
        self.rng = random.Random(seed)
        self.per_frame = per_frame
        self.seen: Counter[str] = Counter()
        self._corpus = list(CORPUS.values())

    def mutants(self, frame: bytes) -> list[bytes]:
        """Frames like this one, none of which its author signed."""
        rng, found = self.rng, []
        while len(found) < self.per_frame:
            way = rng.randrange(6)
            changed = bytearray(frame)
            at = rng.randrange(len(frame))
            if way == 0:
                changed[at] ^= 1 << rng.randrange(8)
            elif way == 1:
                changed = changed[:at]
            elif way == 2:
                changed += rng.randbytes(rng.randint(1, 60))
            elif way == 3:
                changed[at : at + 8] = rng.randbytes(8)
            elif way == 4:  # another length in the header
                changed[46:50] = rng.randbytes(4)
            else:
                changed = bytearray(rng.choice(self._corpus))
            if bytes(changed) != frame:
                found.append(bytes(changed))
        return found

    def attack(self, receive, frame: bytes) -> None:
        """Throw mutants; each must end in a typed error."""
        for mutant in self.mutants(frame):
            self.seen["frames"] += 1
            try:
                receive(mutant)
            except SecureAggregationError as error:
                self.seen[type(error).__name__] += 1
            else:
                raise AssertionError(f"accepted: {mutant[:200].hex()}")

    def cast(self) -> Cast:
        """Other keys and terms; now and then a sparse graph."""
        rng = self.rng
        sparse = rng.random() < 0.02
        count = 40 if sparse else rng.randint(4, 7)
        return assemble(count, max_dropout=0.25, honest_server=sparse or rng.random() < 0.5)

    def round(self, cast: Cast, number: int, logs: Path) -> None:
        rng, start = self.rng, time.process_time()
        cast.server.logs = logs
        if rng.random() < 0.1:
            cast.server.roster.admit(cast.renew(rng.choice(cast.ids)))
            self.seen["renewals"] += 1
        here = cast.server.open(number, cast.ids, 5, rng.choice((32, 64)))
        culprit, leg = rng.choice([*cast.ids, None]), rng.choice([4, 6, 8, 10])
        loss = rng.choice((0.0, 0.0, 0.05, 0.15))

        def lost() -> bool:
            return rng.random() < loss

        def restarted(server):
            """A hub that was killed and goes on from its log."""
            if rng.random() < 0.02:
                os.close(server._log._handle)
                (server,) = cast.server.resume()
                self.seen["restarts"] += 1
            return server

        def send(device: int, frame: bytes) -> None:
            if device == culprit and frame[5] == leg:
                body = spoiled(frame, KINDS[leg], rng)
                frame = frame_of(leg, body, Play(cast, here, rounds).signer(device, leg), frame)
            self.attack(here.receive, frame)
            here.receive(frame)

        rounds: dict[int, DeviceRound] = {}
        try:
            for i in cast.ids:
                join, plan = cast.devices[i].join, here.plan
                self.attack(join, plan)
                if not lost():
                    rounds[i] = join(plan)
                    self._refused(lambda i=i: send(i, rounds[i].shares))
                here = restarted(here)
            here.close_sharing()
            for i in here.sharers:
                frame = here.sharers_for(i)
                self.attack(rounds[i].take_sharers, frame)
                if self._refused(lambda i=i, f=frame: rounds[i].take_sharers(f)) and not lost():
                    self._refused(lambda i=i: send(i, rounds[i].mask(VECTORS(i))))
                here = restarted(here)
            here.close_upload()
            if here.confirms:
                for i in here.survivors:
                    frame = here.survivors_for(i)
                    self.attack(rounds[i].confirm, frame)
                    if not lost():
                        self._refused(lambda i=i, f=frame: send(i, rounds[i].confirm(f)))
                    here = restarted(here)
                here.close_confirmation()
            for i in here.confirmed:
                frame = here.confirmed_for(i) if here.confirms else here.survivors_for(i)
                self.attack(rounds[i].unmask, frame)
                if not lost():
                    self._refused(lambda i=i, f=frame: send(i, rounds[i].unmask(f)))
                here = restarted(here)
            total = here.finish()
            assert np.array_equal(total, plain_sum(VECTORS, here.survivors)), "a wrong sum"
            self.seen["released"] += 1
        except NotReleased:
            self.seen["not released"] += 1
        for device, remark in here.remarks.items():  # an honest device is at odds with liars only
            assert device == culprit or f"[{culprit}]" in remark, f"wrong remark: {remark}"
        here.discard_log()
        self.seen["rounds"] += 1
        assert time.process_time() - start < SLOWEST, "a round hangs"

    def _refused(self, act) -> bool:
        """Whether it went well; a refusal is a loss, as for a real server."""
        try:
            act()
        except NotReleased:
            raise
        except SecureAggregationError:
            self.seen["refusals"] += 1
            return False
        return True


def batch(seed: int, number: int, rounds: int, per_frame: int) -> Counter[str]:
    """Some rounds of one cast; fewer of a large one."""
    fuzzer = Fuzzer(seed * 1_000_003 + number, per_frame)
    cast = fuzzer.cast()
    with tempfile.TemporaryDirectory() as folder:
        for round_number in range(rounds if len(cast.ids) <= 7 else max(1, rounds // 10)):
            fuzzer.round(cast, round_number, Path(folder))
    return fuzzer.seen


def run(frames: int, rounds: int, seed: int, state: Path | None = None) -> Counter[str]:
    """At least so many frames and rounds; what was seen."""
    per_frame = max(1, -(-frames // (rounds * 35)))  # genuine frames of a small round, about
    seen: Counter[str] = Counter()
    if state is not None and state.exists():
        seen.update(json.loads(state.read_text()))
    while seen["rounds"] < rounds or seen["frames"] < frames:
        before, number = seen["rounds"], seen["batches"]
        try:
            seen += batch(seed, number, min(BATCH, max(1, rounds)), per_frame)
        except BaseException as error:
            error.add_note(f"in batch {number} of seed {seed}, {per_frame} mutants a frame")
            raise
        seen["batches"] += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if before < rounds // 10 <= seen["rounds"]:
            seen["MB after a tenth"] = peak
        seen["MB at the end"] = max(peak, seen["MB at the end"])
        if state is not None:
            state.with_suffix(".new").write_text(json.dumps(seen))
            state.with_suffix(".new").replace(state)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="a file to go on from")
    parser.add_argument("--batch", type=int, help="play this one batch again")
    asked = parser.parse_args()
    if asked.batch is None:
        seen = run(asked.frames, asked.rounds, asked.seed, asked.state)
    else:
        per_frame = max(1, -(-asked.frames // (asked.rounds * 35)))
        seen = batch(asked.seed, asked.batch, min(BATCH, asked.rounds), per_frame)
    for name, count in sorted(seen.items()):
        print(f"{name:24} {count:10,}")


if __name__ == "__main__":
    main()
