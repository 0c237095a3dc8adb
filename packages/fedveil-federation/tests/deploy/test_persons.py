"""Persons with several records at sites of their own: what is told, refused and paid for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.hospitals import POLICY as SITE_POLICY
from tests.deploy.hospitals import hospitals, table
from tests.deploy.world import POLICY, World, facts_of, recipe_of, rows, visits, world

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data.federation import Federation
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.mechanisms import Zcdp
from fedveil.privacy.sampling import Everyone
from fedveil.run.run import Run
from fedveil_federation.deploy.agreement import Agreement
from fedveil_federation.deploy.plan_document import planned
from fedveil_federation.deploy.policy import Policy

ALLOW = {**POLICY["allow"], "units": ["client", "person"]}
PERSONS: dict[str, Any] = {
    "training__method": "dp-sgd",
    "training__local_epochs": None,
    "privacy__unit": "person",
}
SECRET = {**PERSONS, "training__batches": "poisson", "training__batch_size": 4}


def persons_world(folder: Path, data: Federation | None = None, **more: Any) -> World:
    allowed = {**POLICY, "allow": ALLOW}
    return world(folder, unit=Unit.PERSON, policy=allowed, data=data or visits(), **more)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    found = persons_world(tmp_path)
    yield found
    found.close()


def run_of(made: World, facts: Any = None, **changed: Any) -> Run:
    stated = facts or facts_of(made.data, Unit.PERSON)
    return made.hub().start(recipe_of(**{**PERSONS, **changed}), stated, made.folder / "run")


@pytest.mark.parametrize("sites", [1, 2])
def test_a_ledger_is_charged_for_all_records_of_a_person(made: World, sites: int) -> None:
    """Closed form: replacing a person at k sites moves the sum of clipped means by 2 k clips."""
    run = run_of(made, privacy__sites_per_person=sites, privacy__epsilon=45.0 / sites)
    run.finish()
    assert run.guarantee is not None
    assert (run.guarantee.unit, run.guarantee.privacy_model.contributions) == ("person", sites)
    mu = 2 * sites / (run.plan.noise_multiplier * math.sqrt(3))  # the noise of three shares
    twice = Release(Zcdp(mu**2 / 2), Everyone(), 2)
    alone = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.LOCAL)
    expected = account([twice], privacy_model=alone, delta=1e-5).epsilon
    for guard in made.guards.values():
        assert guard.store.ledger.unit is Unit.PERSON
        assert guard.store.ledger.spent() == pytest.approx(expected, rel=1e-2)


def test_secret_batches_need_a_ledger_about_what_is_left_out(tmp_path: Path, made: World) -> None:
    with pytest.raises(PrivacyRefusal):
        run_of(made, **SECRET)
    (tmp_path / "zero").mkdir()
    other = persons_world(tmp_path / "zero", adjacency=Adjacency.ZERO_OUT)
    try:
        run = run_of(other, **SECRET)
        run.finish()
        assert run.guarantee is not None
        assert run.guarantee.certified
        for guard in other.guards.values():
            spent = account(
                run.plan.releases(2), privacy_model=run.guarantee.privacy_model, delta=1e-5
            )
            assert guard.store.ledger.spent() == pytest.approx(spent.epsilon, rel=1e-6)
    finally:
        other.close()


def test_a_site_that_does_not_know_its_persons_protects_none(tmp_path: Path) -> None:
    made = persons_world(tmp_path, rows())
    try:
        with pytest.raises(PrivacyRefusal, match="--person-column"):
            run_of(made, facts_of(visits(), Unit.PERSON))
    finally:
        made.close()


def test_a_site_whose_owner_protects_records_takes_no_plan_for_persons(tmp_path: Path) -> None:
    made = world(tmp_path, unit=Unit.RECORD, data=visits())
    try:
        with pytest.raises(PrivacyRefusal, match="protects a person"):
            run_of(made)
    finally:
        made.close()


def test_how_many_records_persons_have_is_told_to_nobody(made: World) -> None:
    """It would change with the person whom the guarantee hides."""
    said = [guard._hello().header for guard in made.guards.values()]
    assert [one["persons"] for one in said] == made.data.persons.sizes.tolist()
    assert not any("records" in one for one in said)
    with pytest.raises(ConfigError, match=r"allow\.units"):
        Policy.of({**POLICY, "allow": {**ALLOW, "units": ["record", "person"]}})


def test_a_hub_that_makes_up_a_billion_persons_costs_a_site_no_memory() -> None:
    facts = replace(facts_of(visits(), Unit.PERSON), sizes=(9, 9, 2**38))
    with pytest.raises(ConfigError, match="facts"):
        planned(recipe_of(**PERSONS), facts.federation())


def visiting(count: int, seed: int) -> str:
    """Every patient of a hospital has four visits."""
    head, *lines = table(count, seed).splitlines()
    named = [f"{line.rpartition(',')[0]},s{seed}p{n // 4}" for n, line in enumerate(lines)]
    return "\n".join([head, *named]) + "\n"


def test_hospitals_train_on_visits_and_protect_patients(tmp_path: Path) -> None:
    policy = SITE_POLICY.replace('"record"', '"person"')
    made = hospitals(tmp_path, policy, table=visiting, person_column="patient")
    made.meet()
    made.queue(privacy__unit="person", training__batch_size=10)
    service = made.service()
    try:
        assert service.step()
        assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
        ((run, _),) = made.finished
        assert run.guarantee is not None
        assert run.guarantee.certified
        assert run.guarantee.unit is Unit.PERSON
        assert run.plan.federation.persons.sizes.tolist() == [20, 23, 25]
        made.queue("second")  # for records, whose number nobody tells
        service = made.service()
        assert service.step()
        assert service.queue.ended("second")["outcome"] != "done"
    finally:
        made.close()


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_a_hub_that_states_another_number_of_persons_is_refused(made: World, unit: Unit) -> None:
    with pytest.raises((ConfigError, PrivacyRefusal), match="another number of persons"):
        run_of(made, facts_of(made.data, unit), training__batch_size=2)


def test_a_hub_says_who_does_not_know_its_persons(tmp_path: Path) -> None:
    made = hospitals(tmp_path)
    made.meet()
    made.queue(privacy__unit="person")
    service = made.service()
    try:
        assert service.step()
        assert "--person-column" in service.queue.ended("first")["reason"]
    finally:
        made.close()


def test_a_site_holds_out_whole_persons(tmp_path: Path) -> None:
    given = {"name": "f", "address": "h:1", "hub": "00" * 32, "sites": ("a", "b")}
    columns = {"age": {"type": "number", "min": 0, "max": 100}, "ill": {"type": "boolean"}}
    agreement = Agreement(**given, label="ill", columns=columns, holdout=0.3)
    (tmp_path / "rows.csv").write_text(visiting(120, 1))
    found = agreement.rows(tmp_path / "rows.csv", "patient")
    assert found.train.persons is not None
    assert found.test.persons is not None
    assert len(found.test)
    assert not np.intersect1d(found.train.persons, found.test.persons).size
    found.save(tmp_path / "saved")
    saved = agreement.rows(tmp_path / "saved")
    assert np.array_equal(saved.persons.starts, found.persons.starts)
    with pytest.raises(ConfigError, match="--person-column"):
        agreement.rows(tmp_path / "saved", "patient")
