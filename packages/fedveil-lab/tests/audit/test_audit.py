"""Audits come close to what is certified, accuse the faulty program, and not the honest one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import fedveil as fv
from fedveil.cli import main
from fedveil.core.units import Adjacency
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from fedveil_lab.audit.audit import audit
from fedveil_lab.audit.many_runs import many_runs
from fedveil_lab.audit.one_run import one_run
from fedveil_lab.audit.probes import probes

from .faults import CASES, FAULTS, HARMLESS, accused, noticed, plan_for, planted

# Seeds are fixed: nothing here fails by chance. Where it says so, other seeds might.


@pytest.mark.parametrize(
    "case", ["central", "central, replace", "central, correlated", "local", "central, Laplace"]
)
def test_audits_come_within_a_fifth_and_of_laplace_noise_without_assumptions(case: str) -> None:
    plan = plan_for(case)
    assert plan.guarantee is not None
    found = audit(plan, games=40_000, canaries=0)
    if case == "central, Laplace":
        assert found.gaussian is None
        assert 0.7 * plan.guarantee.epsilon < found.epsilon < plan.guarantee.epsilon
    else:
        assert found.gaussian is not None
        low, high = found.gaussian
        assert 0.8 * plan.guarantee.epsilon < low < plan.guarantee.epsilon < high
    assert not found.refuted


@pytest.mark.parametrize("case", CASES)
def test_the_honest_program_is_not_accused(case: str) -> None:
    assert accused(case, range(2), games=1000) == 0


def test_false_alarms_stay_below_the_stated_rate() -> None:
    """200 audits at 5 % each; more than 22 of them have probability 1e-4 at most."""
    few, plan = int(binom.isf(1e-4, 200, 0.05)), plan_for("central")
    found = [many_runs(plan, games=400, seed=seed).refuted for seed in range(200)]
    assert sum(one is not None for one in found) <= few


@pytest.mark.parametrize("fault", FAULTS | HARMLESS)
def test_planted_faults_are_noticed(fault: str) -> None:
    assert noticed(fault, seed=1) == (fault in FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed_nearly_always(fault: str) -> None:
    assert sum(noticed(fault, seed) for seed in range(20)) >= 18


def test_one_run_bounds_epsilon_and_hears_a_clip_that_is_skipped() -> None:
    plan = plan_for("central")
    assert plan.guarantee is not None
    assert one_run(plan, canaries=20).epsilon <= plan.guarantee.epsilon
    with planted("clip skipped"):
        loud = one_run(plan, canaries=20)
    assert loud.right == loud.guesses
    assert audit(plan, games=400, canaries=0).confidence == pytest.approx(0.95)
    assert audit(plan, games=400).confidence == pytest.approx(0.9)  # each may be wrong


@pytest.mark.parametrize(
    ("case", "noise"),
    [("record, secret batches", 1.5), ("record, secret batches, masked sums", 0.35)],
)
def test_credit_for_sampling_without_sampling_shows_an_epsilon_above_the_printed_one(
    case: str, noise: float
) -> None:
    """With 95 % confidence, towards a reader of the models and towards a hub; the honest program
    stays below."""
    plan = replace(plan_for(case), noise_multiplier=noise)
    assert plan.guarantee is not None
    printed = plan.guarantee.epsilon
    assert many_runs(plan, games=8000).epsilon < printed
    with planted("records in every batch, for a hub"):
        assert many_runs(plan, games=8000).epsilon > 1.2 * printed


@pytest.mark.parametrize(
    "case",
    [
        "record, secret batches, masked sums",
        "record, secret batches, replaced",
        "person, secret batches, masked sums",
    ],
)
def test_one_run_leaves_a_unit_out_where_that_is_the_other_world(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary that becomes its opposite would move a sum twice as far as zero-out allows."""
    plan, played = plan_for(case), list[Plan]()
    assert plan.guarantee is not None

    def noted(plan: Plan, **options: Any) -> Run:
        played.append(plan)
        return Run(plan, **options)

    monkeypatch.setattr("fedveil_lab.audit.one_run.Run", noted)
    honest = one_run(plan)
    assert honest.canaries == 100
    assert not honest.refuted
    assert honest.epsilon <= plan.guarantee.epsilon
    train = played[0].federation.train
    assert train.usable is not None
    left_out = (~train.usable).sum()
    if plan.guarantee.adjacency is Adjacency.REPLACE:
        assert left_out == 0
    elif train.persons is None:  # by fair coins; further from half has probability 1e-6
        assert 0.25 < left_out / honest.canaries < 0.75
    else:
        counts = np.bincount(train.persons, train.usable), np.bincount(train.persons)
        assert 25 < sum(counts[1] > counts[0]) < 75
        assert not ((counts[0] > 0) & (counts[0] < counts[1])).any()  # all of a person, or nothing


def test_persons_at_several_sites_are_played_at_all_of_them_or_refused() -> None:
    plan = plan_for("person, secret batches, masked sums")
    many = replace(plan.local.gradient_clip, sites_per_person=3)  # type: ignore[type-var]
    method = replace(plan.method, local=replace(plan.method.local, gradient_clip=many))
    wide = replace(plan, method=method, noise_multiplier=0.5)
    assert wide.guarantee is not None
    found = many_runs(wide, games=2000)
    assert found.refuted is None
    once = replace(plan, noise_multiplier=0.5)
    assert found.separation[0] > 1.5 * many_runs(once, games=2000).separation[0]


def test_a_refuted_guarantee_ends_with_1_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, report = tmp_path / "small.toml", tmp_path / "report.json"
    recipe.write_text(
        '[data]\nsource = "digits"\nclients = 20\n'
        '[training]\nmethod = "dp-fedavg"\nrounds = 2\nsampling = "everyone"\n'
        "[privacy]\nnoise_multiplier = 2.0\nclip_norm = 1.0\n"
    )
    call = ["audit", str(recipe), "--games", "2000", "--report", str(report), "--json"]
    assert main(call) == 0
    honest = json.loads(capsys.readouterr().out)
    assert honest["refuted"] == ""
    assert not report.exists()
    assert honest["epsilon_at_least"] < honest["certified"]["epsilon"]
    assert honest["one_run"]["canaries"] == 10
    assert honest["not_tried"]
    with planted("noise halved"):
        assert main(call) == 1
    printed = capsys.readouterr()
    assert json.loads(report.read_text())["refuted"] in printed.err
    assert json.loads(printed.out)["many_runs"]["refuted"]["at_least"] > 0
    assert main(["audit", "fedavg"]) == 2
    assert "promises nothing" in capsys.readouterr().err
    assert main(["audit", "dp-fedavg", "--games", "10"]) == 2


def test_the_same_seed_gives_the_same_audit_and_time_limits_are_kept() -> None:
    plan = plan_for("distributed")
    assert many_runs(plan, games=600, seed=3) == many_runs(plan, games=600, seed=3)
    cut = many_runs(plan, games=10**9, seconds=0.0)
    assert not cut.complete
    assert cut.games == 1000


def test_a_run_gets_an_audit_of_its_own_which_its_report_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    small = ["--set", "training.rounds=2", "--set", "data.clients=20"]
    assert main(["run", "dp-fedavg", *small, "--output", str(run), "--quiet"]) == 0
    assert main(["audit", str(run), "--games", "1000", "--quiet"]) == 0
    document = json.loads((run / "audit.json").read_text())
    assert document["lower_bound"] < document["certified"]["epsilon"]
    assert document["one_run"] is None  # its data have been paid for once
    assert "1000 games" in document["method"]
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["runs"]
    assert shown["epsilons"]["audited"] == document["lower_bound"]


@pytest.mark.parametrize("regression", [False, True])
def test_what_an_audit_writes_down_of_records_is_nobody_s(regression: bool) -> None:
    """A run's audit.json lies beside its model: what probes reached must not follow from rows."""
    found = []
    for seed in (0, 1):
        draw = np.random.default_rng(seed)
        inputs = draw.normal(size=(40, 3)).astype(np.float32)
        targets = inputs[:, 0] if regression else (inputs[:, 0] > 0).astype(np.int64)
        classes = None if regression else 2
        nobody = inputs[:0].copy(), targets[:0].copy()
        data = fv.Federation.from_arrays(
            inputs, targets, np.arange(40) // 10, classes=classes, test=nobody
        )
        method = fv.dp_sgd(
            rounds=1,
            cohort=fv.CohortRule(fv.Scheme.EVERYONE),
            local=fv.LocalTraining(fv.LearningRate(0.1), steps=1, batch_size=10),
            clip_norm=1.0,
        )
        module = fv.build("linear" if regression else "logistic", data)
        found.append(probes(fv.plan(method, data, module, budget=fv.Budget(epsilon=4.0))))
    assert found[0] == found[1] != ()
    assert not any(probe.broken for probe in found[0])
