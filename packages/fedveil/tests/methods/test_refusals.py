"""What cannot be proved cannot be planned; what makes no sense is refused, never ignored."""

from __future__ import annotations

import pytest
import torch
from tests.methods.reference import federation, rule
from torch import nn

from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.methods.gradient_noise import dp_sgd
from fedveil.methods.parts.method import CohortRule, Scheme, Voting
from fedveil.methods.registry import METHODS
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of
from fedveil.planning.plan import Budget, Plan, plan
from fedveil.privacy.refusals import AdjacencyRefused, HonestSharesRefused

DATA = federation(sizes=(6,) * 12)


def planned(*assignments: str) -> Plan:
    """A plan on a small federation: `method key=value ...`, sections spelt out."""
    method, *others = assignments
    usual = ["training.rounds=3", "training.local_steps=2", f"training.method={method}"]
    once = {"ae-dpfl": usual[1:], "dp-sgd": usual[::2], "fedsgd": usual[::2], "moments": usual[2:]}
    recipe = recipes.parse({}, [*once.get(method, usual), *others], {"seed": 1})
    return plan_of(recipes.with_defaults(recipe), DATA)


REFUSED: dict[str, tuple[tuple[str, ...], type[FedveilError], str]] = {
    "sparse upload": (
        ("bounded-sparse", "training.upload=sparse"),
        PrivacyRefusal,
        "noise on those alone",
    ),
    "smoothing before noise": (
        ("laplacian-smoothing", "server.smoothing_place=before-noise"),
        PrivacyRefusal,
        "after-noise",
    ),
    "weights without a cap": (
        ("dp-fedavg", "training.weighting=examples"),
        PrivacyRefusal,
        "weight_cap",
    ),
    "Poisson cohorts under a secure sum": (
        ("ddgauss", "training.sampling=poisson"),
        PrivacyRefusal,
        "not certain",
    ),
    "Laplace shares": (
        ("dp-fedavg", "privacy.trust=distributed", "privacy.noise=laplace"),
        PrivacyRefusal,
        "shares",
    ),
    "add-remove towards the server": (
        ("client-noise", "privacy.adjacency=add-remove"),
        AdjacencyRefused,
        "zero-out",
    ),
    "zero-out with cohorts of fixed size": (
        ("dp-fed", "training.sampling=fixed", "privacy.adjacency=zero-out"),
        AdjacencyRefused,
        "replace",
    ),
    "votes one by one": (
        ("ae-dpfl", "privacy.trust=local"),
        PrivacyRefusal,
        "distributed",
    ),
    "momentum beyond clipped steps": (
        ("client-noise", "training.momentum=0.5"),
        PrivacyRefusal,
        "momentum",
    ),
    "a quantile without noise": (
        ("dp-fedavg", "privacy.clip_quantile=0.5", "privacy.clip_noise=0"),
        PrivacyRefusal,
        "clip_noise",
    ),
    "a quantile that costs more than the budget": (
        (
            "dp-fedavg",
            "privacy.clip_quantile=0.5",
            "privacy.clip_noise=0.01",
            "privacy.epsilon=0.5",
        ),
        PrivacyRefusal,
        "clip_noise",
    ),
    "delta that protects nobody": (
        ("dp-fedavg", "privacy.delta=0.1"),
        ConfigError,
        "1/12",
    ),
    "pure privacy from Gaussian noise": (
        ("client-noise", "privacy.delta=0"),
        ConfigError,
        "delta",
    ),
    "votes without public inputs": (
        ("ae-dpfl", "voting.questions=50"),
        ConfigError,
        "public",
    ),
    "a part that the method has not": (
        ("fedavg", "training.sparsity=0.5"),
        ConfigError,
        "bounded-sparse",
    ),
    "a key that the method has not": (
        ("gradient-noise", "privacy.noise=laplace"),
        ConfigError,
        "client-noise",
    ),
    "DP-Fed smoothed": (
        ("dp-fed", "server.smoothing=1"),
        ConfigError,
        "laplacian-smoothing",
    ),
    "BLUR and LUS both off": (
        ("bounded-sparse", "training.penalty=0", "training.sparsity=0"),
        ConfigError,
        "dp-fedavg",
    ),
    "rotation without shares": (
        ("dp-fedavg", "privacy.rotate=true"),
        ConfigError,
        "distributed",
    ),
    "unknown trust": (("dp-fedavg", "privacy.trust=blind"), ConfigError, "central"),
    "unknown noise": (("client-noise", "privacy.noise=uniform"), ConfigError, "laplace"),
    "unknown weighting": (("fedavg", "training.weighting=loud"), ConfigError, "examples"),
    "unknown order": (
        ("laplacian-smoothing", "server.smoothing_order=abc"),
        ConfigError,
        "out-in-kernel",
    ),
    "negative smoothing": (("dp-fedavg", "server.smoothing=-1"), ConfigError, "smoothing"),
    "sparsity of everything": (
        ("bounded-sparse", "training.sparsity=1.0"),
        ConfigError,
        "sparsity",
    ),
    "central trust for hu": (
        ("gradient-noise", "privacy.trust=central", "training.batch_size=2"),
        ConfigError,
        "distributed",
    ),
}


@pytest.mark.parametrize(("words", "kind", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_the_reason_and_what_would_work(
    words: tuple[str, ...], kind: type[FedveilError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        planned(*words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_epochs_over_batches_take_as_many_steps_as_there_are_data() -> None:
    from fedveil.methods.parts.clip_rule import StepBound
    from fedveil.training.client.local_training import LearningRate, LocalTraining

    epochs = LocalTraining(LearningRate(0.1), epochs=2, batch_size=3)
    with pytest.raises(PrivacyRefusal, match="private sizes"):
        StepBound(1.0).clip(epochs, 0, {})


def test_colluders_may_not_be_everybody() -> None:
    with pytest.raises((HonestSharesRefused, ConfigError), match="colluders"):
        planned("ddgauss", "training.rate=1.0", "privacy.colluders=12")


@pytest.mark.parametrize("statistics", [True, False], ids=["running statistics", "batch's own"])
def test_per_example_clipping_with_batch_normalisation_is_refused(statistics: bool) -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=statistics)
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), norm, nn.Linear(4, 3))
    method = dp_sgd(
        rounds=2, cohort=CohortRule(Scheme.EVERYONE), local=rule(batch_size=3), clip_norm=1.0
    )
    with pytest.raises(FedveilError, match="normalisation"):
        plan(method, DATA, model, budget=Budget(epsilon=4.0), seed=1)


def test_group_normalisation_is_not_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))
    method = dp_sgd(
        rounds=2, cohort=CohortRule(Scheme.EVERYONE), local=rule(batch_size=3), clip_norm=1.0
    )
    assert plan(method, DATA, model, budget=Budget(epsilon=4.0), seed=1).guarantee is not None


def test_random_cohorts_get_no_credit_from_who_sees_them() -> None:
    """Local trust with a random cohort is charged as if everybody came every round."""
    everyone = planned("dp-fedavg", "privacy.trust=local", "training.sampling=everyone")
    drawn = planned("dp-fedavg", "privacy.trust=local", "training.sampling=fixed")
    assert drawn.noise_multiplier == pytest.approx(everyone.noise_multiplier)
    hidden = planned("dp-fedavg", "training.sampling=poisson", "training.rate=0.1")
    open_ = planned("dp-fedavg", "training.sampling=everyone")
    assert hidden.noise_multiplier is not None
    assert open_.noise_multiplier is not None
    assert hidden.noise_multiplier < open_.noise_multiplier


@pytest.mark.parametrize("rate", [0.0, -0.1, float("nan")])
def test_a_server_that_could_not_learn_from_votes_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"server\.learning_rate: must be positive"):
        Voting(learning_rate=rate)


def test_post_processing_cannot_change_the_guarantee() -> None:
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


def test_every_method_promises_what_it_says() -> None:
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
