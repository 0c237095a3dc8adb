"""What must hold between a world and its neighbour.

The claim is what the accountants compose: `step_of` turns each release of the plan into sensitivity
over noise. What happened are the draws that were noted. Both are distances in units of noise, so a
clip, grid or noise that changes from round to round is checked with the values of its own round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fedveil.core.units import Adjacency, Unit
from fedveil.privacy.accountants.discrete_sums import DiscreteSumStep, PoissonDiscreteStep
from fedveil.privacy.accountants.laplace import LaplaceStep
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.budgets import scaled_releases
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.correlated import CorrelatedGaussian
from fedveil.privacy.gradient_perturbation import NoisyGradients
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.translation import step_of
from fedveil.training.client.batches import step_counts, unit_sizes

from .coupling import BATCHES, CLIENTS
from .recording import COUNT, GRADIENTS, UPDATES, Draw, Ints, Notes, mixed
from .worlds import World

_ROUNDING = 1e-12  # of our own sums, into which exact integers go
_DRAWN = (UPDATES, GRADIENTS)  # noise on what a client sends, or inside its steps


@dataclass(frozen=True)
class Change:
    """How the second world differs from the first: a client was replaced, removed or added, or a
    record of it was replaced or zeroed; where rows are dealt to shares, one row of some share."""

    kind: str  # replaced, removed, added; record, zeroed
    name: str  # of the client

    def __str__(self) -> str:
        return f"{self.name} {self.kind}"


@dataclass(frozen=True)
class Violation:
    """A law that does not hold, by the letter that the package's first page gives it."""

    law: str
    what: str


def claimed(world: World) -> bool:
    """Whether the program promises anything that could be wrong."""
    guarantee = world.plan.guarantee
    return guarantee is not None and guarantee.certified


def compare(one: World, two: World, change: Change) -> list[Violation]:
    """Everything that is wrong between two worlds."""
    if one.failure or two.failure:
        if one.failure == two.failure:
            return []
        return [Violation("c", f"only one world fails: {one.failure or two.failure}")]
    privacy_model = one.plan.privacy_model
    if privacy_model is None or not (claimed(one) or claimed(two)):
        return []
    others = set(one.names) != set(two.names)
    by_presence = privacy_model.adjacency is Adjacency.ADD_REMOVE
    if others and not by_presence and change.kind in ("removed", "added"):
        # Who is there, and with how many records, is public: grids, turns and the proof itself may
        # follow from it, but nobody's training. The first client with several batches moves noise
        # into steps, which is a proof of its own and may be none; and the rate of secret batches
        # follows from the number of records.
        rules = [world.plan.local for world in (one, two)]
        placed = [(rule.gradient_noise == 0, rule.batch_rate) for rule in rules]
        if placed[0] != placed[1] or not (claimed(one) and claimed(two)):
            return []
        return list(_isolation(one, two, change, rounds=1, floats_only=True))
    if not (claimed(one) and claimed(two)):
        said = [world.plan.guarantee.reason for world in (one, two) if not claimed(world)]
        return [Violation("c", f"only one world is certified: {said[0]}")]
    if others and not by_presence:
        gone = ", ".join(sorted(set(one.names) ^ set(two.names)))
        return [Violation("c", f"clients come and go with their values: {gone}")]
    return [
        *_public(one, two),
        *_isolation(one, two, change, one.plan.method.rounds),
        *_sensitivity(one, two, change),
        *_coins(one),
        *_coins(two),
        *_afterwards(one, two, change),
    ]


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
        keys = {key for key in (*one.notes.draws, *two.notes.draws) if key[2] is not None}
        for key in sorted(key for key in keys if key[2] != change.name):
            draws = [world.notes.draws.get(key) for world in (one, two)]
            if None in draws or not np.array_equal(draws[0].entered, draws[1].entered):
                yield Violation("a", f"integers of {key[2]} before noise differ: {key}")
                return
        for name in sorted(one.parts.keys() & two.parts.keys() - {change.name}):
            if one.parts[name] != two.parts[name]:
                yield Violation("a", f"on several machines {name} is trained by another one")
                return
    for what, first, second in kinds:
        for key in sorted(first.keys() & second.keys() if floats_only else first | second):
            round_number, name = key
            if name != change.name and round_number < rounds and first.get(key) != second.get(key):
                yield Violation("a", f"{what} of {name} in round {round_number + 1} differs")
                return


def _as_bytes(rows: dict[tuple[int, str], Ints]) -> dict[tuple[int, str], bytes]:
    return {key: row.tobytes() for key, row in rows.items()}


def _public(one: World, two: World) -> Iterator[Violation]:
    """(c): everything that is decided before the first round, and each round's clip and grid."""
    for what, first in one.public.items():
        if first != (second := two.public[what]):
            yield Violation("c", f"{what} differs: {first} and {second}")
    for key in one.notes.draws.keys() & two.notes.draws.keys():
        first, second = one.notes.draws[key], two.notes.draws[key]
        if (first.std, first.granularity) != (second.std, second.granularity):
            yield Violation("c", f"noise of {key} differs: {first.std} and {second.std}")


def _afterwards(one: World, two: World, change: Change) -> Iterator[Violation]:
    """(e): from the same noisy values follow the same weights, and private uploads too."""
    if one.states != two.states:
        yield Violation("e", "weights differ although all noisy values are the same")
    purposes = {key[0] for world in (one, two) for key in world.notes.draws}
    if purposes == {GRADIENTS} and one.notes.updates != two.notes.updates:
        yield Violation("e", f"upload of {change.name} depends on more than noisy gradients")


def _sensitivity(one: World, two: World, change: Change) -> Iterator[Violation]:
    """(b): how far each round's sums moved, in units of the noise that was drawn."""
    privacy_model = one.plan.privacy_model
    releases, steps = one.releases, one.steps
    scale = one.plan.scales[one.names.index(change.name)] if one.plan.scales else 1.0
    if scale < 1:  # it pays for less than the others do
        releases = tuple(scaled_releases(releases, scale))
        steps = [step_of(release, privacy_model) for release in releases]
    if isinstance(releases[0].mechanism, CorrelatedGaussian):
        yield from _correlated(one, two, change, releases[0], steps[0])
        return
    law = releases[0].mechanism
    if isinstance(law, PoissonSampled):
        # Coins are the same in both worlds: of a unit in a batch, its noise hides all there is.
        releases = tuple(replace(releases[0], mechanism=inner) for inner in law.mechanisms)
        steps = [step_of(release, privacy_model) for release in releases]
    for round_number in range(one.plan.method.rounds):
        where = f"round {round_number + 1}"
        if isinstance(law, NoisyGradients) or any(
            key[:2] == (GRADIENTS, round_number) for key in one.notes.draws
        ):
            yield from _gradients(one, two, change, round_number, law, steps[0])
            continue
        yield from _without_noise(one, change, round_number)
        moved = [_moved(one, two, change, purpose, round_number) for purpose in (UPDATES, COUNT)]
        drawn = len(moved) - moved.count(None)
        if isinstance(law, PoissonSampled) and drawn > len(law.mechanisms):
            yield Violation("b", f"{where}: {drawn} sums on one coin, accounted one by one")
        if isinstance(steps[0], (LaplaceStep, DiscreteSumStep)):
            for step, distance in zip(steps, moved, strict=False):
                if distance is not None:
                    times = _times(privacy_model, change)
                    yield from _by_itself(distance, step, times, privacy_model.colluders, where)
        elif isinstance(steps[0], PoissonDiscreteStep):  # shares in both, on one secret coin
            there, known = [it for it in moved if it is not None], privacy_model.colluders
            parts = [it.l2 / math.sqrt(it.draw.shares - known) for it in there]
            yield from _within(math.hypot(*parts), steps[0].ratio, where)
        else:  # one Gaussian for updates and count together
            spent = math.hypot(*(distance.l2 for distance in moved if distance is not None))
            allowed = _times(privacy_model, change) * _allowed(releases[0], steps[0])
            yield from _within(spent, allowed, where)


def _without_noise(world: World, change: Change, round_number: int) -> Iterator[Violation]:
    """An update that leaves its client and meets no noise at all."""
    if (round_number, change.name) not in world.notes.rows:
        return
    here = [key for key in world.notes.draws if key[1] == round_number]
    if not any(key[2] in (None, change.name) and key[0] in _DRAWN for key in here):
        yield Violation("b", f"round {round_number + 1}: {change.name} sends without any noise")


def _correlated(
    one: World, two: World, change: Change, release: Release, step: Step
) -> Iterator[Violation]:
    """Noise of one round meets updates of several: all rounds together, by participations."""
    yield from too_near(one.notes, release)
    rounds = range(release.rounds)
    moved = [_moved(one, two, change, UPDATES, number) for number in rounds]
    total = math.hypot(*(distance.l2 for distance in moved if distance is not None))
    allowed = math.sqrt(release.counted_participations) / step.noise
    yield from _within(total, allowed, f"{len(rounds)} rounds together")


def too_near(notes: Notes, release: Release) -> Iterator[Violation]:
    """A client that took part twice within the bands of correlated noise."""
    law = release.mechanism
    bands = law.bands if isinstance(law, CorrelatedGaussian) else 1
    for (one, who), (two, same) in pairwise(sorted(notes.rows, key=lambda key: key[::-1])):
        if who == same and two - one < bands:
            yield Violation("d", f"{who} took part after {two - one} rounds, accounted {bands}")


def _allowed(release: Release, step: Step) -> float:
    """Sensitivity over noise of all Gaussians of one round together."""
    uses = 1 if release.amplified else release.uses
    return math.sqrt(uses) / step.noise


@dataclass(frozen=True)
class _Moved:
    """How far the integers of a draw moved, in units of its noise."""

    l2: float
    l1: float
    draw: Draw


def _moved(
    one: World, two: World, change: Change, purpose: str, round_number: int
) -> _Moved | None:
    """The move of a sum, or of the only upload that may move; None if there was no such noise."""
    privacy_model = one.plan.privacy_model
    zeroed = privacy_model.adjacency is Adjacency.ZERO_OUT and privacy_model.unit is Unit.CLIENT
    for key in ((purpose, round_number, None, 0), (purpose, round_number, change.name, 0)):
        worlds = [world for world in (one, two) if key in world.notes.draws]
        draws = [world.notes.draws[key] for world in worlds]
        if not draws or draws[0].std == 0:
            continue
        if zeroed or len(draws) == 1:  # each world against itself without this client
            ways = [
                draw.entered - _others(world, change, purpose, round_number, key[2])
                for world, draw in zip(worlds, draws, strict=True)
            ]
        else:
            ways = [draws[0].entered - draws[1].entered]
        scale = draws[0].granularity / draws[0].std
        steps = [way.astype(np.float64) * scale for way in ways]
        return _Moved(
            max(float(np.linalg.norm(way)) for way in steps),
            max(float(np.abs(way).sum()) for way in steps),
            draws[0],
        )
    return None


def _others(
    world: World, change: Change, purpose: str, round_number: int, name: str | None
) -> Ints | int:
    """What everybody but the changed client added to a sum."""
    if name is not None:
        return 0
    rows = world.notes.rows if purpose == UPDATES else world.notes.halves
    law = world.releases[0].mechanism
    if isinstance(law, CorrelatedGaussian):
        sums: dict[int, Ints] = {}
        for (when, who), row in rows.items():
            if who != change.name:
                sums[when] = sums.get(when, 0) + row
        return mixed(law.factor, sums, round_number)
    return sum(
        (row for (when, who), row in rows.items() if when == round_number and who != change.name),
        start=np.int64(0),
    )


def _gradients(
    one: World, two: World, change: Change, round_number: int, law: Mechanism, step: Step
) -> Iterator[Violation]:
    """Noisy local steps: each one's mean gradient, and all of the round's together.

    Of secret batches every step is accounted by itself, and how many there are.
    """
    allowed = _times(one.plan.privacy_model, change) / step.noise
    secret = isinstance(law, PoissonSampled)
    each = allowed if secret else allowed / math.sqrt(law.record_uses)
    total, taken = 0.0, 0
    yield from _without_noise(one, change, round_number)
    for key, draw in one.notes.draws.items():
        if key[:3] != (GRADIENTS, round_number, change.name):
            continue
        other = two.notes.draws.get(key)
        if other is None:
            yield Violation("c", f"only one world takes step {key[3] + 1}")
            return
        apart = (draw.entered - other.entered).astype(np.float64) * draw.granularity / draw.std
        moved = float(np.linalg.norm(apart))
        total, taken = total + moved**2, taken + 1
        yield from _within(moved, each, f"round {round_number + 1}, step {key[3] + 1}")
    if not secret:
        yield from _within(math.sqrt(total), allowed, f"round {round_number + 1}, all steps")
    elif taken != law.local_steps and (round_number, change.name) in one.notes.rows:
        said = f"{taken} steps, accounted {law.local_steps}"
        yield Violation("d", f"round {round_number + 1}: {change.name} takes {said}")


def _coins(world: World) -> Iterator[Violation]:
    """(s): every unit has a coin of its own in every step, and tosses it whatever others' say."""
    plan = world.plan
    if plan.local.batch_rate is not None and plan.local.batch_rate < 1:
        units, rule = unit_sizes(plan.federation, plan.local), plan.local
        wanted = dict(zip(world.names, (units * step_counts(units, rule)).tolist(), strict=True))
        for round_number, name in world.notes.updates:
            tossed = world.coins.get((BATCHES, round_number, name))
            if tossed != wanted[name]:
                yield Violation("s", f"{name} tosses {tossed} coins for {wanted[name]}")
                return
    if plan.sampling.coin_rate < 1:
        tossed = {key[1:] for key in world.coins if key[0] == CLIENTS}
        for round_number, name in sorted(world.notes.rows.keys() - tossed):  # of all who train
            yield Violation("s", f"{name} trains in round {round_number + 1} without a coin")
            return


def _times(privacy_model: PrivacyModel, change: Change) -> int:
    """Where a record is zeroed, another one in its place is two such changes away."""
    zeroed = privacy_model.adjacency is Adjacency.ZERO_OUT and change.kind == "record"
    return 2 if zeroed else 1


def _by_itself(
    moved: _Moved, step: LaplaceStep | DiscreteSumStep, times: int, colluders: int, where: str
) -> Iterator[Violation]:
    """Laplace noise is accounted in L1. Shares of discrete Gaussians are accounted in both norms,
    with a grid that must not be coarser beside its noise later on, and with their number."""
    if isinstance(step, LaplaceStep):
        yield from _within(moved.l1, 1 / step.noise, where)
        return
    yield from _within(moved.l2, times * step.l2 / step.share_std, where)
    yield from _within(moved.l1, times * step.l1 / step.share_std, f"{where}, L1")
    coarse = moved.draw.granularity / moved.draw.std
    yield from _within(coarse, 1 / step.share_std, f"{where}, grid over noise")
    if moved.draw.shares - colluders < step.shares:
        found = f"{moved.draw.shares} noise shares, {colluders} of them colluders'"
        yield Violation("b", f"{where}: {found}, accounted {step.shares}")


def _within(moved: float, allowed: float, where: str) -> Iterator[Violation]:
    if not moved <= allowed * (1 + _ROUNDING):
        yield Violation("b", f"{where}: moved {moved:.9g} of its noise, accounted {allowed:.9g}")
