"""Plans that protect persons: what is promised, what is refused, and what records leave to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

import fedveil as fv
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.dp_schema import Offer
from fedveil.data.table import from_table
from fedveil.methods.registry import method_of
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.participations import participations
from fedveil.planning.recipe import parse, with_defaults
from fedveil.tune.defaults import choose

DELTA = 1e-5


def visits(seed: int = 0, persons: int = 90, clients: int = 3, **dealt: Any) -> fv.Federation:
    """Several rows of each person, which are alike."""
    draw = np.random.default_rng(seed)
    whose = np.repeat(np.arange(persons), draw.integers(1, 7, persons))
    own = draw.normal(size=(persons, 3))
    inputs = (own[whose] + 0.3 * draw.normal(size=(len(whose), 3))).astype(np.float32)
    targets = (inputs[:, 0] + 0.2 * draw.normal(size=len(whose)) > 0).astype(np.int64)
    return fv.Federation.from_arrays(
        inputs, targets, whose % clients, persons=whose, classes=2, **dealt
    )


def planned(
    federation: fv.Federation,
    unit: fv.Unit,
    *,
    rate: float | None = 256 / 10_000,
    rounds: int = 782,
    noise: float = 1.0,
    steps: int = 1,
    model: str = "logistic",
    **settings: Any,
) -> fv.Plan:
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=steps, batch_size=8, batch_rate=rate)
    cohort = fv.CohortRule(fv.Scheme.EVERYONE)
    method = (fv.dp_sgd if steps == 1 else fv.gradient_noise)(
        rounds=rounds, cohort=cohort, local=local, clip_norm=1.0, unit=unit, **settings
    )
    budget = fv.Budget(noise_multiplier=noise, delta=DELTA)
    return fv.plan(method, federation, fv.build(model, federation), budget=budget, seed=0)


TRUSTED = {"trusted": True, "secure_sum": False}
SLOW = partial(pytest.param, marks=pytest.mark.slow)  # mixtures of many


@pytest.mark.parametrize(("sites", "epsilon"), [(None, 4.517), (2, 10.20), SLOW(4, 24.27)])
def test_a_person_at_several_sites_has_the_golden_epsilon(
    sites: int | None, epsilon: float
) -> None:
    """The three hospitals: a person for a record, and the mixture for one at several sites."""
    plan = planned(visits(), fv.Unit.PERSON, sites_per_person=sites, **TRUSTED)
    assert plan.guarantee.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert (plan.guarantee.unit, plan.privacy_model.contributions) == ("person", sites or 1)
    assert plan.privacy_model.population == len(np.unique(plan.federation.train.persons))
    assert "one person" in plan.guarantee.summary


@pytest.mark.parametrize(("records", "epsilon"), [(2, 10.20), SLOW(8, 62.18)])
def test_a_record_level_plan_says_what_a_person_has(records: int, epsilon: float) -> None:
    """By the mixture, for as many records as are declared and enforced, and none if nobody says."""
    plan = planned(visits(records_per_person=records), fv.Unit.RECORD, **TRUSTED)
    assert plan.guarantee.epsilon == pytest.approx(4.517, rel=1e-3)
    assert plan.person_epsilon == pytest.approx(epsilon, rel=1e-3)
    train = plan.federation.train.only_usable()
    assert np.bincount(train.persons).max() == min(records, 6)
    assert planned(visits(), fv.Unit.RECORD, rounds=1, **TRUSTED).person_epsilon is None
    plan = planned(visits(records_per_person=records), fv.Unit.PERSON, rounds=1, **TRUSTED)
    assert plan.person_epsilon is None


def test_rows_that_do_not_count_have_bought_statistics_all_the_same() -> None:
    """A person of 40 rows has 40 votes in them, whatever the cap says of training."""
    draw = np.random.default_rng(0)
    rows = {
        "site": np.arange(4000) % 2,
        "patient": np.arange(4000) // 40,
        "age": draw.normal(size=4000),
        "dose": draw.normal(size=4000),
    }
    offer = Offer(fv.Unit.RECORD, fv.Trust.DISTRIBUTED, 2.0, 1e-7, shares=2, seed=0)
    how = {"label": "dose", "client_column": "site", "person_column": "patient", "offer": offer}
    federation = from_table(rows, task="regression", records_per_person=2, **how)
    assert federation.bought is not None
    plan = planned(federation, fv.Unit.RECORD, model="linear", rounds=2)
    assert plan.person_epsilon is None
    free = planned(replace(federation, bought=None), fv.Unit.RECORD, model="linear", rounds=2)
    assert free.person_epsilon > free.guarantee.epsilon


def test_a_person_at_two_sites_is_told_what_the_busier_one_costs() -> None:
    """The site of eight persons uses each in every step; all of them are at the other one too."""
    whose = np.concatenate([np.arange(40), np.arange(8)])
    inputs = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    owners, targets = np.repeat([0, 1], [40, 8]), np.arange(48) % 2
    federation = fv.Federation.from_arrays(
        inputs, targets, owners, persons=whose, classes=2, test_fraction=0.0
    )
    how = {"rate": None, "rounds": 3, "steps": 5, "secure_sum": False, "sites_per_person": 2}
    plan = planned(federation, fv.Unit.PERSON, **how)
    # Three rounds of one use here, and of five uses there.
    least = gaussian_mechanism.get_epsilon_gaussian(1 / (2 * (3 * 1 + 3 * 5) ** 0.5), DELTA)
    assert participations(plan).epsilons.min() >= least
    assert participations(plan).epsilons.max() <= plan.guarantee.epsilon * (1 + 1e-9)


def test_persons_cost_what_records_do_and_are_drawn_instead_of_them() -> None:
    """Batches, steps and uses count persons."""
    federation = visits()
    both = [planned(federation, unit, rounds=20) for unit in (fv.Unit.RECORD, fv.Unit.PERSON)]
    assert both[0].guarantee.epsilon == pytest.approx(both[1].guarantee.epsilon, rel=1e-6)
    shuffled = planned(federation, fv.Unit.PERSON, rate=None, rounds=4, steps=3, secure_sum=False)
    uses = shuffled.noise.record_uses()
    per_epoch = -(-federation.persons.sizes // 8)
    np.testing.assert_array_equal(uses, -(-3 // per_epoch))


def test_clipped_means_of_gradients_are_not_taken_for_convex() -> None:
    """A clipped gradient of a linear model is that of a convex loss; of a mean it is not."""
    federation = visits(clients=12)
    names = {}
    for unit in (fv.Unit.RECORD, fv.Unit.PERSON):
        local = fv.LocalTraining(fv.LearningRate(0.1), steps=2, batch_size=400)
        method = fv.gradient_noise(
            rounds=1, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=local, clip_norm=1.0,
            unit=unit,
        )  # fmt: skip
        model = fv.build("logistic", federation, input_norm=1.0)
        plan = fv.plan(method, federation, model, budget=fv.Budget(noise_multiplier=5.0), seed=0)
        names[unit] = type(plan.noise).__name__
    assert names == {fv.Unit.RECORD: "ConvexNoise", fv.Unit.PERSON: "GradientNoise"}


def test_runs_with_a_shared_seed_are_alike_whether_simulated_or_exact() -> None:
    """And a protected one is certified for persons."""
    federation = visits()
    plan = planned(federation, fv.Unit.PERSON, rate=0.3, rounds=10, noise=1e-4)
    exact = replace(plan, arithmetic=fv.Arithmetic.EXACT)
    weights = []
    for one in (plan, exact):
        run = fv.Run(one)
        run.finish()
        weights.append(run.state.weights.numpy())
    np.testing.assert_allclose(*weights, rtol=0.02, atol=0.02)
    guarded = fv.Run(replace(planned(federation, fv.Unit.PERSON, rate=0.3, rounds=2), seed=None,
                             arithmetic=fv.Arithmetic.EXACT))  # fmt: skip
    guarded.finish()
    assert guarded.guarantee.certified
    assert guarded.guarantee.unit is fv.Unit.PERSON


TABLE = {
    "training": {"method": "dp-sgd", "rounds": 2, "batch_size": 8, "learning_rate": 0.5},
    "privacy": {"unit": "person", "noise_multiplier": 1.0},
}


def file_of(folder: Path) -> Path:
    draw, lines = np.random.default_rng(1), ["hospital,patient_id,dose,ill"]
    for person in range(120):
        for _ in range(int(draw.integers(1, 5))):
            dose = draw.normal()
            lines.append(f"h{person % 3},p{person},{dose:.2f},{'ab'[int(dose > 0)]}")
    path = folder / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_recipe_protects_persons(tmp_path: Path) -> None:
    data = {"file": str(file_of(tmp_path)), "client_column": "hospital", "label": "ill"}
    data |= {"person_column": "patient_id", "columns": {
        "dose": {"type": "number", "mean": 0, "std": 1},
        "ill": {"type": "category", "categories": ["a", "b"]}}}  # fmt: skip
    table = {**TABLE, "data": data, "privacy": {**TABLE["privacy"], "sites_per_person": 2}}
    recipe = with_defaults(parse(table))
    plan = plan_of(recipe, federation_of(recipe.data))
    persons = plan.federation.persons.sizes.sum()
    assert plan.method.local.batch_rate == pytest.approx(8 * 3 / persons)
    assert plan.privacy_model.contributions == 2
    assert plan.guarantee.certified


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": {"method": "dp-fedavg"}}, "privacy.unit"),
        ({"privacy": {"unit": "record", "sites_per_person": 2}}, "sites_per_person"),
        ({"privacy": {"unit": "person", "sites_per_person": 0}}, "sites_per_person"),
        ({"privacy": {"unit": "people"}}, "privacy.unit"),
    ],
)
def test_what_is_not_proved_for_persons_is_refused(
    changes: dict[str, dict[str, Any]], named: str
) -> None:
    table = {name: {**keys, **changes.get(name, {})} for name, keys in TABLE.items()}
    with pytest.raises((ConfigError, PrivacyRefusal), match=named):
        method_of(with_defaults(parse(table)))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"adjacency": fv.Adjacency.ADD_REMOVE}, PrivacyRefusal),
        # Of one person at two sites under replace there is no proof.
        ({"adjacency": fv.Adjacency.REPLACE, "sites_per_person": 2}, PrivacyRefusal),
    ],
)
def test_what_cannot_be_proved_cannot_be_planned(
    settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        planned(visits(), fv.Unit.PERSON, rounds=2, **TRUSTED, **settings)
    nameless = replace(visits(), train=replace(visits().train, persons=None), verified=True)
    with pytest.raises(ConfigError, match="person_column"):
        planned(nameless, fv.Unit.PERSON, rounds=2)


def test_a_table_is_asked_for_its_persons(tmp_path: Path) -> None:
    """By a name in its header, which is public; where they are named, they are protected."""
    file = str(file_of(tmp_path))
    given = {"data.file": file, "data.client_column": "hospital", "data.label": "ill"}
    given |= {"data.statistics": "data", "privacy.epsilon": 2.0, "training.method": "dp-sgd"}
    given |= {"training.rounds": 2, "training.learning_rate": 0.5, "training.local_steps": 1}
    given |= {"privacy.clip_norm": 1.0, "privacy.unit": "record"}
    chosen = choose(parse({}, (), given), set(given))
    assert any("--person-column patient_id" in note for note in chosen.notes)
    kept = {key: value for key, value in given.items() if key != "privacy.unit"}
    del kept["training.method"]
    named = {**kept, "data.person_column": "patient_id"}
    chosen = choose(parse({}, (), named), set(named))
    assert chosen.recipe.privacy.unit == "person"
    assert not any("--person-column" in note for note in chosen.notes)


def test_artificial_clients_are_dealt_whole_persons() -> None:
    """Then the guarantee is about them; where records are dealt, it covers no person."""
    draw = np.random.default_rng(0)
    inputs, whose = draw.normal(size=(90, 3)).astype(np.float32), np.arange(90) // 3
    dealt = fv.Federation.from_arrays(
        inputs, np.arange(90) % 2, persons=whose, classes=2, partition=fv.IID(clients=3)
    )
    said = {
        unit: [s for s in planned(dealt, unit, rounds=1).privacy_model.not_covered if "rson" in s]
        for unit in (fv.Unit.RECORD, fv.Unit.PERSON)
    }
    assert said[fv.Unit.RECORD]
    assert not said[fv.Unit.PERSON]


def test_persons_must_be_known() -> None:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(60, 3)).astype(np.float32)
    nameless = fv.Federation.from_arrays(inputs, np.arange(60) % 2, np.arange(60) % 3, classes=2)
    with pytest.raises(ConfigError, match="person_column"):
        planned(nameless, fv.Unit.PERSON, rounds=2)
