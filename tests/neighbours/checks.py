"""What must hold between a world and its neighbour.

The accounted mechanisms (`plan.releases`) are the claim; the draws that were noted are what
happened. Both are compared as distances in units of noise, so that a clip, grid or noise that
changes from round to round is checked with the values of its own round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.mechanisms import (
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    NoisyVotes,
)
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.translation import honest_shares
from fedveil.privacy.units import Adjacency, Unit

from .recording import COUNT, GRADIENTS, UPDATES, Draw, Ints
from .worlds import World

_ROUNDING = 1e-12  # of our own sums; exact integers go into them


@dataclass(frozen=True)
class Change:
    """How the second world differs from the first.

    `kind` is replaced, removed or added (a client), record or zeroed (a record of a client).
    """

    kind: str
    name: str  # of the client

    @property
    def population(self) -> bool:
        """Whether the number of clients changed."""
        return self.kind in ("removed", "added")


@dataclass(frozen=True)
class Violation:
    """A law that does not hold, by the letter that the package's first page gives it."""

    law: str
    what: str


def compare(one: World, two: World, change: Change) -> list[Violation]:
    """Everything that is wrong between two worlds."""
    if one.failure or two.failure:
        if one.failure == two.failure:
            return []
        return [Violation("c", f"only one world fails: {one.failure or two.failure}")]
    setting = one.plan.setting
    if setting is None or not claimed(one) or not claimed(two):
        return []
    if change.population and setting.adjacency is not Adjacency.ADD_REMOVE:
        # The number of clients is public here: grids and divisors may follow it, training may not.
        return list(_isolation(one, two, change, rounds=1, floats_only=True))
    rounds = one.plan.method.rounds
    return [
        *_public(one, two),
        *_isolation(one, two, change, rounds),
        *_sensitivity(one, two, change),
        *_afterwards(one, two, change),
    ]


def claimed(world: World) -> bool:
    """Whether the program promises anything that could be wrong."""
    guarantee = world.plan.guarantee
    return guarantee is not None and guarantee.certified


def _isolation(
    one: World, two: World, change: Change, rounds: int, floats_only: bool = False
) -> Iterator[Violation]:
    """(a): what the others computed and what they send."""
    kinds = [("update", one.notes.updates, two.notes.updates)]
    if not floats_only:
        kinds += [
            ("integers", *(_as_bytes(world.notes.rows) for world in (one, two))),
            ("count", *(_as_bytes(world.notes.halves) for world in (one, two))),
        ]
        for_all = {key for key in (*one.notes.draws, *two.notes.draws) if key[2] is not None}
        for key in sorted(key for key in for_all if key[2] != change.name):
            draws = [world.notes.draws.get(key) for world in (one, two)]
            if None in draws or not np.array_equal(draws[0].entered, draws[1].entered):
                yield Violation("a", f"integers of {key[2]} before noise differ: {key}")
                return
    for what, first, second in kinds:
        for key in sorted(first.keys() & second.keys() if floats_only else first | second):
            round, name = key
            if name != change.name and round < rounds and first.get(key) != second.get(key):
                yield Violation("a", f"{what} of {name} in round {round + 1} differs")
                return


def _as_bytes(rows: dict[tuple[int, str], Ints]) -> dict[tuple[int, str], bytes]:
    return {key: row.tobytes() for key, row in rows.items()}


def _public(one: World, two: World) -> Iterator[Violation]:
    """(c): everything that is decided before the first round, and each round's clip and grid."""
    for what in ("sampling", "setting", "layout"):
        first, second = getattr(one.plan, what), getattr(two.plan, what)
        if first != second:
            yield Violation("c", f"{what} differs: {first} and {second}")
    rounds = one.plan.method.rounds
    if one.plan.releases(rounds) != two.plan.releases(rounds):
        yield Violation("c", "accounted releases differ")
    if one.plan.guarantee.to_dict() != two.plan.guarantee.to_dict():
        yield Violation("c", "guarantees differ")
    if one.shapings != two.shapings:
        yield Violation("c", f"clips or grids differ: {one.shapings} and {two.shapings}")
    for key in one.notes.draws.keys() & two.notes.draws.keys():
        first, second = one.notes.draws[key], two.notes.draws[key]
        if (first.std, first.granularity) != (second.std, second.granularity):
            yield Violation("c", f"noise of {key} differs: {first.std} and {second.std}")


def _afterwards(one: World, two: World, change: Change) -> Iterator[Violation]:
    """(e): from the same noisy values follow the same weights, and private uploads too."""
    if one.states != two.states:
        yield Violation("e", "weights differ although all noisy values are the same")
    alone = [isinstance(item.mechanism, NoisyGradients) for item in one.plan.releases(1)]
    if all(alone) and one.notes.updates != two.notes.updates:
        yield Violation("e", f"upload of {change.name} depends on more than noisy gradients")


def _sensitivity(one: World, two: World, change: Change) -> Iterator[Violation]:
    """(b): how far each round's sums moved, in units of the noise that was drawn."""
    plan = one.plan
    factor = plan.setting.adjacency.sensitivity_factor
    if plan.setting.adjacency is Adjacency.ZERO_OUT and change.kind == "record":
        factor = 2  # what was zeroed is seen only against a record that counts as zero
    releases = plan.releases(plan.method.rounds)
    for round in range(plan.method.rounds):
        moved = {
            purpose: _moved(one, two, change, purpose, round) for purpose in (UPDATES, COUNT)
        }
        mechanism = releases[0].mechanism
        if isinstance(mechanism, NoisyGradients):
            yield from _gradients(one, two, change, round, mechanism, factor)
        elif isinstance(mechanism, (Gaussian, NoisyVotes)):
            spent = math.sqrt(sum(one.l2 ** 2 for one in moved.values() if one is not None))
            if isinstance(mechanism, Gaussian):
                allowed = factor / mechanism.noise_multiplier
            else:
                allowed = math.sqrt(releases[0].uses * factor) / mechanism.noise_std
            yield from _within(spent, allowed, f"round {round + 1}")
        else:
            for release, (purpose, distance) in zip(releases, moved.items(), strict=False):
                if distance is not None:
                    where = f"round {round + 1}, {purpose}"
                    yield from _discrete(distance, release.mechanism, factor, where)
                    yield from _shares(distance.draw, release, plan.setting, where)


@dataclass(frozen=True)
class _Moved:
    """How far one draw's integers moved: in its noise (`l2`, `l1`) and in grid steps."""

    l2: float
    l1: float
    draw: Draw


def _moved(one: World, two: World, change: Change, purpose: str, round: int) -> _Moved | None:
    """The move of a sum, or of the only upload that may move; None if there was no such noise."""
    adjacency = one.plan.setting.adjacency
    zeroed = adjacency is Adjacency.ZERO_OUT and one.plan.setting.unit is Unit.CLIENT
    for key in ((purpose, round, None, 0), (purpose, round, change.name, 0)):
        draws = [world.notes.draws.get(key) for world in (one, two)]
        present = [draw for draw in draws if draw is not None]
        if not present or present[0].std == 0:
            continue
        if zeroed or len(present) == 1:  # each world against the one with this client at zero
            worlds = [world for world, draw in zip((one, two), draws, strict=True) if draw]
            ways = [
                draw.entered - _others(world, change, purpose, round, key[2])
                for world, draw in zip(worlds, present, strict=True)
            ]
        else:
            ways = [present[0].entered - present[1].entered]
        steps = [way.astype(np.float64) * present[0].granularity / present[0].std for way in ways]
        return _Moved(
            max(float(np.linalg.norm(way)) for way in steps),
            max(float(np.abs(way).sum()) for way in steps),
            present[0],
        )
    return None


def _others(world: World, change: Change, purpose: str, round: int, name: str | None) -> Ints | int:
    """What everybody but the changed client added to a sum."""
    if name is not None:
        return 0
    rows = world.notes.rows if purpose == UPDATES else world.notes.halves
    return sum(
        (row for (when, who), row in rows.items() if when == round and who != change.name),
        start=np.int64(0),
    )


def _gradients(
    one: World, two: World, change: Change, round: int, mechanism: NoisyGradients, factor: int
) -> Iterator[Violation]:
    """Noisy local steps: each one's mean gradient, and all of the round's together."""
    allowed = factor * mechanism.clip_norm / (mechanism.batch_size * mechanism.gradient_std)
    total = 0.0
    for key, draw in one.notes.draws.items():
        if key[:3] != (GRADIENTS, round, change.name):
            continue
        other = two.notes.draws.get(key)
        if other is None:
            yield Violation("c", f"only one world takes step {key[3] + 1}")
            return
        apart = (draw.entered - other.entered).astype(np.float64) * draw.granularity / draw.std
        moved = float(np.linalg.norm(apart))
        total += moved**2
        yield from _within(moved, allowed, f"round {round + 1}, step {key[3] + 1}")
    yield from _within(
        math.sqrt(total), allowed * math.sqrt(mechanism.record_uses), f"round {round + 1}, all steps"
    )


def _discrete(
    moved: _Moved, mechanism: object, factor: int, where: str
) -> Iterator[Violation]:
    """Laplace noise, and shares of discrete Gaussians: these are accounted in L1 and in L2, and
    with a grid that must not be coarser beside its noise than it was accounted."""
    if isinstance(mechanism, Laplace):
        yield from _within(moved.l1, factor / mechanism.scale_multiplier, where)
        return
    if isinstance(mechanism, DiscreteGaussianSum):
        l2, l1 = (factor * bound for bound in mechanism.grid_sensitivity())
        std = mechanism.share_std / mechanism.granularity
    elif isinstance(mechanism, GridGradients):
        l2, l1 = mechanism.grid_sensitivity(factor)
        std = mechanism.share_std
    else:
        raise TypeError(f"no check for {mechanism!r}")
    yield from _within(moved.l2, l2 / std, where)
    yield from _within(moved.l1, l1 / std, f"{where}, L1")
    yield from _within(moved.draw.granularity / moved.draw.std, 1 / std, f"{where}, grid over noise")


def _shares(draw: Draw, release: Release, setting: Setting, where: str) -> Iterator[Violation]:
    """At least as many shares are in a sum as its noise is accounted with."""
    honest = honest_shares(release, setting)
    if honest is not None and draw.shares < honest + setting.colluders:
        yield Violation("b", f"{where}: {draw.shares} noise shares, accounted {honest}")


def _within(moved: float, allowed: float, where: str) -> Iterator[Violation]:
    if not moved <= allowed * (1 + _ROUNDING):
        yield Violation("b", f"{where}: moved {moved:.9g} of its noise, accounted {allowed:.9g}")
