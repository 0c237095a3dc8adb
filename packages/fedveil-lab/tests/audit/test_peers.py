"""What docs/check.md says of other systems, tried on them. Skipped where they are not installed.

Written against Flower 1.42.0 and Opacus 1.6.0.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedveil_lab.audit.check.check import check


def finding(tmp_path: Path, text: str, **said: Any) -> Any:
    path = tmp_path / "app.py"
    path.write_text(text)
    return check(path, said)[0]


def flower() -> Any:
    return pytest.importorskip("flwr.supercore.differential_privacy")


def test_flower_lets_what_is_not_finite_through_its_clip() -> None:
    update = [np.array([math.nan, 3.0], np.float32)]
    flower().clip_inputs_inplace(update, 1.0)
    assert np.isnan(update[0][0])
    assert update[0][1] == 3.0  # nothing was shortened
    huge = [np.array([math.inf, 3.0], np.float32)]
    with np.errstate(invalid="ignore"):
        flower().clip_inputs_inplace(huge, 1.0)
    assert not np.isfinite(huge[0]).all()


def replies(updates: list[np.ndarray], weights: list[int]) -> list[Any]:
    """As much of a message as strategies look at."""
    app = pytest.importorskip("flwr.app")
    made = []
    for update, weight in zip(updates, weights, strict=True):
        content = app.RecordDict(
            {
                "arrays": app.ArrayRecord([update]),
                "metrics": app.MetricRecord({"num-examples": weight}),
            }
        )
        made.append(SimpleNamespace(content=content, has_error=lambda: False))
    return made


def test_flower_weights_by_what_clients_report() -> None:
    """One client of 20 moves the mean by its whole clip, and the noise is for a twentieth."""
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    app = pytest.importorskip("flwr.app")
    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(
        strategies.FedAvg(), 1e-9, 1.0, 20
    )
    strategy.current_arrays = app.ArrayRecord([np.zeros(1)])
    loud = [np.full(1, 5.0), *[np.full(1, 1e-9)] * 19]
    arrays, _ = strategy.aggregate_train(1, replies(loud, [10**9, *[1] * 19]))
    assert arrays.to_numpy_ndarrays()[0][0] == pytest.approx(1.0, abs=1e-6)
    arrays, _ = strategy.aggregate_train(2, replies(loud, [1] * 20))
    assert arrays.to_numpy_ndarrays()[0][0] == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("name", ["prv", "rdp", "gdp"])
@pytest.mark.filterwarnings("ignore")
def test_opacus_prints_what_is_said_of_it(name: str, tmp_path: Path) -> None:
    opacus = pytest.importorskip("opacus")
    data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.zeros(100).long())
    for poisson in (True, False):
        engine, net = opacus.PrivacyEngine(accountant=name), torch.nn.Linear(3, 2)
        net, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=10),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        seen = []
        for _ in range(3):
            for inputs, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                seen.append(len(inputs))
        assert (len(set(seen)) > 1) is poisson  # sizes vary only if batches are drawn
        text = f"make_private(noise_multiplier=1.0, poisson_sampling={poisson})"
        said = {"examples": 100, "batch_size": 10, "epochs": 3, "delta": 1e-4, "accountant": name}
        claimed = finding(tmp_path, text, **said).claimed
        # Their prv allows itself 0.01; rdp uses other orders than the library does.
        assert claimed == pytest.approx(engine.get_epsilon(1e-4), abs=0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("poisson", [True, False])
def test_opacus_computes_rate_steps_and_divisor_as_is_said_of_it(
    poisson: bool, tmp_path: Path
) -> None:
    """Also for 93 batches, of which its sampler makes 92: 1 / (1 / 93) is less than 93."""
    opacus = pytest.importorskip("opacus")
    text = f"make_private(noise_multiplier=1.0, poisson_sampling={poisson})"
    for examples in (99, 100, 101, 929, 930, 931):
        data = torch.utils.data.TensorDataset(torch.zeros(examples, 3))
        engine, net = opacus.PrivacyEngine(accountant="rdp"), torch.nn.Linear(3, 2)
        net, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=10),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        said = {"examples": examples, "batch_size": 10, "epochs": 1, "delta": 1e-4}
        one = finding(tmp_path, text, accountant="rdp", **said)
        settings = {name: value for name, value, _ in one.settings}
        assert settings["expected_batch_size"] == optimizer.expected_batch_size
        for (inputs,) in loader:
            optimizer.zero_grad()
            net(inputs).sum().backward()
            optimizer.step()
        assert one.claim.endswith(f"at rate 1/{len(loader)} (rdp)")
        assert one.claimed == pytest.approx(engine.get_epsilon(1e-4), abs=0.02)
