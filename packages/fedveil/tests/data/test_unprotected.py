"""What enters a model from private rows is said; what is declared needs no saying."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data import declared
from fedveil.data.draft import COLUMNS
from fedveil.data.federation import ARTIFICIAL_NOTE, HELD_OUT_NOTE, Examples, Federation, Task
from fedveil.data.partition import IID, ByOwner, Dirichlet, SortedSlices
from fedveil.data.sources import load
from fedveil.data.sources.source import Pool, Source
from fedveil.data.table import STANDARDISED, from_table
from fedveil.training.engines.shared_memory import share
from fedveil.tune.proxy import some_clients

INPUTS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
LABELS = np.arange(60) % 3
OWNERS = np.arange(60) % 6
SMALL = {
    least: f"owners with fewer than {least} rows were left out, so rows decided who takes part"
    for least in (3, 4)
}


def made(inputs=INPUTS, targets=LABELS, owners=OWNERS, **settings):
    return Federation.from_arrays(inputs, targets, owners, **settings)


@pytest.mark.parametrize(
    ("targets", "settings", "says"),
    [
        (LABELS, {}, (declared.CLASSES,)),
        (LABELS, {"classes": 3}, ()),
        (LABELS, {"classes": 5}, ()),
        (LABELS, {"class_names": ("a", "b", "c")}, ()),
        (LABELS.astype(float), {"task": "classification"}, (declared.CLASSES,)),
        (LABELS > 0, {}, ()),  # true or false: two classes, whatever the rows hold
        (np.array(["a", "b", "c"])[LABELS], {}, (declared.CLASS_NAMES,)),
        (np.array(["a", "b", "c"])[LABELS], {"classes": 3}, (declared.CLASS_NAMES,)),
        (np.array(["a", "b", "c"])[LABELS], {"class_names": ("c", "b", "a")}, ()),
        (INPUTS[:, 0], {}, ()),  # regression has no classes
        (LABELS.tolist(), {"classes": 3}, (declared.TASK,)),
        (LABELS.tolist(), {"classes": 3, "task": "classification"}, ()),
    ],
)
def test_what_comes_from_labels_is_said_unless_declared(targets, settings, says):
    assert made(targets=targets, **settings).unprotected == says


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        (ByOwner(), ()),
        (ByOwner(cap=4), ()),
        (ByOwner(clients=3), (declared.DRAWN_OWNERS,)),
        (IID(5), ()),
        (Dirichlet(5, 1.0), (declared.DEALT_BY_LABEL,)),
        (SortedSlices(5), (declared.DEALT_BY_LABEL,)),
        (ByOwner(at_least=3), (SMALL[3],)),
        (ByOwner(examples_per_client=4), (SMALL[4],)),
    ],
)
def test_dealing_by_labels_or_sizes_is_said(partition, says):
    federation = made(classes=3, partition=partition)
    assert federation.unprotected == says
    assert (ARTIFICIAL_NOTE in federation.notes) == (not isinstance(partition, ByOwner))
    assert made(classes=3, partition=partition, public=True).unprotected == ()


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        (None, ()),
        (ByOwner(at_least=3), (SMALL[3],)),
        ("dirichlet", (declared.DEALT_BY_LABEL,)),
    ],
)
def test_a_source_of_another_package_holds_somebody_s_records(partition, says):
    """Names alone do not make data public, as those of the published benchmarks are."""

    def build(arrays, copy):
        return Pool(Examples(INPUTS, LABELS), owners=OWNERS)

    about = {"what": "", "licence": "", "task": Task.CLASSIFICATION, "classes": 3, "examples": 60}
    source = Source("ward", **about, clients=6, partition=ByOwner(), build=build, test_fraction=0.2)
    settings = {"clients": 5, "alpha": 1.0} if partition == "dirichlet" else {}
    federation = source.load(partition, **settings)
    assert federation.unprotected == says
    assert HELD_OUT_NOTE in federation.notes
    assert load("digits", "dirichlet", clients=5, alpha=1.0).unprotected == ()


def test_what_is_declared_of_the_classes_must_agree():
    with pytest.raises(ConfigError, match="classes=4, but class_names holds 3"):
        made(classes=4, class_names=("a", "b", "c"))
    with pytest.raises(ConfigError, match="classes=0"):
        made(classes=0)


def test_a_vocabulary_is_declared_or_said_and_covers_the_inputs():
    tokens = np.random.default_rng(0).integers(0, 9, (60, 4))
    tokens[7, 1] = 11
    found = made(tokens, tokens % 5, task="sequence")
    assert found.classes == 12
    assert found.unprotected == (declared.VOCABULARY,)
    assert made(tokens, tokens % 5, task="sequence", classes=12).unprotected == ()
    assert made(tokens, tokens % 5, task="sequence", classes=10).unusable == 1


def test_the_sentences_survive_every_copy(tmp_path):
    federation = made(partition=ByOwner(at_least=2))
    said = federation.unprotected
    assert len(said) == 2
    assert replace(federation, name="other").unprotected == said
    assert some_clients(federation, 3, seed=0).unprotected == said
    assert Federation.open(federation.save(tmp_path / "saved")).unprotected == said
    assert pickle.loads(pickle.dumps(federation)).unprotected == said
    shared = share(federation)
    try:
        assert shared.open().unprotected == said
    finally:
        shared.close()


TABLE = "who,x,day,job,ok,y,z\n" + "".join(
    f"{i % 4},{i * 1.5},2020-01-{i % 9 + 1:02},{'abc'[i % 3]},{i % 2 == 0},{'uv'[i % 2]},{i / 7}\n"
    for i in range(40)
)
INPUT_SCHEMA = {
    "x": {"type": "number", "min": 0, "max": 60},
    "job": {"type": "category", "categories": ["a", "b", "c"]},
}
NAMED = {"y": {"type": "category", "categories": ["u", "v"]}}
RANGED = {"z": {"type": "number", "min": 0, "max": 6}}


@pytest.mark.parametrize(
    ("label", "task", "schema", "says"),
    [
        (
            "y",
            None,
            None,
            (
                COLUMNS,
                "means and deviations of 3 columns were taken from the data",
                "categories of 1 column were taken from the data",
                declared.TASK,
                declared.CLASS_NAMES,
            ),
        ),
        ("y", None, INPUT_SCHEMA, (declared.TASK, declared.CLASS_NAMES)),
        ("y", "classification", INPUT_SCHEMA, (declared.CLASS_NAMES,)),
        ("y", None, INPUT_SCHEMA | NAMED, ()),
        ("z", None, INPUT_SCHEMA, (declared.TASK, STANDARDISED)),
        ("z", "regression", INPUT_SCHEMA, (STANDARDISED,)),
        ("z", None, INPUT_SCHEMA | RANGED, ()),
    ],
)
def test_a_table_says_one_sentence_a_kind(tmp_path, label, task, schema, says):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    schema = None if schema is None else {"columns": schema}
    federation = from_table(path, label=label, client_column="who", task=task, schema=schema)
    assert federation.unprotected == says
    assert federation.task is (Task.CLASSIFICATION if label == "y" else Task.REGRESSION)
