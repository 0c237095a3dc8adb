"""The feasible set against closed forms, drawn noise, and its own advice."""

from __future__ import annotations

import math
import shlex

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from tests.shell import Shell

from fedveil.cli.plan import feasible_row
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust
from fedveil.tune.feasible import (
    Question,
    Row,
    about,
    feasible,
    remaining,
    warnings,
    without_proof,
)
from fedveil_lab.reproduction.claims.of_way import claim_of

near = pytest.approx
SIGMA = gaussian_mechanism.get_sigma_gaussian
EPSILON = gaussian_mechanism.get_epsilon_gaussian
UNSAMPLED = (Trust.DISTRIBUTED, Trust.LOCAL)


def ask(**changes: object) -> Question:
    given = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "clients": 1000,
        "dimension": 5000,
        "cohorts": (100,),
        "rounds": (100,),
        "trusts": UNSAMPLED,
    }
    return Question(**{**given, **changes})  # type: ignore[arg-type]


def by_trust(question: Question) -> dict[Trust, Row]:
    return {row.trust: row for row in feasible(question, claim_of)}


def test_unsampled_noise_is_the_exact_gaussian() -> None:
    """Golden numbers 36 and 37: ten participations; half of the shares missing."""
    rows = by_trust(ask(dropped=0.5))
    shared, alone = rows[Trust.DISTRIBUTED], rows[Trust.LOCAL]
    assert shared.participations == alone.participations == 10
    assert shared.noise_multiplier == near(1.8981, rel=1e-3)
    assert alone.noise_multiplier == near(2 * SIGMA(8, 1e-5) * math.sqrt(10), rel=1e-3)
    assert shared.epsilon_if_dropped == near(12.256, rel=2e-3)
    assert alone.epsilon_if_dropped == alone.epsilon


def test_sampled_rows_and_collusion() -> None:
    rows = feasible(
        ask(trusts=(Trust.CENTRAL,), rounds=(20,), epsilon=4.0, colluders=200), claim_of
    )
    poisson, fixed = rows
    assert (poisson.sampling, fixed.sampling) == ("poisson", "fixed")
    assert fixed.noise_multiplier > 1.9 * poisson.noise_multiplier  # replacement moves twice
    assert poisson.epsilon_if_colluding == poisson.epsilon
    assert fixed.epsilon_if_colluding > 1.05 * fixed.epsilon  # the rate is 100 of 800
    for row in rows:
        assert 4 * 0.997 <= row.epsilon <= 4
        assert row.epsilon_if_dropped == row.epsilon
    # At noise std 2*z*G the uniform column of the paper would be honest, at z*G it is not.
    assert fixed.claim.value < fixed.epsilon
    assert poisson.claim.value > poisson.epsilon


def test_signal_to_noise_is_that_of_drawn_noise() -> None:
    """Norms of 200 drawn averages of 5000 weights: 5 sigma of the mean norm is 0.4 %."""
    rng = np.random.default_rng(0)
    for row in feasible(ask()):
        per_sum = row.noise_multiplier * (math.sqrt(100) if row.trust is Trust.LOCAL else 1)
        averages = per_sum / 100 * rng.normal(size=(200, 5000))
        drawn = 1 / np.linalg.norm(averages, axis=1).mean()
        assert row.signal_to_noise == near(drawn, rel=4e-3)
        assert row.run_signal_to_noise == near(10 * row.signal_to_noise)


@pytest.mark.parametrize(("trust", "dimension"), [(Trust.DISTRIBUTED, 10**6), (Trust.LOCAL, 300)])
def test_the_clients_asked_for_are_enough_and_fewer_are_not(trust: Trust, dimension: int) -> None:
    """At the same rate; the slack of 3 % is for a delta that must fall with more clients."""
    hopeless = {"epsilon": 0.5, "dimension": dimension, "rounds": (10,), "trusts": (trust,)}
    row = feasible(ask(**hopeless))[0]
    assert row.run_signal_to_noise < 0.5
    for share, works in ((1.0, True), (0.8, False)):
        clients = math.ceil(share * row.clients_needed / 10) * 10
        more = {"clients": clients, "cohorts": (clients // 10,), "delta": min(1e-5, 0.9 / clients)}
        again = feasible(ask(**hopeless, **more))[0]
        assert (again.run_signal_to_noise >= 0.97) is works
    said = warnings([row])
    assert "the model will not learn" in said[0]
    assert about(row.clients_needed) in said[0]


def test_papers_claim_less_than_is_proved_without_amplification() -> None:
    rows = by_trust(ask(epsilon=4.0))
    assert rows[Trust.LOCAL].claim.paper == "Fu et al."
    assert rows[Trust.LOCAL].claim.value < 4.0
    assert rows[Trust.DISTRIBUTED].claim.paper == "Cheng et al."
    assert rows[Trust.DISTRIBUTED].claim.value < 1.0
    assert not rows[Trust.LOCAL].claim.certified


def test_what_is_left_of_a_budget() -> None:
    assert remaining(4, 1e-5, 1, 4e-6) == (3, near(6e-6))
    for spent in ((4, 0), (5, 0), (0, 1e-5)):
        with pytest.raises(ConfigError, match="already spent"):
            remaining(4, 1e-5, *spent)


LINE = "plan --feasible --epsilon 4 --clients 1000 --cohort 50 --dimension 7850 --rounds 10,100"


def test_command_as_a_document(fedveil: Shell) -> None:
    line = f"{LINE} --trust local --trust distributed --json"
    said = fedveil(*shlex.split(line)).document
    assert [(row["trust"], row["rounds"]) for row in said["rows"]] == [
        ("distributed", 10),
        ("distributed", 100),
        ("local", 10),
        ("local", 100),
    ]
    assert said["delta"] == 1e-5
    assert said["rows"][0]["claim"]["certified"] is False
    assert any(text.startswith("local") for text in said["warnings"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("--spent-epsilon 4", "already spent"),
        ("--cohort 50,x", "--cohort: need a list of whole numbers"),
        ("--cohort 2000", "cohort"),
        ("--delta 0.01", "delta 0.01 is not below 1/1000"),
        ("--rounds 0", "rounds"),
        ("--pilot", "--pilot"),
        ("--trust none", "--trust: need one of"),
        ("--colluders -1", "colluders"),
    ],
)
def test_mistakes_in_one_line(fedveil: Shell, change: str, says: str) -> None:
    done = fedveil(*shlex.split(f"{LINE} {change}"))
    assert done.refused
    assert says in done.err


def test_laplace_noise_is_the_closed_form() -> None:
    """Alone: ten participations of 2 clips each, pure. Sampled: amplification by subsampling."""
    question = ask(epsilon=3.0, delta=0.0, noise="laplace", trusts=tuple(Trust), dimension=50)
    rows = feasible(question, claim_of)
    alone = next(row for row in rows if row.trust is Trust.LOCAL)
    assert alone.noise_multiplier == near(10 * 2 / 3, rel=1e-6)
    assert alone.epsilon == near(3.0)
    assert alone.claim is not None
    assert alone.claim.value == near(1.5)  # the paper forgets that replacing moves twice the clip
    sampled = next(row for row in rows if row.trust is Trust.CENTRAL)
    once = math.log1p((math.exp(3 / 100) - 1) / 0.1)  # of one round, if its cohort were known
    assert sampled.noise_multiplier == near(1 / once, rel=2e-3)
    assert sampled.claim is None
    assert without_proof(question, rows) == [
        "central trust with fixed sampling",
        "distributed trust with round-robin sampling",
    ]


def test_noise_without_a_proof_is_refused_and_delta_zero_needs_laplace() -> None:
    with pytest.raises(PrivacyRefusal, match="laplace"):
        feasible(ask(noise="laplace", trusts=(Trust.DISTRIBUTED,)))
    with pytest.raises(ConfigError, match="laplace"):
        ask(delta=0.0)
    with pytest.raises(ConfigError, match="noise"):
        ask(noise="uniform")


def test_tables_round_noise_and_epsilons_up() -> None:
    """What is copied from the screen must not be less noise, nor a smaller epsilon, than proved."""
    row = Row(
        Trust.CENTRAL, "poisson", Adjacency.ZERO_OUT, 5, 7, 7, 1.23441, 2.0, 1.0, 1.0, 9,
        2.00013, 2.40049, None,
    )  # fmt: skip
    shown = feasible_row(row)
    assert [shown[2], *shown[5:7]] == ["1.235", "2.001", "2.401"]
