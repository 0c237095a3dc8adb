"""Callers make typing errors: words stand for members, and the rest is told in one clear line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.core.units import Entropy
from fedveil.data.dp_schema import Bought, Offer
from fedveil.methods.parts.noisy_votes import VoteNoise
from fedveil.privacy.correlated import FactorKind
from fedveil.run.sums import update_sum
from fedveil.training.server.averaging import Average, Averaged
from fedveil.training.server.smoothing import Order

PAID = {"unit": fv.Unit.CLIENT, "trust": fv.Trust.CENTRAL, "releases": ("one",)}
LOCAL = fv.LocalTraining(fv.LearningRate(1.0), steps=1)
HALF = fv.CohortRule(rate=0.5)


@cache
def digits() -> fv.Federation:
    return fv.load("digits", clients=20)


def made(**given: Any) -> fv.Method:
    usual = {"rounds": 2, "cohort": HALF, "local": LOCAL, "clip": fv.Clip(0.8)}
    return fv.dp_fedavg(**(usual | given))


def planned(
    chosen: Any = None, data: Any = None, model: Any = None, budget: Any = None, **more: Any
) -> fv.Plan:
    data, budget = data or digits(), budget or fv.Budget(noise_multiplier=1.0)
    return fv.plan(
        chosen or made(), data, model or fv.build("logistic", digits()), budget=budget, **more
    )


@pytest.mark.parametrize(
    ("kind", "field", "member", "more"),
    [
        (fv.CohortRule, "scheme", fv.Scheme.FIXED, {"rate": 0.5}),
        (fv.LearningRate, "schedule", fv.Schedule.INVERSE, {"rate": 1.0}),
        (fv.CentralNoise, "noise", fv.Noise.LAPLACE, {}),
        (fv.CentralNoise, "adjacency", fv.Adjacency.REPLACE, {}),
        (fv.LocalNoise, "noise", fv.Noise.LAPLACE, {}),
        (fv.LocalNoise, "adjacency", fv.Adjacency.ZERO_OUT, {}),
        (fv.CorrelatedNoise, "kind", FactorKind.SQUARE_ROOT, {}),
        (fv.DistributedNoise, "adjacency", fv.Adjacency.REPLACE, {}),
        (fv.GradientNoise, "adjacency", fv.Adjacency.ZERO_OUT, {}),
        (VoteNoise, "trust", fv.Trust.CENTRAL, {}),
        (VoteNoise, "adjacency", fv.Adjacency.REPLACE, {}),
        (fv.Aggregation, "secure", fv.SecureMode.MASKED, {}),
        (Offer, "unit", fv.Unit.CLIENT, {"trust": fv.Trust.CENTRAL, "noise": 1.0, "missed": 0.1}),
        (Offer, "trust", fv.Trust.CENTRAL, {"unit": fv.Unit.CLIENT, "noise": 1.0, "missed": 0.1}),
        (Bought, "entropy", Entropy.SEEDED, PAID),
        (fv.Smoothing, "order", Order.IN_OUT_KERNEL, {"strength": 1.0}),
        (Averaged, "kind", Average.TAIL, {"optimizer": fv.Sgd(), "setting": 0.5, "rounds": 2}),
    ],
)
def test_a_word_is_as_good_as_the_member_it_names(
    kind: type[Any], field: str, member: Any, more: dict[str, Any]
) -> None:
    """Members are told apart with `is`: a word that stayed a word would be none of them."""
    assert getattr(kind(**more, **{field: str(member)}), field) is member
    with pytest.raises(fv.ConfigError, match="'neither'"):
        kind(**more, **{field: "neither"})


@pytest.mark.parametrize("word", ["gaussian", "laplace"])
def test_what_is_drawn_is_what_is_accounted_when_noise_is_named_by_a_word(word: str) -> None:
    clip = fv.Clip(0.8, order=1 if word == "laplace" else 2)
    chosen = made(clip=clip, placement=fv.CentralNoise(noise=word))  # type: ignore[arg-type]
    plan = planned(chosen)
    (release,) = plan.releases(1)
    assert type(release.mechanism).__name__.lower() == word
    nothing, cohort = torch.zeros(20_000, dtype=torch.int64), np.arange(3)
    drawn = update_sum(plan, 0, cohort, Randomness(1), {}).protect(nothing, cohort).double()
    peaked = float((drawn**4).mean() / (drawn**2).mean() ** 2)  # 3 or 6, give or take 0.1 or 0.6
    assert abs(peaked - (3 if word == "gaussian" else 6)) < 1.5


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble])
def test_noise_is_as_large_as_accounted_whatever_type_its_number_has(kind: type[Any]) -> None:
    """Of 16 bits, the product with a clip is short of it by up to half a thousandth."""
    clip, given = 0.777, kind(1.1)
    plan = planned(made(clip=fv.Clip(clip)), budget=fv.Budget(noise_multiplier=given))
    assert plan.guarantee is not None
    assert plan.noise is not None
    (release,) = plan.guarantee.releases
    std = plan.noise.at().scale
    assert std == release.mechanism.noise_multiplier * clip == float(given) * clip


def test_whole_numbers_of_other_libraries_are_numbers() -> None:
    """Of 8 bits, a product of rounds and steps would overflow; and no proof is about them."""
    local = fv.LocalTraining(fv.LearningRate(np.float32(0.5)), steps=np.int8(100))
    cohort = fv.CohortRule("round-robin", size=np.int64(5))
    method = made(rounds=np.uint8(200), cohort=cohort, local=local, clip=fv.Clip(np.float16(0.5)))
    found = planned(method).guarantee
    same = fv.LocalTraining(fv.LearningRate(0.5), steps=100)
    cohort = fv.CohortRule("round-robin", size=5)
    assert method == made(rounds=200, cohort=cohort, local=same, clip=fv.Clip(0.5))
    assert found is not None
    assert found.certified
    assert {type(one) for one in (method.rounds, local.steps, cohort.size)} == {int}


WRONG: dict[str, tuple[str, Callable[[], object]]] = {
    "budget in words": ("epsilon", lambda: fv.Budget(epsilon="4")),
    "clip in words": ("clip_norm", lambda: fv.Clip("1")),
    "half a round": ("training.rounds", lambda: made(rounds=2.5)),
    "a number for a cohort": ("cohort", lambda: made(cohort=10)),
    "a number for a rate": ("learning_rate", lambda: fv.LocalTraining(0.5, steps=3)),
    "a name for a model": ("model", lambda: planned(model="mlp")),
    "things in another order": ("method", lambda: planned(digits())),
    "a number for a budget": ("budget", lambda: planned(budget=4.0)),
    "a sentence alone": ("declared", lambda: planned(declared="All is public.")),
    "a step in words": ("server.learning_rate", lambda: fv.Sgd("a")),
    "momentum in words": (
        "momentum",
        lambda: fv.LocalTraining(fv.LearningRate(1.0), steps=1, momentum="a"),
    ),
    "a layer of nobody": ("hidden", lambda: fv.build("mlp", digits(), hidden=[0])),
    "less than no mixing": (
        "digits: alpha",
        lambda: fv.load("digits", "dirichlet", clients=10, alpha=-1),
    ),
    "a word for a model of privacy": (
        "privacy_model",
        lambda: fv.calibrate_noise(
            epsilon=1, delta=1e-5, sampling=fv.Everyone(), rounds=1, privacy_model="client"
        ),
    ),
    "no number for a cap": ("weight_cap", lambda: made(weight_cap=float("nan"))),
    "an honest server, no": (
        "honest_server",
        lambda: fv.Aggregation(honest_server="no"),
    ),
    "each example, no": ("per_example", lambda: fv.GradientClip(1.0, 2, "no")),
    "a model without data": ("federation", lambda: fv.build("logistic", None)),
    "a method that is run": ("plan", lambda: fv.Run(made())),
    "a name for a speed": ("speed", lambda: fv.Run(planned(), speed="fast")),
    "a function that is told": ("callbacks", lambda: fv.Run(planned(), callbacks=[print])),
    "a release alone": (
        "releases",
        lambda: fv.account(
            fv.Release(fv.Gaussian(1.0), fv.Poisson(0.1), 10),
            privacy_model=fv.PrivacyModel("client", "zero-out", "central"),
            delta=1e-5,
        ),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_told_in_one_line_what_is_needed(name: str) -> None:
    argument, use = WRONG[name]
    with pytest.raises(fv.ConfigError, match=rf"^(\w+\.)?{re.escape(argument)}\b[^\n]*$"):
        use()


def test_exact_arithmetic_named_by_a_word_is_exact() -> None:
    assert planned(arithmetic="exact", seed=1).pipeline.granularity is not None
    assert planned(arithmetic="idealised", seed=1).pipeline.granularity is None
    context = replace(planned(seed=1).context, arithmetic="exact")
    assert context.exact


def test_a_task_named_by_a_word_is_that_task() -> None:
    ones = fv.Examples(np.ones((2, 2), np.float32), np.zeros(2, np.float32))
    made_so = fv.Federation(ones, np.array([0, 2]), ones, task="regression", classes=0)
    assert made_so.task is fv.Task.REGRESSION
    with pytest.raises(fv.ConfigError, match=r"task: need one of .*, got 'guess'"):
        replace(made_so, task="guess")


def test_methods_take_words_too() -> None:
    usual: dict[str, Any] = {"rounds": 2, "cohort": HALF, "local": LOCAL, "clip_norm": 1.0}
    laplace = fv.client_noise(**usual, noise="laplace")
    assert laplace.clip_rule.clip(laplace.local, 0, {}).order == 1
    assert isinstance(fv.gradient_noise(**usual, unit="client").placement, fv.DistributedNoise)


def test_a_run_directory_may_be_named_by_a_string(tmp_path: Path) -> None:
    plan = planned(seed=1)
    for make in (lambda *given: fv.RunDirectory.create(*given, {}), fv.RunDirectory.open):
        directory = make(str(tmp_path / "run"), plan)
        assert directory.path == tmp_path / "run"
        directory.close()


def test_a_name_with_a_typing_error_is_corrected() -> None:
    """Python suggests what is nearest if it is told where the name was looked for."""
    with pytest.raises(AttributeError) as raised:
        _ = fv.dp_fedvag
    assert (raised.value.name, raised.value.obj) == ("dp_fedvag", fv)
