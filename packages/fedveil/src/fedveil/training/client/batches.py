"""Which rows each client's local steps use: drawn for a whole chunk of clients at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.arrays import Ints
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil.training.client.local_training import LocalTraining

Rate = Any  # a float, or one for each record or person of a client

_EPOCH = 1 << 40  # positions of different epochs never meet in the hash
_POSITION = np.uint64((1 << 32) - 1)  # the bits of a sorted word that say where its record was


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


def client_sizes(federation: Federation, cohort: Ints) -> Ints:
    """Examples of each client of a cohort, without touching the rest of the population."""
    return federation.offsets[cohort + 1] - federation.offsets[cohort]


def unit_sizes(federation: Federation, rule: LocalTraining) -> Ints:
    """Count what the batches of each client are drawn from, `[clients]`: examples, or persons."""
    return federation.persons.sizes if rule.per_person else federation.sizes


def batches_per_epoch(sizes: Ints, rule: LocalTraining) -> Ints:
    """How many batches one pass over each client's records makes, `[clients]`."""
    if rule.batch_rate is not None:
        return np.full_like(sizes, math.ceil(1 / rule.batch_rate))
    if rule.batch_size is None:
        return np.ones_like(sizes)
    if rule.drop_last:
        return np.maximum(1, sizes // rule.batch_size)
    return -(-sizes // rule.batch_size)


def step_counts(sizes: Ints, rule: LocalTraining) -> Ints:
    """How many local steps clients of these sizes take, `[clients]`."""
    if rule.steps is not None:
        return np.full_like(sizes, rule.steps)
    return batches_per_epoch(sizes, rule) * np.int64(rule.epochs or 0)


def coin_rates(federation: Federation | None, rule: LocalTraining, client: int) -> Rate:
    """Return the bias of the secret coins of one client's records or persons.

    `rule.own_rates` gives those that ask for less than the run's epsilon rarer coins: `[persons]`,
    by number, where persons are protected, and else `[clients]`; or one number for all. Nobody's
    is above `rule.batch_rate`.
    """
    usual = rule.batch_rate or 0.0
    if rule.own_rates is None:
        return usual
    if np.ndim(rule.own_rates) == 0:
        return min(float(rule.own_rates), usual)
    if not rule.per_person:
        return min(float(rule.own_rates[client]), usual)
    if federation is None or (numbers := federation.train.persons) is None:
        raise RuntimeError("rates of single persons need the federation")
    spans = federation.persons
    first, last = spans.offsets[client : client + 2]
    own: Rate = np.minimum(rule.own_rates[numbers[spans.starts[first:last]]], usual)
    return own


def draw_batches(
    clients: Ints,
    sizes: Ints,
    rule: LocalTraining,
    round_number: int,
    randomness: Randomness,
    federation: Federation | None = None,
) -> Batches:
    """Draw the batches of `clients` in `round`.

    Every epoch is a fresh shuffle of the client's records cut into disjoint batches, so no batch
    holds a record twice. The order depends on (seed, round, client, epoch) alone. With a
    `batch_rate` every record has a coin of its own in every step instead, and with `own_rates`
    (which need the `federation`) one of its own bias.
    """
    if rule.batch_rate is not None:
        return _poisson_batches(clients, sizes, rule, round_number, randomness, federation)
    steps = step_counts(sizes, rule)
    largest = int(sizes.max(initial=0))
    if rule.batch_size is None or (rule.batch_size >= largest and not rule.drop_last):
        every = np.arange(largest)
        positions = np.broadcast_to(every, (len(sizes), 1, largest))
        return Batches(positions, (every < sizes[:, None])[:, None], steps, full=True)

    per_epoch = batches_per_epoch(sizes, rule)
    most, batch = int(steps.max(initial=0)), min(rule.batch_size, largest)
    epochs = int((-(-steps // per_epoch)).max(initial=0))
    width = int(per_epoch.max(initial=0)) * batch  # an epoch's places, the last batch filled up
    order = _shuffled(clients, sizes, round_number, epochs, randomness)
    if order.shape[2] < width:
        order = np.pad(order, ((0, 0), (0, 0), (0, width - order.shape[2])))
    places = np.arange(width)
    present = places < sizes[:, None]  # [clients, places]

    shape = (len(clients), -1, batch)
    if bool((per_epoch == per_epoch[:1]).all()):
        positions = order[:, :, :width].reshape(shape)[:, :most]
        mask = np.tile(present, (1, epochs)).reshape(shape)[:, :most]
        if rule.steps is None:  # whole epochs, all alike
            return Batches(positions, mask, steps, full=False)
    else:
        # Clients with fewer batches an epoch start their next epoch earlier.
        step = np.arange(most)
        epoch = np.minimum(step // per_epoch[:, None], epochs - 1)
        first = step % per_epoch[:, None] * batch
        where = first[:, :, None] + np.arange(batch)
        who = np.arange(len(clients))[:, None, None]
        positions, mask = order[who, epoch[:, :, None], where], present[who, where]
    mask = mask & (np.arange(most) < steps[:, None])[:, :, None]
    return Batches(positions, mask, steps, full=False)


def _poisson_batches(
    clients: Ints,
    sizes: Ints,
    rule: LocalTraining,
    round_number: int,
    randomness: Randomness,
    federation: Federation | None,
) -> Batches:
    """Draw secret batches: one coin for each record and step, independent of everything else.

    A client's coins come from a stream of its own, the word of a record from the record's own
    place in it, so that nobody else's coin depends on a record. Whatever comes is a batch, an empty
    one as well.
    """
    steps = step_counts(sizes, rule)
    rates = [coin_rates(federation, rule, int(client)) for client in clients]
    drawn = [
        np.flatnonzero(stream.coins(int(size), rate))
        for client, size, count, rate in zip(clients, sizes, steps, rates, strict=True)
        for stream in (randomness.stream("batch coins", round_number, int(client)),)
        for _ in range(int(count))
    ]
    most, width = int(steps.max(initial=0)), max((len(one) for one in drawn), default=0)
    positions = np.zeros((len(sizes), most, max(1, width)), np.int64)
    mask = np.zeros(positions.shape, np.bool_)
    places = ((client, step) for client, n in enumerate(steps) for step in range(int(n)))
    for place, batch in zip(places, drawn, strict=True):
        positions[place][: len(batch)] = batch
        mask[place][: len(batch)] = True
    return Batches(positions, mask, steps, full=False)


def _shuffled(
    clients: Ints, sizes: Ints, round_number: int, epochs: int, randomness: Randomness
) -> Ints:
    """Each client's records in each epoch's order, `[clients, epochs, largest]`; absent ones last.

    Sorts hashed words that carry their position in the low bits: no ties, and no index to keep. How
    many bits these are must not depend on the largest client, or it would decide others' ties.
    """
    every = np.arange(int(sizes.max(initial=0)))
    counters = every + np.arange(epochs)[:, None] * _EPOCH
    words = randomness.shuffle_words(round_number, clients[:, None, None], counters)
    words = (words >> np.uint64(1)) & ~_POSITION | every.astype(np.uint64)
    absent = every >= sizes[:, None]
    if absent.any():
        words |= absent[:, None].astype(np.uint64) << np.uint64(63)
    words.sort(axis=2)
    return (words & _POSITION).astype(np.int64)
