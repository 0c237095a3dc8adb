"""`fedveil evaluate`: how good the model of a run is on rows whose label is known."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedveil.cli import console
from fedveil.cli.predict import table_model
from fedveil.report.scores import score_rows

EXACT = "These figures were computed from the rows without noise: no guarantee covers the rows."

# How sure the model was of its answers, and how often it was right.
_BIN = ("rows", "said", "right")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a finished run directory")
    parser.add_argument("file", type=Path, help="a CSV or Parquet file with inputs and label")


def execute(args: argparse.Namespace) -> int:
    from fedveil.run.trained import Remarks

    model, remarks = table_model(args.run, "evaluate(inputs, targets)"), Remarks()
    scores = model.evaluate(args.file, remarks=remarks)
    notes = [*_trained_on(args.run, args.file), EXACT, *remarks.sentences()]
    document = scores.to_dict() | {
        "reliability": [dict(zip(_BIN, one, strict=True)) for one in scores.reliability],
        "notes": notes,
        "warnings": [scores.warning] if scores.warning else [],
    }

    def show() -> None:
        title = f"{model.bundle.method} on {args.file.name}"
        console.table(title, ["result", ""], [["rows", str(scores.rows)], *score_rows(document)])

    code = console.answer(args, document, show)
    console.note(notes, document["warnings"])
    return code


def _trained_on(run: Path, file: Path) -> list[str]:
    """A sentence if this is the very file of the training."""
    from fedveil.data.folder import shared_file
    from fedveil.run.directory import stored_recipe

    if not run.is_dir():
        return []
    source = stored_recipe(run).get("data", {}).get("file")
    if source is None or shared_file(file, Path(source)) is None:
        return []
    return ["The model was trained on rows of this file; new rows would show what it is worth."]
