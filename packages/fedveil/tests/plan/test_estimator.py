"""The scikit-learn estimators: its own checks, pipelines, text, and a guarantee after fit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedveil as fv

# Settings of one's own: the checks are about conventions, not about the search.
QUICK = {
    "training.rounds": 30,
    "training.local_steps": 1,
    "training.learning_rate": 0.5,
    "privacy.clip_norm": 2.0,
    "data.statistics": "data",
}


TELLING = "a refusal would tell that such a label is there: its row contributes nothing"


@parametrize_with_checks(
    [
        fv.DPFedClassifier(settings=QUICK, epsilon=50.0, random_state=0),
        fv.DPFedRegressor(settings=QUICK, epsilon=50.0, random_state=0),
    ],
    expected_failed_checks=lambda estimator: {"check_supervised_y_no_nan": TELLING},
)
def test_scikit_learn_s_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_classifier_with_owners_learns_and_says_what_it_promises() -> None:
    X, y = make_blobs(1200, centers=3, n_features=4, cluster_std=2.0, random_state=1)
    names = np.array(["red", "green", "blue"])[y]
    owners = np.arange(1200) % 100
    model = fv.DPFedClassifier(settings=QUICK | {"training.local_steps": 10}, random_state=1)
    assert clone(model).get_params() == model.get_params()
    model.fit(X[:1000], names[:1000], owners[:1000])
    assert model.score(X[1000:], names[1000:]) > 0.85
    assert model.classes_.tolist() == ["blue", "green", "red"]
    assert model.guarantee_ is not None
    assert model.guarantee_.unit is fv.Unit.CLIENT
    assert model.guarantee_.epsilon <= 4
    assert "seed" in model.guarantee_.reason
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()
    rows = model.predict_proba(X[:5])
    assert np.allclose(rows.sum(1), 1)
    assert (model.classes_[rows.argmax(1)] == model.predict(X[:5])).all()


def test_a_search_of_scikit_learn_turns_single_recipe_keys() -> None:
    X, y = make_blobs(300, centers=2, n_features=2, random_state=3)
    model = fv.DPFedClassifier(settings=QUICK, epsilon=50.0, random_state=0)
    grid = {"settings__training.rounds": [1, 20], "settings__server.learning_rate": [1.0]}
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    tried = [one["settings__training.rounds"] for one in search.cv_results_["params"]]
    assert tried == [1, 20]
    best = search.best_estimator_
    rounds = search.best_params_["settings__training.rounds"]
    assert best.settings_["training"]["rounds"] == rounds
    assert best.settings_["server"]["learning_rate"] == 1.0
    assert best.settings["training.learning_rate"] == QUICK["training.learning_rate"]
    assert model.settings == QUICK  # a search changes copies only


def test_protected_and_certified_with_public_knowledge() -> None:
    """Classes and scales declared, no seed: the promise is certified, and holds for one row."""
    X, y = make_blobs(900, centers=2, n_features=2, random_state=3)
    columns = {f"x{i}": {"type": "number", "mean": 0.0, "std": 5.0} for i in range(2)}
    settings = {key: QUICK[key] for key in QUICK if key != "data.statistics"}
    model = fv.DPFedClassifier(classes=[0, 1], schema=columns, settings=settings).fit(X, y)
    assert model.guarantee_ is not None
    assert model.guarantee_.certified, model.guarantee_.reason
    assert model.guarantee_.unit is fv.Unit.RECORD
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("odd", ["1", None, 7, [1]])
def test_one_label_of_another_type_changes_no_class_and_stops_nothing(odd: Any) -> None:
    """Of a list NumPy would make one type that holds them all: every 0 a "0", say."""
    X, y = make_blobs(200, centers=2, n_features=2, random_state=3)
    columns = {f"x{i}": {"type": "number", "mean": 0.0, "std": 5.0} for i in range(2)}
    settings = {key: QUICK[key] for key in QUICK if key != "data.statistics"}
    settings |= {"training.rounds": 2}
    told = []
    for third in (0, odd):
        labels = y.tolist()
        labels[2] = third
        model = fv.DPFedClassifier(classes=[0, 1], schema=columns, settings=settings)
        model.fit(X, labels)
        assert model.guarantee_ is not None
        assert model.guarantee_.certified, model.guarantee_.reason
        told.append((model.guarantee_.to_dict(), model.classes_.tolist(), model.classes_.dtype))
        assert {type(one) for one in model.classes_.tolist()} == {int}
    assert told[0] == told[1]


@pytest.mark.parametrize("odd", ["abc", None, 10**400])
@pytest.mark.parametrize("objects", [False, True])
def test_one_input_of_another_type_stops_nothing(odd: Any, objects: bool) -> None:
    X, y = make_blobs(60, centers=2, n_features=2, random_state=3)
    columns = {f"x{i}": {"type": "number", "mean": 0.0, "std": 5.0} for i in range(2)}
    settings = {key: QUICK[key] for key in QUICK if key != "data.statistics"}
    rows = X.tolist()
    rows[2][0] = odd
    if objects:
        table = np.empty((60, 2), object)
        for place, row in enumerate(rows):
            table[place, 0], table[place, 1] = row
        rows = table
    settings |= {"training.rounds": 2}
    model = fv.DPFedClassifier(classes=[0, 1], schema=columns, settings=settings).fit(rows, y)
    assert model.guarantee_ is not None
    assert model.guarantee_.certified, model.guarantee_.reason


@pytest.mark.parametrize("bad", [np.nan])
def test_numbers_that_are_not_finite_stop_nothing(bad: float) -> None:
    X, y = make_regression(200, 2, noise=5.0, random_state=2)
    columns = {f"x{i}": {"type": "number", "mean": 0.0, "std": 5.0} for i in range(2)}
    columns["__label__"] = {"type": "number", "mean": 0.0, "std": 50.0}
    settings = {key: QUICK[key] for key in QUICK if key != "data.statistics"}
    settings |= {"training.rounds": 2}
    told = []
    for spoiled in (False, True):
        if spoiled:
            X[3, 0], y[5] = bad, bad
        model = fv.DPFedRegressor(schema=columns, settings=settings).fit(X, y)
        assert model.guarantee_ is not None
        assert model.guarantee_.certified, model.guarantee_.reason
        told.append(model.guarantee_.to_dict())
        assert np.isfinite(model.predict(X)).all()
    assert told[0] == told[1]


def test_a_label_of_one_owner_is_told_to_nobody() -> None:
    """Nor how many labels there are, how long they are, or which place the others have."""
    draw = np.random.default_rng(5)
    X, owners = draw.normal(0, 1, (2000, 2)), np.repeat(np.arange(400), 5)
    y = np.where(X[:, 0] > 0, "well", "ill").astype("U20")
    y[17] = "a disease of Alice's"
    settings = {key: QUICK[key] for key in QUICK if key != "data.statistics"}
    settings |= {"training.sampling": "everyone", "training.rounds": 8}
    # At epsilon 8 a third of such short runs stay below 0.8; at 30 it is 23 deviations away.
    model = fv.DPFedClassifier(epsilon=30.0, unit="client", settings=settings).fit(X, y, owners)
    assert model.guarantee_ is not None
    assert model.guarantee_.certified, model.guarantee_.reason
    assert model.classes_.tolist() == ["ill", "well"]
    assert b"Alice" not in pickle.dumps(model)
    assert model.classes_.dtype == "U4"
    assert model.predict_proba(X).shape == (2000, 2)
    assert model.score(X, y) > 0.8


def test_frames_may_hold_text() -> None:
    draw = np.random.default_rng(4)
    job, age = draw.choice(["nurse", "driver", "clerk"], 800), draw.normal(50, 10, 800)
    y = (job == "nurse") * 2.0 + age / 10 + draw.normal(0, 0.3, 800)
    frame = pa.table({"job": job, "age": age})
    model = fv.DPFedRegressor(settings=QUICK, epsilon=8.0, random_state=4).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["job", "age"]
    assert model.score(frame, y) > 0.7


def test_persons_are_protected_with_all_their_rows() -> None:
    """Given to fit; rows of nobody are left out."""
    draw = np.random.default_rng(2)
    persons = np.repeat(np.arange(80), 4)
    X = draw.normal(size=(320, 3)) + draw.normal(size=(80, 3))[persons]
    y, names = (X[:, 0] > 0).astype(int), np.where(persons == 3, None, persons.astype(object))
    model = fv.DPFedClassifier(settings=QUICK, epsilon=8.0, random_state=0, classes=[0, 1])
    model.fit(X, y, groups=persons % 3, persons=names)
    assert model.guarantee_.unit is fv.Unit.PERSON
    assert model.guarantee_.privacy_model.population == 79
    assert model.score(X, y) > 0.8
    with pytest.raises(fv.ConfigError, match="persons"):
        model.fit(X, y, persons=names[:-1])
