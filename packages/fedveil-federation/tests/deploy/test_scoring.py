"""Federated evaluation: right but for its noise, paid for, and refused where it is not allowed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import accuracy_score, mean_squared_error, roc_auc_score
from tests.deploy.hospitals import POLICY, RECIPE, SITES, Hospitals, hospitals

from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.hub_service import EVALUATION, HubJob
from fedveil_federation.deploy.scoring import BINS, ERRORS, FARTHEST, Scoring, figures

ALLOWED = POLICY.replace("[show]", "evaluation = true\n[show]").replace(
    'units = ["record", "client"]\n\nevaluation', 'units = ["record", "client"]\nevaluation'
)


def evaluated(made: Hospitals, noise: float) -> dict[str, str]:
    """How the evaluation of a short run has ended."""
    made.meet()
    made.queue(training__rounds=2)
    service = made.service()
    service.step()
    service.queue.put(HubJob("score", {}, evaluate="first", noise=noise))
    service.step()
    ended = service.queue.ended("score")
    assert ended is not None
    return ended


@pytest.mark.parametrize("public", [False, True], ids=["trained", "head of public weights"])
def test_the_noisy_table_is_near_the_truth_and_in_every_ledger(
    public: bool, tmp_path: Path
) -> None:
    policy, model = ALLOWED, RECIPE["model"]
    if public:
        start = tmp_path / "public.safetensors"
        draw = torch.Generator().manual_seed(3)
        weights = {"1.weight": (16, 5), "1.bias": (16,)}
        save_file(
            {name: torch.randn(shape, generator=draw) for name, shape in weights.items()}, start
        )
        policy = ALLOWED.replace('["logistic"]', f'["mlp"]\nstarts = ["{start}"]')
        model = {"name": "mlp", "hidden": [16], "frozen": ["backbone"], "start": str(start)}
    made = hospitals(tmp_path, policy, holdout=0.4, rows=1490)
    made.recipe = {**RECIPE, "model": model}
    try:
        assert evaluated(made, noise=4.0) == {"outcome": "done", "reason": ""}
        found: dict[str, Any] = json.loads((made.hub.runs / "first" / EVALUATION).read_text())
        ((run, _),) = made.finished
        held = [made.hub.agreement.rows(home.data).test for home in made.homes.values()]
        targets = np.concatenate([part.targets for part in held])
        inputs = np.concatenate([part.inputs for part in held])
        assert len(targets) == 1800  # two fifths of 1490, 1500 and 1510
        model = run.model()
        with torch.inference_mode():
            chance = model(torch.from_numpy(inputs)).softmax(-1)[:, 1].numpy()
        # Sums of up to all cells with noise of std 4 each: six deviations.
        far = 6 * 4 * math.sqrt(2 * BINS)
        assert abs(found["rows"] - 1800) < far
        truth = accuracy_score(targets, chance >= 0.5)
        assert abs(found["accuracy"] - truth) < far / (1800 - far)
        assert abs(found["auc"] - roc_auc_score(targets, chance)) < 0.15
        assert found["accuracy_noise"] < far / 6 / (1800 - far)
        guarantee = found["guarantee"]
        assert guarantee["certified"]
        for home in made.homes.values():
            assert sorted(home.store().ledger.runs().values()) == [1, 2]
    finally:
        made.close()


@pytest.mark.parametrize(
    ("policy", "holdout", "noise", "reason"),
    [
        (POLICY, 0.4, 5.0, "no evaluation on this site's rows"),
        (ALLOWED, 0.0, 5.0, "this site holds no rows out"),
        (ALLOWED, 0.4, 0.5, "at most 20 a run"),
    ],
    ids=["not allowed", "nothing held out", "too little noise"],
)
def test_it_is_refused_with_the_reason(
    policy: str, holdout: float, noise: float, reason: str, tmp_path: Path
) -> None:
    made = hospitals(tmp_path, policy, holdout)
    try:
        ended = evaluated(made, noise)
        assert ended["outcome"] == "refused"
        assert reason in ended["reason"]
        for home in made.homes.values():
            assert list(home.store().ledger.runs().values()) == [2]
    finally:
        made.close()


def test_figures_of_a_table_without_noise_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(3)
    targets = draw.integers(0, 2, 4000)
    chance = np.clip(draw.normal(0.4 + 0.2 * targets, 0.2), 0, 0.999)
    binned = np.floor(chance * BINS)
    table = np.zeros((2, BINS))
    np.add.at(table, (targets, binned.astype(int)), 1)
    scoring = Scoring(Facts("f", "classification", 2, (3,), (1,) * len(SITES)), 1.0, 1e-6)
    found = figures(scoring, table)
    assert found["rows"] == 4000
    assert found["accuracy"] == pytest.approx(accuracy_score(targets, chance >= 0.5))
    assert found["auc"] == pytest.approx(roc_auc_score(targets, binned))


def numbers(rows: int, seed: int) -> str:
    """The blood pressure of made-up patients, of which some is by age."""
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 90, rows)
    pressure = 100 + age / 2 + draw.normal(0, 8, rows)
    wards = draw.choice(["a", "b"], rows)
    lines = (f"{a},{p:.1f},{w},false" for a, p, w in zip(age, pressure, wards, strict=True))
    return "\n".join(["age,pressure,ward,ill", *lines]) + "\n"


def test_errors_of_numbers_are_near_the_truth_in_their_own_unit(tmp_path: Path) -> None:
    allowed = ALLOWED.replace('"logistic"', '"linear"')
    made = hospitals(tmp_path, allowed, holdout=0.4, label="pressure", table=numbers, rows=490)
    try:
        made.recipe = {**RECIPE, "model": {"name": "linear", "input_norm": 2.0}}
        assert evaluated(made, noise=4.0) == {"outcome": "done", "reason": ""}
        found: dict[str, Any] = json.loads((made.hub.runs / "first" / EVALUATION).read_text())
        ((run, _),) = made.finished
        held = [made.hub.agreement.rows(home.data).test for home in made.homes.values()]
        targets = np.concatenate([part.targets for part in held])
        inputs = np.concatenate([part.inputs for part in held])
        with torch.inference_mode():
            off = 20.0 * (run.model()(torch.from_numpy(inputs)).reshape(-1).numpy() - targets)
        # Six deviations of the noise, and bins whose errors are not quite even.
        assert abs(found["rows"] - 600) < 6 * 4 * math.sqrt(ERRORS)
        rmse = mean_squared_error(off, np.zeros_like(off)) ** 0.5
        assert abs(found["rmse"] - rmse) < 6 * found["rmse_noise"] + 0.02 * rmse
        assert abs(found["mae"] - np.abs(off).mean()) < 6 * found["mae_noise"] + 0.02 * rmse
        for home in made.homes.values():
            assert sorted(home.store().ledger.runs().values()) == [1, 2]
    finally:
        made.close()


def test_figures_of_errors_without_noise_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(4)
    off = np.abs(draw.normal(0, 0.4, 20_000)).clip(max=FARTHEST)
    edges = FARTHEST * (np.arange(ERRORS + 1) / ERRORS) ** 2
    table = np.histogram(off, edges)[0].astype(np.float64)[None]
    scoring = Scoring(Facts("f", "regression", 0, (3,), (1,) * 3), 1.0, 1e-6)
    assert scoring.shape == table.shape
    found = figures(scoring, table, unit=20.0)
    assert found["rmse"] == pytest.approx(20 * np.sqrt((off**2).mean()), rel=0.02)
    assert found["mae"] == pytest.approx(20 * off.mean(), rel=0.02)
    # The stated noise is that of the figures, within four deviations of 400 draws' own.
    noisy = [
        figures(scoring, table + 20 * draw.standard_normal(table.shape), 20.0) for _ in range(400)
    ]
    stated = figures(Scoring(scoring.facts, 20.0, 1e-6), table, 20.0)
    for name in ("rmse", "mae"):
        spread = np.std([one[name] for one in noisy])
        assert spread == pytest.approx(stated[f"{name}_noise"], rel=4 / math.sqrt(800))


def test_a_record_of_several_labels_is_paid_for_with_all_of_them() -> None:
    """Three labels at a standard deviation cost what one costs at one smaller by sqrt(3)."""
    sites = (1,) * 3
    several = Scoring(Facts("f", "multi-label", 3, (3,), sites), 30.0, 1e-6).guarantee()
    one = Scoring(Facts("f", "classification", 2, (3,), sites), 30.0 / math.sqrt(3), 1e-6)
    assert several.epsilon == pytest.approx(one.guarantee().epsilon, rel=0.02)
    assert several.epsilon > Scoring(one.facts, 30.0, 1e-6).guarantee().epsilon * 1.5
