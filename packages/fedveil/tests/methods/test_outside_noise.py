"""docs/extending/noise.md as its reader follows it: a noise placement of somebody else's."""

from __future__ import annotations

import importlib
import math
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.paths import ROOT

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.methods.registry import METHODS
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.sums import update_sum

PAGE = (ROOT / "docs" / "extending" / "noise.md").read_text(encoding="utf-8")
NAME = "block_noise:BlockNoise"


def block(start: str) -> str:
    found: str = re.findall(rf"```{re.escape(start)}\n(.*?)```", PAGE, re.S)[0]
    return found


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's file, imported from a folder of its own."""
    place = tmp_path_factory.mktemp("outside")
    (place / "block_noise.py").write_text(block('python title="block_noise.py"'))
    len(METHODS)  # those of the package are known before
    with pytest.MonkeyPatch.context() as patch:
        for kept in ("_things", "_origins"):  # what the page registers is forgotten afterwards
            patch.setattr(METHODS, kept, dict(getattr(METHODS, kept)))
        patch.syspath_prepend(str(place))
        yield importlib.import_module("block_noise")
    sys.modules.pop("block_noise")


def planned(*assignments: str, seed: int | None = None, factor: float = 2.0) -> fv.Plan:
    settings = ["training.method=block-noise", "data.clients=100", "training.rounds=3"]
    settings += ["training.sampling=everyone", "privacy.clip_norm=0.5", "privacy.epsilon=4"]
    table: dict[str, Any] = {"method": {"factor": factor}}
    table |= {} if seed is None else {"seed": seed}
    chosen = recipes.with_defaults(recipes.parse(table, [*settings, *assignments]))
    return plan_of(chosen, federation_of(chosen.data))


def test_the_page_runs(outside):
    scope: dict[str, Any] = {}
    exec(compile(block("python"), "noise.md", "exec"), scope)
    assert not scope["unnamed"].guarantee.certified
    assert scope["named"].guarantee.certified
    recipes.parse(tomllib.loads(block("toml")))
    assert len(block('python title="block_noise.py"').splitlines()) <= 80  # one class, one page


def test_a_foreign_placement_is_certified_if_and_only_if_it_is_named(outside):
    unnamed, named = planned(), planned(f'privacy.trusted_parts=["{NAME}"]')
    assert not unnamed.guarantee.certified
    assert f'privacy.trusted_parts = ["{NAME}"]' in unnamed.guarantee.reason  # what to type
    assert named.guarantee.certified
    assert any(NAME in sentence for sentence in named.guarantee.rests_on)
    assert named.guarantee.epsilon == unnamed.guarantee.epsilon
    # Its word survives being written and read again.
    assert fv.Guarantee.from_dict(named.guarantee.to_dict()) == named.guarantee


def test_only_the_named_class_itself_is_trusted(outside):
    named = planned(f'privacy.trusted_parts=["{NAME}"]')

    @dataclass(frozen=True)
    class Quieter(outside.BlockNoise):
        def protect(self, at, total):
            return total.float()

    claims = {"__module__": "block_noise", "__qualname__": "BlockNoise"}
    forged = type("BlockNoise", (Quieter,), claims)
    replaced = outside.BlockNoise()
    object.__setattr__(replaced, "protect", lambda at, total: total.float())
    for placement in (Quieter(), forged(), replaced):
        changed = replace(named, method=replace(named.method, placement=placement))
        assert not changed.guarantee.certified


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_epsilon_is_that_of_the_quietest_block(outside, factor):
    """Three rounds of everybody: a Gaussian of mu = sqrt(3) / (z min(1, f)), in closed form."""
    plan = planned("privacy.delta=1e-5", factor=factor)
    mu = math.sqrt(3) / ((plan.noise_multiplier or 0.0) * min(1.0, factor))
    e = plan.guarantee.epsilon
    delta = stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("seed", [None, 1], ids=["protected", "simulated"])
@pytest.mark.parametrize("tracked", [False, True], ids=["fixed clip", "tracked clip"])
def test_it_runs_as_every_other_placement_does(outside, seed, tracked):
    plan = planned(seed=seed)
    if tracked:
        rule = fv.AdaptiveClipping(fv.Clip(0.5))
        plan = replace(plan, method=replace(plan.method, clip_rule=rule))
    run = fv.Run(plan)
    assert math.isfinite(run.finish().loss)
    run.close()
    assert run.state.rounds == 3
    assert ("clip_norm" in run.state.optimizer) == tracked


def test_each_block_gets_the_noise_that_the_proof_counts(outside):
    """Chi-square on the squares of 640 weights and 10 biases over 40 rounds, alarm 1e-6 each."""
    plan = planned(seed=1)
    nothing, cohort = np.zeros(plan.layout.size), np.arange(3)
    rows = [
        update_sum(plan, number, cohort, Randomness(2), {})
        .protect(torch.from_numpy(nothing), cohort)
        .numpy()
        for number in range(40)
    ]
    std = (plan.noise_multiplier or 0.0) * 0.5
    for slot in plan.layout.slots:
        part = np.array(rows)[:, slot.start : slot.stop].ravel()
        expected = std * (2.0 if slot.name.endswith("bias") else 1.0)
        total = float((part.astype(float) ** 2).sum() / expected**2)
        assert stats.chi2.ppf(1e-6, len(part)) < total < stats.chi2.isf(1e-6, len(part))


@dataclass(frozen=True)
class MyGradients(fv.GradientNoise):
    """Gradient noise that somebody has changed."""


def test_a_changed_gradient_noise_is_what_runs():
    """fedveil chooses among its own proofs, and never in the place of somebody else's class."""
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=1, batch_size=5)
    everyone = fv.CohortRule(fv.Scheme.EVERYONE)
    method = fv.dp_sgd(rounds=1, cohort=everyone, local=local, clip_norm=1.0, secure_sum=False)
    digits = fv.load("digits", clients=20)
    plan = fv.plan(
        replace(method, placement=MyGradients(secure_sum=False)),
        digits,
        fv.build("logistic", digits),
        budget=fv.Budget(noise_multiplier=1.0),
    )
    assert type(plan.noise) is MyGradients
    assert not plan.guarantee.certified


def test_wrong_names_are_refused(outside):
    named = planned(f'privacy.trusted_parts=["{NAME}", "nobody:Nothing"]')
    assert named.guarantee.certified  # a name that no part has vouches for nothing
    with pytest.raises(fv.ConfigError, match="trusted_parts"):
        fv.plan(
            named.method,
            named.federation,
            named.module,
            budget=fv.Budget(epsilon=4),
            trusted_parts=NAME,
        )
