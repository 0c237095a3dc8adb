"""`fedveil data`: which data sets there are, and a schema file for a table of one's own."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.cli import console
from fedveil.core.errors import ConfigError
from fedveil.data.partition import PARTITIONS
from fedveil.data.sources import SOURCES, find, load
from fedveil.data.sources.files import available, data_directory
from fedveil.data.sources.source import Source
from fedveil.data.sources.synthetic import NAMES, WHAT, Synthetic

_OPTIONS: console.Options = {
    "--data-dir": (Path, "local copies, instead of FEDVEIL_DATA"),
    "--label": (str, "schema: the column to predict"),
    "--label-separator": (str, "schema: between the classes of a cell that names any number"),
    "--client-column": (str, "schema: the column that says whose row it is"),
    "--output": (Path, "schema: a new file to write it to"),
}
_SAID = ("name", "what", "clients", "examples", "task", "classes", "licence")
_DETAILS = ("home", "holdout", "test_fraction", "validation_fraction")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "schema"), help="what to do")
    parser.add_argument("name", nargs="?", help="show: a data set; schema: a CSV or Parquet file")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    if args.action == "list":
        return _list(args)
    if args.name is None:
        wanted = "a data set (see fedveil data list)" if args.action == "show" else "a file"
        raise ConfigError(f"fedveil data {args.action}: name {wanted}")
    return _show(args) if args.action == "show" else _schema(args)


def _list(args: argparse.Namespace) -> int:
    entries = [_summary(source, args.data_dir) for source in SOURCES.values()]
    entries += [_synthetic(name) for name in NAMES.values()]

    def show() -> None:
        rows = [
            (
                entry["name"],
                f"{entry['clients']:,}",
                f"{entry['examples']:,}",
                entry["task"],
                "yes" if entry["available"] else "no",
            )
            for entry in entries
        ]
        console.table("Data sets", ("name", "clients", "examples", "task", "here"), rows)
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
    return console.answer(args, document, lambda: _print(document))


def _schema(args: argparse.Namespace) -> int:
    from fedveil.data.table import schema_draft

    output: Path | None = args.output
    text = schema_draft(
        args.name,
        label=args.label,
        label_separator=args.label_separator,
        client_column=args.client_column,
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


def _summary(source: Source, data_dir: Path | None) -> dict[str, Any]:
    copy = available(source.name, source.copies, data_dir) if source.copies else None
    return {
        **{name: getattr(source, name) for name in _SAID},
        "available": copy is not None or not source.copies,
        "copy": copy.name if copy is not None else None if source.copies else "embedded",
    }


def _synthetic(name: str) -> dict[str, Any]:
    task = next(task for task, known in NAMES.items() if known == name)
    made = Synthetic(task)
    return {
        "name": name,
        "what": WHAT[task],
        "clients": made.clients,
        "examples": made.clients * made.examples_per_client + made.test_examples,
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
    """What the local copy really holds, dealt by default."""
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


def _print(document: dict[str, Any]) -> None:
    screen = console.stdout()
    screen.print(f"[bold]{document['name']}[/bold]: {document['what']}")
    classes = f", {document['classes']} classes" if document["classes"] else ""
    lines = [
        ("task", f"{document['task']}{classes}"),
        ("published", f"{document['examples']:,} examples, {document['clients']:,} clients"),
        ("licence", document["licence"]),
        ("about", document.get("home", "")),
        ("dealt", ", ".join(f"{k}={v}" for k, v in document.get("partition", {}).items())),
        ("options", ", ".join(document.get("options", []))),
    ]
    loaded = document.get("loaded", {})
    if loaded:
        parts = ", ".join(f"{loaded[part]:,} {part}" for part in ("train", "validation", "test"))
        order = ("smallest", "median", "largest")
        sizes = " / ".join(f"{loaded[f'{size}_client']:g}" for size in order)
        lines.append(("here", f"{loaded['clients']:,} clients; {parts} ({document['copy']} copy)"))
        lines.append(("sizes", f"{sizes} examples (smallest / median / largest client)"))
    elif not document["available"]:
        where = data_directory(None)
        lines.append(("here", f"no: not in {where}" if where else "no: downloaded when first used"))
    for file in document.get("files", []):
        known = ", ".join(file["digests"]) or "no published digest"
        lines.append(("file", f"{file['name']}  {file['url'] or 'local copies only'}  {known}"))
    remarks = [*document.get("remarks", []), *loaded.get("notes", []), document.get("advice")]
    lines += [("note", remark) for remark in remarks]
    for label, text in lines:
        if text:
            screen.print(f"  {label:<10} {text}", markup=False, soft_wrap=True)
