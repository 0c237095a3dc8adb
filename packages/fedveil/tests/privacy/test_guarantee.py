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

import pytest

import fedveil as fv
from fedveil.core.units import Entropy
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients, NonExpansive
from fedveil.privacy.mechanisms import NoisyVotes
from fedveil.privacy.tuning import AllRuns, RandomRuns

ADDED = fv.PrivacyModel("client", "add-remove", "central")
REPLACED = fv.PrivacyModel("client", "replace", "central")
SHARED = fv.PrivacyModel("client", "zero-out", "distributed")
LOCAL = fv.PrivacyModel("client", "replace", "local")
RECORD = fv.PrivacyModel("record", "replace", "distributed")


def made_of(mechanism, sampling, rounds, model, delta=1e-5, tuning=None) -> fv.Guarantee:
    release = fv.Release(mechanism, sampling, rounds)
    return fv.account([release], privacy_model=model, delta=delta, tuning=tuning)


STEPS = 5, 2, 20, NonExpansive("logistic", 1.0, (0.5,))
SUM = fv.DiscreteGaussianSum(1, 1 / 64, 0.1, 100, 4096)
ONE_OF_EACH = [
    made_of(fv.Gaussian(1.1), fv.Poisson(0.01, 5000), 100, ADDED),
    made_of(fv.Gaussian(2.0), fv.FixedSize(2000, 100), 20, REPLACED, 1e-4),
    made_of(fv.Gaussian(2.0), fv.CappedPoisson(900, 0.1, 120), 9, ADDED, 1e-4),
    made_of(fv.Gaussian(3.0), fv.RoundRobin(10, 3), 7, SHARED, 1e-3),
    made_of(fv.Gaussian(3.0), fv.Balanced(10, 3, 7), 7, SHARED, 1e-3),
    made_of(fv.Laplace(10.0), fv.Everyone(), 5, LOCAL, 0),
    made_of(fv.DiscreteGaussian(4.0), fv.Everyone(), 5, LOCAL, 1e-6),
    made_of(SUM, fv.Everyone(), 3, SHARED),
    made_of(NoisyVotes(50.0), fv.Everyone(), 500, SHARED),
    made_of(fv.Zcdp(0.1), fv.Everyone(), 3, LOCAL, tuning=AllRuns(2)),
    made_of(fv.Gaussian(1.1), fv.Poisson(0.01), 100, ADDED, tuning=RandomRuns(10)),
    made_of(NoisyGradients(1, 100, 0.1, *STEPS), fv.Everyone(20), 10, RECORD),
    made_of(GridGradients(1, 100, 1, *STEPS, 1 / 512, 64), fv.Everyone(20), 10, RECORD),
    made_of(fv.Gaussian(1.0), fv.Everyone(), 1, LOCAL, 0),  # infinite
]
EACH = pytest.mark.parametrize("made", ONE_OF_EACH, ids=lambda g: f"{g.sampling}/{g.accountant}")


def through_json(guarantee: fv.Guarantee) -> dict:
    return json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))


def test_only_accounting_makes_a_guarantee():
    made = ONE_OF_EACH[0]
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    with pytest.raises(TypeError, match="account"):
        fv.Guarantee(**fields)
    with pytest.raises(TypeError, match="account"):
        dataclasses.replace(made, epsilon=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.epsilon = 0.1


def test_a_copy_or_a_pickle_cannot_say_anything_else():
    """A pickle holds what was released, not what it costs; there is nothing in it to change."""
    made = ONE_OF_EACH[0]
    assert copy.copy(made) is made
    assert copy.deepcopy(made) is made
    function, arguments = made.__reduce__()
    assert made.epsilon not in arguments
    assert function(*arguments) == made
    forged = fv.Guarantee.__new__(fv.Guarantee)
    with pytest.raises(TypeError, match="account"):
        forged.__setstate__(dataclasses.asdict(made) | {"epsilon": 0.1})
    data = pickle.dumps(made)
    assert struct.pack(">d", made.releases[0].mechanism.noise_multiplier) in data
    assert struct.pack(">d", made.epsilon) not in data


@EACH
def test_what_was_taken_without_noise_certifies_nothing(made):
    said = ("means were taken from the data", "the classes were counted")
    privacy_model = dataclasses.replace(made.privacy_model, unprotected=said)
    found = fv.account(
        made.releases, privacy_model=privacy_model, delta=made.delta, tuning=made.tuning
    )
    assert (found.certified, found.epsilon) == (False, made.epsilon)
    if math.isfinite(made.epsilon):
        assert "Means were taken from the data; The classes were counted" in found.reason
    assert found.not_covered[:2] == ("Means were taken from the data.", "The classes were counted.")
    assert found.statement.startswith("Not certified: ")
    assert fv.Guarantee.from_dict(through_json(found)) == found
    hidden = through_json(found)
    hidden["not_covered"] = hidden["not_covered"][2:]
    with pytest.raises(fv.ConfigError, match="not_covered"):
        fv.Guarantee.from_dict(hidden)


def test_a_list_holds_plain_lines_whatever_names_are_in_it():
    """Names come out of files: they must not write over the screen or start lines of their own."""
    said = ["column 'a\x1b[2J\nCertified: yes' was  counted.", "twice", "Twice."]
    privacy_model = dataclasses.replace(ADDED, unprotected=said)
    assert privacy_model.unprotected == ("Column 'a [2J Certified: yes' was counted.", "Twice.")
    made = fv.account(ONE_OF_EACH[0].releases, privacy_model=privacy_model, delta=1e-5)
    assert not [line for line in made.statement.splitlines() if line.startswith("Certified")]


def needs(guarantee: fv.Guarantee, *words: str) -> bool:
    return all(any(word in sentence for sentence in guarantee.rests_on) for word in words)


def test_it_rests_on_what_its_proof_needs_and_on_nothing_else():
    """Each assumption where the mechanism needs it, and only there."""
    for made in ONE_OF_EACH:
        drawn = [release.sampling for release in made.releases if release.amplified]
        assert needs(made, "stay secret") is bool(drawn or isinstance(made.tuning, RandomRuns))
        poisson = any(isinstance(one, fv.Poisson | fv.CappedPoisson) for one in drawn)
        assert needs(made, "empty cohort") is poisson
        limited = any(isinstance(one, fv.FixedSize | fv.CappedPoisson) for one in drawn)
        assert needs(made, "whether it was drawn") is limited
        assert needs(made, "is trusted") is (made.trust is fv.Trust.CENTRAL)
        assert needs(made, "noise shares") is (made.trust is fv.Trust.DISTRIBUTED)
        assert needs(made, "before its noise") is (made.trust is fv.Trust.LOCAL)
        fewer = any(one.counted_participations < one.rounds for one in made.releases)
        assert needs(made, "No client takes part in more than") is fewer
        certificate = any(getattr(one.mechanism, "certificate", None) for one in made.releases)
        assert needs(made, "no two models further apart") is certificate
        assert needs(made, "scored on public data") is isinstance(made.tuning, RandomRuns)
        assert needs(made, "operating system", "by no more than its bound", "without the protected")
        absent = made.adjacency is fv.Adjacency.ADD_REMOVE
        assert needs(made, "do not follow the number of clients") is absent
        assert any("its presence is not" in one for one in made.not_covered) is not absent
    colluding = dataclasses.replace(REPLACED, colluders=3)
    made = fv.account(ONE_OF_EACH[1].releases, privacy_model=colluding, delta=1e-4)
    assert needs(made, "At most 3 clients tell anybody whether they were drawn.")
    seeded = dataclasses.replace(ADDED, entropy=Entropy.SEEDED, arithmetic=fv.Arithmetic.IDEALISED)
    made = fv.account(ONE_OF_EACH[0].releases, privacy_model=seeded, delta=1e-5)
    assert not needs(made, "operating system")
    assert not needs(made, "drawn exactly")


@EACH
def test_json_there_and_back(made):
    assert fv.Guarantee.from_dict(through_json(made)) == made
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
def test_a_document_that_was_changed_is_refused(name, value):
    document = through_json(ONE_OF_EACH[0])
    document[name] = value
    with pytest.raises(fv.ConfigError):
        fv.Guarantee.from_dict(document)


def test_inner_parts_of_a_document_are_checked_too():
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
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(fv.ConfigError):
            fv.Guarantee.from_dict(document)
    for missing in ("releases", "privacy_model", "delta", "epsilon", "statement"):
        document = through_json(ONE_OF_EACH[0])
        del document[missing]
        with pytest.raises(fv.ConfigError):
            fv.Guarantee.from_dict(document)
    with pytest.raises(fv.ConfigError):
        fv.Guarantee.from_dict([])


def test_certified_needs_exact_arithmetic_and_system_entropy():
    for arithmetic in fv.Arithmetic:
        for entropy in Entropy:
            privacy_model = dataclasses.replace(ADDED, arithmetic=arithmetic, entropy=entropy)
            made = made_of(fv.Gaussian(1.1), fv.Poisson(0.01), 100, privacy_model)
            exact = arithmetic is fv.Arithmetic.EXACT and entropy is Entropy.SYSTEM
            assert made.certified is exact
            assert made.epsilon == ONE_OF_EACH[0].epsilon
            if entropy is Entropy.SEEDED:
                assert "seed" in made.reason
            if arithmetic is fv.Arithmetic.IDEALISED:
                assert "floating-point" in made.reason
            assert made.statement.startswith("Certified: ") is exact
            assert ("\nNot certified: " in made.statement) is not exact
            assert ("But for the reason at the end" in made.statement) is not exact


def test_continuous_shares_in_a_secure_sum_are_idealised_only():
    continuous = made_of(fv.Gaussian(3.0), fv.Everyone(100), 3, SHARED)
    assert not continuous.certified
    assert "discrete Gaussian" in continuous.reason
    mechanism = fv.DiscreteGaussianSum(1, 1 / 1024, 0.3, 100, 4096, None)
    discrete = made_of(mechanism, fv.Everyone(100), 3, SHARED)
    assert discrete.certified
    assert discrete.honest_shares == 100
    assert discrete.noise_multiplier == pytest.approx(3.0)
    assert discrete.epsilon >= continuous.epsilon
    assert discrete.epsilon == pytest.approx(continuous.alternatives["rdp"], rel=1e-9)


def test_releases_and_settings_round_trip_and_refuse_nonsense():
    for made in ONE_OF_EACH:
        assert fv.PrivacyModel.from_dict(made.privacy_model.to_dict()) == made.privacy_model
        for release in made.releases:
            assert fv.Release.from_dict(json.loads(json.dumps(release.to_dict()))) == release
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
        with pytest.raises(fv.ConfigError):
            fv.Release.from_dict(bad)
    with pytest.raises(fv.ConfigError, match="unit"):
        fv.PrivacyModel("planet", "replace", "local")
    for releases in ([], ["release"], ONE_OF_EACH[0].releases[0]):
        with pytest.raises(fv.ConfigError, match="releases"):
            fv.account(releases, privacy_model=ADDED, delta=1e-5)
    with pytest.raises(fv.ConfigError, match="privacy_model"):
        fv.account(ONE_OF_EACH[0].releases, privacy_model="central", delta=1e-5)
    for delta in (-1.0, 1.0, 2.0, float("nan"), float("inf")):
        with pytest.raises(fv.ConfigError, match="delta"):
            fv.account(ONE_OF_EACH[0].releases, privacy_model=ADDED, delta=delta)


@pytest.mark.parametrize("rounds", range(1, 60))
def test_no_printed_bound_is_below_the_proved_one(rounds):
    made = made_of(fv.Gaussian(3.1), fv.Everyone(), rounds, LOCAL, 1.23456e-5)
    said = made.statement
    assert ("promises little" in said) is (made.epsilon > 10)
    for text, proved in (("epsilon", made.epsilon), ("delta", made.delta)):
        shown = [float(one) for one in re.findall(rf"{text} ([\d.]+(?:e-\d+)?)", said)]
        assert shown
        assert all(proved <= one <= proved * 1.001 for one in shown)
    noise = [float(one) for one in re.findall(r"multiplier ([\d.]+\d)", said)]
    assert noise == [3.1]
    factors = re.findall(r"e\^([\d.]+)(?: = ([\d.]+(?:e\+\d+)?))? times", said)
    assert [float(power) >= made.epsilon for power, _ in factors] == [True]
    assert not factors[0][1] or float(factors[0][1]) >= math.exp(made.epsilon)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.0, 3.0, 20.0])
def test_four_lines_say_how_sure_the_best_guess_can_be(noise):
    """Against the exact trade-off of one Gaussian: the best guess is right in Phi(1 / (2 noise)) of
    all cases. What is said is never less, and certainty only where none would be left out."""
    made = made_of(fv.Gaussian(noise), fv.Everyone(), 1, ADDED, 1e-9)
    found = re.search(r"with more than ([0-9.]+) % certainty", made.summary)
    said, best = float(found.group(1)), 100 * NormalDist().cdf(1 / (2 * noise))
    assert best <= said
    assert said < 100 or made.epsilon > 16


@EACH
def test_the_least_of_all_valid_bounds_is_reported(made):
    assert made.alternatives[made.accountant] == made.epsilon == min(made.alternatives.values())
    assert made.theorem in made.statement
    assert made.certified == (made.reason == "")
    assert any(sentence.startswith("Other runs") for sentence in made.not_covered)
    assert (made.to_dict()["epsilon"] is None) == math.isinf(made.epsilon)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (0, ("one client", "stay secret", "Poisson sampling at rate 0.01")),
        (1, ("100 out of 2000 clients",)),
        (2, ("at most 120 of 900",)),
        (3, ("as a server does", "3 honest noise shares")),
        (9, ("all of it 2 times for tuning",)),
        (10, ("10 on average",)),
        (11, ("one record of one client",)),
        (13, ("no finite epsilon",)),
    ],
)
def test_statement_names_who_is_protected_from_whom(place, words):
    assert all(word in ONE_OF_EACH[place].statement for word in words)


def test_rounds_and_participations_are_both_told():
    made = ONE_OF_EACH[3]
    assert (made.rounds, made.participations) == (7, 3)
    counted = fv.Release(fv.Gaussian(3.0), fv.FixedSize(3400, 136), 1000, participations=84)
    capped = fv.account([counted], privacy_model=SHARED, delta=1e-5)
    assert (capped.rounds, capped.participations) == (1000, 84)
    assert "no credit for sampling" in capped.statement


def test_neither_a_subclass_nor_its_own_dictionary_makes_another():
    made = ONE_OF_EACH[0]
    with pytest.raises(TypeError, match="Guarantee"):
        type("Forged", (fv.Guarantee,), {"__post_init__": lambda self, maker: None})
    with pytest.raises(TypeError):
        vars(made)["epsilon"] = 0.01


def test_shares_that_a_trusted_aggregator_needs_are_told():
    made = made_of(SUM, fv.Poisson(0.01, 1000), 10, ADDED)
    assert made.honest_shares == 100
    assert any("100 noise shares" in sentence for sentence in made.rests_on)


def test_many_reasons_against_a_certificate_still_make_four_lines():
    taken = tuple(f"Statistics of table {number} were taken from the data." for number in range(6))
    model = dataclasses.replace(ADDED, unprotected=taken)
    made = made_of(fv.Gaussian(2.0), fv.Everyone(), 1, model)
    lines = made.summary.splitlines()
    assert len(lines) == 4
    assert made.summary.count("table 0") == 1
    assert "table 1" not in made.summary
    assert lines[0].endswith(f"and {made.reason.count('; ')} more reasons.")
    assert all(sentence in made.statement for sentence in taken)
