"""Lending Club: the interest rate of a loan, clients sorted by it (Fu et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.encoder import FARTHEST, category_codes
from fedveil.data.federation import Examples, Task
from fedveil.data.partition import SortedSlices
from fedveil.data.rows import read_table
from fedveil.data.sources.files import Arrays, Copy, published
from fedveil.data.sources.source import Pool, Source

Floats = npt.NDArray[np.float64]

# What is known when a loan is granted. Payments, recoveries and the like come after the outcome;
# the instalment and the sub-grade are the interest rate under other names; neither is used.
NUMBERS = (
    *("loan_amnt", "funded_amnt", "funded_amnt_inv", "term", "annual_inc", "dti", "delinq_2yrs"),
    *("inq_last_6mths", "mths_since_last_delinq", "mths_since_last_record", "open_acc", "pub_rec"),
    *("revol_bal", "revol_util", "total_acc", "collections_12_mths_ex_med", "acc_now_delinq"),
    *("chargeoff_within_12_mths", "delinq_amnt", "pub_rec_bankruptcies", "tax_liens"),
)
CATEGORIES = {
    "home_ownership": ("MORTGAGE", "NONE", "OTHER", "OWN", "RENT"),
    "verification_status": ("Not Verified", "Source Verified", "Verified"),
    "purpose": (
        *("car", "credit_card", "debt_consolidation", "educational", "home_improvement", "house"),
        *("major_purchase", "medical", "moving", "other", "renewable_energy", "small_business"),
        *("vacation", "wedding"),
    ),
}
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


LENDING_CLUB = Source(
    name="lending-club",
    what="loans, the interest rate in percent to be predicted; clients of 80 sorted by rate",
    licence="published by Lending Club; compact copy from an R package under the MIT licence",
    task=Task.REGRESSION,
    classes=0,
    examples=42_535,
    clients=425,
    partition=SortedSlices(per_client=80),
    build=build,
    copies=(
        Copy("compact", published("lending_club_2007_2011.csv.gz"), decode),
        Copy("kaggle", published("accepted_2007_to_2018Q4.csv.gz"), decode),
    ),
    options=("components", "grade"),
    test_fraction=0.2,
    home="https://www.kaggle.com/datasets/wordsforthewise/lending-club",
    advice=(
        "Lending Club no longer offers its files: get accepted_2007_to_2018Q4.csv.gz from "
        "https://www.kaggle.com/datasets/wordsforthewise/lending-club (with an account) and set "
        "FEDVEIL_DATA to its directory"
    ),
    remarks=(
        "Fu et al. had 66 features of 500,000 loans, some known only after the outcome; here are "
        "those known when the loan was granted.",
        "Owners are the borrowers' states: partition 'owner' makes 50 clients.",
    ),
)
