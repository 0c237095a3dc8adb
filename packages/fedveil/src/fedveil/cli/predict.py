"""`fedveil predict`: what the model of a run says about the rows of a file, as CSV."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.run.trained import Predictions, TrainedModel

_OPTIONS: console.Options = {
    "--output FILE": (Path, "a new CSV file; without it the predictions go to stdout"),
    "--keep COLUMN": (list, "a column of the file to copy beside the predictions"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a finished run directory")
    parser.add_argument("file", type=Path, help="a CSV or Parquet file with the columns trained on")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    if args.json and args.output is None:
        raise ConfigError("--json: give --output FILE too; predictions are written as CSV")
    if args.output is not None and args.output.exists():
        raise ConfigError(f"--output {args.output}: exists already; name a new file")

    from fedveil.run.trained import Remarks

    model, remarks = table_model(args.run, "predict(array)"), Remarks()
    _write(args, model, remarks)
    console.note(remarks.sentences())
    if args.json:
        console.emit(
            {"rows": remarks.rows, "output": str(args.output), "notes": remarks.sentences()}
        )
    return 0


def table_model(run: Path, otherwise: str) -> TrainedModel:
    """Load the model of a run on a table; `otherwise` is the call that takes arrays in Python."""
    from fedveil.run.trained import load_run

    model = load_run(run)
    if model.bundle.encoder is None:
        raise ConfigError(
            f"{run}: was trained on the arrays of {model.bundle.data!r}, not on a table; in "
            f"Python, fedveil.load_run(directory).{otherwise} takes them"
        )
    return model


def _write(args: argparse.Namespace, model: TrainedModel, remarks: Any) -> None:
    """Write predictions as they come; a file appears whole or not at all."""
    from pyarrow import csv

    partial = None if args.output is None else args.output.with_name(f".{args.output.name}.partial")
    try:
        with ExitStack() as stack:
            sink: Any = sys.stdout.buffer
            if partial is not None:
                sink = stack.enter_context(partial.open("wb"))
            writer = None
            for part in model.stream(args.file, keep=args.keep, remarks=remarks):
                table = _columns(model, part, args.keep)
                if writer is None:
                    writer = stack.enter_context(csv.CSVWriter(sink, table.schema))
                writer.write_table(table)
        if partial is not None:
            partial.replace(args.output)
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    sys.stdout.flush()


def _columns(model: TrainedModel, part: Predictions, keep: list[str]) -> Any:
    """Return the columns to write: the copied ones, the prediction, and its probabilities."""
    import pyarrow as pa

    columns = {name: part.table.column(name) for name in keep}
    if part.values.ndim == 1:
        columns["prediction"] = pa.array(part.values)
    outputs: dict[str, Any] = {"probability": part.probabilities}
    if part.values.ndim == 2:  # of several labels, each one's own
        outputs = {"prediction": part.values, **outputs}
    for kind, values in outputs.items():
        for code, name in enumerate(() if values is None else model.class_names):
            columns[f"{kind} of {name}"] = pa.array(values[:, code])
    return pa.table(columns)
