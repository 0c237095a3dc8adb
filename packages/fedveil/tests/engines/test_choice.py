"""Which engine is chosen, why, and what is said when another one is forced."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.training.client.local_training import GradientClip, LearningRate, LocalTraining
from fedveil.training.engines import choose as choosing
from fedveil.training.engines.choose import Choice, build_engine, choose, device_of, supports
from fedveil.training.engines.contract import Engine, Job, RoundRequest
from fedveil.training.engines.cost import Prediction, Workload, operations
from fedveil.training.engines.registry import OUTSIDE
from fedveil.training.engines.registry import engine as outside_engine
from fedveil.training.models.flat import layout_of
from fedveil.training.models.images import WideCnn

from .jobs import GRIDS, MODELS, RULES, SHAPINGS, SIZES, make_job, start_of

FASTEST = {
    "linear": "algebra",
    "wide linear": "algebra",
    "linear without bias": "algebra",
    "softmax": "algebra",
    "wide softmax": "algebra",
    "softmax without bias": "algebra",
    "mlp": "mlp",
    "tanh mlp": "mlp",
    "wide mlp": "mlp",
    "wide tanh mlp": "mlp",
    "own module": "generic",
    "cnn": "sequential",
    "colour cnn": "sequential",
    "lstm": "sequential",
}


@pytest.mark.parametrize("model", MODELS)
def test_auto_picks_the_fastest_engine_and_says_why(model: str) -> None:
    choice = choose(make_job(model, RULES["one epoch of batches"], SHAPINGS["clip"]))
    assert choice.name == FASTEST[model]
    assert choice.reason
    assert choice.processes == 1


def test_noise_takes_a_linear_model_out_of_algebra() -> None:
    job = make_job("softmax", RULES["per example, noisy (Hu)"], SHAPINGS["clip"])
    assert choose(job).name == "mlp"
    with pytest.raises(ConfigError, match="more than plain SGD"):
        build_engine(job, "algebra")


@pytest.mark.parametrize(
    ("engine", "model", "reason"),
    [
        ("algebra", "mlp", "3 layers"),
        ("mlp", "own module", "Residual"),
        ("mlp", "cnn", "ChannelsFirst"),
        ("generic", "lstm", "LSTM"),
    ],
)
def test_a_forced_engine_that_cannot_run_the_job_says_why(
    engine: str, model: str, reason: str
) -> None:
    job = make_job(model, RULES["one epoch of batches"], SHAPINGS["clip"])
    assert reason in (supports(job, engine) or "")
    with pytest.raises(ConfigError, match=reason):
        build_engine(job, engine)


def test_unknown_names_and_impossible_settings_are_refused() -> None:
    job = make_job("mlp", RULES["momentum"], SHAPINGS["clip"])
    whole = GradientClip(1.0, per_example=True)
    unset = replace(job, rule=LocalTraining(LearningRate(0.1), steps=1, gradient_clip=whole))
    refused: dict[str, Callable[[], object]] = {
        "engine.name": lambda: build_engine(job, "fastest"),
        "engine.processes": lambda: build_engine(job, processes=0),
        "engine.chunk": lambda: build_engine(job, chunk=0),
        "engine.threads": lambda: build_engine(job, threads=0),
        "engine.device": lambda: device_of("abacus"),
        "training.batch_size": lambda: choose(unset),
    }
    for key, asked in refused.items():
        with pytest.raises(ConfigError, match=f"{re.escape(key)}: "):
            asked()


class Stubborn(nn.Module):
    """Decides by looking at a value, which `vmap` cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores * 2 if float(x.sum()) > 0 else scores


def with_module(job: Job, module: nn.Module) -> Job:
    return replace(job, module=module, layout=layout_of(module))


def test_a_module_that_vmap_cannot_batch_is_trained_one_client_at_a_time() -> None:
    job = make_job("own module", RULES["one epoch of batches"], SHAPINGS["clip"])
    job = with_module(job, Stubborn())
    assert choose(job).name == "sequential"
    with pytest.raises(ConfigError, match=r"torch\.func cannot batch"):
        build_engine(job, "generic")
    result = sum_of(build_engine(job), RoundRequest(start_of(job), np.arange(len(SIZES)), 0))
    assert float(result.total.norm()) > 0


def test_layers_with_hooks_tied_or_frozen_parameters_are_left_to_autograd() -> None:
    job = make_job("mlp", RULES["one epoch of batches"], SHAPINGS["clip"])
    odd = {
        word: nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Linear(12, 3))
        for word in ("hooks", "frozen", "shares")
    }
    odd["hooks"][0].register_forward_hook(lambda module, inputs, output: output * 2)
    odd["frozen"][0].weight.requires_grad_(False)
    odd["shares"][2].weight = odd["shares"][0].weight
    for word, module in odd.items():
        assert word in (supports(with_module(job, module), "mlp") or "")


def test_long_rounds_take_as_many_processes_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choosing, "cores", lambda: 3)
    job = make_job("cnn", RULES["one epoch of batches"], SHAPINGS["clip"])
    assert choose(job, workload=Workload(10, 100)).processes == 1
    long = choose(job, workload=Workload(1e6, 100))
    assert long.processes == 3
    assert "3 processes" in long.reason
    assert long.threads == 1  # of each
    assert choose(job, processes=1, workload=Workload(1e6, 100)).processes == 1
    monkeypatch.setattr(choosing, "cores", lambda: 1)
    assert choose(job, workload=Workload(1e6, 100)).processes == 1


def test_steps_that_keep_a_few_cores_busy_need_no_second_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job("cnn", RULES["one epoch of batches"], SHAPINGS["clip"])
    for step, cores, processes in ((2.0, 2, 1), (0.2, 2, 2), (2.0, 16, 16)):
        predicted = Prediction(seconds=10 * step, step_seconds=step, rounds=100)
        monkeypatch.setattr(choosing, "cores", lambda cores=cores: cores)
        monkeypatch.setattr(choosing, "predict", lambda *_, predicted=predicted: predicted)
        choice = choose(job, workload=Workload(10, 100))
        assert choice.processes == processes
        assert (choice.threads is None) == (processes == 1)


class Spy(nn.Linear):
    """Notes how many threads its forward pass has."""

    seen: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(torch.get_num_threads())
        scores: Tensor = super().forward(x)
        return scores


def threads_of(job: Job, choice: Choice | str, threads: int | None = None) -> set[int]:
    engine = build_engine(job, choice, threads=threads)
    Spy.seen.clear()
    sum_of(engine, RoundRequest(start_of(job), np.arange(len(SIZES)), 0))
    return set(Spy.seen)


def test_short_operations_and_isolated_clients_stay_on_one_thread() -> None:
    """And leave torch as it was. Sums of several threads round differently from machine to
    machine, so isolated clients have one whatever was asked for."""
    before = torch.get_num_threads()
    job = with_module(make_job("softmax", RULES["momentum"], GRIDS["grid"]), Spy(5, 3))
    choice = choose(job, "sequential", workload=Workload(10, 10))
    assert choice.threads == 1
    torch.set_num_threads(2)
    assert threads_of(job, choice) == {1}
    assert torch.get_num_threads() == 2
    assert threads_of(job, choice, 3) == {3}
    assert threads_of(replace(job, isolated=True), "sequential", 3) == {1}
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("model", "round_seconds", "step_seconds", "threads"),
    [
        ("cnn", 10.0, 0.001, 1),  # one client at a time: its steps count,
        ("cnn", 0.05, 0.01, None),
        ("own module", 10.0, 0.001, None),  # clients together: the round counts
        ("own module", 0.05, 0.01, 1),
    ],
)
def test_a_second_thread_is_for_operations_that_are_long(
    model: str,
    round_seconds: float,
    step_seconds: float,
    threads: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted = Prediction(round_seconds, step_seconds, rounds=100)
    monkeypatch.setattr(choosing, "cores", lambda: 1)
    monkeypatch.setattr(choosing, "predict", lambda *_: predicted)
    job = make_job(model, RULES["one epoch of batches"], SHAPINGS["clip"])
    assert choose(job, workload=Workload(10, 100)).threads == threads


@pytest.mark.parametrize(("asked", "found"), [(None, 3), ("2", 2), ("5", 3), ("0", 3), ("all", 3)])
def test_cores_are_those_that_the_process_may_use(
    asked: str | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert choosing.cores() == found


def test_an_engine_of_the_main_program_stays_in_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered = OUTSIDE._things, OUTSIDE._origins
    for name, before in zip(("_things", "_origins"), registered, strict=True):
        monkeypatch.setattr(OUTSIDE, name, dict(before))

    def build(job: Job, chunk: int | None, device: torch.device) -> Engine:
        return build_engine(job, "sequential", chunk)

    build.__module__ = "__main__"
    outside_engine("homemade")(build)
    job = make_job("softmax", RULES["momentum"], SHAPINGS["clip"])
    with pytest.raises(ConfigError, match="'homemade' is defined in the main program; move it"):
        choose(job, "homemade", processes=2)


def test_a_model_of_the_main_program_cannot_be_sent_to_other_processes() -> None:
    class Homemade(nn.Linear):
        pass

    Homemade.__module__ = "__main__"
    job = with_module(make_job("softmax", RULES["momentum"], SHAPINGS["clip"]), Homemade(5, 3))
    with pytest.raises(ConfigError, match="Homemade is defined in the main program"):
        build_engine(job, "processes")


def test_operations_of_a_forward_pass_are_those_of_its_matrices() -> None:
    job = make_job("mlp", RULES["momentum"], SHAPINGS["clip"])
    assert operations(job) == job.layout.size
    wide = with_module(make_job("cnn", RULES["momentum"], SHAPINGS["clip"]), Upscaled())
    # 28 * 28 * 32 * (25 + 1) + 14 * 14 * 64 * (800 + 1) + (3136 + 1) * 512 + (512 + 1) * 10
    assert operations(wide) == 652_288 + 10_047_744 + 1_606_144 + 5_130


class Upscaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = WideCnn((1, 28, 28), 10)

    def forward(self, x: Tensor) -> Tensor:
        image = torch.nn.functional.interpolate(x[:, None], (28, 28))
        scores: Tensor = self.network(image)
        return scores
