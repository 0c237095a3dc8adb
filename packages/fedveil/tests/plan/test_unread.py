"""A recipe key is obeyed or refused, whatever the method: none is accepted and ignored."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import pytest

import fedveil as fv
from fedveil.methods.registry import METHODS
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.unread import SECTIONS

DATA: fv.Federation = fv.load("digits", clients=12, validation_fraction=0.2)
# A value of every key that is not the default of any method.
VALUES: dict[str, Any] = {
    "training.rounds": 3,
    "training.sampling": "everyone",
    "training.cohort": 5,
    "training.rate": 0.25,
    "training.cohort_cap": 9,
    "training.local_steps": 3,
    "training.local_epochs": 3,
    "training.batch_size": 7,
    "training.batches": "poisson",
    "training.batch_rate": 0.3,
    "training.learning_rate": 0.07,
    "training.schedule": "inverse",
    "training.decay": 3.0,
    "training.momentum": 0.3,
    "training.weight_decay": 0.01,
    "training.weighting": "examples",
    "training.weight_cap": 11,
    "training.class_weights": {"3": 2.0},
    "training.penalty": 0.07,
    "training.sparsity": 0.35,
    "training.upload": "sparse",
    "privacy.epsilon": 3.0,
    "privacy.delta": 1e-6,
    "privacy.noise_multiplier": 2.0,
    "privacy.clip_norm": 0.6,
    "privacy.noise": "laplace",
    "privacy.trust": "local",
    "privacy.unit": "record",
    "privacy.sites_per_person": 2,
    "privacy.adjacency": "replace",
    "privacy.public_clients": 20,
    "privacy.colluders": 1,
    "privacy.honest_shares": 3,
    "privacy.rotate": True,
    "privacy.bits": 24,
    "privacy.clip_quantile": 0.4,
    "privacy.clip_rate": 0.3,
    "privacy.clip_noise": 0.1,
    "privacy.clip_highest": 2.0,
    "privacy.correlated": "square-root",
    "privacy.bands": 2,
    "privacy.arithmetic": "exact",
    "privacy.tuned_on": ("mnist",),
    "privacy.trusted_parts": ("decimal:Decimal",),
    "privacy.budgets": {"0": 0.5},
    "privacy.epsilon_column": "epsilon",
    "aggregation.secure": "masked",
    "aggregation.dropout": 0.05,
    "aggregation.max_dropout": 0.2,
    "aggregation.min_honest": 3,
    "aggregation.sparse": True,
    "aggregation.honest_server": True,
    "server.optimizer": "adam",
    "server.learning_rate": 0.7,
    "server.momentum": 0.4,
    "server.schedule": "cosine",
    "server.schedule_setting": 0.2,
    "server.average": "tail",
    "server.average_setting": 0.6,
    "server.smoothing": 0.35,
    "server.smoothing_flat": True,
    "server.smoothing_order": "kernel-in-out",
    "server.smoothing_place": "before-noise",
    "voting.questions": 17,
    "voting.epochs": 3,
    "voting.batch_size": 5,
    "voting.learning_rate": 0.02,
}


# What these methods do anyway: the key is obeyed.
ANYWAY = {
    ("client-noise", "privacy.trust"),
    ("client-noise", "privacy.adjacency"),
    ("dp-sgd", "privacy.adjacency"),
    ("gradient-noise", "privacy.adjacency"),
    ("dp-sgd", "privacy.unit"),
    ("gradient-noise", "privacy.unit"),
    ("ddgauss", "privacy.arithmetic"),
    ("dp-sgd", "privacy.arithmetic"),
    ("gradient-noise", "privacy.arithmetic"),
}


@cache
def plain(method: str) -> fv.Plan:
    return planned(method, {})


def planned(method: str, values: dict[str, Any]) -> fv.Plan:
    usual = {"seed": 1, "training.method": method}
    if METHODS[method].private and "privacy.epsilon" not in values:
        usual["privacy.noise_multiplier"] = 1.0
    given = recipes.parse({}, (), {**usual, **values})
    return plan_of(recipes.with_defaults(given), DATA)


def same(one: fv.Plan, other: fv.Plan) -> bool:
    """Whether nothing of what runs and of what is promised differs."""

    def of(plan: fv.Plan) -> tuple[Any, ...]:
        arithmetic = plan.context and plan.context.arithmetic
        said = (plan.noise_multiplier, plan.delta, plan.declared, plan.unprotected)
        said = (*said, plan.trusted_parts, plan.scales)
        return (plan.method, plan.sampling, plan.pipeline, plan.optimizer, arithmetic, *said)

    return of(one) == of(other)


def test_there_is_a_value_for_every_key():
    sections = {f.name: f.default_factory() for f in fields(fv.Recipe) if f.name in SECTIONS}
    keys = {f"{name}.{f.name}" for name, section in sections.items() for f in fields(section)}
    assert keys - {"training.method"} == set(VALUES)


@pytest.mark.parametrize("method", METHODS)
def test_every_key_changes_what_runs_or_is_refused(method):
    obeyed = []
    for key, value in VALUES.items():
        try:
            made = planned(method, {key: value})
        except fv.FedveilError:
            continue
        obeyed.append(key)
        if (method, key) in ANYWAY:
            continue
        assert not same(made, plain(method)), f"{method} accepts {key} and ignores it"
    # The refusals must not be for another reason than the key.
    trained = {"training.learning_rate", "training.schedule", "training.decay"}
    assert ({"privacy.delta"} if method == "moments" else trained) <= set(obeyed)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("client-noise", {"training.weighting": "examples", "training.weight_cap": 5}),
        ("gradient-noise", {"training.weighting": "examples", "training.batch_size": 4}),
        ("dp-sgd", {"training.local_steps": 4, "training.batch_size": 4}),
        ("dp-fedavg", {"server.smoothing_flat": True}),
        ("dp-fedavg", {"privacy.clip_rate": 0.5}),
        ("fedavg", {"privacy.epsilon": 2.0}),
        ("fedavg", {"training.upload": "sparse"}),
    ],
)
def test_a_key_that_nothing_reads_is_refused_by_its_name(method, values):
    with pytest.raises(fv.ConfigError, match=next(iter(values))):
        planned(method, values)


@pytest.mark.parametrize("off", ["training.penalty", "training.sparsity"])
def test_zero_switches_a_part_of_a_method_off(off):
    assert not same(planned("bounded-sparse", {off: 0.0}), plain("bounded-sparse"))


def test_a_method_that_is_told_its_own_defaults_stays_what_it_is():
    told = {"training.penalty": 0.4, "training.sparsity": 0.7}
    assert same(planned("bounded-sparse", told), plain("bounded-sparse"))


def test_keys_about_files_are_refused_beside_a_named_source():
    recipe = recipes.parse({}, (), {"data.source": "digits", "data.label": "income"})
    with pytest.raises(fv.ConfigError, match=r"data\.label"):
        federation_of(recipe.data)
