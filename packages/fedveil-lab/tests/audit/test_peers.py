"""What docs/check.md says of other systems, tried on them. Skipped where they are not installed.

Written against Flower 1.42.0, Opacus 1.6.0, NVFlare 2.9.0 and TensorFlow Privacy 0.9.0.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


def test_flower_makes_adaptive_noise_for_the_next_clip(tmp_path: Path) -> None:
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    app = pytest.importorskip("flwr.app")
    size, sampled, z = 20_000, 100, 1.0
    strategy = strategies.DifferentialPrivacyServerSideAdaptiveClipping(
        strategies.FedAvg(), z, sampled, initial_clipping_norm=1.0
    )
    strategy.current_arrays = app.ArrayRecord([np.zeros(size)])
    same = np.zeros(size)
    same[0] = 100.0  # all are clipped, so the clip shrinks
    arrays, _ = strategy.aggregate_train(1, replies([same] * sampled, [1] * sampled))
    released = arrays.to_numpy_ndarrays()[0]
    assert released[0] == pytest.approx(1.0, abs=0.1)  # of clip one, as it was
    assert strategy.clipping_norm < 0.95
    on_updates = (z**-2 - (2 * sampled / 20) ** -2) ** -0.5
    made_for = released[1:].std() * sampled / on_updates
    assert made_for == pytest.approx(strategy.clipping_norm, rel=0.03)  # and not 1


def test_flowers_accountant_prints_what_is_said_of_it(tmp_path: Path) -> None:
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting")
    rdp = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant")
    config = accounting.PrivacyConfig(
        1e-5,
        100,
        accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        accounting.SamplingMethod.NO_AMPLIFICATION,
    )
    spent = rdp.RdpAccountant(config)
    spent.compose(accounting.GaussianPrivacyEvent(1.0, 20, 100), 10)
    text = "DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 20, accountant=spent)"
    said = {"rounds": 10, "delta": 1e-5, "clients": 100, "accountant": "rdp"}
    assert finding(tmp_path, text, **said).claimed == pytest.approx(spent.get_epsilon(1e-5))


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


def test_opacus_workers_leave_out_empty_batches_and_may_draw_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers with 50 records each; how many batches they make is left to chance."""
    sampler = pytest.importorskip("opacus.utils.uniform_sampler")
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    drawn = []
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)  # as a script does that all workers run
        batches = sampler.DistributedUniformWithReplacementSampler(
            total_size=100, sample_rate=0.01, shuffle=False
        )
        drawn.append([[int(one) // 2 for one in batch] for batch in batches])
        assert len(drawn[-1]) < len(batches)
    assert drawn[0] == drawn[1]  # the same places of both halves


def _tf_privacy() -> ModuleType:
    """The module that computes epsilon, without TensorFlow, which the package would import."""
    for folder in sys.path:
        base = Path(folder) / "tensorflow_privacy" / "privacy" / "analysis"
        path = base / "compute_dp_sgd_privacy_lib.py"
        if path.is_file():
            spec = importlib.util.spec_from_file_location("tf_privacy_lib", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    pytest.skip("TensorFlow Privacy is not installed")


def test_tf_privacy_prints_what_is_said_of_it(tmp_path: Path) -> None:
    library = _tf_privacy()
    theirs, _ = library.compute_dp_sgd_privacy(60_000, 256, 1.1, 3, 1e-5)
    text = "DPKerasSGDOptimizer(1.0, 1.1, 256)"
    said = {"examples": 60_000, "batch_size": 256, "epochs": 3, "delta": 1e-5}
    one = finding(tmp_path, text, **said)
    assert one.claimed == pytest.approx(theirs)
    statement = library.compute_dp_sgd_privacy_statement(60_000, 256, 3, 1.1, 1e-5, False)
    told = float(statement.split("once per epoch:")[1].split()[0])
    assert one.proved[0].epsilon <= told + 0.001  # theirs is RDP, ours exact


def test_nvflare_accepts_more_coordinates_than_it_pays_for(tmp_path: Path) -> None:
    module = pytest.importorskip("nvflare.app_common.filters.svt_privacy")
    dxo = pytest.importorskip("nvflare.apis.dxo")
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    size, seen = 1000, []
    real = module._sample_partition_counts

    def noting(counts: list[int], total: int, replace: bool) -> list[int]:
        seen.append((sum(counts), total))
        return real(counts, total, replace)

    svt = module.SVTPrivacy()
    data = dxo.DXO(dxo.DataKind.WEIGHT_DIFF, {"w": np.zeros(size)})
    module._sample_partition_counts = noting
    try:
        svt.process_dxo(data, Shareable(), FLContext())
    finally:
        module._sample_partition_counts = real
    ((accepted, upload),) = seen
    assert upload == 100
    assert accepted > 3 * upload
    text = "SVTPrivacy()"
    one = finding(tmp_path, text, parameters=size, rounds=1)
    assert one.claimed == pytest.approx(svt.get_privacy_spent())
