"""A trained model on data it has not seen: predictions, and how good they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.core.display import Displayed
from fedveil.core.errors import ConfigError
from fedveil.data.encoder import Encoded, TableEncoder, as_text, check_stored
from fedveil.data.federation import Examples, Federation, Task
from fedveil.data.rows import pieces
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.bundle import ModelBundle, answers_of, read_bundle
from fedveil.run.evaluation import rows_at_once
from fedveil.run.scores import (
    Metric,
    Scores,
    class_scores,
    label_scores,
    number_scores,
    with_metrics,
)
from fedveil.training.models.check import with_readable
from fedveil.training.models.frozen import mark_trained

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """Predictions for some rows: classes by name, or numbers in the label's own unit."""

    values: Array  # [rows]; of several labels [rows, labels], 0 or 1
    probabilities: npt.NDArray[np.float64] | None  # [rows, classes or labels]; None for numbers
    table: Any = None  # the rows themselves, where they came from a table
    targets: Array | None = None  # true classes or numbers, where they are known


@dataclass
class Remarks:
    """Oddities in the rows of a table, counted while they are read."""

    rows: int = 0
    unknown: Counter[str] = field(default_factory=Counter)  # by column: categories never seen
    gaps: Counter[str] = field(default_factory=Counter)  # by column: no value, and none expected
    strange: Counter[str] = field(default_factory=Counter)  # by label: classes never seen

    def sentences(self) -> list[str]:
        parts = (
            (self.unknown, "column", "have a category that the model does not know; none of its "
             "inputs stands for it"),
            (self.strange, "label", "name a class that the model does not know; it counts for "
             "nothing"),
            (self.gaps, "column", "have no value of the kind it had in training; they count as "
             "average"),
        )  # fmt: skip
        return [
            f"{kind} {name!r}: {count} of {self.rows} rows {text}"
            for counted, kind, text in parts
            for name, count in counted.items()
        ]


class TrainedModel(Displayed):
    """A trained model with everything needed to use it: `predict`, `predict_proba`, `evaluate`,
    `export`. `load_run` makes one.

    `module` is the torch module, `guarantee` what its training promises, `class_names` the classes
    in the order of their probabilities. Rows are read as in training; each answer depends on its
    own row alone.
    """

    def __init__(self, bundle: ModelBundle, module: nn.Module) -> None:
        self.bundle, self.module = bundle, module.eval()

    def _display(self) -> tuple[str, dict[str, object]]:
        bundle = self.bundle
        return f"{bundle.method} on {bundle.data}", {
            "task": str(bundle.task),
            "classes": ", ".join(self.class_names[:10]) or None,
            "columns": None if bundle.encoder is None else len(bundle.encoder.columns),
        }

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of classes or labels in the order of their probabilities.

        They are empty for regression.
        """
        return self.bundle.class_names or tuple(map(str, range(self.bundle.classes)))

    @property
    def guarantee(self) -> Guarantee | None:
        """Return what the training guarantees, accounted again; None if it added no noise."""
        document = self.bundle.guarantee
        return None if document is None else Guarantee.from_dict(document)

    def predict(self, data: Any) -> Array:
        """Predict every row.

        Args:
            data: A CSV or Parquet file, a pandas or polars frame or a mapping of columns. A model
                that was trained on arrays takes an array `[examples, ...]` as in training.

        Returns:
            Classes by name `[rows]`, numbers in the label's own unit `[rows]`, or 0 or 1 for each
            of several labels `[rows, labels]`.
        """
        return np.concatenate([part.values for part in self.stream(data)])

    def predict_proba(self, data: Any) -> npt.NDArray[np.float64]:
        """Return probabilities `[rows, classes]`, classes as in `class_names`.

        Those of several labels are each label's own, and do not add up to one.

        Args:
            data: As `predict` takes it.
        """
        if self.bundle.task is Task.REGRESSION:
            raise ConfigError("predict_proba: this model predicts numbers; use predict")
        return np.concatenate([np.asarray(part.probabilities) for part in self.stream(data)])

    def stream(
        self, data: Any, *, keep: Sequence[str] = (), remarks: Remarks | None = None
    ) -> Iterator[Predictions]:
        """Yield predictions batch by batch, in the order of the rows.

        Args:
            data: As `predict` takes it.
            keep: Columns of a table to return beside the predictions.
            remarks: Counts what is odd about the rows.
        """
        if self.bundle.encoder is None:
            yield from map(self.on_inputs, self._array_batches(data))
            return
        for table, encoded in _encoded_batches(self, self.bundle.encoder, data, keep):
            _remark(remarks, self.bundle.encoder, encoded)
            outputs = self.on_inputs(self._seen(encoded.inputs))
            yield Predictions(outputs.values, outputs.probabilities, table)

    def evaluate(
        self,
        data: Any,
        targets: Any = None,
        *,
        metrics: Mapping[str, Metric] | None = None,
        remarks: Remarks | None = None,
    ) -> Scores:
        """Score the model on rows whose label is known, beside the best constant answer.

        Args:
            data: As `predict` takes it. A table brings its label; rows without one are left out.
            targets: True classes or numbers `[examples]`, for arrays.
            metrics: Figures of your own by name: functions of the true and the predicted labels
                (classes by name, or numbers in the label's own unit), as in scikit-learn.
            remarks: Counts what is odd about the rows.

        Raises:
            ConfigError: A label is not one of the model's, or there is none.
        """
        if self.bundle.task is Task.SEQUENCE:
            raise ConfigError("evaluate: not for sequences")
        if self.bundle.encoder is not None:
            parts = list(self._labelled(self.bundle.encoder, data, remarks))
        else:
            parts = list(self.stream(data))
            wanted, start = np.asarray(() if targets is None else targets), 0
            if sum(len(part.values) for part in parts) != len(wanted):
                raise ConfigError(
                    f"evaluate: this model reads arrays, and {len(wanted)} targets do not fit "
                    f"{len(data)} inputs. Give one target for each input."
                )
            for number, part in enumerate(parts):
                stop = start + len(part.values)
                parts[number] = replace(part, targets=wanted[start:stop])
                start = stop
        return self._scores(parts, metrics or {})

    def _labelled(
        self, encoder: TableEncoder, data: Any, remarks: Remarks | None
    ) -> Iterator[Predictions]:
        """Yield predictions for the rows of a table that have a label, with that label."""
        row, used = 0, 0
        for part in self.stream(data, keep=encoder.labels, remarks=remarks):
            labels, wrong = encoder.targets(part.table)
            written = [part.table.column(name) for name in encoder.labels]
            present = ~np.any([np.asarray(column.is_null()) for column in written], axis=0)
            if encoder.separated:  # an empty cell names no class
                present = np.ones_like(present)
                if remarks is not None and wrong.any():
                    remarks.strange[encoder.labels[0]] += int(wrong.sum())
                wrong = np.zeros_like(wrong)
            if (wrong & present).any():
                first = int(np.argmax(wrong & present))
                strange = ", ".join(as_text(column)[first].as_py() for column in written)
                numbers = self.bundle.task is Task.REGRESSION
                kind = "a number" if numbers else "one of its classes"
                raise ConfigError(
                    f"label {strange!r} of row {row + first + 1} is not {kind}. Correct it, or "
                    "leave it blank."
                )
            row, used = row + len(labels), used + int(present.sum())
            chances = None if part.probabilities is None else part.probabilities[present]
            yield Predictions(part.values[present], chances, targets=labels[present])
        if not used:
            raise ConfigError(f"no row has a label (column {', '.join(encoder.labels)!r})")

    def _scores(self, parts: Sequence[Predictions], metrics: Mapping[str, Metric]) -> Scores:
        """Score predictions whose targets are known."""
        values, targets = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("values", "targets")
        )
        if self.bundle.task is Task.REGRESSION:
            scores = number_scores(values, targets := targets.astype(np.float64))
        else:
            chances = np.concatenate([np.asarray(part.probabilities) for part in parts])
            several = self.bundle.task is Task.MULTI_LABEL
            scores = (label_scores if several else class_scores)(self.class_names, chances, targets)
            if self.bundle.class_names and not several:
                targets = np.asarray(self.bundle.class_names)[targets]
        return with_metrics(scores, metrics, targets, values) if metrics else scores

    def export(self, path: Path | str) -> None:
        """Write the model for other programs, as `.pt2` (torch.export) or `.onnx` (an extra).

        It takes the inputs that the encoder makes, `[rows, inputs]` in single precision, and gives
        probabilities, or numbers in the label's own unit.
        """
        from fedveil.run.export import export

        export(self.bundle, self.module, Path(path))

    def in_own_unit(self, values: Array) -> npt.NDArray[np.float64]:
        """Convert numbers from the scale that was trained on to the unit of the label."""
        numbers = values.astype(np.float64)
        if self.bundle.encoder is None:
            return numbers
        return numbers * self.bundle.encoder.target.width + self.bundle.encoder.target.centre

    def _array_batches(self, data: Any) -> Iterator[Array]:
        featurizer = self.bundle.featurizer
        inputs, shape = np.asarray(data), self.bundle.input_shape
        if featurizer is not None:
            shape = featurizer.input_shape
        if inputs.dtype == object or inputs.shape[1:] != shape:
            raise ConfigError(
                f"this model was trained on arrays: give one of shape [examples, "
                f"{', '.join(map(str, shape))}], not {list(inputs.shape)} of {inputs.dtype}"
            )
        rows = rows_at_once(self.module, self.bundle.input_shape)
        for start in range(0, len(inputs), rows):
            yield self._seen(inputs[start : start + rows])

    def _seen(self, inputs: Array) -> Array:
        """Return what the module itself sees of encoded rows, or of arrays as they were given."""
        if self.bundle.featurizer is not None:
            return self.bundle.featurizer(inputs).astype(np.float32)
        if self.bundle.scaling is not None:
            return self.bundle.scaling(inputs)
        kind = np.int64 if self.bundle.task is Task.SEQUENCE else np.float32
        return inputs.astype(kind, copy=False)

    @torch.inference_mode()
    def on_inputs(self, inputs: Array) -> Predictions:
        """Return predictions for what the module itself sees."""
        outputs = self.module(torch.from_numpy(np.ascontiguousarray(inputs)))
        answers = answers_of(self.bundle, outputs).numpy()
        if self.bundle.task is Task.REGRESSION:
            return Predictions(answers, None)
        if self.bundle.task is Task.MULTI_LABEL:
            return Predictions((answers > 0.5).astype(np.int64), answers)
        codes, named = answers.argmax(-1), self.bundle.class_names
        return Predictions(np.asarray(named)[codes] if named else codes, answers)


def score_examples(
    model: TrainedModel, federation: Federation, examples: Examples
) -> Scores | None:
    """Score the usable examples of a federation; None for sequences and without examples."""
    examples = with_readable(model.module, federation, examples).only_usable()
    if model.bundle.task is Task.SEQUENCE or not len(examples):
        return None
    parts, rows = [], rows_at_once(model.module, federation.input_shape)
    for start in range(0, len(examples), rows):
        part = slice(start, start + rows)
        outputs = model.on_inputs(federation.model_inputs(examples.inputs[part]))
        targets = examples.targets[part]
        if model.bundle.task is Task.REGRESSION:
            targets = model.in_own_unit(targets)
        parts.append(replace(outputs, targets=targets))
    return model._scores(parts, {})


def load_run(path: Path | str, module: nn.Module | None = None) -> TrainedModel:
    """Load the model of a finished run, to predict and evaluate new rows.

    Args:
        path: A run directory, or a `model.safetensors` taken from one.
        module: An instance with the same layers, if the run trained a module of your own.

    Raises:
        ConfigError: There is no model, it is damaged, or it does not fit the module.

    >>> fv.load_run("runs/a").predict(frame)  # doctest: +SKIP
    """
    bundle, tensors = read_bundle(Path(path))
    module = bundle.module() if module is None else module
    try:
        missing, unexpected = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ConfigError(f"{path}: does not fit the module ({error})") from None
    trained = {name for name, one in module.named_parameters() if one.requires_grad}
    if unexpected or trained & set(missing):
        raise ConfigError(f"{path}: its parameters are not those of the module")
    return TrainedModel(bundle, mark_trained(module, bundle.data, public=bundle.public))


def _encoded_batches(
    model: TrainedModel, encoder: TableEncoder, data: Any, keep: Sequence[str]
) -> Iterator[tuple[Any, Encoded]]:
    wanted = list(dict.fromkeys((*encoder.columns, *keep)))
    rows = rows_at_once(model.module, model.bundle.input_shape)
    where = data if isinstance(data, str | Path) else "the frame"
    for piece in pieces(data, wanted, "needed by the model, or to be kept"):
        for name, column in encoder.columns.items():
            check_stored(where, name, piece.column(name), column, "in training it was")
        for start in range(0, piece.num_rows, rows):
            table = piece.slice(start, rows)
            yield table, encoder.encode(table)


def _remark(remarks: Remarks | None, encoder: TableEncoder, encoded: Encoded) -> None:
    if remarks is None:
        return
    remarks.rows += len(encoded.inputs)
    for name, column in encoder.columns.items():
        if not column.missing and (count_missing := int(encoded.gaps[name].sum())):
            remarks.gaps[name] += count_missing
    for name, rows in encoded.unknown.items():
        if count_missing := int(rows.sum()):
            remarks.unknown[name] += count_missing
