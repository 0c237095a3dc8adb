"""`fedveil federation`: found a federation across machines, see who is there, run recipes."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError
from fedveil.privacy.rounding import at_most

if TYPE_CHECKING:
    from fedveil_federation.deploy.hub_service import Queue
    from fedveil_federation.deploy.state_dirs import HubHome

_POLL = 0.2  # seconds
_NOT_RUNNING = "the hub is not running; start it with: fedveil hub start"
_HOME: console.Options = {"--home DIR": (Path, "the hub's directory (here)", Path())}
_COLLUDERS: console.Options = {
    "--colluders SITES": (int, "that may work with the hub: their noise does not count (1)")
}
_ACTIONS: dict[str, tuple[str, list[str], console.Options]] = {
    "init": (
        "keys, certificates and one bundle for each site",
        ["NAME of the federation"],
        {
            "--hub HOST:PORT": (str, "where sites reach the hub"),
            "--site NAME": (list, "a site; give it once for each"),
            "--schema FILE": (Path, "what is publicly known about columns, or arrays"),
            "--label NAME": (str, "a table's column to predict; A,B: several, true or false each"),
            "--holdout SHARE": (float, "of each site's rows, to evaluate on (none)", 0.0),
            "--courier KIND": (
                str,
                "carries the bytes: https, flare or an installed one (https)",
                "https",
            ),
            "--home DIR": (Path, "a new directory for the hub (./NAME)"),
        },
    ),
    "status": ("who is there, and what each site chooses to show", [], _HOME),
    "run": (
        "train a recipe with all sites",
        ["RECIPE file, or the name of one that comes with fedveil"],
        {
            **_HOME,
            "--set KEY=VALUE": (list, "change one recipe entry"),
            "--test FILE": (Path, "public test rows, at the hub"),
            "--name NAME": (str, "of the run (the time)"),
            "--lost ROUNDS": (int, "in a row that release nothing, until it stops (5)", 5),
            "--detach": (bool, "do not wait for its end"),
            "--watch": (bool, "serve the growing report on this machine, and say where"),
        },
    ),
    "evaluate": (
        "how good a run's model is on rows that sites hold out, as a noisy secure sum",
        ["RUN by name"],
        {**_HOME, "--noise STD": (float, "on every count (10)", 10.0), **_COLLUDERS},
    ),
    "statistics": (
        "how the values of each agreed column are spread over all sites, as a noisy secure sum",
        [],
        {
            **_HOME,
            "--epsilon": (float, "what it may cost every record"),
            "--delta": (float, "its small probability (1e-6)", 1e-6),
            "--name NAME": (str, "of the run (statistics and the time)"),
            **_COLLUDERS,
        },
    ),
    "invite": (
        "another bundle for a site that has not joined: the one before was lost, stolen or used",
        ["SITE by name"],
        _HOME,
    ),
    "renew": (
        "a certificate for another year, for a site that was away when its own expired",
        ["SITE by name"],
        _HOME,
    ),
    "revoke": (
        "let a site in no more, such as after its bundle was stolen",
        ["SITE by name"],
        _HOME,
    ),
    "resume": ("go on with a run that was stopped or has failed", ["RUN by name"], _HOME),
    "stop": ("end a run after the round under way", ["RUN by name"], _HOME),
}


def configure(parser: argparse.ArgumentParser) -> None:
    console.add_actions(parser, _ACTIONS)


def execute(args: argparse.Namespace) -> int:
    os.umask(0o077)
    acts = {"init": _init, "status": _status, "run": _run, "evaluate": _evaluate}
    acts["statistics"] = _statistics
    return acts.get(args.action, _change)(args)


def _init(args: argparse.Namespace) -> int:
    for option in ("hub", "schema"):
        if getattr(args, option) is None:
            raise ConfigError(f"--{option}: say which")
    from fedveil_federation.deploy.schemas import read_schema_file
    from fedveil_federation.deploy.state_dirs import HubHome

    path = args.home or Path(args.name)
    schema = read_schema_file(args.schema)
    if "columns" in schema and args.label is None:
        raise ConfigError("--label: say which")
    schema |= {"label": args.label or "", "holdout": args.holdout, "engine": args.courier}
    home = HubHome.create(path, args.name, args.hub, args.site, **schema)
    bundles = {site: str(path / "bundles" / f"{site}.bundle") for site in home.agreement.sites}
    document = {"home": str(path), "agreement": home.agreement.digest, "bundles": bundles}

    def show() -> None:
        console.say(f"federation {args.name!r} with its keys is in {path}", heading="Made:")
        for site, bundle in bundles.items():
            console.say(f"{bundle}  for {site} alone, by a private way", heading="Bundle:")
        console.say(f"fedveil hub start --home {path}", heading="Next:")

    return console.answer(args, document, show)


def _status(args: argparse.Namespace) -> int:
    from fedveil_federation.deploy.hub_service import status_of

    document = status_of(_home(args))

    def show() -> None:
        rows = [
            (
                one["site"],
                one["state"],
                one["version"],
                "yes" if one["trusts"] else "no",
                _budget(one["spent"], one["epsilon"]),
                f"{one['certificate_days']:.0f} days",
            )
            for one in document["sites"]
        ]
        columns = ("site", "state", "version", "confirmed", "lifetime epsilon", "certificate")
        console.table(f"federation {document['name']}", columns, rows)
        members = document["members"] or "not all sites have been here yet"
        console.say(members, heading="Members:")
        if not document["running"]:
            console.say(_NOT_RUNNING, heading="note:", colour="yellow")
        for run in document["queue"]:
            console.say(run, heading="Queued:")

    return console.answer(args, document, show)


def _budget(spent: float | None, whole: float | None) -> str:
    return "" if spent is None or whole is None else f"{at_most(spent)} of {whole:g}"


def _run(args: argparse.Namespace) -> int:
    from fedveil.cli.report import watched_apart
    from fedveil.planning import recipe as recipes
    from fedveil_federation.deploy.hub_service import HubJob, Queue

    home = _home(args)
    recipe = recipes.with_full_paths(recipes.parse(recipes.read(Path(args.recipe)), args.set, {}))
    if args.test is not None and not args.test.exists():
        raise ConfigError(f"--test {args.test}: no such file")
    if args.watch and args.detach:
        raise ConfigError("--watch: ends with the command, so not with --detach")
    name = args.name or datetime.now().strftime("%Y%m%d-%H%M%S")
    test = None if args.test is None else str(args.test.absolute())
    queue = Queue(home)
    if args.lost < 1:
        raise ConfigError(f"--lost {args.lost}: need 1 or more")
    queue.put(HubJob(name, recipes.to_table(recipe), test, most_lost=args.lost))
    if args.detach:
        return console.answer(args, {"run": name}, lambda: console.say(name, heading="Queued:"))
    try:
        with watched_apart(home.runs / name) if args.watch else nullcontext():
            _follow(home, queue, name)
    except KeyboardInterrupt:
        console.complain(
            f"the hub goes on with {name}; end it with: fedveil federation stop {name}"
        )
        return 130
    document = _document(home, queue, name)

    def show() -> None:
        guarantee = document["guarantee"]
        rows = [[key, f"{value:.4g}"] for key, value in document["figures"].items()]
        released, planned = document["released_rounds"], document["planned_rounds"]
        rows.append(["rounds released", f"{released} of {planned}"])
        if lost := document["rounds"] - released:
            rows.append(["rounds that released nothing", str(lost)])
        if document.get("reason"):
            rows.append(["stopped", document["reason"]])
        rows.append(["certified", "yes" if guarantee["certified"] else "no"])
        rows += [["files", document["directory"]], ["report", str(document["report"])]]
        console.table(f"run {name}: {document['outcome']}", ["result", ""], rows)
        console.say(guarantee["statement"])

    return console.answer(args, document, show)


def _follow(home: HubHome, queue: Queue, name: str) -> None:
    """Show rounds as they are released, until the run has ended."""
    shown, waiting = 0, ""
    if not home.running:
        console.say(_NOT_RUNNING, heading="waiting:", to=console.stderr())
    while (ended := queue.ended(name)) is None:
        if waiting != (now := queue.waiting(name)) and now:
            console.say(now, heading="waiting:", to=console.stderr())
        waiting = now
        shown = _show_rounds(home, name, shown)
        time.sleep(_POLL)
    _show_rounds(home, name, shown)
    if ended["outcome"] in ("refused", "failed"):
        raise ConfigError(f"run {name} {ended['outcome']}: {ended['reason']}")


def _show_rounds(home: HubHome, name: str, shown: int) -> int:
    from fedveil.run.directory import METRICS, metrics

    path = home.runs / name
    if not (path / METRICS).exists():
        return shown
    lines = metrics(path)
    for line in lines[shown:]:
        came = line.get("dropouts") or {}
        said = [f"round {line['round']}"]
        if came:
            said.append(f"{came['survivors']} of {came['cohort']} sites")
        if came.get("not_released"):
            said.append(f"not released: {came['not_released']}")
        said += [f"{key} {line[key]:.4g}" for key in ("loss", "accuracy") if line.get(key)]
        if line.get("epsilon_so_far"):
            said.append(f"epsilon so far {at_most(line['epsilon_so_far'])}")
        console.say("  ".join(said), to=console.stderr())
    return len(lines)


def _document(home: HubHome, queue: Queue, name: str) -> dict[str, Any]:
    from fedveil.run.directory import METRICS, metrics, read_result
    from fedveil.run.guarantees import guarantee_of

    path = home.runs / name
    guarantee, progress = guarantee_of(path)
    lines = metrics(path) if (path / METRICS).exists() else []
    lost = sum(bool((line.get("dropouts") or {}).get("not_released")) for line in lines)
    result = read_result(path) or {}
    report = path / "report.html"
    names = ("accuracy", "loss", "rmse")
    return {
        "run": name,
        **(queue.ended(name) or {}),
        "figures": {key: result[key] for key in names if result.get(key) is not None},
        "rounds": len(lines),
        "released_rounds": len(lines) - lost,
        "planned_rounds": None if progress is None else progress["rounds_planned"],
        "directory": str(path),
        "report": str(report) if report.exists() else None,
        "guarantee": {**guarantee.to_dict(), "statement": guarantee.statement},
    }


def _evaluate(args: argparse.Namespace) -> int:
    from fedveil_federation.deploy.hub_service import EVALUATION, HubJob, Queue

    home = _home(args)
    name = f"{args.run}-evaluation-{datetime.now():%Y%m%d-%H%M%S}"
    queue = Queue(home)
    if (queue.ended(args.run) or {}).get("outcome") not in ("done", "stopped"):
        raise ConfigError(f"run {args.run!r}: no such run has ended; see {home.runs}")
    queue.put(
        HubJob(name, {}, evaluate=args.run, noise=args.noise, colluders=_colluders(args, home))
    )
    _follow(home, queue, name)
    document = json.loads((home.runs / args.run / EVALUATION).read_text(encoding="utf-8"))

    def show() -> None:
        rows = [["rows held out", f"about {document['rows']:.0f}"]]
        if "accuracy" in document:
            share = f"{document['accuracy']:.1%} (noise: {document['accuracy_noise']:.1%})"
            rows.append(["accuracy", share])
        for name in ("mae", "rmse"):
            if name in document:
                rows.append(
                    [name, f"{document[name]:.4g} (noise: {document[f'{name}_noise']:.2g})"]
                )
        if document.get("auc") is not None:
            rows.append(["AUC", f"{document['auc']:.3f}"])
        for name, one in document.get("labels", {}).items():
            share = f"{one['accuracy']:.1%} (noise: {one['accuracy_noise']:.1%})"
            rows.append([f"{name}: accuracy, AUC", f"{share}, {one['auc']:.3f}"])
        console.table(f"run {args.run}, on rows that sites hold out", ["figure", ""], rows)
        console.say(document["guarantee"]["statement"])

    return console.answer(args, document, show)


def _statistics(args: argparse.Namespace) -> int:
    from fedveil.cli.data import bars
    from fedveil.core.files import write_atomically
    from fedveil.report.compared import comparison_page, document_of
    from fedveil_federation.deploy.hub_service import STATISTICS, HubJob, Queue

    if args.epsilon is None or not args.epsilon > 0:
        raise ConfigError("--epsilon: say how much of every record's budget to spend, as 0.5")
    home, queue = _home(args), Queue(_home(args))
    name = args.name or f"statistics-{datetime.now():%Y%m%d-%H%M%S}"
    queue.put(
        HubJob(
            name, {}, statistics=args.epsilon, delta=args.delta, colluders=_colluders(args, home)
        )
    )
    _follow(home, queue, name)
    folder = home.runs / name
    document = json.loads((folder / STATISTICS).read_text(encoding="utf-8"))
    rows, charts = [], []
    for column, one in document["columns"].items():
        said = ["", "", ""]
        if "mean" in one:
            mean = f"{one['mean']:.4g} (noise: {one['mean_noise']:.2g})"
            said = [f"{one['quantiles']['50%']:.4g}", mean, f"{one['std']:.3g}"]
        picture = "drowns in noise" if one["drowned"] else bars(one["cells"][:-1])
        rows.append([column, f"{one['missing']:.1%}", *said, picture])
        points = [[place, count] for place, (_, count) in enumerate(one["cells"])]
        charts.append({"title": column, "x": "cell", "y": "records"})
        charts[-1]["series"] = [{"name": column, "points": points}]
    guarantee = document["guarantee"]["statement"]
    counts = f"About {document['rows']:.0f} records; noise of deviation {document['noise']:.3g}."
    columns = ("column", "missing", "median", "mean", "deviation", "values")
    said_first = {"Guarantee": [guarantee], "Counts": [counts]}
    page = comparison_page(document_of(f"Statistics {name}", said_first, charts, columns, rows))
    write_atomically(folder / "report.html", page.encode())

    def show() -> None:
        console.table(f"statistics {name}", columns, rows)
        console.say(counts)
        console.say(f"{folder}: report.html, {STATISTICS}", heading="Files:")
        console.say(guarantee)

    return console.answer(args, {**document, "directory": str(folder)}, show)


def _colluders(args: argparse.Namespace, home: HubHome) -> int:
    """As many as were given; else one, where two honest sites are left."""
    usual = 1 if len(home.agreement.sites) > 2 else 0
    return usual if args.colluders is None else int(args.colluders)


def _change(args: argparse.Namespace) -> int:
    """Invite a site, renew its certificate or revoke it; stop a run, or go on with it."""
    from fedveil_federation.deploy.hub_service import Queue

    home, action, name = _home(args), args.action, vars(args).get("site") or args.run
    document = {"run" if action in ("stop", "resume") else "site": name}
    if action == "invite":
        document["bundle"] = said = str(home.invite(name))
        said += f"  for {name} alone, by a private way"
    elif action == "renew":
        document["certificate"] = said = str(home.renew_certificate(name))
        said += "  holds no secret; there: fedveil site renew --certificate FILE"
    elif action == "revoke":
        home.revoke(name)
        said = "is let in no more; a run under way goes on if its plan can spare it"
    elif action == "stop":
        Queue(home).stop(name)
        said = "ends after the round under way"
    else:
        Queue(home).again(name)
        said = "is in the queue again"
    document["state"] = said
    return console.answer(args, document, lambda: console.say(said, heading=f"{name}:"))


def _home(args: argparse.Namespace) -> HubHome:
    from fedveil_federation.deploy.state_dirs import HubHome

    return HubHome(args.home)
