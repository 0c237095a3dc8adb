"""A trained run used on new rows: predictions beside the module applied by hand."""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from tests.settings import TUNED
from tests.shell import Shell

import fedveil as fv
from fedveil.cli import main
from fedveil.data.encoder import numbers_of
from fedveil.data.rows import pieces
from fedveil.run.trained import Remarks

PURPOSES = ("car", "house", "other")
HEADER = ["state", "income", "purpose", "owner", "opened", "amount", "rate", "grade"]


def _rows(count: int, seed: int) -> list[dict[str, str]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        income, amount, purpose = draw.gauss(50, 15), draw.uniform(1, 30), draw.choice(PURPOSES)
        rate = 12 + 0.2 * amount - 0.1 * (income - 50) + PURPOSES.index(purpose)
        rows.append(
            {
                "state": f"S{draw.randrange(12)}",
                "income": "" if draw.random() < 0.05 else f"{income:.2f}",
                "purpose": purpose,
                "owner": draw.choice(["true", "false"]),
                "opened": str(date.fromordinal(730_000 + draw.randrange(5000))),
                "amount": f"{amount:.1f}".replace(".", ","),
                "rate": f"{rate:.3f}",
                "grade": "low" if rate < 14 else "high",
            }
        )
    return rows


def _write(path: Path, rows: list[dict[str, str]], drop: tuple[str, ...] = ()) -> Path:
    names = [name for name in HEADER if name not in drop]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, delimiter=";", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs on the same loans: one of classes, one of numbers."""
    home = tmp_path_factory.mktemp("home")
    _write(home / "loans.csv", _rows(400, seed=1))
    _write(home / "new.csv", _rows(60, seed=2))
    small = [*TUNED, "--set", "training.rounds=4", "--set", "training.learning_rate=0.5", "--quiet"]
    data = ["--data", str(home / "loans.csv"), "--client-column", "state", "--seed", "1"]
    for label in ("grade", "rate"):
        model = ["--set", "model.name=mlp", "--set", "model.hidden=[5]"]
        output = ["--output", str(home / label)]
        assert main(["run", *data, "--label", label, *small, *model, *output]) == 0
    return home


def _numbers(rows: list[dict[str, str]], name: str) -> list[float | None]:
    read = {
        "opened": lambda cell: (date.fromisoformat(cell) - date(1970, 1, 1)).days,
        "owner": lambda cell: cell == "true",
    }.get(name, lambda cell: float(cell.replace(",", ".")))
    return [float(read(row[name])) if row[name] else None for row in rows]


def _by_hand(train: list[dict[str, str]], rows: list[dict[str, str]], label: str) -> np.ndarray:
    """The inputs, by the rules in docs/data.md, in plain Python."""
    columns: list[list[float]] = []
    for name in HEADER:
        if name in ("state", label):
            continue
        if name in ("purpose", "grade"):
            categories = sorted({row[name] for row in train})
            columns += [[float(row[name] == one) for row in rows] for one in categories]
        elif name == "owner":
            columns.append([number or 0.0 for number in _numbers(rows, name)])
        else:
            known = [number for number in _numbers(train, name) if number is not None]
            mean = math.fsum(known) / len(known)
            std = math.sqrt(math.fsum((one - mean) ** 2 for one in known) / len(known))
            scaled = [
                0.0 if one is None else min(5.0, max(-5.0, (one - mean) / std))
                for one in _numbers(rows, name)
            ]
            columns.append(scaled)
            if any(not row[name] for row in train):
                columns.append([float(not row[name]) for row in rows])
    return np.array(columns).T


def _outputs(home: Path, label: str, inputs: np.ndarray) -> torch.Tensor:
    """The network of the run, written out with its weights."""
    weights = {k: v.double() for k, v in load_file(home / label / "model.safetensors").items()}
    first, second = sorted({name.rpartition(".")[0] for name in weights})
    x = torch.from_numpy(inputs)
    hidden = torch.relu(x @ weights[f"{first}.weight"].T + weights[f"{first}.bias"])
    return hidden @ weights[f"{second}.weight"].T + weights[f"{second}.bias"]


# Inputs are rounded to float32 and sums of some ten products are taken in float32.
CLOSE = 1e-5


def test_probabilities_are_those_of_the_module_applied_by_hand(home: Path) -> None:
    train, new = _rows(400, seed=1), _rows(60, seed=2)
    model = fv.load_run(home / "grade")
    wanted = torch.softmax(_outputs(home, "grade", _by_hand(train, new, "grade")), 1).numpy()
    found = model.predict_proba(home / "new.csv")
    assert model.class_names == ("high", "low")
    np.testing.assert_allclose(found, wanted, atol=CLOSE)
    sure = np.abs(wanted[:, 0] - 0.5) > CLOSE
    said = np.where(wanted[:, 0] > 0.5, "high", "low")
    assert (model.predict(home / "new.csv")[sure] == said[sure]).all()
    assert len(set(said)) == 2


def test_numbers_come_in_the_label_s_own_unit(home: Path) -> None:
    train, new = _rows(400, seed=1), _rows(60, seed=2)
    rates = np.array([float(row["rate"]) for row in train])
    outputs = _outputs(home, "rate", _by_hand(train, new, "rate")).numpy()[:, 0]
    found = fv.load_run(home / "rate").predict(str(home / "new.csv"))
    np.testing.assert_allclose(found, outputs * rates.std() + rates.mean(), rtol=CLOSE)


def test_files_frames_and_mappings_give_the_same(home: Path, tmp_path: Path) -> None:
    model, rows = fv.load_run(home / "grade"), _rows(60, seed=2)
    wanted = model.predict_proba(home / "new.csv")
    columns = {name: [row[name] or None for row in rows] for name in HEADER}
    typed: dict[str, Any] = dict(columns)
    for name in ("income", "amount", "rate"):
        typed[name] = _numbers(rows, name)
    typed["owner"] = [cell == "true" for cell in columns["owner"]]
    typed["opened"] = [date.fromisoformat(str(cell)) for cell in columns["opened"]]
    table = pa.table(typed)
    parquet.write_table(table, tmp_path / "new.parquet")

    class Frame:
        """What polars and pandas offer."""

        def __arrow_c_stream__(self, requested: object = None) -> object:
            return table.__arrow_c_stream__(requested)

    reordered = dict(reversed(columns.items()))
    # Numbers, texts and gaps in one list, as training under a schema reads them: each by itself.
    mixed = {name: [*typed[name][:30], *columns[name][30:]] for name in HEADER}
    for source in (columns, reordered, typed, mixed, table, Frame(), tmp_path / "new.parquet"):
        np.testing.assert_allclose(model.predict_proba(source), wanted, atol=1e-7)


def test_the_command_writes_what_python_gives(home: Path, tmp_path: Path, fedveil: Shell) -> None:
    out = tmp_path / "out.csv"
    arguments = ("predict", home / "grade", home / "new.csv", "--keep", "state", "--output", out)
    code, _, error = fedveil(*arguments)
    assert code == 0, error
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    model = fv.load_run(home / "grade")
    assert [row["prediction"] for row in rows] == model.predict(home / "new.csv").tolist()
    assert [row["state"] for row in rows] == [row["state"] for row in _rows(60, seed=2)]
    found = [[float(row[f"probability of {name}"]) for name in ("high", "low")] for row in rows]
    np.testing.assert_allclose(found, model.predict_proba(home / "new.csv"), atol=1e-12)
    code, _, error = fedveil(*arguments)
    assert code == 2
    assert "exists already" in error


def test_odd_cells_are_counted_and_change_no_other_row(home: Path, tmp_path: Path) -> None:
    rows = _rows(60, seed=2)
    model = fv.load_run(home / "grade")
    wanted = model.predict_proba(home / "new.csv")
    rows[3]["purpose"], rows[7]["amount"], rows[9]["purpose"] = "yacht", "a lot", ""
    remarks = Remarks()
    parts = list(model.stream(_write(tmp_path / "odd.csv", rows), remarks=remarks))
    found = np.concatenate([np.asarray(part.probabilities) for part in parts])
    same = np.ones(60, bool)
    same[[3, 7, 9]] = False
    assert (found[same] == wanted[same]).all()
    assert not np.isclose(found[[3, 9]], wanted[[3, 9]]).any()
    said = " ".join(remarks.sentences())
    assert "'purpose': 1 of 60 rows have a category that the model does not know" in said
    assert "'amount': 1 of 60 rows have no value" in said
    assert "'purpose': 1 of 60 rows have no value" in said


def test_evaluation_is_that_of_the_predictions(home: Path, fedveil: Shell) -> None:
    from sklearn import metrics

    rows = _rows(60, seed=2)
    document = fedveil("evaluate", home / "rate", home / "new.csv", "--json").document
    rates = [float(row["rate"]) for row in rows]
    predicted = fv.load_run(home / "rate").predict(home / "new.csv")
    assert document["rmse"] == pytest.approx(metrics.root_mean_squared_error(rates, predicted))
    assert document["r2"] == pytest.approx(metrics.r2_score(rates, predicted))
    assert document["constant"]["rmse"] == pytest.approx(np.std(rates))
    found = fv.load_run(home / "grade").evaluate(home / "new.csv")
    low = [row["grade"] == "low" for row in rows]
    chances = fv.load_run(home / "grade").predict_proba(home / "new.csv")[:, 1]
    assert found.figures["auc"] == pytest.approx(metrics.roc_auc_score(low, chances))
    own = {"kappa": metrics.cohen_kappa_score, "wrong": lambda true, said: (true != said).sum()}
    more = fv.load_run(home / "grade").evaluate(home / "new.csv", metrics=own)
    assert more.figures["wrong"] == pytest.approx(60 * (1 - found.figures["accuracy"]))
    assert more.constant["wrong"] == pytest.approx(60 * (1 - found.constant["accuracy"]))
    assert more.figures["kappa"] > more.constant["kappa"] == 0
    median = {"median": metrics.median_absolute_error}
    wanted = metrics.median_absolute_error(rates, predicted)
    found = fv.load_run(home / "rate").evaluate(home / "new.csv", metrics=median)
    assert found.figures["median"] == pytest.approx(wanted)
    code, _, error = fedveil("evaluate", home / "rate", home / "loans.csv")
    assert code == 0
    assert "trained on rows of this file" in error


def test_rows_without_a_label_are_left_out_and_strange_ones_refused(
    home: Path, tmp_path: Path
) -> None:
    rows, model = _rows(60, seed=2), fv.load_run(home / "grade")
    for row in rows[:10]:
        row["grade"] = ""
    assert model.evaluate(_write(tmp_path / "gaps.csv", rows)).rows == 50
    rows[20]["grade"] = "middling"
    with pytest.raises(fv.ConfigError, match="label 'middling' of row 21"):
        model.evaluate(_write(tmp_path / "strange.csv", rows))
    for row in rows:
        row["grade"] = ""
    with pytest.raises(fv.ConfigError, match="no row has a label"):
        model.evaluate(_write(tmp_path / "none.csv", rows))


def test_what_is_no_finished_run_of_this_version_is_refused(home: Path, tmp_path: Path) -> None:
    old = shutil.copytree(home / "grade", tmp_path / "old")
    save_file(load_file(old / "model.safetensors"), old / "model.safetensors")
    with pytest.raises(fv.ConfigError, match="written by another version of fedveil"):
        fv.load_run(old)
    (old / "model.safetensors").unlink()
    with pytest.raises(fv.ConfigError, match="has no model yet; finish the run"):
        fv.load_run(old)
    with pytest.raises(fv.ConfigError, match="not a run directory"):
        fv.load_run(tmp_path)
    with pytest.raises(fv.ConfigError, match="nowhere"):
        fv.load_run(tmp_path / "nowhere")
    damaged = tmp_path / "model.safetensors"
    content = bytearray((home / "grade" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(fv.ConfigError, match="damaged"):
        fv.load_run(damaged)


def test_one_file_is_all_it_takes(home: Path, tmp_path: Path) -> None:
    alone = shutil.copy(home / "grade" / "model.safetensors", tmp_path / "mine.safetensors")
    model, run = fv.load_run(alone), fv.load_run(home / "grade")
    assert (model.predict_proba(home / "new.csv") == run.predict_proba(home / "new.csv")).all()
    assert model.guarantee is not None
    document = json.loads((home / "grade" / "guarantee.json").read_text())
    assert model.guarantee == fv.Guarantee.from_dict(document)


def _columns(encoder: Any, piece: Any) -> dict[str, np.ndarray]:
    """What an ONNX model takes: a column of texts, or of numbers with NaN for none."""
    found = {}
    for name, column in encoder.columns.items():
        values = piece.column(name)
        if column.kind == "category":
            found[name] = np.array([[one or ""] for one in values.to_pylist()], object)
        else:
            found[name] = numbers_of(values, column).astype(np.float32)[:, None]
    return found


@pytest.mark.parametrize("label", ["grade", "rate"])
@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_an_exported_model_gives_the_same_numbers(
    home: Path, tmp_path: Path, label: str, suffix: str
) -> None:
    """For any number of rows; double precision after the last layer, and rounding of some hundred
    products in single precision before it. ONNX takes the columns themselves."""
    if suffix == "onnx":
        pytest.importorskip("onnxscript")
        reference = pytest.importorskip("onnx.reference")
    model, path = fv.load_run(home / label), tmp_path / f"model.{suffix}"
    model.export(path)
    assert model.bundle.encoder is not None
    columns = [*model.bundle.encoder.columns]
    (piece,) = pieces(home / "new.csv", columns, "needed")
    inputs = model.bundle.encoder.encode(piece).inputs
    wanted = model.predict(piece) if label == "rate" else model.predict_proba(piece)
    for rows in (inputs, inputs[:1]):
        if suffix == "pt2":
            found = torch.export.load(path).module()(torch.from_numpy(rows)).detach().numpy()
        else:
            session = reference.ReferenceEvaluator(str(path))
            assert session.output_names == ["probabilities" if label == "grade" else "prediction"]
            feeds = _columns(model.bundle.encoder, piece)
            (found,) = session.run(None, {n: feeds[n][: len(rows)] for n in session.input_names})
        assert np.allclose(found, wanted[: len(rows)], rtol=1e-4, atol=1e-5)
    for wrong, said in ((path, "exists already"), (tmp_path / "model.pkl", "ends in .pt2")):
        with pytest.raises(fv.ConfigError, match=said):
            model.export(wrong)


def test_models_of_arrays_take_arrays(tmp_path: Path, fedveil: Shell) -> None:
    small = ["--set", "training.rounds=3", "--quiet", "--seed", "1"]
    assert fedveil("run", *small, "--output", tmp_path / "digits")[0] == 0
    model, federation = fv.load_run(tmp_path / "digits"), fv.load("digits")
    inputs, targets = federation.test.inputs, federation.test.targets
    assert (model.predict(inputs) == model.predict_proba(inputs).argmax(1)).all()
    with torch.inference_mode():
        seen = torch.from_numpy(federation.model_inputs(inputs))
        assert (model.module(seen).argmax(1).numpy() == model.predict(inputs)).all()
    line = (tmp_path / "digits" / "metrics.jsonl").read_text().splitlines()[-1]
    accuracy = model.evaluate(inputs, targets).figures["accuracy"]
    assert accuracy == pytest.approx(json.loads(line)["accuracy"])
    with pytest.raises(fv.ConfigError, match="trained on arrays"):
        model.predict(inputs[:, :3])
    code, _, error = fedveil("predict", tmp_path / "digits", "new.csv")
    assert code == 2
    assert "not on a table" in error


def test_a_module_of_one_s_own_is_loaded_with_it(tmp_path: Path) -> None:
    """The file has its weights, and says what is missing without it."""
    federation = fv.load("digits", clients=10)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    method = fv.fedavg(
        rounds=1,
        cohort=fv.CohortRule(rate=1.0),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=1),
    )
    run = fv.Run(fv.plan(method, federation, module, seed=1))
    run.finish()
    path = tmp_path / "own.safetensors"
    path.write_bytes(run.bundle_file())
    with pytest.raises(fv.ConfigError, match="module of your own"):
        fv.load_run(path)
    fresh = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    found = fv.load_run(path, module=fresh).evaluate(
        federation.test.inputs, federation.test.targets
    )
    assert found == run.scores()
    for wrong in (torch.nn.Linear(64, 10), torch.nn.Sequential(torch.nn.Linear(3, 3))):
        with pytest.raises(fv.ConfigError):
            fv.load_run(path, module=wrong)


def test_every_column_is_told_and_its_effect_is_the_models(tmp_path: Path, fedveil: Shell) -> None:
    """Of a linear model on bins the steps are differences of weights, about their mean."""
    rows = _rows(400, seed=1)
    for number, row in enumerate(rows):
        row["opened"] = f"id {number}"  # an identifier
    _write(tmp_path / "loans.csv", rows)
    words = ["--data", tmp_path / "loans.csv", "--client-column", "state", "--label", "grade"]
    words += ["--set", "data.bins=4", "--set", "training.rounds=3", "--seed", "1", *TUNED]
    document = fedveil("run", *words, "--json", "--output", tmp_path / "run").document
    told = {one["column"]: one for one in document["columns"]}
    assert list(told) == HEADER
    assert told["state"]["use"] == "names the client"
    assert told["grade"]["use"] == "the label"
    assert told["opened"]["use"].startswith("not used: ")
    assert told["income"]["use"].startswith("4 bins from ")
    model = fv.load_run(tmp_path / "run")
    (weights,) = (one for one in model.module.parameters() if one.ndim == 2)
    features = model.bundle.encoder.features
    charts = {one["title"]: one for one in document["effects"]}
    assert set(charts) == {"income", "purpose", "owner", "amount", "rate"}
    for name in ("income", "purpose"):
        own = [place for place, one in enumerate(features) if one.startswith(name)]
        own = [place for place in own if "missing" not in features[place]]
        log_odds = (weights[1] - weights[0] if len(weights) > 1 else weights[0])[own]
        wanted = (log_odds - log_odds.mean()).tolist()
        (series,) = charts[name]["series"]
        found = [y for _, y in series["points"]][:: 2 if name == "income" else 1]
        assert found == pytest.approx(wanted, rel=1e-2, abs=1e-4)
