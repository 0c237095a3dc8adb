"""Lending Club: the interest rate of a loan, clients sorted by it (Fu et al.)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.encoder import FARTHEST, category_codes
from fedveil.data.federation import Examples
from fedveil.data.rows import read_table
from fedveil.data.sources.files import Arrays
from fedveil.data.sources.source import Pool, described

Floats = npt.NDArray[np.float64]

_COLUMNS = tomllib.loads((files(__package__) / "lending_club.toml").read_text(encoding="utf-8"))
NUMBERS: list[str] = _COLUMNS["numbers"]
CATEGORIES: dict[str, list[str]] = _COLUMNS["categories"]
GRADES = ("A", "B", "C", "D", "E", "F", "G")
MOST_MISSING = 0.7  # Fu et al. discard features missed by more than 70 % of the records
UNPROTECTED = "means, deviations and principal components were computed from the loans themselves"
COMPONENTS_NOTE = (
    "Means, deviations and principal components were computed from the loans themselves and are "
    "not covered by the guarantee."
)


def decode(paths: Mapping[str, Path]) -> Arrays:
    """Raw features `[loans, features]` with NaN where missing, rates in percent, states."""
    (path,) = paths.values()
    others = ("int_rate", "grade", "addr_state", "issue_d", "earliest_cr_line", "emp_length")
    table = read_table(path, (*NUMBERS, *CATEGORIES, *others), "of Lending Club's files")
    table = table.filter(pc.is_valid(table.column("int_rate")))
    rate = _quantity(table.column("int_rate"))
    if np.isnan(rate).any() or not len(rate):
        raise ConfigError(f"{path}: column int_rate must hold interest rates")
    if rate.max() < 1:  # a fraction
        rate = rate * 100
    columns = {name: _quantity(table.column(name)) for name in NUMBERS}
    issued, earliest = (_months(table.column(name)) for name in ("issue_d", "earliest_cr_line"))
    columns["credit_history"] = issued - earliest
    columns["issue_d"] = issued
    columns["emp_length"] = _quantity(table.column("emp_length"))
    columns["grade"] = _rank(table.column("grade"), GRADES)
    for name, choices in CATEGORIES.items():
        codes = category_codes(table.column(name), choices)
        for code, choice in enumerate(choices):
            columns[f"{name}={choice}"] = (codes == code).astype(np.float64)
    return {
        "features": np.stack(list(columns.values()), axis=1),
        "names": np.array(list(columns)),
        "rate": rate,
        "state": np.array([state or "" for state in table.column("addr_state").to_pylist()]),
    }


def build(arrays: Arrays, copy: str, *, components: int = 10, grade: bool = True) -> Pool:
    """Standardised features reduced to principal components, and the rate in percent.

    `components=0` keeps the standardised features themselves; `grade=False` leaves out the grade,
    which the rate follows closely.
    """
    features, names = np.asarray(arrays["features"], np.float64), list(arrays["names"])
    known = np.isfinite(features)
    usable = known.mean(axis=0) >= 1 - MOST_MISSING
    means = np.nanmean(np.where(usable, features, 0.0), axis=0)
    filled = np.where(known, features, means)
    deviations = filled.std(axis=0)
    usable &= deviations > 0
    if not grade:
        usable[names.index("grade")] = False
    scaled = np.clip((filled - means)[:, usable] / deviations[usable], -FARTHEST, FARTHEST)
    chosen = tuple(str(name) for name, use in zip(names, usable, strict=True) if use)
    if not 0 <= components <= len(chosen):
        raise ConfigError(f"components={components}: must be between 0 and {len(chosen)}")
    if components:
        scaled = principal_components(scaled, components)
        chosen = tuple(f"component {i + 1}" for i in range(components))
    return Pool(
        train=Examples(scaled.astype(np.float32), np.asarray(arrays["rate"], np.float32)),
        owners=arrays["state"],
        features=chosen,
        notes=(COMPONENTS_NOTE,),
        unprotected=(UNPROTECTED,),
    )


def principal_components(features: Floats, count: int) -> Floats:
    """Scores of the leading components, largest first, each with its largest loading positive."""
    centred = features - features.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    leading = vectors[:, ::-1][:, :count]
    largest = leading[np.abs(leading).argmax(axis=0), np.arange(count)]
    return np.asarray(centred @ (leading * np.sign(largest)))


def _quantity(values: Any) -> Floats:
    """The number in a column: 10.65, "10.65%", " 36 months", "< 1 year", "10+ years"."""
    less = pc.fill_null(pc.starts_with(values, "<"), False)  # "< 1 year" is half a year
    digits = pc.extract_regex(values, r"(?P<number>\d+\.?\d*)")
    within = pc.struct_field(digits, "number").cast(pa.float64())
    number = pc.if_else(less, 0.5, pc.coalesce(cells.numbers(values), within))
    return np.asarray(number.to_numpy(), dtype=np.float64)


def _months(values: Any) -> Floats:
    """Months since December 1969 of "2007-12" or "Dec-2007"."""
    days = cells.days(values).to_numpy()
    known = ~np.isnan(days)
    months = np.full(len(days), np.nan)
    months[known] = days[known].astype("datetime64[D]").astype("datetime64[M]").astype(int) + 1
    return months


def _rank(values: Any, order: tuple[str, ...]) -> Floats:
    codes = category_codes(values, order).astype(np.float64)
    return np.where(codes < 0, np.nan, codes + 1)


LENDING_CLUB = described("lending-club", build, compact=decode, kaggle=decode)
