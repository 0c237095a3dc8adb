"""What cannot be proved cannot be planned; what makes no sense is refused, never ignored."""

from __future__ import annotations

import pytest
import torch
from tests.methods.reference import federation, rule
from torch import nn

import fedveil as fv
from fedveil.methods.registry import METHODS
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of

DATA = federation(sizes=(6,) * 12)


def planned(*assignments: str) -> fv.Plan:
    """A plan on a small federation: `method key=value ...`, sections spelt out."""
    method, *others = assignments
    usual = ["training.rounds=3", "training.local_steps=2", f"training.method={method}"]
    once = {"ae-dpfl": usual[1:], "dp-sgd": usual[::2], "fedsgd": usual[::2], "moments": usual[2:]}
    recipe = recipes.parse({}, [*once.get(method, usual), *others], {"seed": 1})
    return plan_of(recipes.with_defaults(recipe), DATA)


# Error, a key or word that it names, and the method with its settings.
REFUSED = """
PrivacyRefusal upload bounded-sparse training.upload=sparse
PrivacyRefusal after-noise laplacian-smoothing server.smoothing_place=before-noise
PrivacyRefusal weight_cap dp-fedavg training.weighting=examples
PrivacyRefusal Poisson ddgauss training.sampling=poisson
PrivacyRefusal shares dp-fedavg privacy.trust=distributed privacy.noise=laplace
AdjacencyRefused zero-out client-noise privacy.adjacency=add-remove
AdjacencyRefused replace dp-fed training.sampling=fixed privacy.adjacency=zero-out
PrivacyRefusal distributed ae-dpfl privacy.trust=local
PrivacyRefusal momentum client-noise training.momentum=0.5
PrivacyRefusal clip_noise dp-fedavg privacy.clip_quantile=0.5 privacy.clip_noise=0
PrivacyRefusal clip_noise dp-fedavg privacy.clip_quantile=0.5 privacy.clip_noise=0.01 privacy.epsilon=0.5
ConfigError 1/12 dp-fedavg privacy.delta=0.1
ConfigError delta client-noise privacy.delta=0
ConfigError public ae-dpfl voting.questions=50
ConfigError bounded-sparse fedavg training.sparsity=0.5
ConfigError client-noise gradient-noise privacy.noise=laplace
ConfigError laplacian-smoothing dp-fed server.smoothing=1
ConfigError dp-fedavg bounded-sparse training.penalty=0 training.sparsity=0
ConfigError distributed dp-fedavg privacy.rotate=true
ConfigError central dp-fedavg privacy.trust=blind
ConfigError laplace client-noise privacy.noise=uniform
ConfigError examples fedavg training.weighting=loud
ConfigError out-in-kernel laplacian-smoothing server.smoothing_order=abc
ConfigError smoothing dp-fedavg server.smoothing=-1
ConfigError sparsity bounded-sparse training.sparsity=1.0
ConfigError distributed gradient-noise privacy.trust=central training.batch_size=2
ConfigError colluders ddgauss training.rate=1.0 privacy.colluders=12
"""  # noqa: E501


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_refused_with_what_would_work(line):
    kind, named, *words = line.split()
    with pytest.raises(fv.ConfigError) as caught:
        planned(*words)
    assert kind in {one.__name__ for one in type(caught.value).__mro__}
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_random_cohorts_get_no_credit_from_who_sees_them():
    """Local trust with a random cohort is charged as if everybody came every round."""
    everyone = planned("dp-fedavg", "privacy.trust=local", "training.sampling=everyone")
    drawn = planned("dp-fedavg", "privacy.trust=local", "training.sampling=fixed")
    assert drawn.noise_multiplier == pytest.approx(everyone.noise_multiplier)
    hidden = planned("dp-fedavg", "training.sampling=poisson", "training.rate=0.1")
    open_ = planned("dp-fedavg", "training.sampling=everyone")
    assert hidden.noise_multiplier < open_.noise_multiplier


def test_post_processing_cannot_change_the_guarantee():
    plain = planned("dp-fedavg")
    free = [
        "server.smoothing=2",
        "server.optimizer=adam",
        "server.momentum=0.9",
        "server.learning_rate=0.3",
        "training.penalty=0.4",
        "training.sparsity=0.8",
        "training.weight_cap=3",
    ]
    for part in free:
        assert planned("dp-fedavg", part).guarantee == plain.guarantee, part
    tracked = planned("dp-fedavg", "privacy.clip_quantile=0.5", "privacy.clip_noise=1.0")
    assert tracked.guarantee != plain.guarantee


def test_every_method_promises_what_it_says():
    for name, entry in METHODS.items():
        words = {
            "gradient-noise": ["training.batch_size=3"],
            "dp-sgd": ["training.batch_size=3"],
        }.get(name, [])
        made = planned(name, *words)
        assert made.method.name == name
        assert (made.guarantee is not None) == entry.private
        if made.guarantee is not None:
            assert str(made.guarantee.unit) in entry.protects.replace("data of one ", "")


@pytest.mark.parametrize("statistics", [True, False], ids=["running statistics", "batch's own"])
def test_per_example_clipping_with_batch_normalisation_is_refused(statistics):
    norm = nn.BatchNorm1d(4, track_running_stats=statistics)
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), norm, nn.Linear(4, 3))
    method = fv.dp_sgd(
        rounds=2, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=rule(batch_size=3), clip_norm=1.0
    )
    with pytest.raises(fv.FedveilError, match="normalisation"):
        fv.plan(method, DATA, model, budget=fv.Budget(epsilon=4.0), seed=1)


def test_group_normalisation_is_not_refused():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))
    method = fv.dp_sgd(
        rounds=2, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=rule(batch_size=3), clip_norm=1.0
    )
    assert fv.plan(method, DATA, model, budget=fv.Budget(epsilon=4.0), seed=1).guarantee is not None


@pytest.mark.parametrize("rate", [0.0, -0.1, float("nan")])
def test_a_server_that_could_not_learn_from_votes_is_refused(rate):
    with pytest.raises(fv.ConfigError, match=r"voting\.learning_rate"):
        fv.Voting(learning_rate=rate)
