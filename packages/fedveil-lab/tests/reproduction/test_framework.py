"""Laws of the framework: what is finished stays, what is shown is complete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.data.sources import load
from fedveil.report.store import Store
from fedveil_lab.reproduction import case as case_module
from fedveil_lab.reproduction.case import Case, Certified, Claimed, Data, Without
from fedveil_lab.reproduction.charts import draw, lines_of
from fedveil_lab.reproduction.experiment import Difference, Experiment, Panel, Scale
from fedveil_lab.reproduction.run_case import run_case
from fedveil_lab.reproduction.runs import finish, pending, rows_of, tasks
from fedveil_lab.reproduction.writing import document, page

DELTA = 1e-3
VALUES = (
    ("model.name", "logistic"),
    ("model.hidden", []),  # a list, as TOML has it
    ("training.method", "dp-fedavg"),
    ("training.rounds", 3),
    ("training.rate", 0.3),
    ("training.local_steps", 2),
    ("training.batch_size", 8),
)


def case(kind: str, epsilon: float) -> Case:
    noise = Claimed(epsilon, DELTA, 2.0) if kind == "paper" else Certified(epsilon, DELTA)
    return Case(
        labels=(("noise", kind), ("epsilon", epsilon)),
        data=Data("digits", (("clients", 40),), "iid"),
        values=VALUES,
        noise=noise,
        published=50.0 if kind == "paper" else None,
        every=1,
        measures=("train_loss", "gradient_norm", "update_norms"),
    )


CASES = tuple(case(kind, epsilon) for kind in ("paper", "certified") for epsilon in (2.0, 8.0))

EXPERIMENT = Experiment(
    name="tiny",
    paper="Nobody",
    title="a table",
    setting=("digits",),
    differences=(
        Difference("everything", "large", "small"),
        Difference("rounds", "many", "three", only=Scale.QUICK),
    ),
    cases=lambda scale: CASES,
    metric="accuracy",
    unit="%",
    panels=(
        Panel("final", "epsilon", "accuracy", "noise"),
        Panel("curve", "round", "loss", "epsilon", (("noise", "paper"),)),
    ),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("results") / ".runs")
    finish(tasks(EXPERIMENT, Scale.QUICK), store)
    return store


def without_time(outcome: dict | None) -> dict:
    assert outcome is not None
    return {key: value for key, value in outcome.items() if key != "seconds"}


def test_a_killed_runner_loses_nothing_finished_and_ends_with_the_same_results(
    store: Store, tmp_path: Path
) -> None:
    todo = tasks(EXPERIMENT, Scale.QUICK)
    broken = Store(tmp_path)
    done = []

    def dies_in_the_third(case, seed, tick):  # type: ignore[no-untyped-def]
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(case.key(seed))
        return run_case(case, seed, tick)

    with pytest.raises(KeyboardInterrupt):
        finish(todo, broken, run=dies_in_the_third)
    assert [key for key in done if broken.find(key) is None] == []
    assert len(list(pending(todo, broken))) == len(todo) - 2

    again = []

    def counted(case, seed, tick):  # type: ignore[no-untyped-def]
        again.append(case.key(seed))
        return run_case(case, seed, tick)

    assert finish(todo, broken, run=counted) == len(todo) - 2
    assert not set(again) & set(done)
    for key in (case.key(seed) for case, seed in todo):
        assert without_time(broken.find(key)) == without_time(store.find(key))


def test_a_run_killed_on_its_way_goes_on_from_its_last_evaluation(tmp_path: Path) -> None:
    case, kept = CASES[0], tmp_path / "a.halfway"
    whole = run_case(case, 1)

    def dies(share: float) -> None:
        if share == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_case(case, 1, dies, kept)
    shares: list[float] = []
    assert without_time(run_case(case, 1, shares.append, kept)) == without_time(whole)
    assert shares == [1.0]  # the last round alone
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        run_case(case, 1, dies, kept)
    with pytest.raises(ConfigError, match="another recipe"):
        run_case(case, 2, kept=kept)


def test_what_decides_a_run_names_it_and_what_only_shows_it_does_not() -> None:
    first = CASES[0]
    shown = replace(first, labels=(("other", 1),), published=None)
    assert shown.key(0) == first.key(0)
    keys = {item.key(seed) for item in CASES for seed in (0, 1)}
    assert len(keys) == 2 * len(CASES)
    longer = replace(first, values=(*first.values, ("model.seed", 1)))
    assert longer.key(0) != first.key(0)
    with pytest.raises(ConfigError, match="twice"):
        replace(first, labels=(("a", 1), ("a", 2)))


@pytest.mark.parametrize("part", ["train", "test", "owners"])
def test_code_that_deals_rows_otherwise_names_other_runs(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same data set by the same name, of which one row went elsewhere."""
    first = CASES[0]
    before = first.key(0)

    def dealt_otherwise(*args: Any, **settings: Any) -> Federation:
        made = load(*args, **settings)
        if part == "owners":
            offsets = made.offsets.copy()
            offsets[1] += 1
            return replace(made, offsets=offsets)
        rows = np.arange(len(getattr(made, part)))
        rows[:2] = rows[1::-1]
        return replace(made, **{part: getattr(made, part).take(rows)})

    monkeypatch.setattr(case_module, "load", dealt_otherwise)
    for kept in (case_module.federation_of, case_module.federation_digest):
        kept.cache_clear()
    assert first.key(0) != before
    monkeypatch.undo()
    for kept in (case_module.federation_of, case_module.federation_digest):
        kept.cache_clear()
    assert first.key(0) == before


def test_shared_runs_are_run_once(tmp_path: Path) -> None:
    twin = Case((("name", "twin"),), CASES[0].data, VALUES, CASES[0].noise, None, 1,
                CASES[0].measures)  # fmt: skip
    both = Experiment(**{**EXPERIMENT.__dict__, "cases": lambda scale: (CASES[0], twin)})
    assert len(list(pending(tasks(both, Scale.QUICK, 1), Store(tmp_path)))) == 1


def test_tables_hold_both_epsilons_the_papers_number_and_the_seeds(store: Store) -> None:
    rows = rows_of(EXPERIMENT, Scale.QUICK, store)
    described = document(EXPERIMENT, Scale.QUICK, rows, 0)
    text = page(described)
    json.dumps(described, allow_nan=False)
    assert "ε claimed" in text
    assert "ε certified" in text
    for row in described["rows"]:
        assert row["ours"]["seeds"] == EXPERIMENT.quick_seeds
        assert row["epsilon_certified"] > 0
        paper = row["labels"]["noise"] == "paper"
        assert (row["epsilon_claimed"] is not None) == paper
        assert row["paper"] == (50.0 if paper else None)
    # What differs at the other scale is not shown.
    assert "three" in text
    assert "three" not in page(document(EXPERIMENT, Scale.FULL, rows, 0))


def test_certified_noise_proves_exactly_the_epsilon_that_was_asked_for(store: Store) -> None:
    for row in rows_of(EXPERIMENT, Scale.QUICK, store):
        if row["noise"] == "certified":
            assert row.cost["certified"] <= row["epsilon"]
            assert row.cost["certified"] == pytest.approx(row["epsilon"], rel=2e-3)


def test_without_noise_only_the_noise_is_missing() -> None:
    """At 1e-12 clips of noise, two seeds with everybody in every round end alike."""
    silent = Case((), CASES[0].data, (*VALUES[:3], ("training.sampling", "everyone"),
                                      ("training.local_steps", 2)), Without())  # fmt: skip
    first, second = (run_case(silent, seed)["final"]["loss"] for seed in (0, 1))
    loud = Case((), silent.data, silent.values, Claimed(1.0, DELTA, 1.0))
    assert first == second
    assert run_case(loud, 0)["final"]["loss"] != run_case(loud, 1)["final"]["loss"]
    assert run_case(silent, 0)["cost"]["certified"] is None


def test_pictures_show_what_the_outcomes_say(store: Store) -> None:
    rows = rows_of(EXPERIMENT, Scale.QUICK, store)
    final, curve = (lines_of(panel, rows) for panel in EXPERIMENT.panels)
    assert set(final) == {"paper", "certified"}
    assert [x for x, _ in final["paper"]] == [2.0, 8.0]
    assert final["paper"][0][1] == rows[0].spread("accuracy")
    assert [x for x, _ in curve[2.0]] == [0.0, 1.0, 2.0, 3.0]
    picture = ElementTree.fromstring(draw(document(EXPERIMENT, Scale.QUICK, rows, 0)))
    lines = picture.findall(".//{*}g/{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2, 4, 4]
