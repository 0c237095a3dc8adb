"""The worlds of one case, and which of them are neighbours.

Some places are drawn, clients or records by the guarantee's unit, and for each what can stand
there. Every combination is a world; two that differ in one place are a pair. So one run of
the program serves in several pairs, and each pair sees another federation around its change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedveil.core.units import Adjacency, Unit

from .cases import Case
from .checks import Change
from .values import (
    Client,
    Draw,
    Person,
    Record,
    client,
    other_person,
    other_record,
    with_person,
    with_persons,
    with_record,
)
from .worlds import World

VALUES = (3, 3, 2)  # at each place

Pick = tuple[int, ...]  # which value stands at each place; all 0: the case as it was drawn
Clients = tuple[Client, ...]


@dataclass(frozen=True)
class Place:
    """A client, or one record or person of it, and what can stand there (None: nothing)."""

    name: str
    row: int | None
    values: tuple[Client | Record | Person | None, ...]

    def put(self, clients: dict[str, Client], pick: int) -> None:
        value = self.values[pick]
        if value is None:
            clients.pop(self.name, None)
        elif isinstance(value, Record):
            clients[self.name] = with_record(clients[self.name], self.row, value)
        elif isinstance(value, Person):
            clients[self.name] = with_person(clients[self.name], self.row, value)
        else:
            clients[self.name] = value


@dataclass(frozen=True)
class Variants:
    """All worlds of a case."""

    case: Case
    places: tuple[Place, ...]
    adjacency: Adjacency

    def worlds(self) -> Iterator[tuple[Pick, Clients]]:
        """Every combination with somebody in it, and with no more clients than the guarantee says
        there are; the first one is the case itself."""
        most = self.case.table["privacy"].get("public_clients", math.inf)
        for pick in product(*(range(len(place.values)) for place in self.places)):
            clients = self._clients(pick)
            if clients and len(clients) <= most:
                yield pick, clients

    def _clients(self, pick: Pick) -> Clients:
        clients = {one.name: one for one in self.case.clients}
        for place, chosen in zip(self.places, pick, strict=True):
            if chosen:
                place.put(clients, chosen)
        if len(clients) > len(self.case.clients):  # new names come between the others
            return tuple(sorted(clients.values(), key=lambda one: one.name))
        return tuple(clients.values())

    def pairs(self) -> Iterator[tuple[Pick, Pick, Change]]:
        """Worlds that differ in one place, and how."""
        for number, place in enumerate(self.places):
            rest = [range(len(other.values)) for other in self.places]
            for one, two, kind in self._changes(place):
                rest[number] = range(one, one + 1)
                for pick in product(*rest):
                    other = (*pick[:number], two, *pick[number + 1 :])
                    yield pick, other, Change(kind, place.name)

    def _changes(self, place: Place) -> Iterator[tuple[int, int, str]]:
        """Pairs of values that a neighbour may differ in. A zeroed client is compared with itself,
        world by world: there the pairs without the first value would say nothing new."""
        values = place.values
        for one in range(len(values)):
            for two in range(one + 1, len(values)):
                if place.row is not None:
                    zeroed = isinstance(values[two], Record | Person) and values[two].zeroed
                    yield one, two, "zeroed" if zeroed else "record"
                elif self.adjacency is Adjacency.ADD_REMOVE:
                    if (values[one] is None) != (values[two] is None):
                        yield one, two, "removed" if values[two] is None else "added"
                elif one == 0 or self.adjacency is Adjacency.REPLACE:
                    yield one, two, "replaced"


def variants(case: Case, world: World, values_each: tuple[int, ...] = VALUES) -> Variants:
    """Worlds around one, which differ in what its guarantee is about and in who took part."""
    draw = np.random.default_rng([case.seed, 5])
    privacy_model = world.plan.privacy_model
    notes = world.notes
    present = sorted({name for _, name in notes.rows} | {k[2] for k in notes.draws if k[2]})
    places: dict[tuple[str, int | None], Place] = {}
    names = draw.permutation(present)
    for number, values in enumerate(values_each if present else ()):
        name = str(names[number % len(names)])
        if privacy_model.unit is not Unit.CLIENT:
            place = _record(draw, case, name, values, privacy_model.adjacency)
        elif privacy_model.adjacency is Adjacency.ADD_REMOVE and draw.random() < 0.3:
            place = _newcomer(draw, case, values)
        else:
            place = _client(draw, case, name, values, privacy_model.adjacency)
        places.setdefault((place.name, place.row), place)
    return Variants(case, tuple(places.values()), privacy_model.adjacency)


def coming_or_going(case: Case, world: World) -> tuple[Change, Clients] | None:
    """Where who is there is public: somebody less, or more, for every other case."""
    draw = np.random.default_rng([case.seed, 6])
    if world.plan.privacy_model.adjacency is Adjacency.ADD_REMOVE or draw.random() < 0.5:
        return None
    if draw.random() < 0.7:
        name = case.clients[int(draw.integers(len(case.clients)))].name
        return Change("removed", name), tuple(c for c in case.clients if c.name != name)
    place = _newcomer(draw, case, 2)
    together = Variants(case, (place,), Adjacency.ADD_REMOVE)
    return Change("added", place.name), dict(together.worlds())[1,]


def somebody_else(case: Case) -> Clients:
    """Of a case that is refused: a client replaced, or a record where sizes are public."""
    draw = np.random.default_rng([case.seed, 8])
    one = case.clients[int(draw.integers(len(case.clients)))]
    if case.persons:
        other = with_person(one, 0, other_person(draw, case.kind, one, 0, zeroed=False))
    elif case.kind.by_record:
        row = int(draw.integers(len(one)))
        other = with_record(one, row, other_record(draw, case.kind, one, row, zeroed=False))
    else:
        other = client(draw, case.kind, one.name)
    return tuple(other if own.name == one.name else own for own in case.clients)


def _record(draw: Draw, case: Case, name: str, values: int, adjacency: Adjacency) -> Place:
    one = next(one for one in case.clients if one.name == name)
    row = int(draw.integers(len(one)))
    # Features that are not finite become zeros: a record like others, whose gradient is not zero.
    plain = not (case.pixels or case.features)
    nothing = case.kind.task != "sequence" and plain and not case.kind.finite
    nothing = nothing and adjacency is Adjacency.ZERO_OUT and draw.random() < 0.7
    make = other_record
    if case.persons:
        row, make = int(draw.choice(one.persons)), other_person
    others = [
        make(draw, case.kind, one, row, nothing and number == values - 1)
        for number in range(1, values)
    ]
    return Place(name, row, (one, *others))


def _client(draw: Draw, case: Case, name: str, count: int, adjacency: Adjacency) -> Place:
    one = next(one for one in case.clients if one.name == name)
    values = [one, *_others(draw, case, name, count)]
    if adjacency is Adjacency.ADD_REMOVE:
        values[1] = None
    return Place(name, None, tuple(values))


def _newcomer(draw: Draw, case: Case, values: int) -> Place:
    """A client somewhere in the order of names, so that positions shift; its name may make text
    of names that were numbers."""
    number = 3 * int(draw.integers(len(case.clients))) + int(draw.integers(1, 3))
    name = f"c{number:02d}"
    if case.clients[0].name == "0":
        name = str(draw.choice((f"{number}", f"x{number}", f"{number}.5")))
    return Place(name, None, (None, *_others(draw, case, name, values)))


def _others(draw: Draw, case: Case, name: str, values: int) -> list[Client | None]:
    """New clients may be twice as large as the largest: with the sizes move chunks and ways."""
    most = 2 * max(len(one) for one in case.clients)
    found = [client(draw, case.kind, name, most=most) for _ in range(1, values)]
    return [with_persons(draw, one) for one in found] if case.persons else found
