"""What a server does in one round: `python -m benchmarks.secagg_server [--devices N]`.

For cohorts whose devices would take minutes to simulate. The server is the real one, and gets the
real number of frames of the real kinds and sizes, properly signed and stamped. The devices are
stand-ins that all have the same secrets and pair keys, so their frames cost nothing to make; the
sum must come out all the same. Reported are the server's CPU seconds by leg, and the memory at the
process's peak. A trusted server; `--lost` devices share and send no vector.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.privacy.secure_sums.masks import keystream
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import pairs, session, wire
from fedveil_federation.secagg.keys import DeviceKeys
from fedveil_federation.secagg.layout import packed
from fedveil_federation.secagg.messages import Masked, Shares, Unmask
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.server import Server, ServerRound
from fedveil_federation.secagg.shares import draw_secret, split


class StandIns:
    """All devices of a round: one pair of secrets, one root and one X25519 key for all."""

    def __init__(self, opened: ServerRound, identities: list[Ed25519PrivateKey]) -> None:
        self.layout, self.plan = opened.layout, opened.layout.plan
        self.identities = identities
        self.tables = opened.layout.graph.tables
        self.self_secret, self.pair_secret, self.root = draw_secret(), draw_secret(), bytes(32)
        both = split([self.self_secret, self.pair_secret], self.plan.threshold, self.plan.degree)
        self.shares = both.reshape(self.plan.degree, 2, 32)  # by rank of the holder and kind
        self.exchange = X25519PrivateKey.generate()
        self.public = self.exchange.public_key().public_bytes_raw()
        size = 4 * self.plan.dimension
        self.own_mask, self.pair_mask = (
            np.frombuffer(keystream(key, size), "<u4")
            for key in (pairs.self_mask_key(self.self_secret), pairs.mask_key(self.root))
        )

    def dealt(self, device: int) -> bytes:
        digest, degree, masks = self.layout.digest, self.plan.degree, self.plan.masks
        commitments = b"".join(
            pairs.commitment(kind, secret, digest, device)
            for kind, secret in ((b"self", self.self_secret), (b"pair", self.pair_secret))
        )
        message = Shares(
            digest,
            device,
            self.public,
            commitments,
            os.urandom(16),
            os.urandom(64 * degree),
            bytes(32 * degree),
            pairs.wrap(self.root * masks, self.pair_secret),
            pairs.root_print(self.root) * masks,
        )
        return wire.seal(message, self.identities[device])

    def stamp(self, device: int) -> session.Stamp:
        other, digest = self.plan.exchange, self.layout.digest
        return session._agreed(self.exchange, other, digest, device, other + self.public).up

    def masked(self, device: int, vector: np.ndarray) -> bytes:
        """Everybody has shared; masks with higher ids are added, those with lower subtracted."""
        near = self.tables.near[device, self.tables.columns[device]]
        net = np.uint32((2 * int((near > device).sum()) - len(near)) % 2**32)
        words = vector.astype("<u4") + self.own_mask + net * self.pair_mask
        message = Masked(self.layout.digest, device, b"", words.tobytes())
        return wire.seal(message, self.stamp(device))

    def unmask(self, device: int, sharers: bytes, survived: np.ndarray) -> bytes:
        kinds = np.where(survived[self.tables.near[device]], 0, 1)
        answers = self.shares[self.tables.ranks[device], kinds].tobytes()
        said = (
            self.layout.survivors_digest(sharers, packed(survived)),
            bytes((self.plan.degree + 7) // 8),
            answers,
        )
        return wire.seal(Unmask(self.layout.digest, device, *said), self.stamp(device))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--lost", type=float, default=0.05)
    asked = parser.parse_args(arguments)
    count, seconds = asked.devices, Counter[str]()

    def timed(leg: str, act: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = act(*arguments)
        seconds[leg] += time.process_time() - start
        return result

    params = SecAggParams("bench", count // 2, count // 20, 0.1, sparse=True, honest_server=True)
    identities = [Ed25519PrivateKey.generate() for _ in range(count)]
    agreement = X25519PrivateKey.generate()
    pinned = {i: one.public_key().public_bytes_raw() for i, one in enumerate(identities)}
    roster = Roster("bench", pinned)
    cards = (DeviceKeys("bench", i, one, agreement).card() for i, one in enumerate(identities))
    timed("enrol, once", roster.admit, *cards)
    server = Server(Ed25519PrivateKey.generate(), roster, params)
    opened = timed("open", server.open, 1, range(count), asked.dimension, 32)
    devices = StandIns(opened, identities)
    for device in range(count):
        timed("shares", opened.receive, devices.dealt(device))
    timed("shares", opened.close_sharing)
    base = np.arange(asked.dimension, dtype=np.int64)
    survived = np.ones(count, dtype=np.bool_)
    survived[:: max(1, round(1 / asked.lost)) if asked.lost else count + 1] = not asked.lost
    alive = np.flatnonzero(survived).tolist()
    for device in range(count):
        timed("vectors", opened.sharers_for, device)
        if survived[device]:
            timed("vectors", opened.receive, devices.masked(device, base + device))
    timed("vectors", opened.close_upload)
    everybody = packed(np.ones(count, dtype=np.bool_))
    for device in alive:
        timed("unmasking", opened.survivors_for, device)
        timed("unmasking", opened.receive, devices.unmask(device, everybody, survived))
    total = timed("unmasking", opened.finish)
    if not np.array_equal(total, base * len(alive) + sum(alive)):
        raise RuntimeError("the sum is wrong")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    once = seconds.pop("enrol, once")
    legs = ", ".join(f"{leg} {spent:.2f}" for leg, spent in seconds.items())
    plan = opened.layout.plan
    print(
        f"{count} devices x {asked.dimension}, {asked.lost:.0%} lost, degree {plan.degree}, "
        f"{plan.masks} masks: server {sum(seconds.values()):.2f} s ({legs}; once, enrolment "
        f"{once:.1f}), {peak:.0f} MB"
    )


if __name__ == "__main__":
    main()
