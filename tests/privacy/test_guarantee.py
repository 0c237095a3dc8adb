"""A guarantee says everything it rests on, and nobody but the accountants can make one."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

from fedveil.errors import BadInput
from fedveil.privacy.accounting import account
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients, NonExpansive
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    NoisyVotes,
    Zcdp,
)
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
)
from fedveil.privacy.tuning import AllRuns, RandomRuns
from fedveil.privacy.units import Adjacency, Arithmetic, Entropy, Trust, Unit

ADDED = Setting(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
REPLACED = Setting(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
SHARED = Setting(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED)
LOCAL = Setting(Unit.CLIENT, Adjacency.REPLACE, Trust.LOCAL)
RECORD = Setting(Unit.RECORD, Adjacency.REPLACE, Trust.DISTRIBUTED)

CERTIFICATE = NonExpansive("logistic", 1.0, (0.5,))  # type: ignore[arg-type]
ONE_OF_EACH = [
    account([Release(Gaussian(1.1), Poisson(0.01, 5000), 100)], setting=ADDED, delta=1e-5),
    account([Release(Gaussian(2.0), FixedSize(2000, 100), 20)], setting=REPLACED, delta=1e-4),
    account([Release(Gaussian(2.0), CappedPoisson(900, 0.1, 120), 9)], setting=ADDED, delta=1e-4),
    account([Release(Gaussian(3.0), RoundRobin(10, 3), 7)], setting=SHARED, delta=1e-3),
    account([Release(Gaussian(3.0), Balanced(10, 3, 7), 7)], setting=SHARED, delta=1e-3),
    account([Release(Laplace(10.0), Everyone(), 5)], setting=LOCAL, delta=0),
    account([Release(DiscreteGaussian(4.0), Everyone(), 5)], setting=LOCAL, delta=1e-6),
    account(
        [Release(DiscreteGaussianSum(1, 1 / 64, 0.1, 100, 4096), Everyone(), 3)],
        setting=SHARED,
        delta=1e-5,
    ),
    account([Release(NoisyVotes(50.0), Everyone(), 500)], setting=SHARED, delta=1e-5),
    account([Release(Zcdp(0.1), Everyone(), 3)], setting=LOCAL, delta=1e-5, tuning=AllRuns(2)),
    account(
        [Release(Gaussian(1.1), Poisson(0.01), 100)],
        setting=ADDED,
        delta=1e-5,
        tuning=RandomRuns(10),
    ),
    account(
        [Release(NoisyGradients(1, 100, 0.1, 5, 2, 20, CERTIFICATE), Everyone(20), 10)],
        setting=RECORD,
        delta=1e-5,
    ),
    account(
        [Release(GridGradients(1, 100, 1, 5, 2, 20, CERTIFICATE, 1 / 512, 64), Everyone(20), 10)],
        setting=RECORD,
        delta=1e-5,
    ),
    account([Release(Gaussian(1.0), Everyone(), 1)], setting=LOCAL, delta=0),  # infinite
]


def through_json(guarantee: Guarantee) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    return document


def test_only_accounting_makes_a_guarantee() -> None:
    made = ONE_OF_EACH[0]
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    with pytest.raises(TypeError, match="account"):
        Guarantee(**fields)
    with pytest.raises(TypeError, match="account"):
        dataclasses.replace(made, epsilon=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.epsilon = 0.1  # type: ignore[misc]


@pytest.mark.parametrize("made", ONE_OF_EACH, ids=lambda g: g.sampling + "/" + g.accountant)
def test_json_there_and_back(made: Guarantee) -> None:
    assert Guarantee.from_dict(through_json(made)) == made
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.5),
        ("epsilon", None),
        ("epsilon", True),
        ("delta", 1e-9),
        ("certified", False),
        ("unit", "record"),
        ("adjacency", "zero-out"),
        ("trust", "local"),
        ("sampling", "fixed"),
        ("rounds", 10),
        ("participations", 1),
        ("honest_shares", 7),
        ("accountant", "rdp"),
        ("alternatives", {"pld": 0.1}),
        ("theorem", "none needed"),
        ("arithmetic", "idealised"),
        ("entropy", "seeded"),
        ("reason", "because"),
        ("noise_multiplier", 9.0),
        ("statement", "This is perfectly private."),
        ("tuning", {"kind": "all-runs", "runs": 3}),
        ("version", 99),
        ("releases", []),
        ("releases", "none"),
        ("setting", {}),
        ("extra", 1),
    ],
)
def test_a_document_that_was_changed_is_refused(name: str, value: object) -> None:
    document = through_json(ONE_OF_EACH[0])
    document[name] = value
    with pytest.raises(BadInput):
        Guarantee.from_dict(document)


def test_inner_parts_of_a_document_are_checked_too() -> None:
    for path, value in (
        (("releases", 0, "rounds"), 5),
        (("releases", 0, "mechanism", "noise_multiplier"), 5.0),
        (("releases", 0, "mechanism", "kind"), "magic"),
        (("releases", 0, "sampling", "rate"), 2.0),
        (("setting", "colluders"), -1),
        (("setting", "trust"), "blind"),
    ):
        document = through_json(ONE_OF_EACH[0])
        inner: Any = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(BadInput):
            Guarantee.from_dict(document)
    for missing in ("releases", "setting", "delta", "epsilon", "statement"):
        document = through_json(ONE_OF_EACH[0])
        del document[missing]
        with pytest.raises(BadInput):
            Guarantee.from_dict(document)
    with pytest.raises(BadInput):
        Guarantee.from_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize("made", ONE_OF_EACH, ids=lambda g: g.sampling + "/" + g.accountant)
def test_every_report_carries_what_an_epsilon_needs(made: Guarantee) -> None:
    document = made.to_dict()
    needed = {
        "epsilon", "delta", "noise_multiplier", "unit", "adjacency", "trust", "sampling", "rounds",
        "participations", "honest_shares", "accountant", "alternatives", "theorem", "arithmetic",
        "entropy", "certified", "reason", "statement",
    }  # fmt: skip
    assert needed <= set(document)
    assert made.alternatives[made.accountant] == made.epsilon == min(made.alternatives.values())
    assert made.theorem in made.statement
    assert made.certified == (made.reason == "")


def test_certified_needs_exact_arithmetic_and_system_entropy() -> None:
    release = [Release(Gaussian(1.1), Poisson(0.01), 100)]
    for arithmetic in Arithmetic:
        for entropy in Entropy:
            setting = dataclasses.replace(ADDED, arithmetic=arithmetic, entropy=entropy)
            made = account(release, setting=setting, delta=1e-5)
            exact = arithmetic is Arithmetic.EXACT and entropy is Entropy.SYSTEM
            assert made.certified is exact
            assert made.epsilon == ONE_OF_EACH[0].epsilon
            if entropy is Entropy.SEEDED:
                assert "seed" in made.reason
            if arithmetic is Arithmetic.IDEALISED:
                assert "floating-point" in made.reason
            assert ("Certified if run exactly as described" in made.statement) is exact


def test_continuous_shares_in_a_secure_sum_are_idealised_only() -> None:
    continuous = account([Release(Gaussian(3.0), Everyone(100), 3)], setting=SHARED, delta=1e-5)
    assert not continuous.certified
    assert "discrete Gaussian" in continuous.reason
    mechanism = DiscreteGaussianSum(1, 1 / 1024, 0.3, 100, 4096, None)
    discrete = account([Release(mechanism, Everyone(100), 3)], setting=SHARED, delta=1e-5)
    assert discrete.certified
    assert discrete.honest_shares == 100
    assert discrete.noise_multiplier == pytest.approx(3.0)
    assert discrete.epsilon >= continuous.epsilon
    assert discrete.epsilon == pytest.approx(continuous.alternatives["rdp"], rel=1e-9)


def test_statement_names_who_is_protected_from_whom() -> None:
    made = ONE_OF_EACH
    assert "one client" in made[0].statement
    assert "cohorts that stay secret" in made[0].statement
    assert "Poisson sampling at rate 0.01" in made[0].statement
    assert "100 out of 2000 clients" in made[1].statement
    assert "at most 120 of 900" in made[2].statement
    assert "the server included" in made[3].statement
    assert "3 honest noise shares" in made[3].statement
    assert "one record of one client" in made[11].statement
    assert "all of it 2 times for tuning" in made[9].statement
    assert "10 on average" in made[10].statement
    assert "no finite epsilon" in made[13].statement
    assert made[13].to_dict()["epsilon"] is None
    weak = account([Release(Gaussian(0.2), Everyone(), 5)], setting=LOCAL, delta=1e-5)
    assert "promises little" in weak.statement


def test_rounds_and_participations_are_both_told() -> None:
    made = account([Release(Gaussian(3.0), RoundRobin(10, 3), 7)], setting=SHARED, delta=1e-3)
    assert (made.rounds, made.participations) == (7, 3)
    counted = Release(Gaussian(3.0), FixedSize(3400, 136), 1000, participations=84)
    capped = account([counted], setting=SHARED, delta=1e-5)
    assert (capped.rounds, capped.participations) == (1000, 84)
    assert "no credit for sampling" in capped.statement


def test_releases_and_settings_round_trip_and_refuse_nonsense() -> None:
    for made in ONE_OF_EACH:
        assert Setting.from_dict(made.setting.to_dict()) == made.setting
        for release in made.releases:
            assert Release.from_dict(json.loads(json.dumps(release.to_dict()))) == release
    good = ONE_OF_EACH[0].releases[0].to_dict()
    for bad in (
        {},
        {**good, "rounds": -1},
        {**good, "rounds": 1.5},
        {**good, "uses": 0},
        {**good, "participations": 10**6},
        {**good, "nonsense": 1},
        {**good, "mechanism": None},
        {**good, "sampling": {"kind": "poisson"}},
        {**good, "sampling": {"kind": "poisson", "rate": 0.1, "wing": 2}},
    ):
        with pytest.raises(BadInput):
            Release.from_dict(bad)
    with pytest.raises(BadInput):
        Setting("planet", "replace", "local")  # type: ignore[arg-type]
    with pytest.raises(BadInput):
        account([], setting=ADDED, delta=1e-5)
    with pytest.raises(BadInput):
        account(["release"], setting=ADDED, delta=1e-5)  # type: ignore[list-item]
    with pytest.raises(BadInput):
        account(ONE_OF_EACH[0].releases, setting="central", delta=1e-5)  # type: ignore[arg-type]
    for delta in (-1.0, 1.0, 2.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="delta"):
            account(ONE_OF_EACH[0].releases, setting=ADDED, delta=delta)
