"""What a crash, a kill or an exception inside a round leaves behind: no round is drawn twice."""

from __future__ import annotations

import json
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.crash_child import CLIENTS, COHORT, ROUNDS, cohorts, main, plan_of
from tests.processes import PROCESSES

import fedveil as fv
from fedveil.privacy.accounting import account
from fedveil.privacy.ledger import read
from fedveil.run.directory import CHECKPOINT, RunDirectory, _metadata, examined, load_checkpoint
from fedveil.training.engines.contract import RoundRequest

POINTS = ["train", "noise", "store"]  # between reservation and storage


def child(path: Path, scheme: str, seed: int | None, *dying: Any) -> int | None:
    process = PROCESSES.Process(target=main, args=(path, scheme, seed, *dying))
    process.start()
    process.join()
    return process.exitcode


def checkpoint_rounds(path: Path) -> int:
    return int(_metadata(path / CHECKPOINT)["rounds"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("scheme", "point"),
    [
        *((scheme, POINTS[0]) for scheme in ("balanced", "poisson")),
        *(("round-robin", p) for p in POINTS),
    ],
)
def test_a_killed_round_is_used_up_and_the_schedule_goes_on(
    tmp_path: Path, scheme: str, point: str
) -> None:
    """Six rounds of 3 of 20 clients: nobody's turn comes twice, so any repeated cohort shows."""
    path = tmp_path / "run"
    assert child(path, scheme, None, point, 1) == -signal.SIGKILL
    assert read(path / "ledger.jsonl").reserved == 2
    assert checkpoint_rounds(path) == 1
    assert child(path, scheme, None, point, 2) == -signal.SIGKILL  # again, right after
    assert child(path, scheme, None) == 0
    trained = cohorts(path)
    assert [round_number for round_number, _ in trained] == list(range(ROUNDS))
    plan = plan_of(scheme, None)
    if not plan.sampling.amplifies:
        counts = np.bincount(np.concatenate([c for _, c in trained]), minlength=CLIENTS)
        assert counts.max() <= plan.sampling.max_participations(ROUNDS) == 1
        scheduled = [
            plan.sampling.draw(round_number, None).tolist() for round_number in range(ROUNDS)
        ]
        assert [cohort for _, cohort in trained] == scheduled
    shown = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in shown] == [1, 4, 5, 6]
    assert [line["epsilon_so_far"] for line in shown] == [plan.spent(n) for n in (1, 4, 5, 6)]
    assert read(path / "ledger.jsonl").remaining == 0
    assert COHORT * ROUNDS < CLIENTS


def test_what_was_shown_before_the_kill_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert child(path, "round-robin", None, "shown", 2) == -signal.SIGKILL
    assert read(path / "ledger.jsonl").reserved == checkpoint_rounds(path) == 3
    assert child(path, "round-robin", None) == 0
    assert [round_number for round_number, _ in cohorts(path)] == list(range(ROUNDS))


@pytest.mark.parametrize("point", ["train", "noise", "shown"])
def test_a_killed_simulation_ends_the_same_bit_for_bit(tmp_path: Path, point: str) -> None:
    path = tmp_path / "run"
    assert child(path, "poisson", 4, point, 2) == -signal.SIGKILL
    assert child(path, "poisson", 4) == 0
    whole = fv.Run(plan_of("poisson", 4))
    whole.finish()
    assert (path / "model.safetensors").read_bytes() == whole.model_file()
    assert read(path / "ledger.jsonl").remaining == 0


class Stopped(Exception):
    pass


def breaks_off_in(run: fv.Run, dies_in: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Let one round break off while it trains; the cohorts that were trained, as they come."""
    trained: list[list[int]] = []
    original = run.engine.updates

    def sums(request: RoundRequest) -> Any:
        trained.append(request.cohort.tolist())
        if request.round_number == dies_in:
            raise Stopped
        return original(request)

    monkeypatch.setattr(run.engine, "updates", sums)
    return trained


@pytest.mark.parametrize("kept", [True, False], ids=["in a directory", "in memory"])
def test_a_caught_exception_does_not_draw_a_protected_round_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    plan = plan_of("round-robin", None)
    run = fv.Run(plan)
    if kept:
        run.keep_in(RunDirectory.create(tmp_path / "run", plan, {}))
    trained = breaks_off_in(run, 1, monkeypatch)
    with pytest.raises(Stopped):
        run.finish()
    assert run.rounds_left == ROUNDS - 2
    run.finish()
    assert trained == [
        plan.sampling.draw(round_number, None).tolist() for round_number in range(ROUNDS)
    ]
    assert run.next_round == ROUNDS


def test_a_caught_exception_lets_a_simulation_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run, whole = fv.Run(plan_of("poisson", 4)), fv.Run(plan_of("poisson", 4))
    whole.finish()
    with monkeypatch.context() as broken:
        breaks_off_in(run, 2, broken)
        with pytest.raises(Stopped):
            run.finish()
    run.finish()
    assert torch.equal(run.state.weights, whole.state.weights)


def test_every_protected_round_is_on_disk_before_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: reservation, checkpoint, its name, all given to the disk; then metrics."""
    plan = plan_of("poisson", None)
    directory = RunDirectory.create(tmp_path / "run", plan, {})
    run = fv.Run(plan, every=2).keep_in(directory)
    happened: list[str] = []
    sync, show = os.fsync, directory.append_metrics

    def watched_sync(descriptor: int) -> None:
        sync(descriptor)
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def watched_show(document: dict[str, Any]) -> None:
        happened.append("metrics")
        show(document)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(directory, "append_metrics", watched_show)
    for number, report in enumerate(run, start=1):
        assert report.round_number == number
        assert happened == ["ledger.jsonl", ".state.safetensors.partial", "checkpoint", "metrics"]
        happened.clear()
        stored = load_checkpoint(
            tmp_path / "run/checkpoint/state.safetensors", directory._fingerprint
        )
        assert stored.rounds == number
        assert torch.equal(stored.weights, run.state.weights)


def test_epsilon_so_far_is_that_of_all_rounds_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of six rounds broke off: the reports after them count them, as the ledger does."""
    plan = plan_of("poisson", None)
    run = fv.Run(plan, every=1).keep_in(RunDirectory.create(tmp_path / "run", plan, {}))
    with monkeypatch.context() as broken:
        for dies_in in (0, 1, 2):
            breaks_off_in(run, dies_in, broken)
            with pytest.raises(Stopped):
                next(iter(run))
            broken.undo()
    assert run.directory is not None
    assert run.directory.ledger is not None
    assert plan.privacy_model is not None
    assert plan.delta is not None
    for report in run:
        paid = account(
            plan.releases(report.round_number), privacy_model=plan.privacy_model, delta=plan.delta
        )
        assert report.epsilon_so_far == paid.epsilon
        assert run.directory.ledger.spent() == paid.epsilon
    assert run.guarantee == plan.guarantee


@pytest.mark.parametrize("seed", [None, 4], ids=["protected", "simulated"])
def test_a_disk_that_fills_up_and_is_cleared_does_no_harm(tmp_path: Path, seed: int | None) -> None:
    """Every file may grow by a few bytes only, wherever that ends a write; then there is room."""
    plan = plan_of("round-robin", seed)
    directory = RunDirectory.create(tmp_path / "run", plan, {})
    run = fv.Run(plan, every=1).keep_in(directory)
    next(iter(run))
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for name in ("ledger.jsonl", "metrics.jsonl", "checkpoint/state.safetensors"):
            limit = (tmp_path / "run" / name).stat().st_size + 20
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
            with suppress(OSError):
                next(iter(run))
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, ignored)
    run.finish()
    directory.close()
    assert examined(tmp_path / "run").remaining == 0
    numbers = [line["round"] for line in directory.metrics()]
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= ROUNDS - 3
    RunDirectory.open(tmp_path / "run", plan).close()
