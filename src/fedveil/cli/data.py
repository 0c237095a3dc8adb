"""`fedveil data`: which data sets there are, and a schema file for a table of one's own."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.cli import console
from fedveil.core.errors import ConfigError
from fedveil.data.partition import PARTITIONS
from fedveil.datasets import SOURCES, find, load
from fedveil.datasets.files import available, data_directory
from fedveil.datasets.source import Source
from fedveil.datasets.synthetic import NAMES, WHAT, Synthetic


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "schema"), help="what to do")
    parser.add_argument("name", nargs="?", help="show: a data set; schema: a CSV or Parquet file")
    parser.add_argument("--data-dir", type=Path, help="local copies, instead of FEDVEIL_DATA")
    parser.add_argument("--label", help="schema: the column to predict")
    parser.add_argument("--client-column", help="schema: the column that says whose row it is")
    parser.add_argument("--output", type=Path, help="schema: a new file to write it to")


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
    if args.json:
        console.emit({"sources": entries})
        return 0
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
    console.stdout().print("As published and dealt by default; fedveil data show NAME says more.")
    return 0


def _show(args: argparse.Namespace) -> int:
    if args.name in NAMES.values():
        document = _synthetic(args.name)
    else:
        source = find(args.name)
        document = _summary(source, args.data_dir) | _details(source)
        if document["available"]:
            document["loaded"] = _measured(source, args.data_dir)
    if args.json:
        console.emit(document)
    else:
        _print(document)
    return 0


def _schema(args: argparse.Namespace) -> int:
    from fedveil.data.table import schema_template

    text = schema_template(args.name, label=args.label, client_column=args.client_column)
    if args.output is not None:
        try:
            with args.output.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ConfigError(f"{args.output}: exists already; name a new file") from None
    if args.json:
        path = None if args.output is None else str(args.output)
        console.emit({"schema": text, "file": path})
    elif args.output is None:
        print(text, end="")
    else:
        console.stdout().print(f"Fill in {args.output}, then give it as the schema.")
    return 0


def _summary(source: Source, data_dir: Path | None) -> dict[str, Any]:
    copy = available(source.name, source.copies, data_dir) if source.copies else None
    return {
        "name": source.name,
        "what": source.what,
        "clients": source.clients,
        "examples": source.examples,
        "task": str(source.task),
        "classes": source.classes,
        "licence": source.licence,
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
        "task": str(task),
        "classes": 2 if NAMES[task] == "synthetic-logistic" else 0,
        "licence": "none needed: nobody's data",
        "available": True,
        "copy": "made up",
        "options": [
            field.name for field in fields(Synthetic) if field.name not in ("task", "seed")
        ],
    }


def _details(source: Source) -> dict[str, Any]:
    partition = next(name for name, kind in PARTITIONS.items() if type(source.partition) is kind)
    settings = {
        field.name: getattr(source.partition, field.name) for field in fields(source.partition)
    }
    return {
        "home": source.home,
        "partition": {"name": partition} | {k: v for k, v in settings.items() if v is not None},
        "holdout": str(source.holdout),
        "test_fraction": source.test_fraction,
        "validation_fraction": source.validation_fraction,
        "options": list(source.options),
        "remarks": list(source.remarks),
        "advice": source.advice,
        "files": [
            {
                "copy": copy.name,
                "name": file.name,
                "url": file.url,
                "size": file.size,
                "digests": list(file.digests),
            }
            for copy in source.copies
            for file in copy.files
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
    lines = [
        ("task", _task(document)),
        ("published", f"{document['examples']:,} examples, {document['clients']:,} clients"),
        ("licence", document["licence"]),
        ("about", document.get("home", "")),
        ("dealt", ", ".join(f"{k}={v}" for k, v in document.get("partition", {}).items())),
        ("options", ", ".join(document.get("options", []))),
    ]
    loaded = document.get("loaded")
    if loaded:
        parts = ", ".join(f"{loaded[part]:,} {part}" for part in ("train", "validation", "test"))
        spread = " / ".join(
            f"{loaded[size]:g}" for size in ("smallest_client", "median_client", "largest_client")
        )
        lines.append(("here", f"{loaded['clients']:,} clients; {parts} ({document['copy']} copy)"))
        lines.append(("sizes", f"{spread} examples (smallest / median / largest client)"))
    elif not document["available"]:
        where = data_directory(None)
        lines.append(("here", f"no: not in {where}" if where else "no: downloaded when first used"))
    for file in document.get("files", []):
        known = ", ".join(file["digests"]) or "no published digest"
        lines.append(("file", f"{file['name']}  {file['url'] or 'local copies only'}  {known}"))
    remarks = [
        *document.get("remarks", []),
        *(loaded or {}).get("notes", []),
        document.get("advice"),
    ]
    lines += [("note", remark) for remark in remarks if remark]
    for label, text in lines:
        if text:
            screen.print(f"  {label:<10} {text}", markup=False, soft_wrap=True)


def _task(document: dict[str, Any]) -> str:
    classes = document["classes"]
    return f"{document['task']}, {classes} classes" if classes else str(document["task"])
