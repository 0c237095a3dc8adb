"""`fedveil data`: which data sets there are; statistics and a schema of a table of one's own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.cli import console
from fedveil.core.canonical import plain
from fedveil.core.errors import ConfigError
from fedveil.data.partition import PARTITIONS
from fedveil.data.sources import SOURCES, find, load
from fedveil.data.sources.files import available
from fedveil.data.sources.source import Source
from fedveil.data.sources.synthetic import NAMES, WHAT, Synthetic

if TYPE_CHECKING:
    from fedveil.data.statistics import Summary

_OPTIONS: console.Options = {  # the words before the colon are the actions that take an option
    "--data-dir": (Path, "list, show: local copies, instead of FEDVEIL_DATA"),
    "--label": (str, "schema, statistics: the column to predict"),
    "--label-separator": (str, "schema: between the classes of a cell that names any number"),
    "--client-column": (str, "schema, statistics: the column that says whose row it is"),
    "--person-column": (str, "schema, statistics: the column that says which person a row is of"),
    "--output": (Path, "schema, statistics: a new file or folder to write to"),
    "--epsilon": (float, "statistics: the privacy budget"),
    "--delta": (float, "statistics: its small probability (min(1e-5, units^-1.1))"),
    "--unit": (
        ("record", "person", "client"),
        "statistics: protect single rows, or all rows of a person or a client together",
    ),
}
_SAID = ("name", "what", "clients", "examples", "task", "classes", "licence")
_DETAILS = ("home", "holdout", "test_fraction", "validation_fraction")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = f"what to do: {', '.join(_ACTIONS)}"
    parser.add_argument("action", choices=tuple(_ACTIONS), metavar="ACTION", help=actions)
    parser.add_argument(
        "name", nargs="?", help="show: a data set; schema, statistics: a CSV or Parquet file"
    )
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    if args.action != "list" and args.name is None:
        wanted = "a data set (see fedveil data list)" if args.action == "show" else "a file"
        raise ConfigError(f"fedveil data {args.action}: name {wanted}")
    if args.action == "list" and args.name is not None:
        raise ConfigError(f"{args.name}: say more about it with: fedveil data show {args.name}")
    for option, (_, text) in _OPTIONS.items():
        used = args.action in text.partition(":")[0].split(", ")
        if not used and getattr(args, option[2:].replace("-", "_")) is not None:
            raise ConfigError(f"{option}: fedveil data {args.action} has no use for it. Remove it.")
    return _ACTIONS[args.action](args)


def _list(args: argparse.Namespace) -> int:
    entries = [_summary(source, args.data_dir) for source in SOURCES.values()]
    entries += [_synthetic(name) for name in NAMES.values()]

    def show() -> None:
        columns = ("name", "clients", "examples", "task", "available")
        rows = [[_said(entry[name]) for name in columns] for entry in entries]
        console.table("Data sets", columns, rows)
        console.say("As published and dealt by default; fedveil data show NAME says more.")

    return console.answer(args, {"sources": entries}, show)


def _show(args: argparse.Namespace) -> int:
    if args.name in NAMES.values():
        document = _synthetic(args.name)
    else:
        source = find(args.name)
        document = _summary(source, args.data_dir) | _details(source)
        if document["available"]:
            document["loaded"] = _measured(source, args.data_dir)

    def show() -> None:
        for name, value in document.items():
            if isinstance(value, dict):
                value = [f"{key} {_said(one)}" for key, one in value.items()]
            if text := _said(value):
                print(f"{name.replace('_', ' '):<20} {text}")

    return console.answer(args, document, show)


def _said(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value))
    if isinstance(value, dict):
        return " ".join(map(_said, value.values()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, (int, float)) else str(value or "")


def _schema(args: argparse.Namespace) -> int:
    from fedveil.data.table import schema_draft

    output: Path | None = args.output
    text = schema_draft(
        args.name,
        label=args.label,
        label_separator=args.label_separator,
        client_column=args.client_column,
        person_column=args.person_column,
    )
    if output is not None:
        try:
            with output.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ConfigError(f"{output}: exists already; name a new file") from None

    def show() -> None:
        if output is None:
            print(text, end="")
        else:
            console.say(
                f"Check the guesses in {output}, delete their marks, then give it as --schema. "
                "Until then keep the file to yourself: it tells about the rows."
            )

    return console.answer(args, {"schema": text, "file": output and str(output)}, show)


def _statistics(args: argparse.Namespace) -> int:
    from fedveil.core.files import write_atomically
    from fedveil.core.units import Unit
    from fedveil.data.folder import FILE, is_many, title
    from fedveil.data.schema import BOUGHT, entry_of
    from fedveil.report.compared import comparison_page, document_of
    from fedveil.run.purchase import buy_statistics

    if args.epsilon is None:
        raise ConfigError("--epsilon: say how much of the privacy budget to spend, as 1")
    path = Path(args.name)
    folder: Path = args.output or Path(f"{title(path)}.statistics")
    client = args.client_column or (FILE if is_many(path) else None)
    statistics, guarantee = buy_statistics(
        path,
        folder,
        epsilon=args.epsilon,
        delta=args.delta,
        unit=None if args.unit is None else Unit(args.unit),
        client_column=client,
        person_column=args.person_column,
        label=args.label,
    )
    columns = {name: entry_of(column) for name, column in statistics.columns.items()}
    schema = {"columns": columns, BOUGHT: statistics.bought.to_dict()}
    described = {name: _described(one) for name, one in statistics.summaries.items()}
    document = {
        "columns": described,
        "noise": statistics.std,
        "guarantee": guarantee.to_dict(),
        "folder": str(folder),
    }
    noise = (
        f"Counts are of {guarantee.unit}s, with noise of standard deviation {statistics.std:.3g}."
    )
    sections = {"Guarantee": [guarantee.summary], "Counts": [noise]}
    rows = [_row(name, one) for name, one in described.items()]
    charts = [
        {
            "title": name,
            "x": name,
            "y": f"{guarantee.unit}s",
            "series": [{"name": name, "points": one["histogram"]}],
        }
        for name, one in described.items()
        if one["histogram"]
    ]
    page = comparison_page(
        document_of(f"Statistics of {path.name}", sections, charts, _FIGURES, rows)
    )
    files = {"schema.json": schema, "statistics.json": document}
    for name, contents in files.items():
        text = json.dumps(plain(contents), indent=2) + "\n"
        write_atomically(folder / name, text.encode())
    write_atomically(folder / "report.html", page.encode())

    def show() -> None:
        pictures = [bars(one["histogram"]) for one in described.values()]
        table = [[*row[:_FIRST], bars] for row, bars in zip(rows, pictures, strict=True)]
        console.table(f"Statistics of {path.name}", (*_FIGURES[:_FIRST], "1 % to 99 %"), table)
        console.say(noise)
        console.say(guarantee.summary, heading="Guarantee:")
        console.say(
            f"In {folder}: report.html; schema.json, for fedveil run --schema, which counts what "
            "it has cost; and the ledger."
        )

    return console.answer(args, document, show)


def _described(one: Summary) -> dict[str, Any]:
    """Return a column's noisy statistics as plain values."""
    document: dict[str, Any] = {"kind": None, "missing": None, "quantiles": {}, "histogram": []}
    if one.units > 0:
        document["missing"] = min(1.0, max(0.0, one.missing / one.units))
    if one.column is None and one.classes:
        document["kind"] = "text"  # nearly all different
    if one.column is not None:
        document |= {"kind": str(one.column.kind), "mean": one.column.mean, "std": one.column.std}
    if one.histogram is not None:
        shares = (0.05, 0.25, 0.5, 0.75, 0.95)
        document["quantiles"] = {f"{share:g}": one.histogram.quantile(share) for share in shares}
        low, high = one.histogram.quantile(0.01), one.histogram.quantile(0.99)
        edges = np.linspace(low, high, _BARS + 1)
        reached = np.concatenate([[0.0], np.cumsum(one.histogram.masses)])
        counts = np.diff(np.interp(edges, one.histogram.edges, reached))
        middles = (edges[1:] + edges[:-1]) / 2
        document["histogram"] = np.stack([middles, counts], axis=1).tolist()
    return document


_BARS = 12
_FIRST = 6  # figures that fit on a terminal
_FIGURES = ("column", "kind", "missing", "5 %", "median", "95 %", "mean", "deviation")


def _row(name: str, one: dict[str, Any]) -> list[str]:
    def formatted(value: float | None) -> str:
        if value is None:
            return ""
        if one["kind"] == "date":
            return str(np.datetime64("1970-01-01") + round(value))
        return f"{value:.4g}"

    missing = "" if one["missing"] is None else f"{one['missing']:.1%}"
    middle = [formatted(one["quantiles"].get(share)) for share in ("0.05", "0.5", "0.95")]
    deviation = "" if one.get("std") is None else f"{one['std']:.4g}"
    return [name, one["kind"] or "noise", missing, *middle, formatted(one.get("mean")), deviation]


def bars(histogram: list[list[float]]) -> str:
    """A histogram in one line of text."""
    most = max((count for _, count in histogram), default=0.0)
    steps = "▁▂▃▄▅▆▇█"
    heights = [int(count / most * (len(steps) - 1)) if most > 0 else 0 for _, count in histogram]
    return "".join(steps[height] for height in heights)


def _summary(source: Source, data_dir: Path | None) -> dict[str, Any]:
    copy = available(source.name, source.copies, data_dir) if source.copies else None
    return {
        **{name: getattr(source, name) for name in _SAID},
        "available": copy is not None or not source.copies,
        "copy": copy.name if copy is not None else None if source.copies else "embedded",
    }


def _synthetic(name: str) -> dict[str, Any]:
    task = next(task for task, known in NAMES.items() if known == name)
    source = Synthetic(task)
    return {
        "name": name,
        "what": WHAT[task],
        "clients": source.clients,
        "examples": source.clients * source.examples_per_client + source.test_examples,
        "task": task,
        "classes": 2 if name == "synthetic-logistic" else 0,
        "licence": "none needed: nobody's data",
        "available": True,
        "copy": "made up",
        "options": [
            field.name for field in fields(Synthetic) if field.name not in ("task", "seed")
        ],
    }


def _details(source: Source) -> dict[str, Any]:
    partition = next(name for name, kind in PARTITIONS.items() if type(source.partition) is kind)
    settings = {key: value for key, value in asdict(source.partition).items() if value is not None}
    return {
        **{name: getattr(source, name) for name in _DETAILS},
        "partition": {"name": partition} | settings,
        "options": list(source.options),
        "remarks": list(source.remarks),
        "advice": source.advice,
        "files": [
            {"copy": copy.name, **asdict(file)} for copy in source.copies for file in copy.files
        ],
    }


def _measured(source: Source, data_dir: Path | None) -> dict[str, Any]:
    """Return the sizes of the local copy, dealt to clients by default."""
    federation = load(source.name, data_dir=data_dir)
    sizes = federation.sizes
    validation = federation.validation
    return {
        "clients": federation.clients,
        "train": len(federation.train),
        "validation": 0 if validation is None else len(validation),
        "test": len(federation.test),
        "input_shape": list(federation.input_shape),
        "smallest_client": int(sizes.min()),
        "median_client": float(np.median(sizes)),
        "largest_client": int(sizes.max()),
        "notes": list(federation.notes),
    }


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "show": _show,
    "schema": _schema,
    "statistics": _statistics,
}
