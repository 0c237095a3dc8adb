"""Looks for violations, case by case: a deep one, what readers make of a source, and now and then a
whole command. All follow from one number."""

from __future__ import annotations

import math
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fedveil.core.errors import FedveilError

from .cases import RESUMED, Case, draw_case
from .checks import Change, Violation, claimed, compare
from .doors.reading import examine_sheet
from .doors.rows import draw_sheet
from .doors.sources import DOORS
from .resuming import killed_and_resumed
from .values import Client
from .variants import VALUES, coming_or_going, somebody_else, variants
from .whole import draw_job, examine_job
from .worlds import World, play
from .written import files_differ

_KILLED = 3  # runs of a case with a public schedule
# Owners who are left out, or clients' rows that are voted on: nothing is certified.
_LEAVES_OUT = {"at_least", "examples_per_client", "clients", "public_fraction"}
COMMAND = 8  # one number in so many has a whole command
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
        shown = self.violations[:6]
        said = [f"[{law.law}] {which}: {law.what[:300]}" for which, law in shown]
        command = f"python -m tests.neighbours --seed {self.seed}"
        if self.values != VALUES:
            command += f" --values {' '.join(map(str, self.values))}"
        also = [f"  {draw_sheet(self.seed, tuple(DOORS))[0]}", f"  {draw_job(self.seed)[0]}"]
        return "\n".join([f"case {self.seed}: {command}", f"  {self.case}", *also, *said])


def examine(seed: int, values: tuple[int, ...] = VALUES, among: str = "") -> Found:
    """Run the case of this number and compare it with its neighbours, with so many values at each
    place that changes; `among` names one of the searches, which is else all of them."""
    found = Found(seed, case=draw_case(seed), values=values)
    for name, look in _SEARCHES.items():
        if among not in ("", name):
            continue
        try:
            look(found, found.case)
        except Exception as error:  # whatever it is, its case must be known
            found.violations.append(("crash", Violation("!", f"{type(error).__name__}: {error}")))
            traceback.print_exc()
    return found


def _read(found: Found, case: Case) -> None:
    """The sheet of the same number, with as many worlds as the deep case has."""
    found.runs += math.prod(found.values)
    for kind, which, laws in examine_sheet(found.seed, found.values):
        _count(found, kind, which, laws)


def _command(found: Found, case: Case) -> None:
    """The job of the same number, for one in so many: commands take a fifth of a second."""
    if found.seed % COMMAND == COMMAND // 2:
        for kind, which, laws in examine_job(found.seed, max(found.values)):
            found.runs += 1
            _count(found, f"command {kind}", which, laws)


def _examine(found: Found, case: Case) -> None:
    first = _play(found, case, case.clients)
    if isinstance(first, str):
        found.refused = re.sub(r"[\d.]+", "N", first)
        if not _LEAVES_OUT & {*case.dealing, *case.table.get("data", {})}:
            other = _play(found, case, somebody_else(case))
            _compare(found, first, other, Change("replaced", "somebody"))
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
        second = _play(found, case, public[1], first)
        if not isinstance(second, str):  # who is there is public, and so is what that rules out
            _compare(found, first, second, public[0])
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


_SEARCHES = {"cases": _examine, "sheets": _read, "jobs": _command}


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
        said = re.sub(r"/\S*neighbours-[^/:\s]*", "FOLDER", str(error))
        return f"{type(error).__name__}: {said}"


def _compare(found: Found, one: World | str, two: World | str, change: Change) -> None:
    if isinstance(one, str) or isinstance(two, str):
        _count(found, "refused", f"{change}", list(refusals(one, two)))
    else:
        _count(found, change.kind, f"{change}", compare(one, two, change))


def refusals(one: World | str, two: World | str) -> Iterator[Violation]:
    """A refusal is seen by everybody: the same for both worlds, in the same words, or for none."""
    if one != two and all(isinstance(world, str) or claimed(world) for world in (one, two)):
        ended = [world if isinstance(world, str) else "runs" for world in (one, two)]
        yield Violation("r", f"one world {ended[0]!r}, the other {ended[1]!r}")


def _count(found: Found, kind: str, which: str, laws: list[Violation]) -> None:
    found.pairs += 1
    found.kinds[kind] += 1
    for law in laws:
        found.violations.append((which, law))


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
        "features": case.features,
        "weights of classes": "class_weights" in training,
        f"loss {case.loss}": bool(case.loss),
        f"given engine {case.given}": bool(case.given),
    }
    yield from (f"with {what}" for what, so in chosen.items() if so)
