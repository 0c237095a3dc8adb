"""A site that sends other integers than a clipped update: what no honest one sends is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.deploy.world import facts_of, recipe_of, world

from fedveil.core.units import Trust, Unit
from fedveil.methods.parts.noise_placement import Noise
from fedveil_federation.deploy.guard import Guard
from fedveil_federation.deploy.plausible import longest_noise

KINDS: dict[str, dict[str, Any]] = {
    "shares": {},
    "plain shares": {"training__method": "dp-fedavg", "privacy__trust": "distributed"},
    "tracked clip": {
        "training__method": "dp-fedavg",
        "privacy__trust": "distributed",
        "privacy__clip_quantile": 0.5,
        "privacy__clip_noise": 0.5,
    },
    "records": {"training__method": "dp-sgd", "training__local_epochs": None},
}


@pytest.mark.parametrize("width", [1, 7, 100, 10_000])
@pytest.mark.parametrize("chance", [1e-3, 1e-9])
def test_noise_is_shorter_than_its_bound_but_not_by_much(width: int, chance: float) -> None:
    """Beside the exact quantiles: chi for Gaussians, gamma for the L1 norm of Laplace noise."""
    exact = np.sqrt(stats.chi2.isf(chance, width))
    bound = longest_noise(Noise.GAUSSIAN, 2.0, width, chance) / 2.0
    assert exact <= bound <= 1.6 * exact
    exact = stats.gamma.isf(chance, width)
    bound = longest_noise(Noise.LAPLACE, 3.0, width, chance) / 3.0
    assert exact <= bound <= 2 * exact


def poison(guard: Guard) -> None:
    """The site adds a quarter of the range that the sum's integers have, to every one of them."""

    def masked(work: Any, device: Any, request: Any) -> bytes:
        sums, row = work.summands(request), work.row(request)
        by = 1 << (sums.integers.grid.bits - 2)
        return bytes(device.mask(sums.upload(guard.number, row) + by))

    guard._masked = masked  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
def test_a_poisoned_sum_is_refused_and_an_honest_one_is_not(kind: str, tmp_path: Path) -> None:
    unit = Unit.RECORD if kind == "records" else Unit.CLIENT
    made = world(tmp_path, unit=unit)
    try:
        recipe = recipe_of(**KINDS[kind], training__rounds=3)
        run = made.hub().start(recipe, facts_of(made.data, unit), tmp_path / "run")
        honest, poisoned, after = iter(run), made.guards["site-1"], None
        report = next(honest)
        assert report.dropouts is not None
        assert not report.dropouts.not_released
        assert not torch.equal(run.weights, run.plan.start)
        weights = run.weights.clone()
        poison(poisoned)
        report = next(honest)
        assert report.dropouts is not None
        assert "honest sites" in report.dropouts.not_released
        assert torch.equal(run.weights, weights)
        del poisoned._masked  # type: ignore[attr-defined]
        after = next(honest)
        assert after.dropouts is not None
        assert not after.dropouts.not_released
    finally:
        made.close()


@pytest.mark.parametrize("method", ["client-noise", "dp-fedavg"])
def test_an_upload_that_no_honest_site_sends_is_left_out_by_name(
    method: str, tmp_path: Path
) -> None:
    """Uploads that the hub sees one by one: the others go on without it."""
    trust = Trust.CENTRAL if method == "dp-fedavg" else Trust.DISTRIBUTED
    allowed = {"budget": {"epsilon": 1e9, "delta": 1e-5}, "allow": {"methods": [method]}}
    allowed["allow"] |= {"models": ["logistic"], "trust": ["local", "central"]}
    made = world(tmp_path, lifetime=1e9, trust=trust, policy=allowed)
    settings: dict[str, Any] = {"training__method": method, "aggregation__secure": None}
    if method == "dp-fedavg":
        settings |= {"privacy__trust": "central", "privacy__epsilon": 50.0}
    else:
        settings |= {"training__batch_size": None}
    try:
        hub = made.hub()
        run = hub.start(recipe_of(**settings), facts_of(made.data), tmp_path / "run")
        rounds, guard = iter(run), made.guards["site-1"]
        next(rounds)
        uploaded = guard._uploaded

        def forged(*words: Any) -> bytes:
            row = np.frombuffer(uploaded(*words), "<i8")
            return (row + (1 << 40)).astype("<i8").tobytes()

        guard._uploaded = forged  # type: ignore[method-assign]
        next(rounds)
        assert run.aggregator.shared == [0, 2]  # type: ignore[attr-defined]
        assert "honest" in hub.sites.refusals["site-1"]
        assert run.weights.abs().max() < 100
    finally:
        made.close()
