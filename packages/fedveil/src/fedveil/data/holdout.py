"""Which examples are kept for testing: never so many that a client is left without any.

What is held out from a client depends on the public seed, its name and its own number of rows:
neither on other clients, nor on what stands in its rows. Where the data say which person each row
is of, a person is held out with all rows or with none, by a word made from its own name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import share
from fedveil.core.errors import ConfigError
from fedveil.core.mixing import Words, uniforms
from fedveil.data.assignment import Assignment, Owners, Rows, generator
from fedveil.data.partition import ByOwner, Partition

TRAIN, VALIDATION, TEST = np.uint8(0), np.uint8(1), np.uint8(2)
Parts = npt.NDArray[np.uint8]


class Holdout(StrEnum):
    """Which examples are held out for tests (and validation) if the data bring none.

    `WITHIN`: the same fraction of every client, at random. `LATEST`: the last ones of every client.
    `POOLED`: every example with the same probability. `CLIENTS`: all examples of some clients.
    """

    WITHIN = "within"
    LATEST = "latest"
    POOLED = "pooled"
    CLIENTS = "clients"


@dataclass(frozen=True)
class Dealt:
    """Who trains on what, and the rows kept for validation and test."""

    train: Assignment
    validation: Rows
    test: Rows
    from_clients: bool  # something was held out from clients who also train

    @classmethod
    def of(
        cls, dealt: Assignment, part: Parts, kept: npt.NDArray[np.bool_], from_clients: bool
    ) -> Dealt:
        """Divide dealt rows into parts; held out rows that are not `kept` belong to nobody."""
        if not (part == TRAIN).any():
            raise ConfigError("holdout: everybody was drawn; use smaller fractions or another seed")
        validation, test = (dealt.rows[(part == code) & kept] for code in (VALIDATION, TEST))
        return cls(dealt.keep(part == TRAIN), validation, test, from_clients)


def deal(
    labels: npt.NDArray[np.generic],
    owners: npt.ArrayLike | Owners | None,
    partition: Partition,
    holdout: Holdout,
    *,
    test: float,
    validation: float,
    seed: int,
    persons: Assignment | None = None,
) -> Dealt:
    """Deal `len(labels)` rows to clients and hold some out; who comes first depends on `holdout`.

    `POOLED` takes its part before anything is dealt, unless the rows belong to owners already.
    With `persons`, whose rows are known (`assignment.group`), nobody is cut: see `_deal_persons`.
    """
    share("test_fraction", test)
    share("validation_fraction", validation)
    if test + validation >= 1:
        raise ConfigError(
            f"test_fraction={test} and validation_fraction={validation} leave nothing to train on"
        )
    strangers = holdout is Holdout.CLIENTS
    if persons is not None:
        dealt, number = _deal_persons(labels, owners, partition, holdout, seed, persons)
        if strangers:
            words = dealt.client_words(seed, "hold out clients")
            part = np.repeat(_by_chance(words, test, validation), dealt.sizes)
            first = np.full(persons.clients, TEST)  # training comes before validation, then test
            np.minimum.at(first, number, part)
            return Dealt.of(dealt, part, part == first[number], from_clients=False)
        words = persons.client_words(seed, "hold out persons")
        part = _by_chance(words, test, validation)[number]
        return Dealt.of(dealt, part, np.ones(len(part), np.bool_), test + validation > 0)
    if holdout is Holdout.POOLED and not isinstance(partition, ByOwner):
        part = np.full(count := len(labels), TRAIN)
        order = generator(seed, "hold out").permutation(count)
        tests = min(round(test * count), count - 1)
        part[order[:tests]] = TEST
        part[order[tests : tests + min(round(validation * count), count - 1 - tests)]] = VALIDATION
        _need_parts(part, test, validation, strangers)
        rows = np.flatnonzero(part == TRAIN)
        dealt = partition.assign(labels[rows], None, seed)
        train = Assignment(rows[dealt.rows], dealt.offsets)
        return Dealt(train, np.flatnonzero(part == VALIDATION), np.flatnonzero(part == TEST), False)
    dealt = partition.assign(labels, owners, seed)
    part = parts_of(dealt, holdout, test, validation, seed)
    everybody = np.ones(len(part), np.bool_)
    return Dealt.of(dealt, part, everybody, not strangers and test + validation > 0)


def _deal_persons(
    labels: npt.NDArray[np.generic],
    owners: npt.ArrayLike | Owners | None,
    partition: Partition,
    holdout: Holdout,
    seed: int,
    persons: Assignment,
) -> tuple[Assignment, Rows]:
    """Deal rows such that a client's rows of a person stand together.

    Whole persons are held out: each has a lot of its own, so a client may be left with fewer
    persons than others, or with none, and is then left out. Rows that name no person are left out.
    Artificial clients are dealt persons instead of rows, by the label of a person's first row.
    `CLIENTS` holds out a person only if all of its clients are held out; what others have at such
    a client is left out.

    Returns:
        The rows by client, and the person of each.
    """
    if holdout is Holdout.LATEST:
        raise ConfigError(
            "holdout='latest' with persons: it would put some rows of a person into the test part "
            "and train on the others. Use holdout='within', which holds out whole persons."
        )
    number = persons.numbers(len(labels))
    if isinstance(partition, ByOwner):
        if partition.cap is not None or partition.examples_per_client is not None:
            raise ConfigError(
                "cap, examples_per_client: they would choose rows of a client by their places, "
                "which other persons' rows move. With persons use records_per_person."
            )
        dealt = partition.assign(labels, owners, seed)
    else:
        groups = partition.assign(labels[persons.rows[persons.offsets[:-1]]], None, seed)
        pieces = [persons.rows[persons.offsets[p] : persons.offsets[p + 1]] for p in groups.rows]
        lengths = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
        dealt = Assignment(np.concatenate(pieces), lengths[groups.offsets])
    dealt = dealt.keep(number[dealt.rows] >= 0)
    client = np.repeat(np.arange(dealt.clients), dealt.sizes)
    order = np.lexsort((number[dealt.rows], client))
    dealt = Assignment(dealt.rows[order], dealt.offsets, dealt.owners)
    return dealt, number[dealt.rows]


def parts_of(
    dealt: Assignment, holdout: Holdout, test: float, validation: float, seed: int
) -> Parts:
    """Return TRAIN, VALIDATION or TEST for every row of the assignment, in its order."""
    sizes = dealt.sizes
    if test == validation == 0:
        return np.full(len(dealt.rows), TRAIN)
    if holdout is Holdout.CLIENTS:
        words = dealt.client_words(seed, "hold out clients")
        part = np.repeat(_by_chance(words, test, validation), sizes)
    elif holdout is Holdout.POOLED:
        part = _by_chance(dealt.row_words(seed, "hold out"), test, validation)
        last = dealt.lottery(seed, "hold out")[dealt.offsets[1:] - 1]
        part[last] = TRAIN  # each client's largest word: held out only if all others were
    else:
        tests = np.minimum(_counts(test, dealt, seed, "test"), sizes - 1)
        validations = _counts(validation, dealt, seed, "validation")
        from_end = np.repeat(sizes, sizes) - 1 - dealt.positions
        if holdout is Holdout.WITHIN:  # a random order within each client, not the given one
            shuffled = np.empty_like(from_end)
            shuffled[dealt.lottery(seed, "hold out")] = from_end
            from_end = shuffled
        both = np.minimum(tests + validations, sizes - 1)
        part = np.full(len(from_end), TRAIN)
        part[from_end < np.repeat(both, sizes)] = VALIDATION
        part[from_end < np.repeat(tests, sizes)] = TEST
    # How many rows an owner has is its own matter: that too few are there to hold any out is no
    # reason to stop, for stopping would tell of it.
    if holdout is Holdout.CLIENTS or dealt.owners is None:
        _need_parts(part, test, validation, holdout is Holdout.CLIENTS)
    return part


def _by_chance(words: Words, test: float, validation: float) -> Parts:
    """Return a part for each word, independently of all others."""
    lot = uniforms(words)
    return np.where(lot < test, TEST, np.where(lot < test + validation, VALIDATION, TRAIN))


def _need_parts(part: Parts, test: float, validation: float, whole_clients: bool) -> None:
    for name, fraction, code in (
        ("test_fraction", test, TEST),
        ("validation_fraction", validation, VALIDATION),
    ):
        if fraction > 0 and not (part == code).any():
            what = "no client" if whole_clients else f"none of {len(part)} examples"
            raise ConfigError(
                f"{name}={fraction}: {what} was drawn, and every client keeps one example; use a "
                "larger fraction, another seed, holdout='clients', or give test data"
            )


def _counts(fraction: float, dealt: Assignment, seed: int, part: str) -> Rows:
    """`fraction * sizes`, rounded; clients owed less than one example give one now and then.

    Plain rounding would never take anything from small clients, and random rounding would make
    clients of equal size unequal.
    """
    owed = fraction * dealt.sizes
    lucky = uniforms(dealt.client_words(seed, f"owes a {part} example")) < owed
    return np.where(owed >= 1, np.rint(owed), lucky).astype(np.int64)
