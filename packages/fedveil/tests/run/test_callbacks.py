"""Callbacks: what they are told, and what ending a run costs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedveil as fv
from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples
from fedveil.run import callbacks as module

DRAW = np.random.default_rng(0)
INPUTS = DRAW.standard_normal((300, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64)
OWNERS = np.arange(200) // 5
TEST = (INPUTS[200:], LABELS[200:])


def plan(rounds: int = 8, seed: int | None = 1, public: bool = True) -> fv.Plan:
    given = {"test": TEST} if public else {}
    data = fv.Federation.from_arrays(INPUTS[:200], LABELS[:200], OWNERS, classes=2, **given)
    method = fv.dp_fedavg(
        rounds=rounds,
        cohort=fv.CohortRule(rate=0.5),
        local=fv.LocalTraining(fv.LearningRate(0.5), steps=2),
        clip=fv.Clip(1.0),
    )
    return fv.plan(method, data, fv.build("logistic", data), budget=fv.Budget(epsilon=4), seed=seed)


class Log(fv.Callback):
    def __init__(self, stop_at: int = 99) -> None:
        self.facts: Mapping[str, Any] = {}
        self.reports: list[fv.RoundReport] = []
        self.ended, self.stop_at = 0, stop_at

    def on_begin(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts

    def on_round(self, report: fv.RoundReport) -> bool:
        self.reports.append(report)
        return report.round_number == self.stop_at

    def on_end(self) -> None:
        self.ended += 1


def test_a_callback_is_told_of_every_round() -> None:
    log, made = Log(), plan()
    run = fv.Run(made, callbacks=[log])
    run.finish()
    run.close()
    assert [report.round_number for report in log.reports] == list(range(1, 9))
    assert log.facts["rounds"] == 8
    assert log.facts["epsilon"] == made.guarantee.epsilon  # type: ignore[union-attr]
    assert log.ended == 1
    assert not run.stopped


@pytest.mark.parametrize("seed", [None, 1])
def test_ending_early_costs_the_whole_plan(tmp_path: Path, seed: int | None) -> None:
    """And what was done is kept: the run can go on."""
    made, log, other = plan(seed=seed), Log(stop_at=3), Log()
    directory = fv.RunDirectory.create(tmp_path / "run", made, {})
    run = fv.Run(made, callbacks=[log, other]).keep_in(directory)
    run.finish()
    run.close()
    directory.close()
    assert run.stopped
    assert (run.state.rounds, len(log.reports), len(other.reports)) == (3, 3, 3)
    assert run.guarantee.epsilon == made.guarantee.epsilon  # type: ignore[union-attr]
    again = fv.Run(made).keep_in(fv.RunDirectory.open(tmp_path / "run", made))
    assert again.state.rounds == 3
    again.finish()
    again.close()
    assert again.state.rounds == 8


def report(number: int, loss: float | None) -> fv.RoundReport:
    metrics = None if loss is None else fv.Metrics(loss, 0.5)
    return fv.RoundReport(number, None, 1.0, metrics, None, {"clip": 0.5})


def test_early_stopping_waits_for_its_patience() -> None:
    stopping = fv.EarlyStopping(patience=2, least=0.1)
    losses = [1.0, None, 0.8, 0.75, None, 0.6, 0.59, 0.58]
    said = [stopping.on_round(report(i, loss)) for i, loss in enumerate(losses, 1)]
    # 0.75 saves too little and 0.6 enough; then two evaluations without gain.
    assert said == [False] * 7 + [True]
    with pytest.raises(fv.ConfigError, match="patience"):
        fv.EarlyStopping(patience=0)


def test_the_clients_own_rows_do_not_decide_which_model_is_released() -> None:
    run = fv.Run(plan(seed=None, public=False), callbacks=[fv.EarlyStopping()])
    with pytest.raises(fv.PrivacyRefusal, match="give a public test part"):
        run.finish()
    assert run.state.rounds == 0
    own = fv.Run(plan(seed=None, public=False), callbacks=[Log(stop_at=3)])  # sees the same figures
    own.finish()
    assert not own.stopped
    assert own.state.rounds == 8  # a refusal in round 3 would have been a stop as well
    for made in (plan(seed=None), plan(seed=1, public=False)):
        fv.Run(made, every=1, callbacks=[fv.EarlyStopping(patience=1, least=9.0)]).finish()


@pytest.mark.parametrize("active", [None, "theirs"])
def test_mlflow_gets_what_is_run_and_each_round(
    monkeypatch: pytest.MonkeyPatch, active: str | None
) -> None:
    """A run of our own is begun and ended, so that the next one can have other settings."""
    calls: list[Any] = []
    library = SimpleNamespace(
        active_run=lambda: active,
        start_run=lambda: calls.append("start"),
        log_params=calls.append,
        log_metrics=lambda found, step: calls.append((step, found)),
        end_run=lambda: calls.append("end"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", library)
    own = fv.Mlflow()
    own.on_begin({"rounds": 9})
    own.on_round(report(4, 0.25))
    own.on_end()
    figures = {"clip": 0.5, "loss": 0.25, "accuracy": 0.5, "epsilon_so_far": 1.0}
    logged = [{"rounds": 9}, (4, figures)]
    assert calls == (logged if active else ["start", *logged, "end"])


def test_callbacks_learn_of_the_end_of_a_run_that_another_refuses_to_begin() -> None:
    class Refuses(fv.Callback):
        def on_begin(self, facts: Mapping[str, Any]) -> None:
            raise ConfigError("not so")

        def on_end(self) -> None:
            raise AssertionError("it has not begun")

    log = Log()
    run = fv.Run(plan(), callbacks=[log, Refuses()])
    with pytest.raises(ConfigError, match="not so"):
        run.finish()
    run.close()
    assert log.ended == 1


def test_of_a_protected_run_released_values_alone_are_told() -> None:
    log = Log()
    run = fv.Run(plan(seed=None), callbacks=[log])
    run.finish()
    run.close()
    assert all(report.unprotected_stats is None for report in log.reports)
    assert all(report.seconds is None for report in log.reports)
    assert log.facts["protected"]


def test_early_stopping_needs_test_examples() -> None:
    """Of none the loss is no number, and would never fall."""
    made = plan(seed=1)
    test = Examples(made.federation.test.inputs[:0], made.federation.test.targets[:0])
    none = replace(made, federation=replace(made.federation, test=test))
    run = fv.Run(none, callbacks=[fv.EarlyStopping()])
    with pytest.raises(fv.ConfigError, match="no test examples to stop by; hold some out"):
        run.finish()
    assert run.state.rounds == 0


def test_mlflow_itself_takes_two_runs_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path}")
    for rounds in (8, 9):
        own = fv.Mlflow()
        own.on_begin({"rounds": rounds})
        own.on_round(report(4, 0.25))
        own.on_end()
    found = mlflow.MlflowClient().search_runs(["0"])
    assert {run.data.params["rounds"] for run in found} == {"8", "9"}
    assert {run.info.status for run in found} == {"FINISHED"}


def test_callbacks_learn_of_the_end_of_a_run_that_is_left_early() -> None:
    log = Log()
    run = fv.Run(plan(), callbacks=[log])
    rounds = iter(run)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    run.close()
    assert log.ended == 1


@pytest.mark.parametrize(("name", "make"), [("mlflow", fv.Mlflow), ("tensorboard", fv.TensorBoard)])
def test_what_is_not_installed_is_named(
    name: str, make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(fv.ConfigError, match=rf'pip install "fedveil\[{name}\]"'):
        make(*([str(tmp_path)] if name == "tensorboard" else []))


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    own = fv.TensorBoard(str(tmp_path))
    own.on_begin({"rounds": 9})
    own.on_round(report(4, 0.25))
    own.on_end()
    found = EventAccumulator(str(tmp_path)).Reload()
    ((step, value),) = [(one.step, one.value) for one in found.Scalars("loss")]
    assert (step, value) == (4, 0.25)


def test_figures_that_are_no_numbers_are_left_out() -> None:
    assert "loss" not in module.figures_of(report(1, float("nan")))
