"""Which rows each client's local steps use: drawn for a whole chunk of clients at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.local.rule import LocalRule
from fedveil.randomness import Randomness

Ints = npt.NDArray[np.int64]

_EPOCH = 1 << 40  # positions of different epochs never meet in the hash


@dataclass(frozen=True)
class Batches:
    """`positions[c, s, b]`: the b-th record (within client c) of step s, valid where `mask`.

    A client with fewer steps than others has steps without any valid record at its end; such a
    step does nothing. In full-batch mode all steps are alike and only one is stored.
    """

    positions: Ints  # [clients, steps or 1, batch]
    mask: npt.NDArray[np.bool_]  # same shape
    steps: Ints  # [clients], how many steps each client takes
    full: bool  # every step uses all records

    @property
    def most_steps(self) -> int:
        return int(self.steps.max(initial=0))

    def at(self, step: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Positions and mask of one step, each `[clients, batch]`."""
        if self.full:
            return self.positions[:, 0], self.mask[:, 0] & (step < self.steps)[:, None]
        return self.positions[:, step], self.mask[:, step]


def batches_per_epoch(sizes: Ints, rule: LocalRule) -> Ints:
    """How many batches one pass over each client's records makes, `[clients]`."""
    if rule.batch_size is None:
        return np.ones_like(sizes)
    if rule.drop_last:
        return np.maximum(1, sizes // rule.batch_size)
    return -(-sizes // rule.batch_size)


def step_counts(sizes: Ints, rule: LocalRule) -> Ints:
    """How many local steps clients of these sizes take, `[clients]`."""
    if rule.steps is not None:
        return np.full_like(sizes, rule.steps)
    return batches_per_epoch(sizes, rule) * np.int64(rule.epochs or 0)


def draw_batches(
    clients: Ints, sizes: Ints, rule: LocalRule, round: int, randomness: Randomness
) -> Batches:
    """Draw the batches of `clients` in `round`.

    Every epoch is a fresh shuffle of the client's records cut into disjoint batches, so no batch
    holds a record twice. The order depends on (seed, round, client, epoch) alone.
    """
    steps = step_counts(sizes, rule)
    largest = int(sizes.max(initial=0))
    every = np.arange(largest)
    present = every < sizes[:, None]
    if rule.batch_size is None or (rule.batch_size >= largest and not rule.drop_last):
        positions = np.broadcast_to(every, present.shape)
        return Batches(positions[:, None], present[:, None], steps, full=True)

    per_epoch = batches_per_epoch(sizes, rule)
    most = int(steps.max(initial=0))
    epochs = int((-(-steps // per_epoch)).max(initial=0))
    batch = min(rule.batch_size, largest)
    order = np.empty((len(clients), epochs, largest), dtype=np.int64)
    for epoch in range(epochs):
        words = randomness.shuffle_words(round, clients[:, None], every + epoch * _EPOCH)
        # Absent records get the largest word; a stable sort keeps them last.
        words = np.where(present, words >> np.uint64(1), np.uint64(2**64 - 1))
        order[:, epoch] = np.argsort(words, axis=1, kind="stable")

    step = np.arange(most)
    epoch_of = step // per_epoch[:, None]  # [clients, steps]
    place = (step % per_epoch[:, None] * rule.batch_size)[:, :, None] + np.arange(batch)
    mask = (place < sizes[:, None, None]) & (step < steps[:, None])[:, :, None]
    epoch_of = np.minimum(epoch_of, epochs - 1)[:, :, None]
    who = np.arange(len(clients))[:, None, None]
    positions = order[who, epoch_of, np.minimum(place, largest - 1)]
    return Batches(np.where(mask, positions, 0), mask, steps, full=False)
