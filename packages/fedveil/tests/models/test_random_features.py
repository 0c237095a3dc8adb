"""Random features: products approach the Gaussian kernel; runs, files and exports agree."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fedveil as fv
from fedveil.cli import main
from fedveil.data.rows import pieces
from fedveil.training.models.features import Featurizer
from fedveil.training.models.random_features import RandomFeatures, RandomLayer


@pytest.mark.parametrize("width", [32, 512, 8192])
def test_products_are_the_gaussian_kernel_up_to_one_over_the_root_of_the_width(width: int) -> None:
    """A product is a mean of width / 2 cosines of N(0, r^2), r = |x - y| / bandwidth, whose mean is
    exp(-r^2 / 2) and whose variance is (1 - exp(-r^2))^2 / 2."""
    draw, features = torch.Generator().manual_seed(1), RandomFeatures(width, 3.0, seed=5)
    points = torch.randn(40, 12, generator=draw)
    mapped = torch.stack([features(one) for one in points]).double()
    apart = torch.cdist(points, points).double() / 3.0
    first, second = torch.triu_indices(40, 40, 1)
    error = (mapped @ mapped.T - torch.exp(-apart.square() / 2))[first, second]
    deviation = (1 - torch.exp(-apart.square()))[first, second] / math.sqrt(width)
    # Pairs share directions, so their errors do too: the mean of 780 squares is one to within a
    # factor that single draws of three widths, fixed by the seeds, keep to easily.
    assert 0.5 < float((error / deviation).square().mean().sqrt()) < 2
    assert float((error / deviation).abs().max()) < 6
    assert torch.allclose(mapped.norm(dim=1), torch.ones(40, dtype=torch.float64), atol=1e-5)


def test_the_directions_depend_on_the_seed_alone() -> None:
    example = torch.linspace(-1, 1, 7)
    before = RandomFeatures(16, 2.0, seed=3)(example)
    torch.manual_seed(0)
    assert torch.equal(before, RandomFeatures(16, 2.0, seed=3)(example))
    assert not torch.equal(before, RandomFeatures(16, 2.0, seed=4)(example))


def test_inputs_beyond_all_bounds_have_features_of_zero() -> None:
    featurizer = Featurizer(RandomFeatures(8), None, (3,))
    found = featurizer(np.array([[1, 2, 3], [3e38, 3e38, -3e38], [np.nan, 0, 0]], np.float32))
    assert found[0].any()
    assert np.isfinite(found).all()
    assert not found[2].any()


def test_many_at_once_are_single_ones() -> None:
    features = RandomFeatures(64, 2.0)
    inputs = np.random.default_rng(2).normal(size=(9, 2, 3)).astype(np.float32)
    single = Featurizer(features, None, (2, 3))(inputs).astype(np.float32)
    together = RandomLayer(features, 6)(torch.from_numpy(inputs)).numpy()
    assert np.abs(single - together).max() <= 2**-11  # one step of float16 below 1


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose class is whether two numbers have the same sign: no linear model can tell."""
    path, draw = tmp_path_factory.mktemp("random") / "rows.csv", np.random.default_rng(3)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["owner", "a", "b", "label"])
        for row in range(600):
            a, b = draw.normal(size=2)
            writer.writerow([row % 30, f"{a:.4f}", f"{b:.4f}", "yes" if a * b > 0 else "no"])
    return path


def test_a_table_is_trained_on_predicted_and_exported_through_them(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "data.statistics": "data",  # nothing is certified then, which does not matter here
        "model.features": "random",
        "model.width": 64,
        "model.bandwidth": 1.0,
        "training.method": "fedavg",
        "training.rounds": 30,
        "training.local_steps": 4,
        "training.learning_rate": 8.0,
    }
    words = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    given = ["--data", str(table), "--client-column", "owner", "--label", "label", "--seed", "1"]
    assert main(["run", *given, *words, "--quiet", "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    model = fv.load_run(tmp_path / "run")
    assert model.evaluate(table).figures["accuracy"] > 0.85
    model.export(tmp_path / "model.pt2")
    assert model.bundle.encoder is not None
    (piece,) = pieces(table, [*model.bundle.encoder.columns], "needed")
    inputs = model.bundle.encoder.encode(piece).inputs
    found = torch.export.load(tmp_path / "model.pt2").module()(torch.from_numpy(inputs))
    # Features may differ by one step of float16, and scores by that times the weights' length.
    length = max(float(one.detach().norm()) for one in model.module.parameters())
    assert np.abs(found.detach().numpy() - model.predict_proba(piece)).max() < 2**-11 * length
