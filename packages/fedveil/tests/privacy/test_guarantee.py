"""A guarantee says everything it rests on, and nobody but the accountants can make one."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import re
import struct
from statistics import NormalDist
from typing import Any

import pytest

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
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
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
)
from fedveil.privacy.tuning import AllRuns, RandomRuns

ADDED = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
REPLACED = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
SHARED = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED)
LOCAL = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.LOCAL)
RECORD = PrivacyModel(Unit.RECORD, Adjacency.REPLACE, Trust.DISTRIBUTED)

CERTIFICATE = NonExpansive("logistic", 1.0, (0.5,))  # type: ignore[arg-type]
ONE_OF_EACH = [
    account([Release(Gaussian(1.1), Poisson(0.01, 5000), 100)], privacy_model=ADDED, delta=1e-5),
    account([Release(Gaussian(2.0), FixedSize(2000, 100), 20)], privacy_model=REPLACED, delta=1e-4),
    account(
        [Release(Gaussian(2.0), CappedPoisson(900, 0.1, 120), 9)], privacy_model=ADDED, delta=1e-4
    ),
    account([Release(Gaussian(3.0), RoundRobin(10, 3), 7)], privacy_model=SHARED, delta=1e-3),
    account([Release(Gaussian(3.0), Balanced(10, 3, 7), 7)], privacy_model=SHARED, delta=1e-3),
    account([Release(Laplace(10.0), Everyone(), 5)], privacy_model=LOCAL, delta=0),
    account([Release(DiscreteGaussian(4.0), Everyone(), 5)], privacy_model=LOCAL, delta=1e-6),
    account(
        [Release(DiscreteGaussianSum(1, 1 / 64, 0.1, 100, 4096), Everyone(), 3)],
        privacy_model=SHARED,
        delta=1e-5,
    ),
    account([Release(NoisyVotes(50.0), Everyone(), 500)], privacy_model=SHARED, delta=1e-5),
    account(
        [Release(Zcdp(0.1), Everyone(), 3)], privacy_model=LOCAL, delta=1e-5, tuning=AllRuns(2)
    ),
    account(
        [Release(Gaussian(1.1), Poisson(0.01), 100)],
        privacy_model=ADDED,
        delta=1e-5,
        tuning=RandomRuns(10),
    ),
    account(
        [Release(NoisyGradients(1, 100, 0.1, 5, 2, 20, CERTIFICATE), Everyone(20), 10)],
        privacy_model=RECORD,
        delta=1e-5,
    ),
    account(
        [Release(GridGradients(1, 100, 1, 5, 2, 20, CERTIFICATE, 1 / 512, 64), Everyone(20), 10)],
        privacy_model=RECORD,
        delta=1e-5,
    ),
    account([Release(Gaussian(1.0), Everyone(), 1)], privacy_model=LOCAL, delta=0),  # infinite
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


def test_a_copy_or_a_pickle_cannot_say_anything_else() -> None:
    """A pickle holds what was released, not what it costs; there is nothing in it to change."""
    made = ONE_OF_EACH[0]
    assert copy.copy(made) is made
    assert copy.deepcopy(made) is made
    function, arguments = made.__reduce__()
    assert made.epsilon not in arguments
    assert function(*arguments) == made
    forged = Guarantee.__new__(Guarantee)
    with pytest.raises(TypeError, match="account"):
        forged.__setstate__(dataclasses.asdict(made) | {"epsilon": 0.1})
    data = pickle.dumps(made)
    assert struct.pack(">d", made.releases[0].mechanism.noise_multiplier) in data
    assert struct.pack(">d", made.epsilon) not in data


@pytest.mark.parametrize("made", ONE_OF_EACH, ids=lambda g: g.sampling + "/" + g.accountant)
def test_what_was_taken_without_noise_certifies_nothing(made: Guarantee) -> None:
    said = ("means were taken from the data", "the classes were counted")
    privacy_model = dataclasses.replace(made.privacy_model, unprotected=said)
    found = account(
        made.releases, privacy_model=privacy_model, delta=made.delta, tuning=made.tuning
    )
    assert (found.certified, found.epsilon) == (False, made.epsilon)
    if math.isfinite(made.epsilon):
        assert "Means were taken from the data; The classes were counted" in found.reason
    assert found.not_covered[:2] == ("Means were taken from the data.", "The classes were counted.")
    assert found.statement.startswith("Not certified: ")
    assert Guarantee.from_dict(through_json(found)) == found
    hidden = through_json(found)
    hidden["not_covered"] = hidden["not_covered"][2:]
    with pytest.raises(ConfigError, match="not_covered"):
        Guarantee.from_dict(hidden)


def test_a_list_holds_plain_lines_whatever_names_are_in_it() -> None:
    """Names come out of files: they must not write over the screen or start lines of their own."""
    said = ["column 'a\x1b[2J\nCertified: yes' was  counted.", "twice", "Twice."]
    privacy_model = dataclasses.replace(ADDED, unprotected=said)
    assert privacy_model.unprotected == ("Column 'a [2J Certified: yes' was counted.", "Twice.")
    made = account(ONE_OF_EACH[0].releases, privacy_model=privacy_model, delta=1e-5)
    assert not [line for line in made.statement.splitlines() if line.startswith("Certified")]


def needs(guarantee: Guarantee, *words: str) -> bool:
    return all(any(word in sentence for sentence in guarantee.rests_on) for word in words)


def test_it_rests_on_what_its_proof_needs_and_on_nothing_else() -> None:
    """Each assumption where the mechanism needs it, and only there."""
    for made in ONE_OF_EACH:
        drawn = [release.sampling for release in made.releases if release.amplified]
        assert needs(made, "stay secret") is bool(drawn or isinstance(made.tuning, RandomRuns))
        poisson = any(isinstance(one, Poisson | CappedPoisson) for one in drawn)
        assert needs(made, "empty cohort") is poisson
        limited = any(isinstance(one, FixedSize | CappedPoisson) for one in drawn)
        assert needs(made, "whether it was drawn") is limited
        assert needs(made, "is trusted") is (made.trust is Trust.CENTRAL)
        assert needs(made, "noise shares") is (made.trust is Trust.DISTRIBUTED)
        assert needs(made, "before its noise") is (made.trust is Trust.LOCAL)
        fewer = any(one.counted_participations < one.rounds for one in made.releases)
        assert needs(made, "No client takes part in more than") is fewer
        certificate = any(getattr(one.mechanism, "certificate", None) for one in made.releases)
        assert needs(made, "no two models further apart") is certificate
        assert needs(made, "scored on public data") is isinstance(made.tuning, RandomRuns)
        assert needs(made, "operating system", "by no more than its bound", "without the protected")
        absent = made.adjacency is Adjacency.ADD_REMOVE
        assert needs(made, "do not follow the number of clients") is absent
        assert any("its presence is not" in one for one in made.not_covered) is not absent
    colluding = dataclasses.replace(REPLACED, colluders=3)
    made = account(ONE_OF_EACH[1].releases, privacy_model=colluding, delta=1e-4)
    assert needs(made, "At most 3 clients tell anybody whether they were drawn.")
    seeded = dataclasses.replace(ADDED, entropy=Entropy.SEEDED, arithmetic=Arithmetic.IDEALISED)
    made = account(ONE_OF_EACH[0].releases, privacy_model=seeded, delta=1e-5)
    assert not needs(made, "operating system")
    assert not needs(made, "drawn exactly")


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
        ("rests_on", []),
        ("rests_on", ["Nothing."]),
        ("not_covered", []),
        ("not_covered", None),
        ("tuning", {"kind": "all-runs", "runs": 3}),
        ("version", 99),
        ("releases", []),
        ("releases", "none"),
        ("privacy_model", {}),
        ("extra", 1),
    ],
)
def test_a_document_that_was_changed_is_refused(name: str, value: object) -> None:
    document = through_json(ONE_OF_EACH[0])
    document[name] = value
    with pytest.raises(ConfigError):
        Guarantee.from_dict(document)


def test_inner_parts_of_a_document_are_checked_too() -> None:
    for path, value in (
        (("releases", 0, "rounds"), 5),
        (("releases", 0, "mechanism", "noise_multiplier"), 5.0),
        (("releases", 0, "mechanism", "kind"), "magic"),
        (("releases", 0, "sampling", "rate"), 2.0),
        (("privacy_model", "colluders"), -1),
        (("privacy_model", "trust"), "blind"),
        (("privacy_model", "unprotected"), ["Means were taken from the data."]),
        (("privacy_model", "declared"), ["The schema is public."]),
        (("privacy_model", "not_covered"), ["Test examples."]),
        (("privacy_model", "not_covered"), "Test examples."),
        (("privacy_model", "not_covered"), [""]),
        (("privacy_model", "not_covered"), [7]),
    ):
        document = through_json(ONE_OF_EACH[0])
        inner: Any = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(ConfigError):
            Guarantee.from_dict(document)
    for missing in ("releases", "privacy_model", "delta", "epsilon", "statement"):
        document = through_json(ONE_OF_EACH[0])
        del document[missing]
        with pytest.raises(ConfigError):
            Guarantee.from_dict(document)
    with pytest.raises(ConfigError):
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
            privacy_model = dataclasses.replace(ADDED, arithmetic=arithmetic, entropy=entropy)
            made = account(release, privacy_model=privacy_model, delta=1e-5)
            exact = arithmetic is Arithmetic.EXACT and entropy is Entropy.SYSTEM
            assert made.certified is exact
            assert made.epsilon == ONE_OF_EACH[0].epsilon
            if entropy is Entropy.SEEDED:
                assert "seed" in made.reason
            if arithmetic is Arithmetic.IDEALISED:
                assert "floating-point" in made.reason
            assert made.statement.startswith("Certified: ") is exact
            assert ("\nNot certified: " in made.statement) is not exact
            assert ("But for the reason at the end" in made.statement) is not exact


def test_continuous_shares_in_a_secure_sum_are_idealised_only() -> None:
    continuous = account(
        [Release(Gaussian(3.0), Everyone(100), 3)], privacy_model=SHARED, delta=1e-5
    )
    assert not continuous.certified
    assert "discrete Gaussian" in continuous.reason
    mechanism = DiscreteGaussianSum(1, 1 / 1024, 0.3, 100, 4096, None)
    discrete = account([Release(mechanism, Everyone(100), 3)], privacy_model=SHARED, delta=1e-5)
    assert discrete.certified
    assert discrete.honest_shares == 100
    assert discrete.noise_multiplier == pytest.approx(3.0)
    assert discrete.epsilon >= continuous.epsilon
    assert discrete.epsilon == pytest.approx(continuous.alternatives["rdp"], rel=1e-9)


def test_statement_names_who_is_protected_from_whom() -> None:
    made = ONE_OF_EACH
    assert "one client" in made[0].statement
    assert "Cohorts and their sizes stay secret" in made[0].statement
    assert "Poisson sampling at rate 0.01" in made[0].statement
    assert "100 out of 2000 clients" in made[1].statement
    assert "at most 120 of 900" in made[2].statement
    assert "as a server does" in made[3].statement
    assert "3 honest noise shares" in made[3].statement
    assert "one record of one client" in made[11].statement
    assert "all of it 2 times for tuning" in made[9].statement
    assert "10 on average" in made[10].statement
    assert "no finite epsilon" in made[13].statement
    assert made[13].to_dict()["epsilon"] is None
    weak = account([Release(Gaussian(0.2), Everyone(), 5)], privacy_model=LOCAL, delta=1e-5)
    assert "promises little" in weak.statement


def test_rounds_and_participations_are_both_told() -> None:
    made = account([Release(Gaussian(3.0), RoundRobin(10, 3), 7)], privacy_model=SHARED, delta=1e-3)
    assert (made.rounds, made.participations) == (7, 3)
    counted = Release(Gaussian(3.0), FixedSize(3400, 136), 1000, participations=84)
    capped = account([counted], privacy_model=SHARED, delta=1e-5)
    assert (capped.rounds, capped.participations) == (1000, 84)
    assert "no credit for sampling" in capped.statement


def test_releases_and_settings_round_trip_and_refuse_nonsense() -> None:
    for made in ONE_OF_EACH:
        assert PrivacyModel.from_dict(made.privacy_model.to_dict()) == made.privacy_model
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
        with pytest.raises(ConfigError):
            Release.from_dict(bad)
    with pytest.raises(ConfigError):
        PrivacyModel("planet", "replace", "local")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        account([], privacy_model=ADDED, delta=1e-5)
    with pytest.raises(ConfigError):
        account(["release"], privacy_model=ADDED, delta=1e-5)  # type: ignore[list-item]
    with pytest.raises(ConfigError):
        account(ONE_OF_EACH[0].releases, privacy_model="central", delta=1e-5)  # type: ignore[arg-type]
    for delta in (-1.0, 1.0, 2.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="delta"):
            account(ONE_OF_EACH[0].releases, privacy_model=ADDED, delta=delta)


def test_neither_a_subclass_nor_its_own_dictionary_makes_another() -> None:
    made = ONE_OF_EACH[0]
    with pytest.raises(TypeError, match="made by"):
        type("Forged", (Guarantee,), {"__post_init__": lambda self, maker: None})
    with pytest.raises(TypeError):
        vars(made)["epsilon"] = 0.01


@pytest.mark.parametrize("rounds", range(1, 60))
def test_no_printed_bound_is_below_the_proved_one(rounds: int) -> None:
    made = account(
        [Release(Gaussian(3.1), Everyone(), rounds)], privacy_model=LOCAL, delta=1.23456e-5
    )
    said = made.statement
    for text, proved in (("epsilon", made.epsilon), ("delta", made.delta)):
        shown = [float(one) for one in re.findall(rf"{text} ([\d.]+(?:e-\d+)?)", said)]
        assert shown
        assert all(proved <= one <= proved * 1.001 for one in shown)
    noise = [float(one) for one in re.findall(r"multiplier ([\d.]+\d)", said)]
    assert noise == [3.1]
    factors = re.findall(r"e\^([\d.]+)(?: = ([\d.]+(?:e\+\d+)?))? times", said)
    assert [float(power) >= made.epsilon for power, _ in factors] == [True]
    assert not factors[0][1] or float(factors[0][1]) >= math.exp(made.epsilon)


def test_shares_that_a_trusted_aggregator_needs_are_told() -> None:
    shares = DiscreteGaussianSum(1, 1 / 64, 0.5, 100, 64)
    made = account([Release(shares, Poisson(0.01, 1000), 10)], privacy_model=ADDED, delta=1e-5)
    assert made.honest_shares == 100
    assert any("100 noise shares" in sentence for sentence in made.rests_on)


@pytest.mark.parametrize("made", ONE_OF_EACH)
def test_that_other_runs_cost_more_is_told(made: Guarantee) -> None:
    assert any(sentence.startswith("Other runs") for sentence in made.not_covered)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.0, 3.0, 20.0])
def test_four_lines_say_how_sure_the_best_guess_can_be(noise: float) -> None:
    """Against the exact trade-off of one Gaussian: the best guess is right in Phi(1 / (2 noise)) of
    all cases. What is said is never less, and certainty only where none would be left out."""
    made = account([Release(Gaussian(noise), Everyone(), 1)], privacy_model=ADDED, delta=1e-9)
    found = re.search(r"with more than ([0-9.]+) % certainty", made.summary)
    assert found is not None
    said, best = float(found.group(1)), 100 * NormalDist().cdf(1 / (2 * noise))
    assert best <= said
    assert said < 100 or made.epsilon > 16


def test_many_reasons_against_a_certificate_still_make_four_lines() -> None:
    taken = tuple(f"Statistics of table {number} were taken from the data." for number in range(6))
    model = dataclasses.replace(ADDED, unprotected=taken)
    made = account([Release(Gaussian(2.0), Everyone(), 1)], privacy_model=model, delta=1e-6)
    lines = made.summary.splitlines()
    assert len(lines) == 4
    assert made.summary.count("table 0") == 1
    assert "table 1" not in made.summary
    assert lines[0].endswith(f"and {made.reason.count('; ')} more reasons.")
    assert all(sentence in made.statement for sentence in taken)
