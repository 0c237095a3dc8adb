"""One world: a case's federation, plan and rounds, by the code that `fedveil run` uses."""

from __future__ import annotations

import copy
import csv
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.core.arguments import settle
from fedveil.core.errors import FedveilError
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.data.partition import ByOwner
from fedveil.methods.registry import method_of
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import features_of, federation_of, plan_of
from fedveil.planning.plan import Budget, Plan, plan
from fedveil.planning.recipe import Recipe
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.releases import Release
from fedveil.privacy.translation import step_of
from fedveil.run.directory import RunDirectory
from fedveil.run.round import play_round
from fedveil.run.run import Run, Speed, job_of
from fedveil.run.sums import pipeline_in
from fedveil.training.engines.choose import choose
from fedveil.training.engines.processes import home_parts
from fedveil.training.models.features import with_features
from fedveil.training.models.images import ChannelsFirst
from fedveil.training.models.text import CharacterLstm

from .cases import Case
from .coupling import Streams
from .recording import Notes, Recorder, recording
from .values import COLUMNS, Client

_PARTS = 2  # machines, of which none is started: they might round differently
NEVER = 10**9  # rounds between evaluations: what is measured on test examples is not covered


@dataclass
class World:
    """What became of a case with these clients."""

    names: list[str]
    plan: Plan
    notes: Notes
    states: list[bytes] = field(default_factory=list)  # weights and all, after each round
    shapings: list[Any] = field(default_factory=list)  # clip and grid of each round
    failure: str = ""  # why a round ended early
    engine: str = ""  # which trained the clients
    parts: dict[str, int] = field(default_factory=dict)  # machine of each client, if there were two
    shown: list[str] = field(default_factory=list)  # warnings on the terminal
    coins: dict[Any, int] = field(default_factory=dict)  # how many each client has tossed

    @cached_property
    def releases(self) -> tuple[Release, ...]:
        """What the guarantee was computed from."""
        return tuple(self.plan.releases(self.plan.method.rounds))

    @cached_property
    def steps(self) -> list[Step]:
        """The same as sensitivity over noise."""
        return [step_of(release, self.plan.privacy_model) for release in self.releases]

    @cached_property
    def public(self) -> dict[str, Any]:
        """What is decided before the first round, by name."""
        of_plan = ("sampling", "privacy_model", "layout", "warnings", "scales", "rates")
        of_data = ("notes", "class_names", "features", "classes", "unprotected")
        return {
            **{name: getattr(self.plan, name) for name in of_plan},
            **{name: getattr(self.plan.federation, name) for name in of_data},
            "accounted releases": self.releases,
            "guarantee": self.plan.guarantee.to_dict(),
            "clips and grids": self.shapings,
            "warnings shown": self.shown,
        }


def play(
    case: Case,
    clients: Sequence[Client],
    first: World | None = None,
    keep: Path | None = None,
    anew: bool = True,
) -> World:
    """Plan and run a case with these clients, kept in a new run directory if one is named; a
    FedveilError means that it is refused. With `anew` off, the first world's plan is carried out on
    these data if the same clients are there."""
    streams = Streams(case.seed)
    recorder = Recorder(streams, None if first is None else first.notes)
    torch.default_generator.manual_seed(0)  # nobody else's randomness is part of the comparison
    with ExitStack() as stack:
        notes = stack.enter_context(recording(recorder, bool(case.module), case.room))
        warned = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        chosen, federation = prepared(case, clients)
        names = names_of(federation, clients)
        streams.name_clients(names)
        if anew or first is None or names != first.names:
            planned = plan_for(case, chosen, federation)
            if case.scaled:
                planned = replace(planned, scales=tuple(map(scale_of, names)))
        else:
            if case.features:
                federation = with_features(federation, features_of(chosen.model))
            planned = _same_plan(first.plan, federation)
        run = Run(
            planned, speed=speed_of(case), every=NEVER, engine=_given(case, planned, recorder)
        )
        world = World(names, run.plan, notes, coins=streams.coins)  # which knows what runs it
        world.engine = run.choice.name
        if keep is not None:
            run.keep_in(RunDirectory.create(keep, run.plan, recipes.to_table(chosen)))
        if planned.federation.owners is not None:
            parts = home_parts(planned.federation, _PARTS)
            world.parts = dict(zip(names, parts.tolist(), strict=True))
        try:
            for number in range(planned.method.rounds):
                pipeline = pipeline_in(planned, number, run.state.optimizer)
                world.shapings.append((pipeline.clip, pipeline.granularity))
                report = play_round(run, last=number + 1 == planned.method.rounds)
                world.states.append(_bytes(run.state.weights, run.state.optimizer, report))
        except (FedveilError, ValueError, RuntimeError, ArithmeticError, IndexError) as error:
            world.failure = f"{type(error).__name__}: {error}"
        finally:
            run.close()
            if run.directory is not None:
                run.directory.close()
        world.shown = sorted({str(one.message) for one in warned})
    return world


def scale_of(name: str) -> float:
    """The share of the clip to which a client keeps: a public number, by its name."""
    return (0.05, 0.4, 1.0)[sum(name.encode()) % 3]


def speed_of(case: Case) -> Speed:
    return Speed(case.engine, case.chunk, case.processes)


def _given(case: Case, planned: Plan, recorder: Recorder) -> Any:
    """An engine made before its run: for this plan, or for another one that protects less."""
    if not case.given:
        return None
    if case.given == "quiet":
        planned = replace(planned, noise_multiplier=planned.noise_multiplier / 100)
    job = job_of(planned, planned.randomness)
    if case.given == "together":
        job = replace(job, isolated=False)
    chosen = choose(job, case.engine)
    return recorder.given_engine(job, chosen, case.chunk)


def _bytes(weights: Tensor, optimizer: dict[str, Tensor], report: Any) -> bytes:
    """All that a round leaves, to be compared bit by bit."""
    parts = [weights.numpy().tobytes()]
    parts += [name.encode() + value.numpy().tobytes() for name, value in sorted(optimizer.items())]
    return b"".join([*parts, repr(report.to_dict()).encode()])


def prepared(case: Case, clients: Sequence[Client]) -> tuple[Recipe, Federation]:
    """The recipe with its defaults, and the federation by the case's way in."""
    if case.path != "csv":
        return recipe_of(case), _arrays(case, clients)
    folder = Path(tempfile.mkdtemp(prefix="neighbours-", dir=scratch()))
    try:
        _write_table(case, clients, folder / "rows.csv")
        (folder / "schema.toml").write_text(_schema(case), encoding="utf-8")
        chosen = recipe_of(case)
        files = {"file": str(folder / "rows.csv"), "schema": str(folder / "schema.toml")}
        return chosen, federation_of(replace(chosen.data, **files))
    finally:
        shutil.rmtree(folder)


@lru_cache(maxsize=2)
def recipe_of(case: Case) -> Recipe:
    """The recipe, files apart: the same in both worlds."""
    table = dict(case.table)
    if case.path == "csv":
        table["data"] = {**table["data"], "client_column": "who", "label": ",".join(_labels(case))}
        table["data"] |= {"person_column": "whom"} if case.persons else {}
    return recipes.with_defaults(recipes.parse(table))


def plan_for(case: Case, chosen: Recipe, federation: Federation) -> Plan:
    if case.module or case.drop_last or case.loss:
        method = method_of(chosen)
        if case.loss:
            method = replace(method, local=replace(method.local, loss=_LOSSES[case.loss]))
        if case.drop_last:
            method = replace(method, local=replace(method.local, drop_last=True))
        module = _module(case) if case.module else plan_of(chosen, federation).module
        noise = chosen.privacy.noise_multiplier
        planned = plan(method, federation, module, budget=Budget(noise_multiplier=noise))
    else:
        planned = plan_of(chosen, federation)
    if not case.start:
        return planned
    draw = np.random.default_rng([case.seed, 2])
    start = draw.standard_normal(len(planned.start)).astype(np.float32) * np.float32(case.start)
    return replace(planned, start=torch.from_numpy(start))


def _huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs.reshape(targets.shape), targets, reduction="none")


def _fragile(outputs: Tensor, targets: Tensor) -> Tensor:
    """As people write them who check what they are given."""
    if not bool((outputs.abs() < 1e30).all()):
        raise ValueError("loss: outputs are out of all bounds")
    return _huber(outputs, targets)


_LOSSES = {"huber": _huber, "fragile": _fragile}


def _same_plan(made: Plan, federation: Federation) -> Plan:
    """This plan, derived numbers and all, with other data in it."""
    other = copy.copy(made)
    noise = made.noise.fit(replace(made.noise.facts, federation=federation))
    settle(other, federation=federation, noise=noise)
    vars(other).pop("optimizer", None)  # of votes, it holds the public examples
    return other


def names_of(federation: Federation, clients: Sequence[Client]) -> list[str]:
    """Whose data stands at which position; a hold-out may have taken some clients away."""
    if federation.owners is None:
        return [one.name for one in clients]
    return [str(name) for name in federation.owners]


def _arrays(case: Case, clients: Sequence[Client]) -> Federation:
    kind, draw = case.kind, np.random.default_rng([case.seed, 3])
    inputs = np.concatenate([one.inputs for one in clients])
    targets = np.concatenate([one.targets for one in clients])
    public = draw.standard_normal((4, *kind.shape)).astype(np.float32)
    if kind.task == "sequence":
        public = draw.integers(0, kind.classes, (4, *kind.shape))
    elsewhere = Examples(public, np.zeros_like(targets, shape=(4, *targets.shape[1:])))
    if case.path == "direct":
        scaling = None
        if case.pixels:  # stored as bytes, scaled for the model
            inputs = (np.nan_to_num(np.abs(inputs)).clip(0, 5) * 50).astype(np.uint8)
            scaling = Scaling(np.float32(128), np.float32(1 / 64))
            elsewhere = Examples(elsewhere.inputs.clip(0, 9).astype(np.uint8), elsewhere.targets)
        return Federation(
            Examples(inputs, targets, persons=_persons(clients)),
            np.concatenate([[0], np.cumsum([len(one) for one in clients])]),
            elsewhere,
            Task(kind.task),
            kind.classes,
            validation=elsewhere,
            scaling=scaling,
            verified=True,  # engines must cope with what a program may hand them
        )
    dealing = dict(case.dealing)
    limits = ("cap", "examples_per_client", "at_least", "clients")
    given = {name: dealing.pop(name) for name in limits if name in dealing}
    order = np.argsort(np.concatenate([one.places for one in clients]))
    owners = np.repeat([one.name for one in clients], [len(one) for one in clients])
    persons = _persons(clients)
    federation = Federation.from_arrays(
        inputs[order],
        targets[order],
        owners[order],
        persons=None if persons is None else persons[order],
        partition=ByOwner(**given),
        validation=elsewhere,
        classes=kind.classes or None,
        task=kind.task,
        **dealing,
    )
    if case.path == "arrays":
        return federation
    folder = Path(tempfile.mkdtemp(prefix="neighbours-", dir=scratch()))
    try:
        return Federation.open(federation.save(folder / "saved"))
    finally:
        shutil.rmtree(folder)  # the maps stay open


def _persons(clients: Sequence[Client]) -> Any:
    """A number for each record's person, made from its client's name and nobody else's."""
    if clients[0].persons is None:
        return None
    names = (1000 * (1 + int(one.name.lstrip("cx").split(".")[0])) for one in clients)
    return np.concatenate([first + one.persons for first, one in zip(names, clients, strict=True)])


def _write_table(case: Case, clients: Sequence[Client], path: Path) -> None:
    """All rows in a random order that is each row's own."""
    rows = []
    for one in clients:
        odd = dict(one.cells)
        persons = [None] * len(one) if one.persons is None else one.persons.tolist()
        rowwise = zip(one.places, one.inputs, one.targets, persons, strict=True)
        for place, inputs, target, person in rowwise:
            cells = [repr(float(x)) for x in inputs]
            cells.append("abz"[int(place * 1e6) % 3])
            if case.kind.task == "multi-label":
                label = [str(one) for one in target]
            else:
                label = [f"k{target}" if case.kind.classes else repr(float(target))]
            if place in odd:
                column, text = odd[place]
                if column == COLUMNS - 1:
                    label[0] = ""
                else:
                    cells[column % len(cells)] = text
            whom = [] if person is None else [f"{one.name}/{person}"]
            rows.append((place, [one.name, *cells, *label, *whom]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        inputs = (f"x{i}" for i in range(case.kind.shape[0]))
        whom = ["whom"] if case.persons else []
        writer.writerow(["who", *inputs, "word", *_labels(case), *whom])
        writer.writerows(row for _, row in sorted(rows, key=lambda pair: pair[0]))


def _labels(case: Case) -> list[str]:
    several = case.kind.task == "multi-label"
    return [f"y{place}" for place in range(case.kind.classes)] if several else ["y"]


def _schema(case: Case) -> str:
    """Public ranges and categories; every other column by mean and deviation."""
    lines = []
    for column in range(case.kind.shape[0]):
        known = "min = -3\nmax = 3" if column % 2 else "mean = 0\nstd = 1"
        lines.append(f'[columns.x{column}]\ntype = "number"\n{known}\nmissing = true')
    lines.append('[columns.word]\ntype = "category"\ncategories = ["a", "b"]')
    if case.kind.task == "multi-label":
        lines += [f'[columns.{name}]\ntype = "boolean"' for name in _labels(case)]
    elif case.kind.classes:
        names = ", ".join(f'"k{number}"' for number in range(case.kind.classes))
        lines.append(f'[columns.y]\ntype = "category"\ncategories = [{names}]')
    else:
        lines.append('[columns.y]\ntype = "number"\nmin = -5\nmax = 5')
    return "\n".join(lines) + "\n"


def scratch() -> str | None:
    """Memory, where there is some to write files to."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class _Residual(nn.Module):
    """No stack of layers, so that engines need automatic differentiation."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(features, features), nn.Linear(features, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.outer(inputs + self.inner(inputs).tanh())
        return found


def _module(case: Case) -> nn.Module:
    kind = case.kind
    features, outputs = int(np.prod(kind.shape)), kind.classes or 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed % 1000)
        if case.module == "residual":
            return _Residual(features, outputs)
        if case.module == "lstm":
            return CharacterLstm(kind.classes, every_position=True, hidden=(3,))
        if case.module == "convolution":
            body = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
            return ChannelsFirst(nn.Sequential(*body, nn.Linear(2, outputs)))
        between = nn.Dropout(0.5) if case.module == "dropout" else nn.BatchNorm1d(3)
        return nn.Sequential(nn.Linear(features, 3), between, nn.Tanh(), nn.Linear(3, outputs))
