"""Constants of the loss against linear algebra, and against what they are to bound."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil_lab.theorems.constants import _loss, estimate

near = pytest.approx


def regression(shift: float, clients: int = 5, records: int = 40) -> Federation:
    """Clients whose targets follow one linear law, moved by `shift` from client to client."""
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(clients * records, 3)).astype(np.float32)
    owners = np.repeat(np.arange(clients), records)
    targets = inputs @ np.array([1.0, -2.0, 0.5]) + shift * (owners - owners.mean())
    return Federation.from_arrays(
        inputs, targets.astype(np.float32), owners, task="regression", test_fraction=0.0
    )


def classification(seed: int, twins: bool) -> Federation:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(60, 4)).astype(np.float32)
    labels = (inputs[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(np.int64)
    other = labels if twins else np.where(inputs[:, 1] > 0.5, 1 - labels, labels)
    return Federation.from_arrays(
        np.concatenate([inputs, inputs]),
        np.concatenate([labels, other]),
        np.repeat([0, 1], 60),
        task="classification",
        classes=2,
        test_fraction=0.0,
    )


def test_regression_constants_are_those_of_the_normal_equations() -> None:
    public = regression(shift=0.4)
    found = estimate(public)
    inputs = np.column_stack([public.train.inputs, np.ones(len(public.train))]).astype(float)
    targets = public.train.targets.astype(float)
    best, residual, *_ = np.linalg.lstsq(inputs, targets, rcond=None)
    gap = (targets @ targets - residual[0]) / (2 * len(targets))
    hessian = inputs.T @ inputs / len(inputs)
    assert found.initial_distance == near(best @ best, rel=1e-3)
    assert found.initial_gap == near(gap, rel=1e-4)
    assert found.smoothness == near(np.linalg.eigvalsh(hessian)[-1], rel=1e-6)
    # Twice the gap over the squared distance is a Rayleigh quotient of the Hessian.
    assert found.strong_convexity == near(best @ hessian @ best / (best @ best), rel=1e-3)
    assert np.linalg.eigvalsh(hessian)[0] <= found.strong_convexity <= found.smoothness
    assert found.source == public.name


def test_heterogeneity_is_zero_for_twins_and_grows_with_disagreement() -> None:
    assert estimate(regression(shift=0.0)).heterogeneity == near(0.0, abs=1e-6)
    little, much = (estimate(regression(shift=s)).heterogeneity for s in (0.2, 0.4))
    assert much == near(4 * little, rel=0.01)  # offsets enter squared
    assert estimate(classification(0, twins=True)).heterogeneity == near(0.0, abs=1e-5)
    assert estimate(classification(0, twins=False)).heterogeneity > 0.02


def test_record_variance_and_gradient_norm_at_the_start() -> None:
    public = regression(shift=0.4)
    records = np.column_stack([public.train.inputs, np.ones(len(public.train))]).astype(float)
    single = -records * public.train.targets[:, None]
    per_client = single.reshape(5, 40, 4)
    norms = np.sum(per_client.mean(axis=1) ** 2, axis=1)
    found = estimate(public)
    assert found.gradient_bound == near(np.sqrt(norms.mean()), rel=1e-5)
    assert found.gradient_variance == near(per_client.var(axis=1).sum(axis=1).mean(), rel=1e-5)


def test_cross_entropy_gradient() -> None:
    public = classification(1, twins=True)
    inputs = np.column_stack([public.train.inputs, np.ones(120)]).astype(float)
    loss = _loss(public.task, inputs, public.train.targets, 2)
    start = np.random.default_rng(0).normal(size=10)
    assert check_grad(lambda w: loss(w)[0], lambda w: loss(w)[1], start) < 1e-5


def test_a_proxy_with_nothing_to_learn_is_refused() -> None:
    rng = np.random.default_rng(0)
    nothing = Federation.from_arrays(
        rng.normal(size=(20, 2)).astype(np.float32),
        np.zeros(20, dtype=np.float32),
        np.repeat([0, 1], 10),
        task="regression",
        test_fraction=0.0,
    )
    with pytest.raises(ConfigError, match="already optimal"):
        estimate(nothing)
