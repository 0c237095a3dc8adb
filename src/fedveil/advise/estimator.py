"""scikit-learn estimators: fit and predict as everybody knows them, with a guarantee after fit."""

from __future__ import annotations

import tempfile
from ast import literal_eval
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedveil.advise.defaults import choose
from fedveil.config import recipe as recipes
from fedveil.config.assemble import plan_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.pieces import frame_of
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.bundle import bundle_of
from fedveil.run.run import Run
from fedveil.run.trained import TrainedModel

_LABEL, _OWNER = "__label__", "__owner__"


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share. `settings` are recipe keys such as {"training.rounds": 32}."""

    guarantee_: Guarantee | None
    _task: str

    def __init__(
        self,
        *,
        epsilon: float = 4.0,
        delta: float | None = None,
        unit: str | None = None,
        schema: Any = None,
        settings: dict[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon, self.delta, self.unit = epsilon, delta, unit
        self.schema, self.settings, self.random_state = schema, settings, random_state

    def _fit(self, table: pa.Table, groups: Any, **data: Any) -> None:
        """Train on a table with its label; `groups` says whose each row is."""
        owners = np.zeros(table.num_rows, np.int64) if groups is None else column_or_1d(groups)
        if len(owners) != table.num_rows:
            raise ConfigError(f"groups: {len(owners)} owners for {table.num_rows} rows")
        named = pa.array(owners, from_pandas=True)
        if named.null_count:
            row = named.is_null().to_pylist().index(True)
            raise ConfigError(f"groups: row {row + 1} has no owner; leave it out, or name one")
        table = table.append_column(_OWNER, named)
        unit = self.unit or ("record" if groups is None else None)
        given = {
            "data.client_column": _OWNER,
            "data.label": _LABEL,
            "data.task": self._task,
            "data.test_fraction": 0.0,  # scikit-learn's users hold out themselves
            "privacy.epsilon": self.epsilon,
            "privacy.delta": self.delta,
            "privacy.unit": unit,
            "seed": self.random_state,
            **data,
            **(self.settings or {}),
        }
        if self.schema is not None:
            key = "data.schema" if isinstance(self.schema, str | Path) else "data.columns"
            given[key] = str(self.schema) if key == "data.schema" else self.schema
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "table.parquet")
            parquet.write_table(table, file)
            values = {key: value for key, value in given.items() if value is not None}
            recipe = recipes.parse({}, (), {"data.file": file, **values})
            try:
                chosen = choose(recipe, set(values))
            except PrivacyRefusal:
                raise
            except ConfigError as error:  # about X, y and groups, not about a file nobody wrote
                said = str(error).removeprefix(f"{file}: ")
                for name, known in ((_LABEL, "y"), (_OWNER, "groups")):
                    said = said.replace(f"label {name!r}", known).replace(repr(name), known)
                raise ConfigError(said) from None
        run = Run(plan_of(chosen.recipe, chosen.federation))
        try:
            run.finish()
        finally:
            run.close()
        self.guarantee_ = run.guarantee
        self.notes_ = (*chosen.notes, *filter(None, [chosen.warning]))
        self.settings_ = recipes.to_table(chosen.recipe)
        self.model_ = TrainedModel(bundle_of(run.plan, None, run.guarantee), run.model())

    def _table(self, X: Any, *, reset: bool, y: Any = None) -> tuple[pa.Table, Any]:
        """Inputs as a table: frames with text as they are, all else as numbers."""
        frame = _with_text(X)
        if frame is None:
            if reset:
                rules = {"dtype": np.float64, "ensure_min_samples": 2}
                rules["multi_output"] = self._task == "classification"
                inputs, y = validate_data(self, X, y, **rules)
                y = self._targets(y)
            else:
                inputs = validate_data(self, X, reset=False, dtype=np.float64)
            names = getattr(self, "feature_names_in_", None)
            named = [f"x{i}" for i in range(inputs.shape[1])] if names is None else list(names)
            return pa.table({name: inputs[:, i] for i, name in enumerate(named)}), y
        if reset:
            self.feature_names_in_ = np.asarray(frame.column_names, dtype=object)
            self.n_features_in_ = len(frame.column_names)
        return frame, None if y is None else self._targets(y)

    def _targets(self, y: Any) -> npt.NDArray[Any]:
        """One target a row; of classes also several labels, `[rows, labels]`."""
        several = np.ndim(y) == 2 and np.shape(y)[1] > 1 and self._task == "classification"
        return np.asarray(y) if several else column_or_1d(y, warn=True)

    def _more(self, X: Any) -> pa.Table:
        check_is_fitted(self)
        return self._table(X, reset=False)[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags


class DPFedRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Linear regression on rows of several owners, with differential privacy.

    `fit(X, y, groups)`: `groups` says whose each row is; without it all rows have one owner, and
    single rows are protected. `guarantee_` says what is promised. With a `random_state` a fit is a
    repeatable simulation, and promises nothing. Means and deviations are bought with a part of the
    budget where there are enough rows or owners, or come from a public `schema`.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train under the budget; the settings are chosen as `fedveil run` chooses them."""
        table, targets = self._table(X, reset=True, y=y)
        numbers = np.asarray(targets, dtype=np.float64)
        self._fit(table.append_column(_LABEL, pa.array(numbers)), groups)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Numbers in the unit of `y`."""
        table = self._more(X)
        return self.model_.predict(table)


class DPFedClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Logistic regression on rows of several owners, with differential privacy.

    As `DPFedRegressor`; `classes` declares the labels if they are public. Otherwise `classes_` are
    those that stand out from noise, paid for like other statistics; or they are taken from `y`, and
    the guarantee says that it is not certified for that. `class_weight` are public weights by
    label; "balanced" ones would tell of the labels, and are refused.

    A `y` of several columns, 0 or 1 each, is several labels: `predict` gives the same,
    `predict_proba` each label's own probability `[rows, labels]`, and `classes_` are the columns'
    numbers.
    """

    _task = "classification"
    _several = False

    def __init__(
        self,
        *,
        classes: Any = None,
        class_weight: dict[Any, float] | None = None,
        epsilon: float = 4.0,
        delta: float | None = None,
        unit: str | None = None,
        schema: Any = None,
        settings: dict[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            schema=schema,
            settings=settings,
            random_state=random_state,
        )
        self.classes, self.class_weight = classes, class_weight

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train under the budget; the settings are chosen as `fedveil run` chooses them."""
        table, targets = self._table(X, reset=True, y=y)
        self._several = np.ndim(targets) == 2
        if self._several:
            return self._fit_several(table, np.asarray(targets), groups)
        check_classification_targets(targets)
        values, codes = np.unique(targets, return_inverse=True)
        if len(values) < 2:
            raise ValueError("y holds only one class: nothing to predict")  # as scikit-learn has it
        declared: dict[str, Any] = {}
        if self.classes is not None:
            if not np.isin(values, self.classes).all():
                raise ConfigError("y: holds a label that is not one of classes")
            declared = {"data.classes": _names(np.unique(self.classes))}
        if self.class_weight is not None:
            if not isinstance(self.class_weight, Mapping):
                raise ConfigError(
                    f"class_weight: {self.class_weight!r} would be worked out from the labels, "
                    "which are private; give weights that you know without them, as {0: 1, 1: 5}"
                )
            named = zip(_names([*self.class_weight]), self.class_weight.values(), strict=True)
            declared["training.class_weights"] = dict(named)
        label = pa.array(_names(values)).take(pa.array(codes))
        self._fit(table.append_column(_LABEL, label), groups, **declared)
        # Of labels that nobody declared only those that the guarantee pays for may be told.
        found = [_value(name) for name in self.model_.class_names]
        self.classes_ = np.unique(np.array(found, targets.dtype if _sized(targets) else None))
        self._order = np.argsort(np.array(found))
        return self

    def _fit_several(self, table: pa.Table, targets: npt.NDArray[Any], groups: Any) -> Self:
        if self.classes is not None or self.class_weight is not None:
            raise ConfigError("classes, class_weight: of several labels each is 0 or 1; leave out")
        if targets.shape[1] < 2 or not np.isin(targets, (0, 1)).all():
            raise ConfigError("y: of several labels each needs a column of its own, 0 or 1")
        names = [f"{_LABEL}{place}" for place in range(targets.shape[1])]
        for name, column in zip(names, targets.T.astype(np.int64), strict=True):
            table = table.append_column(name, pa.array(column))
        self._fit(table, groups, **{"data.label": ",".join(names), "data.task": "multi-label"})
        self.classes_ = np.arange(len(names))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The likeliest class of each row; of several labels, which of them it has."""
        if self._several:
            return self.model_.predict(self._more(X))
        chances = self.predict_proba(X)
        found: npt.NDArray[Any] = self.classes_[chances.argmax(1)]
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities `[rows, classes]`, classes as in `classes_`."""
        table = self._more(X)
        chances = self.model_.predict_proba(table)
        return chances if self._several else chances[:, self._order]


def _names(values: Iterable[Any]) -> list[str]:
    """Labels as text that says what they were."""
    return [repr(value.item() if isinstance(value, np.generic) else value) for value in values]


def _sized(labels: npt.NDArray[Any]) -> bool:
    """Not so for text, whose type knows the longest."""
    return labels.dtype.kind != "U"


def _value(name: str) -> Any:
    """The label that a name stands for; tables spell truths in small letters."""
    return name == "true" if name in ("true", "false") else literal_eval(name)


def _with_text(X: Any) -> pa.Table | None:
    """A frame that holds more than numbers, as a table; None for all else."""
    if not (hasattr(X, "columns") or isinstance(X, pa.Table)):
        return None
    frame = frame_of(X, by_cell=True)
    numbers = (pa.types.is_integer, pa.types.is_floating)
    plain = all(any(is_kind(kind) for is_kind in numbers) for kind in frame.schema.types)
    return None if plain and not isinstance(X, pa.Table) else frame
