"""Whole commands: `fedveil run --data`, estimators, callbacks: what they show and how they end.

Every world runs in the same folder, which it finds empty, with the same noisy values. What it shows
is everything: exit code or exception, terminal, files. The first world runs twice: what differs
then is random by itself, and nothing else may differ in a neighbour's world.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from pyarrow import parquet

import fedveil as fv
from fedveil.cli import main
from fedveil.core.units import Adjacency, Unit
from fedveil.privacy.ledger import Ledger, read
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.translation import step_of
from fedveil.run.evaluation import Evaluator
from fedveil.run.run import Run
from fedveil.tune import defaults
from fedveil.tune.trials import Outcome, ProxyTrials, Trial

from .checks import Change, Violation, compare
from .coupling import Streams
from .doors.rows import TEXTS, Generator, Row, Sheet
from .doors.sources import arrow_table, label_text, schema_of, write_csv, write_files
from .recording import Notes, Recorder, recording
from .worlds import World, scratch
from .written import leaves

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Job:
    """A command and its public settings; `sheet` says what rows look like."""

    sheet: Sheet
    command: str  # run, plan, classifier, regressor or callback
    clients: int
    settings: tuple[str, ...] = ()
    known: str = "schema"  # schema, classes, bought: how columns and classes become known
    text: bool = False  # labels are text, to estimators
    searched: bool = False  # settings are chosen by trials


@dataclass
class Shown:
    """What a command showed, and what met its noise."""

    end: str
    notes: Notes
    certified: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    world: World | None = None
    unit: Unit | None = None  # of whom it speaks, whether or not anybody has said
    bought: int = 0  # releases on the ledgers of purchases that came to nothing


def draw_job(seed: int) -> tuple[Job, tuple[Row, ...]]:
    draw = np.random.default_rng([seed, 21])
    command = str(draw.choice(("run", "run", "run", "classifier", "regressor", "callback", "plan")))
    classes = 0 if command == "regressor" else int(draw.choice((0, 2, 3)))
    classes = max(2, classes) if command == "classifier" else classes
    # Around thirty, where the unit that is protected by default changes.
    clients = int(draw.choice((3, 5, 29, 30, 30, 31)))
    by_record = bool(draw.random() < 0.3)
    sheet = Sheet(seed, "csv", int(draw.integers(1, 3)), classes, by_record)
    known = str(draw.choice(("schema", "schema", "bought", "bought", "classes")))
    # Where statistics are bought: so much that they can be told from noise, or hardly.
    epsilon = float(draw.choice((4.0, 8.0) if known == "schema" else (2000.0, 14.0, 8.0)))
    settings = [f"privacy.epsilon={epsilon}", "training.rounds=2", "training.learning_rate=0.5"]
    settings += ["training.local_steps=2"]
    searched = bool(draw.random() < 0.2) and command in ("run", "plan")
    settings += [] if searched else ["privacy.clip_norm=1.0"]
    settings += [f"data.test_fraction={draw.choice((0.0, 0.0, 0.2))}"]
    if draw.random() < 0.6:
        unit = "record" if by_record else "client"
        settings += [f'privacy.unit="{unit}"']
    if known != "schema" and draw.random() < 0.7:
        settings += ['data.statistics="bought"']
    if draw.random() < 0.2 and command == "run":
        settings += [f"data.cap={draw.integers(1, 3)}"]
    job = Job(sheet, command, clients, tuple(settings), known, bool(draw.random() < 0.6), searched)
    rows = tuple(
        _row(draw, sheet, f"c{number:02d}", turn)
        for number in range(clients)
        for turn in range(int(draw.integers(1, 4)))
    )
    return job, rows


def _row(draw: Generator, sheet: Sheet, owner: str, turn: int) -> Row:
    inputs = tuple(round(float(x), 2) for x in draw.standard_normal(sheet.columns))
    label = int(draw.integers(sheet.classes)) if sheet.classes else float(draw.integers(-3, 4)) / 2
    return Row(float(draw.random()), owner, inputs, str(draw.choice(("a", "b"))), label)


def neighbours(job: Job, rows: Sequence[Row], count: int) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """An owner, and all rows with others in its place."""
    draw, sheet = np.random.default_rng([job.sheet.seed, 22]), job.sheet
    for _ in range(count):
        owner = str(draw.choice(sorted({row.owner for row in rows})))
        own, rest = ([row for row in rows if (row.owner == owner) == so] for so in (True, False))
        way = draw.random()
        if sheet.by_record:
            own[0] = _odd(draw, sheet, own[0])
        elif way < 0.25:  # no label at all
            own = [replace(row, label=None) for row in own]
        elif way < 0.45 and sheet.classes:  # names that nobody else has
            made = (_row(draw, sheet, owner, 0) for _ in range(100))
            own = [replace(row, label=f"own {number}") for number, row in enumerate(made)]
        elif way < 0.85:
            own = [_odd(draw, sheet, row) for row in own]
        else:
            own = [_row(draw, sheet, owner, 0) for _ in range(int(draw.integers(1, 6)))]
        yield owner, (*own, *rest)


def _odd(draw: Generator, sheet: Sheet, row: Row) -> Row:
    way = draw.random()
    if draw.random() < 0.1:
        return replace(row, cells=int(draw.choice((-2, -1, 1))))
    if way < 0.3:
        labels = (None, "", "k9", "1", "inf", "nan", "0", "-1")
        return replace(row, label=labels[int(draw.integers(len(labels)))])
    value = (
        TEXTS[int(draw.integers(len(TEXTS)))] if way < 0.7 else str(draw.choice(("inf", "1e400")))
    )
    if way > 0.9:
        return replace(row, word=value)
    return replace(row, inputs=(value, *row.inputs[1:]))


def show(job: Job, rows: Sequence[Row], folder: Path, first: Shown | None) -> Shown:
    """Carry the command out on these rows, in this folder."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    recorder = Recorder(Streams(job.sheet.seed), None if first is None else first.notes)
    torch.default_generator.manual_seed(0)
    out, err = io.StringIO(), io.StringIO()
    shown = Shown("", recorder.notes)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"XDG_STATE_HOME": str(folder / "state")}))
        stack.enter_context(recording(recorder, foreign=False, whole=True))
        # Figures on test examples are not covered, and trials take seconds.
        stack.enter_context(patch.object(Run, "scores", lambda self: None))
        stack.enter_context(patch.object(defaults, "ProxyTrials", _Trials))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        warned = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        rows = sorted(rows, key=lambda row: row.place)
        try:
            shown.certified, shown.end = COMMANDS[job.command](job, rows, folder, shown.facts)
        except Exception as error:  # how it ends is seen by everybody
            shown.end = f"{type(error).__name__}: {error}"
    if job.command == "callback":  # which may say what it has seen, and that is not covered
        err = io.StringIO()
    shown.facts["warnings"] = sorted({str(one.message) for one in warned})
    for name, stream in (("stdout", out), ("stderr", err)):
        for number, line in enumerate(stream.getvalue().splitlines()):
            shown.facts[f"{name}:{number + 1}"] = line
    for name in ("out", *(path.name for path in folder.glob("out.bought*"))):
        if (folder / name).is_dir():
            shown.facts |= {f"{name}/{key}": value for key, value in leaves(folder / name)}
    for path in folder.glob("out.bought*/ledger.jsonl"):
        shown.bought += len(read(path).header.planned)
    if shown.notes.plan is not None:
        names = [str(name) for name in shown.notes.plan.federation.owners]
        shown.world = World(names, shown.notes.plan, shown.notes)
        model = shown.notes.plan.privacy_model
        shown.unit = None if model is None else model.unit
    elif job.command == "plan" and shown.certified:
        shown.unit = Unit(json.loads(out.getvalue())["guarantee"]["unit"])
    return shown


class _Trials(ProxyTrials):
    """Trials whose outcome is a hash of what they are told: public things, if all is well."""

    def __call__(self, trial: Trial) -> Outcome:
        told = repr((trial, self.recipe, self.proxy.federation.sizes.tolist()))
        draw = np.random.default_rng(list(told.encode()))
        values = {name: draw.random() for name in Outcome.__dataclass_fields__}
        return Outcome(**values)


def _table(job: Job, rows: Sequence[Row], folder: Path) -> list[str]:
    """A CSV file, a Parquet file, or a file for each client."""
    form = job.sheet.seed // 8 % 4
    if form == 2:
        parquet.write_table(arrow_table(job.sheet, rows), folder / "rows.parquet")
        options = ["--data", str(folder / "rows.parquet"), "--client-column", "who"]
    elif form == 3:
        write_files(job.sheet, rows, folder / "clients")
        options = ["--data", str(folder / "clients")]
    else:
        write_csv(job.sheet, rows, folder / "rows.csv")
        options = ["--data", str(folder / "rows.csv"), "--client-column", "who"]
    options += ["--label", "y"]
    if job.known == "schema":
        (folder / "schema.toml").write_text(_toml(schema_of(job.sheet)))
        options += ["--schema", str(folder / "schema.toml")]
    elif job.known == "classes" and job.sheet.classes:
        options += ["--classes", ",".join(f"k{number}" for number in range(job.sheet.classes))]
    for setting in job.settings:
        options += ["--set", setting]
    return options


def _toml(schema: dict[str, Any]) -> str:
    """As a schema file says it."""
    lines = []
    for name, column in schema["columns"].items():
        lines.append(f"[columns.{name}]")
        for key, value in column.items():
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            lines.append(f"{key} = {shown}")
    return "\n".join(lines) + "\n"


_SHOWN = (["--no-report"], ["--json"], ["--explain"], ["--quiet", "--json", "--explain"])


def _run(job: Job, rows: Any, folder: Path, facts: dict[str, Any]) -> tuple[bool, str]:
    options = _table(job, rows, folder)
    shown = _SHOWN[job.sheet.seed // 32 % len(_SHOWN)]
    code = main(["run", *options, "--output", str(folder / "out"), *shown])
    return _certified(folder / "out"), f"exit code {code}"


def _plan(job: Job, rows: Any, folder: Path, facts: dict[str, Any]) -> tuple[bool, str]:
    """No run: what it promises is what `fedveil run` would, so it is a claim as well."""
    code = main(["plan", *_table(job, rows, folder), "--json"])
    return job.known == "schema" and code == 0, f"exit code {code}"


def _certified(run: Path) -> bool:
    file = run / "guarantee.json"
    return file.exists() and bool(json.loads(file.read_text())["certified"])


def _estimator(job: Job, rows: Any, folder: Path, facts: dict[str, Any]) -> tuple[bool, str]:
    sheet = job.sheet
    keys = (one.partition("=") for one in job.settings)
    settings = {key: _value(value) for key, _, value in keys if not key.startswith("data.test")}
    epsilon = settings.pop("privacy.epsilon")
    unit = settings.pop("privacy.unit", None)
    inputs: Any = [list(row.inputs) for row in rows]  # as a person types them
    if sheet.seed // 8 % 3 == 1:
        inputs = np.array(inputs, object)
    elif sheet.seed // 8 % 3 == 2:  # whose type is public
        inputs = np.array([[_float(x) for x in row] for row in inputs])
    labels: Any = [row.label for row in rows]
    kind: Any = fv.DPFedRegressor
    more: dict[str, Any] = {}
    if sheet.classes:
        kind = fv.DPFedClassifier
        if job.known in ("schema", "classes"):
            names = [f"k{n}" if job.text else n for n in range(sheet.classes)]
            more["classes"] = names
        labels = [label_text(sheet, one) if job.text else one for one in labels]
    if job.known == "schema":
        columns = schema_of(sheet)["columns"]
        more["schema"] = {name: column for name, column in columns.items() if name[0] == "x"}
    if job.text:
        labels = np.array(labels, object if sheet.seed % 2 else str)
    elif sheet.seed % 2:  # an array's type is public; else a list, as a person types it
        numbers = (one if type(one) in (int, float) else math.nan for one in labels)
        labels = np.fromiter(numbers, np.float64, len(labels))
    made = kind(epsilon=epsilon, unit=unit, settings=settings, **more)
    made.fit(inputs, labels, [row.owner for row in rows])
    facts |= {
        "settings": repr({k: v for k, v in made.settings_.items() if k != "data"}),
        "notes": made.notes_,
        "guarantee": repr(made.guarantee_.to_dict()),
        "classes": repr(getattr(made, "classes_", None)),
        "type": str(getattr(getattr(made, "classes_", None), "dtype", None)),
        "weights": b"".join(
            one.numpy().tobytes() for one in made.model_.module.state_dict().values()
        ),
    }
    return made.guarantee_.certified, "fitted"


def _value(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text.strip('"')


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


class _Looks(fv.Callback):
    """Ends a run by raising, as the last bit of a figure says."""

    def on_round(self, report: Any) -> None:
        figure = report.metrics.loss if report.metrics else 0.0
        if int(np.float64(figure).view(np.int64)) % 2:
            raise ValueError("the callback has seen enough")


def _callback(job: Job, rows: Any, folder: Path, facts: dict[str, Any]) -> tuple[bool, str]:
    """Test examples are the clients' own, and a callback that sees figures on them raises."""
    write_csv(job.sheet, rows, folder / "rows.csv")
    federation = fv.from_table(
        folder / "rows.csv",
        label="y",
        client_column="who",
        schema=schema_of(job.sheet),
        test_fraction=0.5,
        holdout="pooled",
    )
    method = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(size=federation.clients, scheme=fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.5), steps=1),
        clip=fv.Clip(1.0),
    )
    model = fv.build("logistic" if job.sheet.classes else "linear", federation)
    planned = fv.plan(method, federation, model, budget=fv.Budget(noise_multiplier=1.0))
    run = Run(planned, every=1, callbacks=[_Looks()])
    run._evaluator = Evaluator(federation, planned.module, planned.layout)
    certified = bool(run.guarantee and run.guarantee.certified)
    try:
        facts["rounds"] = sum(1 for _ in run)
        facts["weights"] = run.weights.numpy().tobytes()
        return certified, "finished"
    except Exception as error:
        return certified, f"{type(error).__name__}: {error}"
    finally:
        run.close()


Command = Callable[[Job, Any, Path, dict[str, Any]], tuple[bool, str]]
COMMANDS: dict[str, Command] = {
    "run": _run,
    "plan": _plan,
    "classifier": _estimator,
    "regressor": _estimator,
    "callback": _callback,
}


def examine_job(seed: int, count: int) -> Iterator[tuple[str, str, list[Violation]]]:
    """Carry out the command of this number on so many neighbours: kind, which, what is wrong."""
    job, rows = draw_job(seed)
    folder = Path(tempfile.mkdtemp(prefix="neighbours-", dir=scratch()))
    try:
        first = show(job, rows, folder, None)
        if first.unit is not None:
            by_record = first.unit is Unit.RECORD
            job = replace(job, sheet=replace(job.sheet, by_record=by_record))
        again = show(job, rows, folder, first)
        keys = first.facts.keys() | again.facts.keys()
        random = {key for key in keys if first.facts.get(key) != again.facts.get(key)}
        for owner, others in neighbours(job, rows, count):
            second = show(job, others, folder, first)
            laws = [*differences(job, first, second, random, owner)]
            yield job.command, f"{job.command}, {owner}", [*laws, *cheaper_purchases(folder)]
    finally:
        shutil.rmtree(folder)


def differences(
    job: Job, one: Shown, two: Shown, random: set[str], owner: str
) -> Iterator[Violation]:
    for shown in (one, two):
        yield from _unpaid(shown)
    yield from _names(one, two)  # also of a purchase that comes to nothing: its ledger says so
    if not (one.certified or two.certified):
        return
    if one.end != two.end:
        yield Violation("r", f"one world ends with {one.end!r}, the other with {two.end!r}")
        return
    keys = (one.facts.keys() | two.facts.keys()) - random
    for key in sorted(key for key in keys if one.facts.get(key) != two.facts.get(key))[:4]:
        told = [str(shown.facts.get(key))[:120] for shown in (one, two)]
        yield Violation("f", f"{key} differs: {told[0]!r} and {told[1]!r}")
    yield from _votes(one, two)
    if one.world is not None and two.world is not None:
        kind = "record" if job.sheet.by_record else "replaced"
        yield from compare(one.world, two.world, Change(kind, owner))


def _unpaid(shown: Shown) -> Iterator[Violation]:
    """Every draw of noise on statistics is on a ledger: the run's, or that of the purchase."""
    drawn = len(shown.notes.votes) + (shown.notes.names is not None)
    plan = shown.notes.plan
    paid = () if plan is None or plan.federation.bought is None else plan.federation.bought.releases
    if drawn > len(paid) and drawn > shown.bought and shown.certified:
        yield Violation("b", f"{drawn} releases of statistics, of which {len(paid)} are accounted")


def _votes(one: Shown, two: Shown) -> Iterator[Violation]:
    """Votes move by no more than was accounted. Two contributions of a client have no negative
    parts, so they are no farther apart than the square root of two of the longest."""
    plan = one.notes.plan or two.notes.plan
    if plan is None or plan.federation.bought is None:
        return
    paid, model = plan.federation.bought.releases, plan.privacy_model
    zeroed = model.adjacency is Adjacency.ZERO_OUT
    for number, pair in enumerate(zip(one.notes.votes, two.notes.votes, strict=False)):
        if pair[0].entered.shape != pair[1].entered.shape:
            yield Violation("c", f"votes {number + 1} have other bins")
            return
        way = (pair[0].entered - pair[1].entered) / pair[0].whole
        law = paid[number].mechanism
        if isinstance(law, DiscreteGaussianSum):
            allowed = law.clip_norm * model.adjacency.sensitivity_factor
        else:
            allowed = pair[0].std / step_of(paid[number], model).noise
        allowed *= math.sqrt(2) if zeroed else 1.0
        moved = float(np.linalg.norm(way))
        if moved > allowed * (1 + _ROUNDING):
            yield Violation("b", f"votes {number + 1} moved {moved:.6g}, accounted {allowed:.6g}")


def _names(one: Shown, two: Shown) -> Iterator[Violation]:
    """Names that one unit alone has are published as rarely as delta says."""
    first, second = one.notes.names, two.notes.names
    if first is None or second is None:
        return
    for seen, other in ((first, second), (second, first)):
        alone = seen.votes.keys() - other.votes.keys()
        chance = seen.chance(alone)
        if chance > seen.failure * (1 + _ROUNDING):
            said = f"{len(alone)} names of one unit are published with probability {chance:.3g}"
            yield Violation("b", f"{said}, accounted {seen.failure:.3g}")
    both = first.votes.keys() & second.votes.keys()
    moved = math.hypot(*(first.votes[name] - second.votes[name] for name in both))
    if moved > math.sqrt(2) * (1 + _ROUNDING):
        yield Violation("b", f"votes for names moved {moved:.6g}, accounted {math.sqrt(2):.6g}")


def cheaper_purchases(folder: Path) -> Iterator[Violation]:
    """Whether `fedveil account` believes a purchase whose ledger says that it had more noise."""
    for path in folder.glob("out.bought*"):
        header = read(path / "ledger.jsonl").header
        laws = [one.mechanism for one in header.planned]
        more = [
            replace(law, **{law.level: 100 * getattr(law, law.level)}) if law.level else law
            for law in laws
        ]
        pairs = zip(header.planned, more, strict=True)
        quiet = tuple(replace(one, mechanism=law) for one, law in pairs)
        (path / "ledger.jsonl").unlink()
        ledger = Ledger.create(path / "ledger.jsonl", replace(header, planned=quiet))
        ledger.reserve(0)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            code = main(["account", str(path), "--json"])
        if code == 0 and '"certified": true' in said.getvalue():
            yield Violation("d", "a purchase with another ledger in it is still certified")
