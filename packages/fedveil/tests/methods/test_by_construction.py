"""What theory forbids and no setting can express, checked on what a plan really does."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.reference import federation

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.privacy.refusals import SensitivityRefused
from fedveil.run.sums import divisor, update_sum
from fedveil.training.client.update_pipeline import TrainedClients, shape_rows
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.models.zoo import Linear

LAYERS = Layout((Slot("first", (3,), 0), Slot("second", (4,), 3)))


def protected(**pipeline: object) -> fv.Plan:
    data = federation(2, (6,) * 12)
    method = fv.dp_fedavg(
        rounds=3,
        cohort=fv.CohortRule(fv.Scheme.POISSON, rate=0.5),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=2),
        clip=fv.Clip(1.0),
        **pipeline,
    )
    return fv.plan(method, data, fv.build("logistic", data), budget=fv.Budget(epsilon=4.0))


def test_sums_are_divided_by_a_number_that_no_cohort_changes():
    made = protected()
    total = torch.full((made.layout.size,), 1 << 20, dtype=torch.int64)
    found = []
    for cohort in (np.arange(n) for n in (0, 1, 12)):
        updates = update_sum(made, 0, cohort, Randomness(1), {})
        private = updates.protect(total, cohort)
        found.append(private / divisor(made, updates.pipeline, cohort))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=7, max_size=7),
    st.integers(1, 10**6),
    st.sampled_from([None, 1, 100]),
    st.sampled_from([None, 2.0**-20]),
)
def test_one_norm_bounds_all_layers_together_whatever_the_weight(values, size, cap, grid):
    pipeline = fv.UpdatePipeline(fv.Clip(1.0), weight_cap=cap, granularity=grid)
    senders = TrainedClients(np.array([0]), np.array([size]), torch.zeros(7), 0, Randomness(1))
    rows = shape_rows(torch.tensor([values]), pipeline, LAYERS, senders).updates
    assert rows.shape == (1, 7)  # dense: what was kept is not to be seen
    assert float((rows.double() * (grid or 1.0)).norm()) <= 1.0 + 1e-12
    assert float(pipeline.weights(np.array([size]))[0]) <= 1.0


def test_laplace_noise_needs_a_clip_in_l1():
    """A vector of d equal entries and length C has L1 norm sqrt(d) C."""
    data = federation(2, (6,) * 12)
    for placement in (fv.CentralNoise(fv.Noise.LAPLACE), fv.LocalNoise(fv.Noise.LAPLACE)):
        method = fv.dp_fedavg(
            rounds=3,
            cohort=fv.CohortRule(fv.Scheme.EVERYONE),
            local=fv.LocalTraining(fv.LearningRate(0.1), steps=2),
            clip=fv.Clip(1.0, order=2),
            placement=placement,
        )
        with pytest.raises(SensitivityRefused, match="L1"):
            fv.plan(
                method, data, fv.build("logistic", data), budget=fv.Budget(noise_multiplier=5.0)
            )


@pytest.mark.parametrize(
    "placement", [fv.CentralNoise(), fv.LocalNoise(), fv.DistributedNoise()], ids=str
)
def test_votes_are_not_covered_by_noise_for_clipped_updates(placement):
    """Nobody clips a ballot: Q votes have length sqrt(Q), and the noise was fitted to a clip."""
    with pytest.raises(fv.PrivacyRefusal, match="VoteNoise"):
        fv.ae_dpfl(local=fv.LocalTraining(fv.LearningRate(0.1), steps=2), placement=placement)


def test_grids_are_not_the_caller_s():
    """Rounding that lengthens (`rounding_beta`) belongs to the mechanism that accounts for it."""
    loose = fv.UpdatePipeline(fv.Clip(1.0), granularity=0.5, rounding_beta=0.6)
    method = protected().method
    with pytest.raises(fv.ConfigError, match="pipeline"):
        replace(method, pipeline=loose)


@pytest.mark.parametrize(
    "own", [{"last_step_noise": False}, {"gradient_grid": 0.5}, {"gradient_noise": 1e-9}], ids=str
)
def test_gradient_noise_is_not_the_caller_s(own):
    """A method without the last step's noise would promise it all the same."""
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=1, batch_size=6, **own)
    with pytest.raises(fv.ConfigError, match="local"):
        fv.gradient_noise(
            rounds=1,
            cohort=fv.CohortRule(fv.Scheme.EVERYONE),
            local=local,
            clip_norm=1.0,
            secure_sum=False,
        )


@pytest.mark.parametrize("secure_sum", [False, True])
def test_what_is_sent_is_never_the_same_twice(secure_sum):
    """One local step: its noise is the only noise there is."""
    data = federation(2, (6,) * 4)
    method = fv.gradient_noise(
        rounds=1,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=1, batch_size=6),
        clip_norm=1.0,
        secure_sum=secure_sum,
    )
    made = fv.plan(method, data, fv.build("logistic", data), budget=fv.Budget(epsilon=4.0))
    seen = []
    for _ in range(2):
        run = fv.Run(made)
        run.finish()
        run.close()
        seen.append(run.weights)
    assert (seen[0] != seen[1]).all()


def test_reports_of_a_protected_run_hold_released_values_only():
    run = fv.Run(protected(), every=1)
    for report in run:
        public = ("round", "loss", "accuracy", "rmse", "examples", "epsilon")
        assert all(name.startswith(public) for name in report.to_dict())
    run.close()
    kept = {field.name for field in fields(run.state)} | set(run.state.optimizer)
    secret = ("norm", "cohort", "loss", "total", "sum", "seed", "size")
    assert not [name for name in kept if any(word in name for word in secret)]


@pytest.mark.parametrize("mean", [12.5, 0.3, "12"])
def test_a_mean_number_of_participations_is_no_bound(mean):
    """16 clients, cohorts of 10, 20 rounds: the mean is 12.5 and somebody comes 16 times."""
    with pytest.raises(fv.ConfigError, match="participations"):
        fv.Release(fv.Gaussian(1.0), fv.Poisson(0.1), 20, participations=mean)


def test_a_model_that_does_not_fit_the_classes_is_refused_before_anything_is_spent():
    data = federation(2, (6,) * 12)
    method = protected().method
    for outputs in (3, 5):  # one logit is a model of two classes
        with pytest.raises(fv.ConfigError, match="2 classes"):
            fv.plan(method, data, Linear(5, outputs), budget=fv.Budget(epsilon=4.0))
