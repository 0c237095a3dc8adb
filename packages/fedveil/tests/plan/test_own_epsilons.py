"""Persons and clients that bring an epsilon of their own: what they pay, and who notices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom

import fedveil as fv
from fedveil.cli import main
from fedveil.core.randomness import Randomness
from fedveil.data.dp_schema import Offer
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.participations import participations
from fedveil.run.directory import _header
from fedveil.run.run import job_of
from fedveil.training.client import batches
from fedveil.training.client.batches import draw_batches
from fedveil.training.engines.isolated import isolated_job
from fedveil.tune.proxy import of_clients

ALARM = 1e-9  # how often a correct program fails a statistical test below
GROUPS = {0.5: 30, 1.0: 30}  # persons by the epsilon that they bring; 240 bring none
SECRET = ("training.batches=poisson", "training.batch_size=30", "training.rounds=20")


def visits(brought: Any = None) -> fv.Federation:
    """Three hospitals, 300 patients with four visits each."""
    persons = np.repeat(np.arange(300), 4)
    inputs = np.random.default_rng(0).normal(size=(1200, 5)).astype(np.float32)
    targets = (inputs[:, 0] > 0).astype(np.int64)
    if brought is None:
        brought = np.select([persons % 10 == 0, persons % 10 == 1], [0.5, 1.0], np.nan)
    return fv.Federation.from_arrays(
        *(inputs, targets, persons % 3),
        persons=persons,
        epsilons=brought,
        classes=2,
        test=(inputs[:0], targets[:0]),
    )


def planned(data: fv.Federation, *more: str) -> fv.Plan:
    given = ["privacy.unit=person", "privacy.epsilon=3", "privacy.trust=central", *SECRET, *more]
    return plan_of(recipes.with_defaults(recipes.parse({}, given)), data)


@pytest.fixture(scope="module")
def plan() -> fv.Plan:
    return planned(visits())


def test_everybody_pays_what_it_has_brought_and_the_run_the_largest(plan: fv.Plan) -> None:
    """By another library, at each group's own rate."""
    assert plan.guarantee.certified
    assert 2.99 < plan.guarantee.epsilon <= 3
    for asked, rate in (*plan.rates, (3.0, plan.local.batch_rate)):
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(plan.noise_multiplier))
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        accountant.compose(step, plan.guarantee.participations)
        assert accountant.get_epsilon(plan.delta) == pytest.approx(asked, rel=5e-3)
    said = [one for one in plan.guarantee.rests_on if one.startswith("Budgets of their own")]
    for asked, one in zip(GROUPS, said, strict=True):
        assert f"for {GROUPS[asked]} of 300 persons" in one
        assert f"epsilon is {asked:g}." in one


def coins_have_the_planned_bias() -> None:
    data = visits()
    plan, rounds = planned(data), 300
    rates, clients = dict(plan.rates), np.arange(3)
    times = np.zeros(300)
    for number in range(rounds):
        drawn = draw_batches(clients, data.persons.sizes, plan.local, number, Randomness(1), data)
        for client in clients:
            places = drawn.positions[client, 0][drawn.mask[client, 0]]
            starts = data.persons.starts[data.persons.offsets[client] + places]
            times[data.train.persons[starts]] += 1
    for asked, count in (*GROUPS.items(), (np.inf, 240)):
        own = times[data.own_epsilons == asked]
        law = binom(rounds * count, rates.get(asked, plan.local.batch_rate))
        assert law.ppf(ALARM) <= own.sum() <= law.isf(ALARM)


def test_coins_have_the_planned_bias() -> None:
    coins_have_the_planned_bias()


def test_a_rate_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "coin_rates", lambda data, rule, client: rule.batch_rate)
    with pytest.raises(AssertionError):
        coins_have_the_planned_bias()


def test_an_epsilon_of_one_person_changes_nobody_elses_coin(plan: fv.Plan) -> None:
    data = visits()
    usual, own = (
        draw_batches(np.arange(3), data.persons.sizes, rule, 0, Randomness(1), data)
        for rule in (replace(plan.local, own_rates=None), plan.local)
    )
    for client in range(3):
        all_, few = (one.positions[client, 0][one.mask[client, 0]] for one in (usual, own))
        gone = data.persons.starts[data.persons.offsets[client] + np.setdiff1d(all_, few)]
        assert set(few) <= set(all_)
        assert (data.own_epsilons[data.train.persons[gone]] < np.inf).all()


def test_neither_other_data_nor_none_take_the_place_of_what_was_brought(plan: fv.Plan) -> None:
    """Others' epsilons, with the rates of these, would be promises that nobody keeps."""
    other = visits(np.full(1200, 0.7))
    with pytest.raises(fv.ConfigError, match="make a new one"):
        replace(plan, federation=other)
    with pytest.raises(fv.ConfigError, match="make a new one"):
        replace(plan, rates=())
    heads = {_header(one, b"").clients for one in (plan, planned(visits(np.full(1200, 1.0))))}
    assert len(heads) == 2  # a run goes on with the same budgets alone


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        (("privacy.unit=record",), fv.PrivacyRefusal),
        (("training.batches=shuffled",), fv.PrivacyRefusal),
        (("privacy.unit=client", "training.method=dp-fedavg"), fv.ConfigError),
    ],
)
def test_where_no_coin_can_be_rarer_it_is_refused(
    more: tuple[str, ...], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=r"privacy\.epsilon_column|training\.batches"):
        planned(visits(), *more)


@pytest.mark.parametrize("wrong", [0.0, -1.0, "two"])
def test_what_is_no_epsilon_of_one_person_is_refused(wrong: Any) -> None:
    brought = np.ones(1200)
    brought[:4] = [1, 1, 2, 2] if wrong == "two" else wrong
    with pytest.raises(fv.ConfigError, match="epsilons"):
        visits(brought)


def test_clients_bring_theirs_in_the_same_way() -> None:
    """Without persons a column is about clients, which clip to less."""
    owners = np.repeat(np.arange(6), 20)
    inputs = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    targets = (inputs[:, 0] > 0).astype(np.int64)
    brought = np.where(owners == 2, 0.5, np.nan)
    data = fv.Federation.from_arrays(
        inputs, targets, owners, epsilons=brought, classes=2, test=(inputs[:0], targets[:0])
    )
    given = ["privacy.epsilon=3", "training.sampling=everyone", "training.rounds=4"]
    plan = plan_of(recipes.with_defaults(recipes.parse({}, given)), data)
    found = participations(plan).epsilons
    assert found[2] == pytest.approx(0.5, rel=2e-3)
    assert (np.delete(found, 2) > 2.9).all()
    assert plan.scales[2] < 1 == plan.scales[0]
    with pytest.raises(fv.ConfigError, match="make a new one"):
        replace(plan, scales=None)
    with pytest.raises(fv.ConfigError, match="not saved"):
        data.save("nowhere")


@pytest.mark.parametrize(
    ("unit", "trust"),
    [("record", "distributed"), ("person", "central"), ("record", "local")],
)
def test_a_site_with_a_budget_of_its_own_draws_by_rarer_coins(unit: str, trust: str) -> None:
    """All of its records or persons have its epsilon; the others' coins stay as they are."""
    data = visits(np.full(1200, np.nan))
    given = ["privacy.epsilon=3", *SECRET, "training.rounds=10", "training.sampling=everyone"]
    given += [f"privacy.unit={unit}", f"privacy.trust={trust}"]
    recipe = recipes.with_defaults(recipes.parse({}, given, {"privacy.budgets": {"1": 0.8}}))
    plan = plan_of(recipe, data)
    found, rate = participations(plan).epsilons, plan.local.batch_rate
    assert found == pytest.approx([plan.guarantee.epsilon, 0.8, plan.guarantee.epsilon], rel=2e-3)
    assert found[1] <= 0.8
    assert any(f"1 of 3 clients, whose {unit}s' coins" in one for one in plan.guarantee.rests_on)
    biases = [np.max(batches.coin_rates(data, plan.local, client)) for client in range(3)]
    assert biases[0] == biases[2] == rate > biases[1]
    releases = [replace(one, mechanism=replace(one.mechanism, rate=biases[1]))
                for one in plan.releases(10)]  # fmt: skip
    own = fv.account(releases, privacy_model=plan.privacy_model, delta=plan.delta)
    assert own.epsilon == pytest.approx(found[1], rel=1e-9)
    alone = isolated_job(job_of(plan, Randomness(1)), 1)  # protected runs go client by client
    bias = batches.coin_rates(alone.federation, alone.rule, 0)
    assert np.max(bias) == biases[1]


def test_a_person_who_may_be_elsewhere_has_no_sites_budget() -> None:
    given = ["privacy.unit=person", "privacy.epsilon=3", "privacy.sites_per_person=2", *SECRET]
    recipe = recipes.with_defaults(recipes.parse({}, given, {"privacy.budgets": {"1": 0.8}}))
    with pytest.raises(fv.PrivacyRefusal, match="sites_per_person"):
        plan_of(recipe, visits(np.full(1200, np.nan)))


def table(folder: Path) -> list[str]:
    """Three hospitals, 120 patients with two visits; every fourth brings an epsilon."""
    draw, lines = np.random.default_rng(3), ["hospital,patient,x,ill,budget"]
    for person in range(240):
        x, budget = draw.normal(), "" if person % 120 % 4 else "0.7"
        lines.append(f"h{person % 3},p{person % 120},{x:.3f},{int(x > 0)},{budget}")
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(
        '[columns.x]\ntype = "number"\nmin = -4\nmax = 4\n'
        '[columns.ill]\ntype = "category"\ncategories = ["0", "1"]\n'
    )
    given = ["run", "--data", str(folder / "visits.csv"), "--client-column", "hospital", "--quiet"]
    given += ["--person-column", "patient", "--label", "ill", "--output", str(folder / "out")]
    keys = ["privacy.unit=person", "privacy.epsilon_column=budget", "privacy.epsilon=3"]
    keys += ["training.local_steps=1", "training.learning_rate=0.5", "privacy.clip_norm=1"]
    keys += ["evaluation.every=5", *SECRET, "training.rounds=5", "data.test_fraction=0"]
    return [*given, *(word for key in keys for word in ("--set", key))]


def test_a_column_of_a_table_is_kept_to_and_is_no_input(tmp_path: Path) -> None:
    command = table(tmp_path)
    assert main([*command, "--schema", str(tmp_path / "schema.toml"), "--no-report"]) == 0
    document = json.loads((tmp_path / "out" / "guarantee.json").read_text())
    assert document["certified"]
    assert any("for 30 of 120 persons" in one for one in document["rests_on"])
    assert any("is public: 1 inputs" in one for one in document["rests_on"])


def test_nobody_pays_for_statistics_that_cost_more_than_is_brought(tmp_path: Path) -> None:
    table(tmp_path)
    values = {"file": str(tmp_path / "visits.csv"), "client_column": "patient", "label": "ill"}
    values |= {"epsilon_column": "budget"}
    recipe = recipes.parse({}, (), {f"data.{name}": value for name, value in values.items()})
    with pytest.raises(fv.ConfigError, match=r"data\.schema"):
        federation_of(recipe.data, Offer(fv.Unit.CLIENT, fv.Trust.CENTRAL, 5.0, 0.1))


def test_a_list_of_budgets_would_tell_who_is_there() -> None:
    """Under add-remove nobody may be missed, and the groups of a guarantee are public."""
    data = fv.load("digits", clients=12)
    given = ["privacy.epsilon=3", "privacy.public_clients=20", "training.rounds=2"]
    budgets = {"privacy.budgets": {"1": 0.5}}
    chosen = recipes.with_defaults(recipes.parse({}, given, budgets))
    with pytest.raises(fv.PrivacyRefusal, match="add-remove"):
        plan_of(chosen, data)


def test_each_client_keeps_its_own_epsilon_in_another_order() -> None:
    inputs = np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
    targets, owners = (inputs[:, 0] > 0).astype(np.int64), np.arange(80) % 4
    data = fv.Federation.from_arrays(
        inputs,
        targets,
        owners,
        epsilons=np.where(owners == 3, 2.0, np.nan),
        test=(inputs[:4] * 0, targets[:4]),
        classes=2,
    )
    values = {
        "training.method": "dp-fedavg",
        "training.sampling": "everyone",
        "training.rounds": 2,
        "training.local_steps": 1,
        "privacy.epsilon": 8.0,
        "privacy.delta": 1e-5,
    }
    recipe = recipes.with_defaults(recipes.parse({}, (), values))
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        plan = plan_of(recipe, of_clients(data, np.array(order)))
        assert plan.guarantee is not None
        assert plan.guarantee.certified
        assert plan.scales is not None
        assert plan.federation.owners is not None
        less = [int(o) for o, s in zip(plan.federation.owners, plan.scales, strict=True) if s < 1]
        assert less == [3]
