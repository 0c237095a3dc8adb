"""Looks for violations, case by case."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fedveil.core.errors import FedveilError

from .cases import RESUMED, Case, draw_case
from .checks import Change, Violation, claimed, compare
from .resuming import killed_and_resumed
from .values import Client
from .variants import VALUES, coming_or_going, variants
from .worlds import World, play
from .written import files_differ

_KILLED = 3  # runs of a case with a public schedule
_WRITTEN = 2  # neighbours whose files are compared


@dataclass
class Found:
    """What a case gave."""

    seed: int
    pairs: int = 0
    runs: int = 0  # of the program
    refused: str = ""
    violations: list[tuple[str, Violation]] = field(default_factory=list)  # with the neighbour
    tags: list[str] = field(default_factory=list)  # what the case is
    kinds: Counter[str] = field(default_factory=Counter)  # its pairs
    case: Case | None = None
    values: tuple[int, ...] = VALUES

    def __str__(self) -> str:
        said = [f"[{law.law}] {which}: {law.what[:300]}" for which, law in self.violations[:6]]
        command = f"python -m tests.neighbours --seed {self.seed}"
        if self.values != VALUES:
            command += f" --values {' '.join(map(str, self.values))}"
        return "\n".join([f"case {self.seed}: {command}", f"  {self.case}", *said])


def examine(seed: int, values: tuple[int, ...] = VALUES) -> Found:
    """Run the case of this number and compare it with its neighbours, with so many values at each
    place that changes."""
    found = Found(seed, case=draw_case(seed), values=values)
    try:
        _examine(found, found.case)
    except Exception as error:  # whatever it is, its case must be known
        found.violations.append(("crash", Violation("!", f"{type(error).__name__}: {error}")))
        traceback.print_exc()
    return found


def _examine(found: Found, case: Case) -> None:
    first = _play(found, case, case.clients)
    if isinstance(first, str):
        found.refused = re.sub(r"[\d.]+", "N", first)
        return
    found.tags = [*_tags(case, first)]
    if not claimed(first):
        return
    values = tuple(map(min, found.values, VALUES)) if case.slow else found.values
    around = variants(case, first, values)
    # Planned anew wherever one place has changed; more changes at once meet the same plan.
    worlds = {
        pick: _play(found, case, clients, first, sum(map(bool, pick)) == 1) if any(pick) else first
        for pick, clients in around.worlds()
    }
    for one, two, change in around.pairs():
        if one in worlds and two in worlds:
            _compare(found, worlds[one], worlds[two], change)
    public = coming_or_going(case, first)
    if public is not None:
        _compare(found, first, _play(found, case, public[1], first), public[0])
    if first.failure:
        return
    if case.seed % RESUMED == 0:
        for number in range(_KILLED):
            laws = killed_and_resumed(case, number)
            _count(found, "killed and resumed", "killed and resumed", laws)
    if case.seed % RESUMED == RESUMED // 2:
        changes = {two: change for one, two, change in around.pairs() if not any(one)}
        others = [(changes[pick], clients) for pick, clients in around.worlds() if pick in changes]
        for change, clients in others[:: max(1, len(others) // _WRITTEN)][:_WRITTEN]:
            _count(found, "files", f"{change}", files_differ(case, clients, first))


def _play(
    found: Found,
    case: Case,
    clients: tuple[Client, ...],
    first: World | None = None,
    anew: bool = True,
) -> World | str:
    """A world, or why it is refused."""
    found.runs += 1
    try:
        return play(case, clients, first, anew=anew)
    except FedveilError as error:
        return f"{type(error).__name__}: {error}"


def _compare(found: Found, one: World | str, two: World | str, change: Change) -> None:
    if isinstance(one, str) or isinstance(two, str):
        found.kinds["refused"] += 1
    else:
        _count(found, change.kind, f"{change}", compare(one, two, change))


def _count(found: Found, kind: str, which: str, laws: list[Violation]) -> None:
    found.pairs += 1
    found.kinds[kind] += 1
    found.violations += [(which, law) for law in laws]


def _tags(case: Case, world: World) -> Iterator[str]:
    plan, privacy, training = world.plan, case.table["privacy"], case.table["training"]
    yield "claimed" if claimed(world) else "not claimed"
    yield f"failed: {world.failure[:60]}" if world.failure else "ran"
    if not claimed(world):
        return
    yield f"method {plan.method.name}"
    yield f"path {case.path}"
    yield f"engine {world.engine}"
    yield f"rounds {plan.method.rounds}"
    yield f"mechanism {type(world.releases[0].mechanism).__name__}"
    claim = plan.privacy_model
    yield f"claim {claim.unit} {claim.adjacency} {claim.trust}"
    yield f"sampling {type(plan.sampling).__name__}"
    yield f"model {case.module or case.table['model'].get('name', 'linear')}"
    yield f"task {case.kind.task}"
    if "aggregation" in case.table:
        yield f"secure {case.table['aggregation']['secure']}"
    chosen = {
        "tracked clip": "clip_quantile" in privacy,
        "correlated noise": "correlated" in privacy,
        "colluders": "colluders" in privacy,
        "rotated": "rotate" in privacy,
        "weights by examples": "weight_cap" in training,
        "sparse": "sparsity" in training,
        "server optimizer": "server" in case.table,
        "inputs of bounded norm": "input_norm" in case.table["model"],
        "little room": case.room is not None,
        "bytes": case.pixels,
        "last batch dropped": case.drop_last,
        "tame values": case.kind.tame,
    }
    yield from (f"with {what}" for what, so in chosen.items() if so)
