"""Looks for violations, case by case."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.core.units import Adjacency, Unit

from .cases import RESUMED, Case, draw_case
from .checks import Change, Violation, claimed, compare
from .resuming import killed_and_resumed
from .values import Client, Draw, client, with_other_record
from .worlds import World, play
from .written import files_differ

_NEIGHBOURS = 4  # of each world


@dataclass
class Found:
    """What a case gave."""

    seed: int
    pairs: int = 0
    refused: str = ""
    violations: list[tuple[str, Violation]] = field(default_factory=list)  # with the neighbour
    tags: Counter[str] = field(default_factory=Counter)  # what was covered
    case: Case | None = None

    def __str__(self) -> str:
        said = [f"[{law.law}] {which}: {law.what[:300]}" for which, law in self.violations[:6]]
        command = f"python -m tests.neighbours --seed {self.seed}"
        return "\n".join([f"case {self.seed}: {command}", f"  {self.case}", *said])


def examine(seed: int) -> Found:
    """Run the case of this number and compare it with its neighbours."""
    found = Found(seed, case=draw_case(seed))
    try:
        _examine(found, found.case)
    except Exception as error:  # whatever it is, its case must be known
        found.violations.append(("crash", Violation("!", f"{type(error).__name__}: {error}")))
        traceback.print_exc()
    return found


def _examine(found: Found, case: Case) -> None:
    seed = case.seed
    try:
        first = play(case, case.clients)
    except FedveilError as error:
        found.refused = f"{type(error).__name__}: {error}"
        return
    _tag(found, case, first)
    if not claimed(first):
        return
    for change, clients in _neighbours(case, first):
        try:
            second = play(case, clients, first)
        except FedveilError:
            found.tags["neighbour refused"] += 1
            continue
        found.pairs += 1
        found.tags[change.kind] += 1
        found.violations += [(f"{change}", law) for law in compare(first, second, change)]
    if seed % RESUMED == 0 and not first.failure:
        found.pairs += 1
        found.tags["resumed"] += 1
        found.violations += [("killed and resumed", law) for law in killed_and_resumed(case)]
    if seed % RESUMED == RESUMED // 2 and not first.failure:
        found.pairs += 1
        found.tags["written"] += 1
        neighbours = list(_neighbours(case, first))[:1]
        for change, clients in neighbours:
            found.violations += [(f"{change}", law) for law in files_differ(case, clients, first)]


def _tag(found: Found, case: Case, world: World) -> None:
    plan = world.plan
    found.tags[f"method {plan.method.name}"] += 1
    found.tags[f"path {case.path}"] += 1
    found.tags[f"failed: {world.failure[:60]}" if world.failure else "ran"] += 1
    found.tags["claimed" if claimed(world) else "not claimed"] += 1
    if plan.privacy_model is not None and claimed(world):
        release = plan.releases(1)[0]
        found.tags[f"{type(release.mechanism).__name__}"] += 1
        found.tags[
            f"{plan.privacy_model.unit} {plan.privacy_model.adjacency} {plan.privacy_model.trust}"
        ] += 1
        found.tags[f"sampling {type(plan.sampling).__name__}"] += 1


def _neighbours(case: Case, world: World) -> Iterator[tuple[Change, tuple[Client, ...]]]:
    """Neighbours of the kind that the guarantee is about, of clients that took part."""
    draw = np.random.default_rng([case.seed, 5])
    privacy_model = world.plan.privacy_model
    by_presence = privacy_model is not None and privacy_model.adjacency is Adjacency.ADD_REMOVE
    present = sorted(
        {name for _, name in world.notes.rows} | {k[2] for k in world.notes.draws if k[2]}
    )
    by_name = {one.name: one for one in case.clients}
    for _ in range(_NEIGHBOURS):
        if not present:
            return
        name = str(draw.choice(present))
        one = by_name[name]
        if privacy_model is not None and privacy_model.unit is Unit.RECORD:
            zeroed = privacy_model.adjacency is Adjacency.ZERO_OUT and not case.kind.finite
            numbers = case.kind.task != "sequence" and not case.pixels
            zeroed = zeroed and numbers and draw.random() < 0.7
            other = with_other_record(draw, case.kind, one, zeroed)
            yield Change("zeroed" if zeroed else "record", name), _with(case, other)
            continue
        if by_presence or draw.random() < 0.15:
            if draw.random() < 0.7:
                yield Change("removed", name), tuple(c for c in case.clients if c.name != name)
            else:
                yield _added(draw, case)
            continue
        yield Change("replaced", name), _with(case, client(draw, case.kind, name, most=_most(case)))


def _most(case: Case) -> int:
    """New clients may be twice as large as the largest: with the sizes move chunks and ways."""
    return 2 * max(len(one) for one in case.clients)


def _with(case: Case, other: Client) -> tuple[Client, ...]:
    return tuple(other if one.name == other.name else one for one in case.clients)


def _added(draw: Draw, case: Case) -> tuple[Change, tuple[Client, ...]]:
    """A client somewhere in the order of names, so that positions shift; its name may make text
    of names that were numbers."""
    number = 3 * int(draw.integers(len(case.clients))) + int(draw.integers(1, 3))
    name = f"c{number:02d}"
    if case.clients[0].name == "0":
        name = str(draw.choice((f"{number}", f"x{number}", f"{number}.5")))
    new = client(draw, case.kind, name, most=_most(case))
    return Change("added", new.name), tuple(sorted((*case.clients, new), key=lambda one: one.name))
