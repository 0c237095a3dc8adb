"""Bugs of readers: one unit's values decide about others, or about what everybody sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import fedveil as fv
from fedveil import Federation
from fedveil.core.errors import ConfigError
from fedveil.data import columns, federation, rows, storage, table
from fedveil.data.rows import read_table
from fedveil.tune import defaults, estimator

from ..doors.rows import Sheet
from .registry import plant


def _tabular(sheet: Sheet) -> bool:
    return sheet.door in ("csv", "files", "parquet", "arrow", "pandas", "polars", "mapping")


def _without_labels() -> Any:
    def pieces(*args: Any, **kwargs: Any) -> Any:
        for piece in rows.pieces(*args, **kwargs):
            yield piece.filter(pc.is_valid(piece.column("y")))

    def whole(*args: Any, **kwargs: Any) -> Any:
        return pa.concat_tables(pieces(*args, **kwargs))

    return patch.multiple(table, pieces=pieces, read_table=whole)


@plant(600, lambda sheet: _tabular(sheet) and sheet.artificial, among="sheets")
def a_blank_label_deals_all_rows_anew() -> Any:
    """Rows without a label are left out before the others are dealt to shares."""
    return _without_labels()


@plant(600, lambda sheet: _tabular(sheet) and not sheet.artificial, among="sheets", near=11)
def a_client_without_labels_is_no_client() -> Any:
    """How many clients there are is public, and so is that one of them has no label."""
    return _without_labels()


@plant(100, lambda job: job.command == "run" and job.clients == 30, among="jobs")
def whom_to_protect_follows_from_labels() -> Any:
    """Thirty clients, of whom one has no label, are too few to protect clients by default."""
    real = defaults.public_facts

    def facts(path: Any, client_column: str, *more: Any) -> Any:
        whole = read_table(path, client=client_column)
        known = whole.filter(pc.is_valid(whole.column("y"))).column(client_column)
        return replace(real(path, client_column, *more), clients=pc.count_distinct(known).as_py())

    return patch.object(defaults, "public_facts", facts)


@plant(60, lambda job: job.command == "run", among="jobs", near=124)
def rows_are_counted_before_they_are_paid_for() -> Any:
    """Defaults that look at the table first, and say what they have seen."""
    real = defaults.choose

    def choose(*args: Any, **kwargs: Any) -> Any:
        chosen = real(*args, **kwargs)
        return replace(chosen, notes=(*chosen.notes, f"{len(chosen.federation.train)} rows."))

    return patch.object(defaults, "choose", choose)


@plant(200, lambda sheet: sheet.door in ("arrays", "stored"), among="sheets")
def a_value_that_does_not_fit_is_refused() -> Any:
    """With its example's number."""
    real = federation.marked

    def marked(examples: Any, *args: Any) -> Any:
        found = real(examples, *args)
        if found.usable is not None and not found.usable.all():
            raise ConfigError(f"example {int(np.argmin(found.usable))} cannot be used; remove it")
        return found

    return patch.object(federation, "marked", marked)


@plant(400, lambda sheet: sheet.door in ("csv", "files"), among="sheets", near=28)
def a_line_of_another_length_is_refused() -> Any:
    """With its number."""
    real = rows._parsed
    return patch.object(rows, "_parsed", lambda *given: real(*given[:-1], 0))


@plant(1500, lambda sheet: sheet.door == "pandas" and sheet.objects, among="sheets")
def a_column_without_values_has_no_type() -> Any:
    """Then it does not fit its schema, until somebody has a value in it."""
    return patch.object(rows, "_texts", lambda column: pa.array(map(rows._text, column)))


@plant(250, lambda sheet: sheet.door == "lists", among="sheets")
def entries_of_a_list_agree_on_a_type() -> Any:
    """One label that is text makes text of all."""
    return patch.object(columns, "untyped", lambda values: False)


@plant(150, lambda sheet: sheet.door == "datasets", among="sheets")
def data_sets_agree_on_a_type() -> Any:
    """What all clients hold is brought to the type that can hold it."""
    real = fv.from_datasets

    def from_datasets(given: Any, **settings: Any) -> Any:
        kinds = [np.asarray(one[0][0]).dtype for one in given.values() if len(one)]
        if len(set(kinds)) > 1:
            settings["dtype"] = np.uint8
        return real(given, **settings)

    return patch.object(fv, "from_datasets", from_datasets)


@plant(60, lambda job: job.command == "classifier" and job.known == "schema", among="jobs")
def labels_given_to_an_estimator_agree_on_a_type() -> Any:
    """One text in a list of numbers makes text of all, which then are none of the classes."""
    return patch.object(estimator._Estimator, "_targets", lambda self, y: np.asarray(y))


@plant(
    100,
    lambda job: job.command in ("classifier", "regressor") and job.known == "schema",
    among="jobs",
    near=1692,
)
def inputs_given_to_an_estimator_agree_on_a_type() -> Any:
    """One text in a list of numbers ends the fit, and the message holds the text."""
    return patch.object(estimator, "_by_entry", lambda inputs: inputs)


@plant(200, lambda sheet: sheet.door == "stored" and sheet.test != "", among="sheets")
def a_saved_federation_forgets_that_it_tests_on_training_rows() -> Any:
    """In files of their own, nobody sees that they are the same."""
    return patch.object(storage, "_again", lambda federation: [])


@plant(400, lambda sheet: sheet.public and sheet.door == "arrays", among="sheets")
def rows_declared_public_are_certified_as_private() -> Any:
    """What was taken from them is left out of the list, and so is the declaration."""
    real = Federation.from_arrays.__func__

    def from_arrays(cls: Any, *args: Any, **settings: Any) -> Any:
        return replace(real(cls, *args, **settings), public=False)

    return patch.object(Federation, "from_arrays", classmethod(from_arrays))
