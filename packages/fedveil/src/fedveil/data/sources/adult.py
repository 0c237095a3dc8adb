"""Adult: income from census records, on sixteen devices (Hu et al.)."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from fedveil.core.errors import ConfigError
from fedveil.data.encoder import TableEncoder, category_codes
from fedveil.data.federation import Examples, Task
from fedveil.data.holdout import Holdout
from fedveil.data.partition import IID
from fedveil.data.schema import Column, Kind
from fedveil.data.sources.files import Arrays, Copy, published
from fedveil.data.sources.formats import reading
from fedveil.data.sources.source import Pool, Source


def _number(mean: float, deviation: float) -> Column:
    return Column(Kind.NUMBER, mean=mean, std=deviation)


def _category(*names: str) -> Column:
    return Column(Kind.CATEGORY, categories=names)


# The fourteen attributes with the categories of the published description (adult.names), and
# rounded means and deviations of all 48,842 records: constants, so that nothing here depends on
# the records at hand. Six numbers and 99 categories make 105 inputs; "?" has none of its own.
COLUMNS: dict[str, Column] = {
    "age": _number(38.64, 13.71),
    "workclass": _category(
        *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov"),
        *("State-gov", "Without-pay", "Never-worked"),
    ),
    "fnlwgt": _number(189_664, 105_604),
    "education": _category(
        *("Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm"),
        *("Assoc-voc", "9th", "7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate"),
        *("5th-6th", "Preschool"),
    ),
    "education-num": _number(10.08, 2.57),
    "marital-status": _category(
        *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed"),
        *("Married-spouse-absent", "Married-AF-spouse"),
    ),
    "occupation": _category(
        *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial"),
        *("Prof-specialty", "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical"),
        *("Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv"),
        "Armed-Forces",
    ),
    "relationship": _category(
        *("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    ),
    "race": _category("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": _category("Female", "Male"),
    "capital-gain": _number(1079, 7452),
    "capital-loss": _number(87.5, 403.0),
    "hours-per-week": _number(40.42, 12.39),
    "native-country": _category(
        *("United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany"),
        *("Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba"),
        *("Iran", "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico"),
        *("Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan"),
        *("Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand"),
        *("Yugoslavia", "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands"),
    ),
}
INCOMES = ("<=50K", ">50K")
ENCODER = TableEncoder(COLUMNS, ("income",), _category(*INCOMES))
FEATURES = ENCODER.features


def decode(paths: Mapping[str, Path]) -> Arrays:
    """Both files' records, one after the other: inputs `[48842, 105]` and income classes."""
    inputs, income = ENCODER.examples(records(path) for path in paths.values())
    return {"inputs": inputs, "income": income}


def records(path: Path) -> Any:
    with reading(path):
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            data: bytes = file.read()
        if data.startswith(b"|"):  # the test file's first line is a remark
            data = data.partition(b"\n")[2]
        types = {
            name: pa.float64() if column.kind is Kind.NUMBER else pa.string()
            for name, column in COLUMNS.items()
        }
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(column_names=[*COLUMNS, "income"]),
                convert_options=csv.ConvertOptions(column_types={**types, "income": pa.string()}),
            )
        except pa.ArrowInvalid as error:
            raise ConfigError(f"{path}: not in the form of UCI's Adult ({error})") from None
    trimmed = [
        pc.utf8_trim(column, characters=" .") if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    table = pa.table(trimmed, names=table.column_names)
    if (category_codes(table.column("income"), INCOMES) < 0).any():
        raise ConfigError(f"{path}: an income is neither {INCOMES[0]} nor {INCOMES[1]}")
    return table


def build(arrays: Arrays, copy: str, *, numbers: str = "standard") -> Pool:
    """`numbers`: the six that are no categories, `standard`ised or `raw` as they were counted."""
    if numbers not in ("standard", "raw"):
        raise ConfigError(f"numbers={numbers!r}: must be standard or raw")
    inputs = arrays["inputs"] if numbers == "standard" else _raw(arrays["inputs"])
    return Pool(
        train=Examples(inputs, arrays["income"]),
        class_names=INCOMES,
        features=FEATURES,
    )


def _raw(standard: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Standardisation undone; what was cut at five deviations stays there."""
    inputs = standard.astype(np.float32)
    for name, column in COLUMNS.items():
        if column.kind is Kind.NUMBER:
            place = FEATURES.index(name)
            inputs[:, place] = inputs[:, place] * column.width + column.centre
    return inputs


ADULT = Source(
    name="adult",
    what="census records, income above 50,000 dollars or not; 16 devices of 3,052",
    licence="CC BY 4.0 (B. Becker and R. Kohavi, UCI Machine Learning Repository, 1996)",
    task=Task.CLASSIFICATION,
    classes=2,
    examples=48_842,
    clients=16,
    partition=IID(16, examples_per_client=3052),
    build=build,
    copies=(
        Copy("gz", published("adult.data.gz", "adult.test.gz"), decode),
        Copy("uci", published("adult.data", "adult.test"), decode),
    ),
    options=("numbers",),
    holdout=Holdout.WITHIN,
    test_fraction=0.1,
    validation_fraction=0.1,
    home="https://archive.ics.uci.edu/dataset/2/adult",
)
