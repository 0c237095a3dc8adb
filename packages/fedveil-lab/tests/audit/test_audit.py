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
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency
from fedveil.data.assignment import Assignment
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from fedveil_lab.audit.audit import audit
from fedveil_lab.audit.many_runs import many_runs
from fedveil_lab.audit.one_run import one_run
from fedveil_lab.audit.probes import probes

from .faults import CASES, FAULTS, HARMLESS, accused, noticed, plan_for, planted

# Seeds are fixed: nothing here fails by chance. Where it says so, other seeds might.


@pytest.mark.parametrize("case", ["central", "central, replace", "central, correlated", "local"])
def test_audits_of_plain_gaussians_come_within_a_fifth(case: str) -> None:
    plan = plan_for(case)
    assert plan.guarantee is not None
    found = many_runs(plan, games=40_000)
    low, high = found.gaussian
    assert 0.8 * plan.guarantee.epsilon < low < plan.guarantee.epsilon < high
    assert found.refuted is None


def test_audits_of_laplace_noise_assume_nothing_and_come_near() -> None:
    plan = plan_for("central, Laplace")
    assert plan.guarantee is not None
    found = audit(plan, games=40_000, canaries=0)
    assert 0.7 * plan.guarantee.epsilon < found.epsilon < plan.guarantee.epsilon
    assert found.gaussian is None


@pytest.mark.parametrize("case", CASES)
def test_the_honest_program_is_not_accused(case: str) -> None:
    assert accused(case, range(2), games=1000) == 0


def test_false_alarms_stay_below_the_stated_rate() -> None:
    """200 audits at 5 % each; more than 22 of them have probability 1e-4 at most."""
    few, plan = int(binom.isf(1e-4, 200, 0.05)), plan_for("central")
    found = [many_runs(plan, games=400, seed=seed).refuted for seed in range(200)]
    assert sum(one is not None for one in found) <= few


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed(fault: str) -> None:
    assert noticed(fault, seed=1)


@pytest.mark.parametrize("fault", HARMLESS)
def test_a_fault_that_makes_noise_larger_is_no_reason_to_accuse(fault: str) -> None:
    assert not noticed(fault, seed=1)


def test_two_audits_may_each_be_wrong() -> None:
    plan = plan_for("central")
    assert audit(plan, games=400, canaries=0).to_dict()["confidence"] == pytest.approx(0.95)
    both = audit(plan, games=400)
    assert both.one is not None
    assert both.to_dict()["confidence"] == pytest.approx(0.9)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed_nearly_always(fault: str) -> None:
    assert sum(noticed(fault, seed) for seed in range(20)) >= 18


def test_one_run_bounds_epsilon_and_hears_a_clip_that_is_skipped() -> None:
    plan = plan_for("central")
    assert plan.guarantee is not None
    honest = one_run(plan, canaries=20)
    assert honest.epsilon <= plan.guarantee.epsilon
    assert honest.cosines[0].epsilon[0] < plan.guarantee.epsilon
    with planted("clip skipped"):
        loud = one_run(plan, canaries=20)
    assert loud.right == loud.guesses
    assert loud.cosines[0].epsilon[0] > plan.guarantee.epsilon


def test_one_run_with_canary_records_hears_gradients_that_are_not_clipped() -> None:
    plan = plan_for("record, summed")
    assert plan.guarantee is not None
    honest = one_run(plan)
    assert honest.canaries == 100
    assert honest.epsilon <= plan.guarantee.epsilon
    assert not honest.refuted
    with planted("gradients of records not clipped"):
        loud = one_run(plan)
    assert honest.cosines[1].epsilon[0] < plan.guarantee.epsilon < loud.cosines[1].epsilon[0]


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
        "record, secret batches",
        "record, secret batches, masked sums",
        "record, secret batches, replaced",
    ],
)
def test_one_run_leaves_a_record_out_where_that_is_the_other_world(
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
    assert not honest.refuted
    assert honest.epsilon <= plan.guarantee.epsilon
    assert honest.cosines[0].epsilon[0] < plan.guarantee.epsilon
    train = played[0].federation.train
    assert train.usable is not None
    left_out = int((~train.usable).sum())
    if plan.guarantee.adjacency is Adjacency.REPLACE:
        assert left_out == 0
    else:  # by fair coins; further from half has probability 1e-6
        assert 0.25 < left_out / honest.canaries < 0.75


def test_whole_runs_are_games_too() -> None:
    plan = plan_for("central")
    short = replace(plan, method=replace(plan.method, rounds=1))
    assert short.guarantee is not None
    honest = many_runs(short, games=200, whole=True)
    assert honest.refuted is None
    assert honest.epsilon <= short.guarantee.epsilon <= honest.gaussian[1]
    with planted("clip skipped"):
        loud = many_runs(short, games=200, whole=True)
    assert loud.refuted is not None
    with pytest.raises(ConfigError, match="updates are summed"):
        many_runs(plan_for("local"), games=200, whole=True)


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


def test_the_same_seed_gives_the_same_audit_and_time_limits_are_kept() -> None:
    plan = plan_for("distributed")
    assert many_runs(plan, games=600, seed=3) == many_runs(plan, games=600, seed=3)
    cut = many_runs(plan, games=10**9, seconds=0.0)
    assert not cut.complete
    assert cut.games == 1000


def test_kept_games_are_gone_on_with(tmp_path: Path) -> None:
    plan, kept = plan_for("central, idealised"), tmp_path / "games.npz"
    first = many_runs(plan, games=1000, seed=3, kept=kept)
    assert first.games == 1000
    both = many_runs(plan, games=2000, seed=3, kept=kept)
    assert both == many_runs(plan, games=2000, seed=3)
    with pytest.raises(ConfigError, match="another recipe or seed"):
        many_runs(plan, games=2000, seed=4, kept=kept)
    kept.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="damaged"):
        many_runs(plan, games=2000, seed=3, kept=kept)


SCHEMA = (
    '[columns.x]\ntype = "number"\nmin = 0\nmax = 9\n'
    '[columns.label]\ntype = "category"\ncategories = ["no", "yes"]\n'
)


def test_a_run_on_a_table_gets_an_audit_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's report reads it; and a hold-out that is drawn over all rows is found out."""
    lines = ["who,x,label"]
    values = [(i, i // 20 % 10) for i in range(400)]
    lines += [f"c{i % 20},{x},{'yes' if x > 4 else 'no'}" for i, x in values]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    recipe, run = tmp_path / "table.toml", tmp_path / "run"
    recipe.write_text(
        f'[data]\nfile = "{tmp_path}/rows.csv"\nclient_column = "who"\nlabel = "label"\n'
        f'schema = "{tmp_path}/schema.toml"\n'
        '[training]\nmethod = "dp-fedavg"\nrounds = 2\nsampling = "everyone"\n'
        "[privacy]\nnoise_multiplier = 2.0\nclip_norm = 1.0\n"
    )
    assert main(["run", str(recipe), "--output", str(run), "--quiet"]) == 0
    call = ["audit", str(run), "--games", "1000", "--canaries", "0", "--quiet"]
    assert main(call) == 0
    document = json.loads((run / "audit.json").read_text())
    assert document["lower_bound"] < document["certified"]["epsilon"]
    assert document["confidence"] == pytest.approx(0.95)
    assert "1000 games" in document["method"]
    assert document["probes"][-1]["reached"] == 0
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["runs"]
    assert shown["epsilons"]["audited"] == document["lower_bound"]

    def over_all_rows(self: Assignment, seed: int, purpose: str) -> object:
        return np.random.default_rng(seed).integers(2**63, size=len(self.rows)).astype(np.uint64)

    monkeypatch.setattr(Assignment, "row_words", over_all_rows)
    assert main(call) == 1
    assert "other clients whose training rows change" in capsys.readouterr().err


def test_what_cannot_be_audited_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "fedavg"]) == 2
    assert "promises nothing" in capsys.readouterr().err
    assert main(["audit", "dp-fedavg", "--games", "10"]) == 2


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
