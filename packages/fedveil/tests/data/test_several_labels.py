"""Several labels, true or false each, from a table to predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn import metrics
from tests.settings import TUNED
from torch.nn import functional

import fedveil as fv
from fedveil.cli import main
from fedveil.core.units import Trust, Unit
from fedveil.data.dp_schema import Offer
from fedveil.data.federation import Federation, Task
from fedveil.run.scores import label_scores
from fedveil.training.models.losses import ClassWeights, example_losses

LABELS = ("sick", "old, or very old", "smokes")
SPELT = (("0", "1"), ("no", "YES"), ("False", "true"))
SCHEMA = {name: {"type": "number", "min": -3, "max": 3} for name in ("a", "b", "c")}


def _rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count, 3))
    scores = inputs @ np.array([[3.0, 0.0, 1.0], [0.0, -3.0, 1.0], [1.0, 1.0, -2.0]])
    return inputs, (scores + draw.logistic(size=scores.shape) > (0.0, 3.0, -1.0)).astype(int)


def _write(path: Path, count: int = 600, seed: int = 0, clients: int = 40) -> Path:
    inputs, labels = _rows(count, seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["who", "a", "b", "c", *LABELS])
        for row, (x, y) in enumerate(zip(inputs, labels, strict=True)):
            spelt = [words[one] for words, one in zip(SPELT, y, strict=True)]
            writer.writerow([f"p{row % clients}", *x.round(3), *spelt])
    return path


def test_the_loss_is_the_mean_of_the_labels_binary_cross_entropies() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = 5 * torch.randn(20, 3, generator=draw)
    targets = torch.randint(0, 2, (20, 3), generator=draw)
    expected = functional.binary_cross_entropy_with_logits(
        outputs, targets.float(), reduction="none"
    )
    found = example_losses(Task.MULTI_LABEL, outputs, targets)
    assert torch.allclose(found, expected.mean(1))
    weights = torch.tensor([1.0, 5.0, 2.0])
    own = ClassWeights((1.0, 5.0, 2.0))(outputs, targets)
    assert torch.allclose(own, (expected * torch.where(targets == 1, weights, 1.0)).mean(1))


def test_a_table_with_several_labels(tmp_path: Path) -> None:
    path, (_, labels) = _write(tmp_path / "t.csv"), _rows(600)
    found = fv.from_table(path, label=LABELS, client_column="who", test_fraction=0)
    assert (found.task, found.classes, found.class_names) == (Task.MULTI_LABEL, 3, LABELS)
    assert found.features == ("a", "b", "c")
    first = found.train.targets[: found.sizes[0]]
    assert (first == labels[::40]).all()
    known = fv.from_table(path, label=LABELS, client_column="who", schema={"columns": SCHEMA})
    assert known.unprotected == ()  # names of columns are public, and truths have no others


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"label": "sick,smoke"}, r"no column 'smoke' \(the label\); did you mean 'smokes'"),
        ({"label": "sick,sick"}, r"name each column once"),
        ({"label": "sick,who"}, "two roles"),
        ({"label": "sick,smokes", "classes": ["x"]}, "Leave classes and separators out"),
        ({"label": "sick,smokes", "task": "regression"}, "must be multi-label"),
        (
            {"label": "a,sick", "schema": {"columns": SCHEMA}},
            "must be a boolean",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: Any, wanted: str) -> None:
    path = _write(tmp_path / "t.csv")
    with pytest.raises(fv.ConfigError, match=wanted):
        fv.from_table(path, client_column="who", **given)


def test_rows_that_lack_a_label_keep_their_places(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who,x,p,q\n" + "\n".join(f"{i % 3},{i},{i % 2},1" for i in range(9)) + "\n")
    path.write_text(path.read_text() + "0,5,,1\n1,6,0,?\n2,6,0,word\n")
    found = fv.from_table(path, label="p,q", client_column="who", test_fraction=0)
    assert found.sizes.tolist() == [4, 4, 4]
    assert np.flatnonzero(~found.train.usable).tolist() == [3, 7, 11]


def test_arrays_of_truths_are_several_labels() -> None:
    inputs, labels = _rows(60)
    owners = np.arange(60) % 6
    for targets in (labels, labels.astype(bool)):
        assert Federation.from_arrays(inputs, targets, owners).task is Task.MULTI_LABEL
    floats = Federation.from_arrays(inputs, labels * 1.0, owners, task="multi-label")
    assert floats.train.targets.dtype == np.int64
    assert floats.unprotected == ()
    with pytest.raises(fv.ConfigError, match="say task='multi-label'"):
        Federation.from_arrays(inputs, labels * 1.0, owners)
    for strange in (labels * 2, labels * 0.5):
        found = Federation.from_arrays(inputs, strange, owners, task="multi-label")
        assert found.unusable == labels.any(1).sum()


def test_figures_are_scikit_learn_s() -> None:
    draw = np.random.default_rng(1)
    truths = (draw.random((400, 3)) < (0.5, 0.1, 0.8)).astype(np.int64)
    chances = np.clip(0.3 * truths + 0.7 * draw.random((400, 3)), 0, 1)
    found, guessed = label_scores(LABELS, chances, truths), chances > 0.5
    expected = {
        "subset_accuracy": metrics.accuracy_score(truths, guessed),
        "accuracy": 1 - metrics.hamming_loss(truths, guessed),
        "f1": metrics.f1_score(truths, guessed, average="macro"),
        "f1_micro": metrics.f1_score(truths, guessed, average="micro"),
        "balanced_accuracy": np.mean(
            [metrics.balanced_accuracy_score(truths[:, i], guessed[:, i]) for i in range(3)]
        ),
        "auc": metrics.roc_auc_score(truths, chances),
        "log_loss": np.mean([metrics.log_loss(truths[:, i], chances[:, i]) for i in range(3)]),
        "brier": np.mean([metrics.brier_score_loss(truths[:, i], chances[:, i]) for i in range(3)]),
    }
    assert found.figures == pytest.approx(expected, rel=1e-5)
    usual = np.tile(truths.mean(0) > 0.5, (400, 1))
    assert found.constant["accuracy"] == pytest.approx((usual == truths).mean())
    assert found.constant["f1_micro"] == pytest.approx(
        metrics.f1_score(truths, usual, average="micro")
    )
    assert found.clearly_better
    blind = np.tile(truths.mean(0), (400, 1))
    assert not label_scores(LABELS, blind, truths).clearly_better


def test_a_run_its_predictions_and_its_exports(tmp_path: Path, capsys: Any) -> None:
    """By the command: whole clients, then single rows, certified by a schema."""
    path, new = _write(tmp_path / "t.csv"), _write(tmp_path / "new.csv", 200, seed=1)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"columns": SCHEMA}))
    data = ["--data", str(path), "--client-column", "who", "--schema", str(schema)]
    data += ["--set", 'data.label=["sick", "smokes"]']
    quick = ["--set", "training.rounds=8", "--set", "training.learning_rate=2.0", "--quiet"]
    quick += ["--set", "privacy.clip_norm=1.0", "--no-report", "--json"]
    inputs, labels = _rows(200, seed=1)
    labels = labels[:, [0, 2]]
    for unit, steps in (("client", "10"), ("record", "1")):
        run = tmp_path / unit
        more = ["--unit", unit, "--set", f"training.local_steps={steps}", "--output", str(run)]
        assert main(["run", *data, *more, *quick]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["guarantee"]["certified"], result["guarantee"]["reason"]
        model = fv.load_run(run)
        chances = model.predict_proba(str(new))
        weight, bias = (one.detach().numpy() for one in model.module.parameters())
        seen = np.clip(inputs.round(3), -3, 3) / 3
        assert np.allclose(chances, 1 / (1 + np.exp(-(seen @ weight.T + bias))), atol=1e-5)
        assert (model.predict(str(new)) == (chances > 0.5)).all()
        scores = model.evaluate(str(new), metrics={"hamming": metrics.hamming_loss})
        assert scores.clearly_better
        assert scores.figures["hamming"] == pytest.approx(((chances > 0.5) != labels).mean())
        model.export(run / "model.pt2")
        program = torch.export.load(str(run / "model.pt2")).module()
        again = program(torch.from_numpy(seen.astype(np.float32))).detach().numpy()
        assert np.allclose(again, chances, atol=1e-6)
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), str(new), "--output", str(out), "--keep", "who"]) == 0
    header = out.read_text().splitlines()[0].replace('"', "")
    assert header == (
        "who,prediction of sick,prediction of smokes,probability of sick,probability of smokes"
    )
    assert main(["evaluate", str(run), str(new)]) == 0
    assert "rows with all labels right" in capsys.readouterr().out


TAGS = ("large", "red", "7")


def _tagged(path: Path, count: int = 600, seed: int = 0, clients: int = 40) -> Path:
    """The same truths as names in one cell, in any order, with blanks, and empty where none holds;
    the last is a number in other spellings."""
    inputs, labels = _rows(count, seed)
    draw = np.random.default_rng(seed)
    lines = ["who,a,b,c,tags"]
    for row, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        named = [tag for tag, holds in zip((*TAGS[:2], "7.0"), y, strict=True) if holds]
        draw.shuffle(named)
        numbers = ",".join(map(str, x.round(3)))
        lines.append(f'p{row % clients},{numbers},"{" ;".join(named)}"')
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("how", ["rows", "option", "schema"])
def test_one_column_with_several_classes_in_a_cell(tmp_path: Path, how: str) -> None:
    path, (_, labels) = _tagged(tmp_path / "t.csv"), _rows(600)
    entry = {"type": "category", "categories": list(TAGS), "separator": ";"}
    given: dict[str, Any] = {
        "rows": {"label_separator": ";"},
        "option": {"label_separator": ";", "classes": TAGS, "schema": {"columns": SCHEMA}},
        "schema": {"schema": {"columns": SCHEMA | {"tags": entry}}},
    }[how]
    found = fv.from_table(path, label="tags", client_column="who", test_fraction=0, **given)
    names = found.class_names
    assert found.task is Task.MULTI_LABEL
    assert set(names) == set(TAGS)
    assert len(found.train) == 600  # an empty cell is a row without any class, not a gap
    owners = np.array([f"p{row % 40}" for row in range(600)])
    rows = np.concatenate([np.flatnonzero(owners == name) for name in found.owners])
    order = [TAGS.index(name) for name in names]
    assert (found.train.targets == labels[rows][:, order]).all()
    classes = any("classes, their names" in one for one in found.unprotected)
    assert classes == (how == "rows")
    assert (found.unprotected == ()) == (how != "rows")


def test_lists_are_read_as_cells_are() -> None:
    """As frames of Arrow and polars store them, and as Python's own; numbers too."""
    tags = [["a", "b"], ["a"], [], ["b"], None] * 20
    who, x = [f"c{i % 5}" for i in range(100)], [float(i) for i in range(100)]
    ones = [[int(tag == "b") for tag in own or []] for own in tags]
    expected = np.array([["a" in (own or []), "b" in (own or [])] for own in tags])
    schema = {"columns": {"x": {"type": "number", "min": 0, "max": 100}}}
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 0.01, 1e-6, seed=0)
    for cells, names in ((tags, ("a", "b")), (ones, ("0", "1"))):
        for column in (
            cells,
            pa.array(cells),
            pa.array(cells, pa.large_list(pa.array(cells).type.value_type)),
        ):
            for more in ({}, {"schema": schema, "classes": names}, {"offer": offer}):
                frame = {"who": who, "x": x, "tags": column}
                given = {"label": "tags", "client_column": "who", "label_separator": ";"}
                found = fv.from_table(frame, test_fraction=0, **given, **more)
                assert found.class_names == names
                assert (
                    found.train.targets == np.concatenate([expected[i::5] for i in range(5)])
                ).all()


def _described(**label: Any) -> dict[str, Any]:
    return {"columns": SCHEMA | {"tags": {"type": "category", **label}}}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"label_separator": ""}, "must be text"),
        ({"label_separator": ";", "task": "regression"}, "must be multi-label"),
        ({"label_separator": ";", "label": "a,b"}, "Leave classes and separators out"),
        (
            {"schema": {"columns": {"a": {**SCHEMA["a"], "separator": ";"}}}},
            "separator is for a label",
        ),
        (
            {
                "schema": {
                    "columns": {"b": {"type": "category", "categories": ["x"], "separator": ";"}}
                }
            },
            "column 'b' has a separator, which is for the label",
        ),
        (
            {"label_separator": ";", "label": "a", "schema": {"columns": SCHEMA}},
            "no such separator",
        ),
        ({"label_separator": ";", "classes": ["red;large", "x"]}, "'red;large' contains it"),
        ({"label_separator": ";", "classes": ["red", "red"]}, "'red' stands there twice"),
        (
            {"label_separator": ";", "schema": _described(categories=["red;large", "x"])},
            "'red;large' contains it",
        ),
        (
            {"label_separator": ";", "schema": _described(buckets=4)},
            "no such separator",
        ),
    ],
)
def test_separators_that_make_no_sense_are_refused(
    tmp_path: Path, given: dict[str, Any], wanted: str
) -> None:
    path = _tagged(tmp_path / "t.csv")
    with pytest.raises(fv.ConfigError, match=wanted):
        fv.from_table(path, **{"label": "tags", "client_column": "who", **given})


@pytest.mark.parametrize(("unit", "clients"), [("client", 1000), ("record", 1)])
def test_classes_of_cells_can_be_bought(
    tmp_path: Path, capsys: Any, unit: str, clients: int
) -> None:
    """By the plain command: certified, and a class that one client alone has is no class."""
    path, run = _tagged(tmp_path / "t.csv", 3000, clients=clients), tmp_path / "run"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].rsplit(",", 1)[0] + ',"secret; large"'
    path.write_text("\n".join(lines) + "\n")
    call = ["--data", str(path), "--client-column", "who", "--label", "tags"]
    call += [
        "--label-separator",
        ";",
        *TUNED,
        "--unit",
        unit,
        "--set",
        "data.statistics=bought",
        "--quiet",
    ]
    call += ["--set", "privacy.epsilon=8", "--no-report", "--json", "--output", str(run)]
    assert main(["run", *call]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["guarantee"]["certified"], result["guarantee"]["reason"]
    model = fv.load_run(run)
    assert set(model.class_names) == set(TAGS)
    assert "secret" not in (run / "recipe.toml").read_text()
    assert len(model.predict(str(path))) == 3000
    assert main(["evaluate", str(run), str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == 3000  # empty cells are rows
    assert any("1 of 3000 rows name a class that the model does not" in n for n in said["notes"])


def test_a_label_that_is_no_truth_counts_as_false_among_bought_ones(tmp_path: Path) -> None:
    """A row that vanished would be noticed."""
    path = _write(tmp_path / "t.csv", 900, clients=1)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    for row in rows[1:100]:
        row[-1] = "perhaps"
    path.write_text("\n".join(map(",".join, rows)).replace(LABELS[1], "old") + "\n")
    offer = Offer(Unit.RECORD, Trust.LOCAL, 1.0, 1e-6, seed=0)
    given = {"client_column": "who", "test_fraction": 0, "offer": offer}
    found = fv.from_table(path, label="sick,smokes", **given)
    assert len(found.train) == 900
    assert not found.train.targets[:99, 1].any()
    assert (found.train.targets[99:] == _rows(900)[1][99:, [0, 2]]).all()


def test_a_classifier_of_several_labels() -> None:
    inputs, labels = _rows(800)
    settings = {
        "training.rounds": 30,
        "training.learning_rate": 2.0,
        "privacy.clip_norm": 2.0,
        "data.statistics": "data",
    }
    model = fv.DPFedClassifier(settings=settings, epsilon=20.0, random_state=0)
    model.fit(inputs[:600], labels[:600])
    assert model.predict(inputs).shape == model.predict_proba(inputs).shape == labels.shape
    guessed = model.predict(inputs[600:])
    assert (guessed == labels[600:]).mean() > 0.8
    assert model.score(inputs[600:], labels[600:]) == pytest.approx(
        (guessed == labels[600:]).all(1).mean()
    )
    model.fit(inputs, labels * 2)  # rows with a 2 contribute nothing, and stop nothing
    assert model.predict(inputs).shape == labels.shape
