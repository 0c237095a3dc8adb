"""A mechanism from outside: the page that shows one runs, and whatever is not sure is refused."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.paths import ROOT, python_path

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust
from fedveil.privacy import refusals as r
from fedveil.privacy.accountants.gaussian import GaussianStep
from fedveil.privacy.accountants.steps import DENSE, Step
from fedveil.privacy.accounting import account
from fedveil.privacy.contract import (
    MECHANISMS,
    Mechanism,
    Use,
    mechanism,
    mechanism_from_dict,
)
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import Gaussian, Laplace, Zcdp
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import Everyone, FixedSize, Poisson

PAGE = (ROOT / "docs" / "extending" / "mechanism.md").read_text(encoding="utf-8")
MODEL = PrivacyModel("client", "zero-out", "central")


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)[number]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's module as an installed package, with the page's entry point."""
    place = tmp_path_factory.mktemp("site")
    (place / "staircase.py").write_text(block("python"))
    info = place / "staircase-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: staircase\nVersion: 1.0\n")
    name, target = re.search(r'^(\w+) = "(\w+)"$', block("toml"), re.M).groups()
    (info / "entry_points.txt").write_text(f"[fedveil.mechanisms]\n{name} = {target}\n")
    return place


def run(place: Path, *command: str) -> str:
    path = python_path(place)
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_runs_from_outside_and_has_the_epsilon_of_its_closed_form(installed):
    checks = """
import json
from fedveil.privacy.guarantee import Guarantee
again = Guarantee.from_dict(json.loads(json.dumps(pure.to_dict())))
print(json.dumps([pure.epsilon, composed.epsilon, calibrated.scale_multiplier, again == pure,
                  pure.rests_on]))
"""
    output = run(installed, "-c", block("python", 1) + checks)
    pure, composed, scale, same, rests_on = json.loads(output.splitlines()[-1])
    assert pure == pytest.approx(1000 / 200, rel=1e-9)
    assert 1000 <= scale <= 1000 * 1.0003
    assert same
    assert any("proved by its author, in staircase" in sentence for sentence in rests_on)
    # At delta 1e-5: the Rényi curve of (epsilon^2 / 2)-zCDP, converted (Canonne, Kamath, Steinke
    # 2020, proposition 12), at its best order.
    orders = np.linspace(1.01, 200, 100_000)
    curve = 1000 * np.minimum(1 / 200, orders * (1 / 200) ** 2 / 2)
    converted = curve + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)
    assert converted.min() <= composed <= converted.min() * 1.001


@mechanism("test-plain")
@dataclass(frozen=True)
class Plain(Mechanism):
    """Declares nothing."""

    std: float

    def step(self, use: Use) -> Step:
        return use.gaussian(self.std / use.factor)


@mechanism("test-wide")
@dataclass(frozen=True)
class Wide(Plain):
    """Declares everything."""

    trusts = frozenset(Trust)
    adjacencies = frozenset(Adjacency)
    amplified_by = (Poisson, FixedSize)
    joint_uses = True


def epsilon(found: Mechanism, model: PrivacyModel = MODEL, sampling=None, uses: int = 1) -> float:
    release = Release(found, sampling or Everyone(), 5, uses)
    return account([release], privacy_model=model, delta=1e-5).epsilon


@pytest.mark.parametrize("adjacency", ["zero-out", "replace", "add-remove"])
@pytest.mark.parametrize("trust", ["central", "distributed", "local"])
@pytest.mark.parametrize("sampling", [Everyone(60), Poisson(0.1, 60), FixedSize(60, 6)], ids=repr)
@pytest.mark.parametrize("uses", [1, 3])
def test_a_declared_gaussian_costs_what_ours_does_and_is_refused_where_ours_is(
    adjacency, trust, sampling, uses
):
    model = PrivacyModel("client", adjacency, trust, colluders=2)

    def outcome(found):
        try:
            return epsilon(found, model, sampling, uses)
        except ConfigError as refused:
            return str(refused)

    assert outcome(Wide(2.0)) == outcome(Gaussian(2.0))


@pytest.mark.parametrize(
    ("model", "sampling", "refusal"),
    [
        (replace(MODEL, trust=Trust.LOCAL), Everyone(9), r.MechanismRefused),
        (replace(MODEL, trust=Trust.DISTRIBUTED), Everyone(9), r.MechanismRefused),
        (replace(MODEL, adjacency=Adjacency.REPLACE), Everyone(9), r.AdjacencyRefused),
        (replace(MODEL, adjacency=Adjacency.ADD_REMOVE), Everyone(9), r.AdjacencyRefused),
        (MODEL, Poisson(0.1), r.MechanismRefused),
    ],
)
def test_what_a_mechanism_does_not_declare_is_refused(model, sampling, refusal):
    with pytest.raises(refusal):
        epsilon(Plain(1.0), model, sampling)
    assert epsilon(Plain(1.0)) == epsilon(Gaussian(1.0))


def replace_class(base: type[Mechanism], kind: str, **attributes: object) -> type[Mechanism]:
    made = dataclass(frozen=True)(type(kind.replace("-", "_"), (base,), attributes))
    return mechanism(kind)(made)


@pytest.mark.parametrize(
    "step",
    [
        GaussianStep(math.nan),
        GaussianStep(math.inf),
        GaussianStep(-1.0),
        GaussianStep(0.0),
        GaussianStep(1.0, 0),
        "gaussian",
        None,
    ],
    ids=repr,
)
def test_a_step_with_impossible_numbers_is_refused(step):
    wrong = replace_class(Plain, "test-wrong", step=lambda self, use: step)
    with pytest.raises(ConfigError, match="step"):
        epsilon(wrong(1.0))


def test_a_step_that_answers_nobody_costs_everything():
    @dataclass(frozen=True)
    class Silent(Step):
        count: int = 1

    made = replace_class(Plain, "test-silent", step=lambda self, use: Silent())
    guarantee = account([Release(made(1.0), Everyone(), 1)], privacy_model=MODEL, delta=1e-5)
    assert guarantee.epsilon == math.inf
    assert not guarantee.certified


@pytest.mark.parametrize("answer", [math.nan, -1.0, -math.inf])
@pytest.mark.parametrize("question", ["gaussian", "pure", "zcdp", "worst_gaussian", "renyi"])
def test_an_impossible_answer_lowers_no_epsilon(question, answer):
    """Beside a release of ours, which then costs no less than it does alone."""

    def answered(self, orders=()):
        return np.full(len(orders), answer) if question == "renyi" else answer

    told = {question: answered, **({"orders": lambda self: DENSE} if question == "renyi" else {})}
    shape = {"__annotations__": {"count": int}, "count": 1}
    kind = dataclass(frozen=True)(type("Odd", (Step,), {**shape, **told}))
    odd = replace_class(Plain, f"test-{question}", step=lambda self, use: kind())
    for ours in (Gaussian(1.0), Laplace(5.0), Zcdp(0.1)):
        alone = Release(ours, Everyone(), 1)
        both = account([alone, Release(odd(1.0), Everyone(), 1)], privacy_model=MODEL, delta=1e-5)
        assert both.epsilon >= account([alone], privacy_model=MODEL, delta=1e-5).epsilon


def test_what_is_not_registered_is_no_mechanism():
    @dataclass(frozen=True)
    class Better(Gaussian):
        """Costs nothing, says its author."""

        def step(self, use):
            return GaussianStep(1e9)

    with pytest.raises(ConfigError, match="registered"):
        Release(Better(1.0), Everyone(), 5)
    with pytest.raises(ConfigError, match="registered"):
        Release(object(), Everyone(), 5)
    with pytest.raises(ConfigError, match="unheard-of"):
        mechanism_from_dict({"kind": "unheard-of"})
    for document in ({}, [], None, {"kind": None}, {"kind": ""}):
        with pytest.raises(ConfigError):
            mechanism_from_dict(document)


def test_a_class_that_was_defined_again_replaces_itself_and_the_old_one_is_refused():
    first = replace_class(Plain, "test-again")
    second = replace_class(Plain, "test-again")
    assert epsilon(second(1.0)) == epsilon(Gaussian(1.0))
    with pytest.raises(ConfigError, match="registered"):
        epsilon(first(1.0))


def test_the_entry_point_is_found_on_the_command_line(installed):
    command = block("sh").split()
    assert command[0] == "fedveil"
    document = json.loads(run(installed, "-m", "fedveil", *command[1:]))
    assert document["epsilon"] == pytest.approx(5.0, rel=1e-9)
    assert document["releases"][0]["mechanism"] == {"kind": "staircase", "scale_multiplier": 200.0}


def test_several_uses_of_one_secret_sample_need_a_proof():
    once = replace_class(Wide, "test-once", joint_uses=False)
    with pytest.raises(r.MechanismRefused):
        epsilon(once(1.0), sampling=Poisson(0.1), uses=2)


def test_a_guarantee_of_a_foreign_mechanism_says_whose_proof_it_is():
    ours = account([Release(Gaussian(1.0), Everyone(), 5)], privacy_model=MODEL, delta=1e-5)
    made = account([Release(Plain(1.0), Everyone(), 5)], privacy_model=MODEL, delta=1e-5)
    assert [one for one in made.rests_on if one not in ours.rests_on] == [
        f"What test-plain noise costs is proved by its author, in {__name__}, and not by fedveil."
    ]
    assert "proved by its author" in made.statement
    assert Guarantee.from_dict(made.to_dict()) == made


def test_continuous_shares_of_a_foreign_mechanism_are_not_certified_either():
    shared = replace(MODEL, trust=Trust.DISTRIBUTED)
    made = account([Release(Wide(3.0), Everyone(9), 1)], privacy_model=shared, delta=1e-5)
    assert not made.certified
    assert "continuous noise shares" in made.reason


def test_a_name_is_taken_once_and_only_by_frozen_dataclasses():
    for taken in ("gaussian", "test-plain"):
        with pytest.raises(ConfigError, match=taken):
            replace_class(Plain, taken)
    with pytest.raises(ConfigError, match="frozen"):
        mechanism("test-loose")(type("Loose", (Mechanism,), {}))
    with pytest.raises(ConfigError, match="subclass"):
        mechanism("test-other")(dataclass(frozen=True)(type("Other", (), {})))
    assert mechanism_from_dict({"kind": "gaussian", "noise_multiplier": 2}) == Gaussian(2.0)
    assert {"gaussian", "noisy-gradients", "test-plain"} <= set(MECHANISMS)


def test_nobody_takes_a_name_of_ours_by_being_first(tmp_path):
    first = """
from dataclasses import dataclass
from fedveil.core.errors import ConfigError
from fedveil.privacy.contract import Mechanism, mechanism

@dataclass(frozen=True)
class Free(Mechanism):
    noise_multiplier: float

    def step(self, use):
        return use.gaussian(1e9)

try:
    mechanism("gaussian")(Free)
except ConfigError:
    from fedveil.privacy.contract import mechanism_class
    print(mechanism_class("gaussian").__module__)
"""
    assert run(tmp_path, "-c", first).strip() == "fedveil.privacy.mechanisms"
