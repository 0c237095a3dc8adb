"""scikit-learn estimators: fit and predict as everybody knows them, with a guarantee after fit."""

from __future__ import annotations

import tempfile
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.columns import code_of, number_column, number_of
from fedveil.data.rows import frame_of
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.bundle import bundle_of
from fedveil.run.run import Run
from fedveil.run.trained import TrainedModel
from fedveil.tune.defaults import choose

_LABEL, _OWNER, _PERSON = "__label__", "__owner__", "__person__"
_SETTING = "settings__"


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators.

    `settings` are recipe keys such as {"training.rounds": 32}. A search of scikit-learn names each
    of them `settings__training.rounds`.
    """

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

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters, and with `deep` each recipe key of `settings` by itself."""
        params: dict[str, Any] = super().get_params(deep)
        each = self.settings if deep and isinstance(self.settings, Mapping) else {}
        return params | {f"{_SETTING}{key}": value for key, value in each.items()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `settings__KEY` sets one recipe key and leaves the others as they are."""
        keys = {name for name in params if name.startswith(_SETTING)}
        super().set_params(**{name: params[name] for name in params.keys() - keys})
        if keys:
            changed = {name.removeprefix(_SETTING): params[name] for name in sorted(keys)}
            self.settings = {**(self.settings or {}), **changed}
        return self

    def _fit(self, table: pa.Table, groups: Any, persons: Any, **data: Any) -> None:
        """Train on a table with its label; `groups` says whose each row is, and `persons` of whom.
        A row without an owner, or without a person, is left out."""
        owners = np.zeros(table.num_rows, np.int64) if groups is None else groups
        table = _with_names(table, _OWNER, owners, "groups")
        if persons is not None:
            table = _with_names(table, _PERSON, persons, "persons")
        unit = self.unit or ("record" if groups is None else None)
        if persons is not None:  # whoever names persons wants them protected, in all groups
            unit = self.unit or "person"
        given = {
            "data.client_column": _OWNER,
            "data.person_column": None if persons is None else _PERSON,
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
                for name, known in ((_LABEL, "y"), (_OWNER, "groups"), (_PERSON, "persons")):
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
        """Inputs as a table: frames with text as they are, all else as numbers. What is no finite
        number is missing: refusing it would tell that it is there."""
        if reset:
            if y is None:  # in scikit-learn's words
                raise ValueError(
                    f"This {type(self).__name__} estimator requires y to be passed, but the target "
                    "y is None."
                )
            y = self._targets(y)
        frame = _with_text(X)
        if frame is None:
            least = 2 if reset else 1
            rules = {"dtype": np.float64, "ensure_min_samples": least, "ensure_all_finite": False}
            inputs = validate_data(self, _by_entry(X), reset=reset, **rules)
            inputs = np.where(np.isfinite(inputs), inputs, np.nan)
            if reset:
                check_consistent_length(inputs, y)
            names = getattr(self, "feature_names_in_", None)
            named = [f"x{i}" for i in range(inputs.shape[1])] if names is None else list(names)
            return pa.table({name: inputs[:, i] for i, name in enumerate(named)}), y
        if reset:
            check_consistent_length(range(frame.num_rows), y)
            self.feature_names_in_ = np.asarray(frame.column_names, dtype=object)
            self.n_features_in_ = len(frame.column_names)
        return frame, y

    def _targets(self, y: Any) -> npt.NDArray[Any]:
        """One target a row; of classes also several labels, `[rows, labels]`. Entries of a list
        stay what they are: their types would decide about each other in an array."""
        if isinstance(y, list | tuple):
            entries = np.empty(len(y), dtype=object)
            entries[:] = list(map(_plain, y))
            return entries
        column = np.asarray(y)
        several = column.ndim == 2 and column.shape[1] > 1 and self._task == "classification"
        return column if several else column_or_1d(column, warn=True)

    def _more(self, X: Any) -> pa.Table:
        check_is_fitted(self)
        return self._table(X, reset=False)[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        tags.input_tags.allow_nan = tags.input_tags.string = True
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags


class DPFedRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Linear regression on rows of several owners, with differential privacy.

    `fit(X, y, groups)`: `groups` says whose each row is; without it all rows have one owner, and
    single rows are protected. With `persons`, which person each row is of, all rows of a person are
    protected together. `guarantee_` says what is promised. With a `random_state` a fit is a
    repeatable simulation, and promises nothing. Means and deviations are bought with a part of the
    budget where there are enough rows or owners, or come from a public `schema`.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any, groups: Any = None, persons: Any = None) -> Self:
        """Train under the budget; the settings are chosen as `fedveil run` chooses them."""
        table, targets = self._table(X, reset=True, y=y)
        numbers = number_column(targets, "y").astype(np.float64)
        label = pa.array(numbers, mask=~np.isfinite(numbers))
        self._fit(table.append_column(_LABEL, label), groups, persons)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Numbers in the unit of `y`."""
        table = self._more(X)
        return self.model_.predict(table)


class DPFedClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Logistic regression on rows of several owners, with differential privacy.

    As `DPFedRegressor`; `classes` declares the labels if they are public. Otherwise `classes_` are
    those that stand out from noise, paid for like other statistics; or they are taken from `y`, and
    the guarantee says that it is not certified for that. A row whose label is none of them
    contributes nothing. `class_weight` are public weights by
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
        self.epsilon, self.delta, self.unit = epsilon, delta, unit
        self.schema, self.settings, self.random_state = schema, settings, random_state
        self.classes, self.class_weight = classes, class_weight

    def fit(self, X: Any, y: Any, groups: Any = None, persons: Any = None) -> Self:
        """Train under the budget; the settings are chosen as `fedveil run` chooses them."""
        table, targets = self._table(X, reset=True, y=y)
        self._several = np.ndim(targets) == 2
        if self._several:
            return self._fit_several(table, np.asarray(targets), groups, persons)
        declared, known = dict[str, Any](), None
        if self.classes is not None:
            known = {value: _name(value) for value in np.unique(self.classes).tolist()}
            declared["data.classes"] = list(known.values())
        if self.class_weight is not None:
            if not isinstance(self.class_weight, Mapping):
                raise ConfigError(
                    f"class_weight: {self.class_weight!r} would be worked out from the labels, "
                    "which are private; give weights that you know without them, as {0: 1, 1: 5}"
                )
            weights = {_name(label): weight for label, weight in self.class_weight.items()}
            declared["training.class_weights"] = weights
        label = pa.array([_label(entry, known) for entry in targets.tolist()], pa.string())
        try:
            self._fit(table.append_column(_LABEL, label), groups, persons, **declared)
        except ConfigError as error:
            if targets.dtype.kind != "f":
                raise
            hint = "Unknown label type: y is floating-point, and classes are whole numbers or names"
            raise ConfigError(f"{error} ({hint})") from None
        # Of labels that nobody declared only those that the guarantee pays for may be told.
        found = [_value(name) for name in self.model_.class_names]
        text = [isinstance(label, str) for label in found]
        order = sorted(range(len(found)), key=lambda place: (text[place], found[place]))
        self.classes_ = _classes([found[place] for place in order], targets.dtype)
        self._order = np.array(order)
        return self

    def _fit_several(
        self, table: pa.Table, targets: npt.NDArray[Any], groups: Any, persons: Any
    ) -> Self:
        if self.classes is not None or self.class_weight is not None:
            raise ConfigError("classes, class_weight: of several labels each is 0 or 1; leave out")
        names = [f"{_LABEL}{place}" for place in range(targets.shape[1])]
        for name, column in zip(names, targets.T, strict=True):
            codes = np.array([code_of(entry) for entry in column.tolist()], np.int64)
            table = table.append_column(name, pa.array(codes, mask=~np.isin(codes, (0, 1))))
        several = {"data.label": ",".join(names), "data.task": "multi-label"}
        self._fit(table, groups, persons, **several)
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


def _with_names(table: pa.Table, column: str, names: Any, what: str) -> pa.Table:
    """Return the table with a column of owners or persons."""
    listed = column_or_1d(names)
    if len(listed) != table.num_rows:
        raise ConfigError(f"{what}: {len(listed)} names for {table.num_rows} rows")
    if listed.dtype == object:
        return table.append_column(column, frame_of({column: listed}, by_cell=True).column(column))
    return table.append_column(column, pa.array(listed, from_pandas=True))


def _by_entry(X: Any) -> Any:
    """Lists of equally many entries, and arrays of objects or text, as numbers `[rows, columns]`.

    They have no type that makes all entries numbers, so each entry is read by itself.
    """
    rows = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype.kind in "OUS")
    if not rows or not all(isinstance(row, list | tuple | np.ndarray) for row in X):
        return X
    if len(set(map(len, X))) != 1:
        return X
    return np.array([[number_of(entry) for entry in row] for row in X], np.float64)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _name(value: Any) -> str:
    """A label as text that says what it was."""
    return repr(_plain(value))


def _label(entry: Any, known: Mapping[Any, str] | None) -> str | None:
    """The name of one label, by itself; None if it is none of the declared classes, or cannot be a
    class at all."""
    if known is not None:
        try:
            return known.get(entry)
        except TypeError:  # a list, say
            return None
    if not isinstance(entry, bool | int | float | str) or (
        isinstance(entry, float) and not entry.is_integer()
    ):
        return None
    return _name(entry)


def _classes(labels: list[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The classes that are told, of the type of `y`, but for text, whose type knows the longest,
    and for lists, which have none."""
    if dtype.kind not in "UO":
        return np.array(labels, dtype)
    mixed = len({isinstance(label, str) for label in labels}) > 1
    return np.array(labels, object if mixed else None)


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
