"""Secure sums in whole runs: same result masked or ideal, enough honest noise, or no release."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of

import fedveil as fv
from fedveil.cli import main
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import DataSection, Recipe
from fedveil.privacy.noise.grid import share
from fedveil.privacy.secure_sums.dropouts import draw_dropouts, planned_dropouts
from fedveil.training.engines.contract import RoundRequest

FEDERATION = federation_of(DataSection(clients=24))
VOTERS = federation_of(DataSection(clients=24, public_fraction=0.05))

UPDATES = {"training.method": "dp-fedavg", "privacy.trust": "distributed"}
LINEAR = {"model.name": "logistic", "model.input_norm": 2.0}
CASES: dict[str, dict[str, Any]] = {
    "one noisy step": {"training.method": "dp-sgd", "training.batch_size": 16},
    "convex steps": {
        "training.method": "gradient-noise",
        "training.local_steps": 2,
        "training.batch_size": 16,
        "privacy.clip_norm": 3.17,
        **LINEAR,
    },
    "steps alone": {
        "training.method": "gradient-noise",
        "training.local_steps": 2,
        "training.batch_size": 16,
        "model.name": "mlp",
        "model.hidden": [8],
    },
    "shares": UPDATES,
    "ddgauss": {"training.method": "ddgauss", "privacy.colluders": 1},
    "ddgauss, clip tracked": {
        "training.method": "ddgauss",
        "privacy.clip_quantile": 0.5,
        "privacy.clip_noise": 0.2,
    },
    "votes": {
        "training.method": "ae-dpfl",
        "training.sampling": "everyone",
        "voting.epochs": 2,
        "privacy.epsilon": 20.0,
    },
}


def recipe_of(values: dict[str, Any], **aggregation: Any) -> Recipe:
    usual: dict[str, Any] = {"evaluation.every": 1}
    if values.get("training.method") != "fedavg":
        usual["privacy.epsilon"] = 8.0
    if values.get("training.method") != "ae-dpfl":
        usual |= {"training.rounds": 3, "training.cohort": 12}
        if values.get("training.method") != "dp-sgd":
            usual["training.local_epochs"] = 1
    for one, other in (
        ("training.local_steps", "training.local_epochs"),
        ("privacy.noise_multiplier", "privacy.epsilon"),
    ):
        if one in values:
            usual.pop(other, None)
    named = {f"aggregation.{name}": value for name, value in aggregation.items()}
    return recipes.with_defaults(recipes.parse({}, values=usual | values | named))


def plan_for(values: dict[str, Any], seed: int | None = 1, **aggregation: Any) -> fv.Plan:
    voting = values.get("training.method") == "ae-dpfl"
    data: fv.Federation = VOTERS if voting else FEDERATION
    chosen = recipe_of(values if seed is None else values | {"seed": seed}, **aggregation)
    return plan_of(chosen, data)


def finished(plan: fv.Plan, **speed: Any) -> fv.Run:
    run = fv.Run(plan, speed=fv.Speed(**speed))
    run.finish()
    run.close()
    return run


@pytest.mark.parametrize("name", CASES)
def test_masked_and_ideal_sums_end_in_the_same_weights(name):
    runs = [
        finished(plan_for(CASES[name], secure=mode, dropout=0.25), chunk=5)
        for mode in ("masked", "ideal")
    ]
    masked, ideal = runs
    assert torch.equal(masked.state.weights, ideal.state.weights)
    assert not torch.equal(masked.state.weights, masked.plan.start)
    assert masked.dropouts == ideal.dropouts
    assert any(one.survivors < one.cohort for one in masked.dropouts.values())
    assert masked.seconds["mask"] > 0
    assert "mask" not in ideal.seconds


@pytest.mark.parametrize("mode", ["masked", "ideal"])
def test_a_round_releases_the_mean_over_survivors_of_integers_and_their_own_noise(mode):
    """Recomputed with Python's whole numbers from single clients and noise drawn here."""
    plan = plan_for(UPDATES | {"training.rounds": 1}, secure=mode, dropout=0.25)
    run = finished(plan, chunk=1)
    cohort = plan.sampling.draw(0, plan.randomness.stream("cohort", 0))
    lost = draw_dropouts(list(cohort), 0.25, plan.randomness.stream("losses", 0)).before_upload
    assert 0 < len(lost) < len(cohort)
    survivors = [client for client in cohort if client not in lost]
    pipeline = plan.pipeline
    std = plan.noise_multiplier * pipeline.clip.norm / math.sqrt(len(cohort))
    total = [0] * plan.layout.size
    for client in survivors:
        row = sum_of(run.engine, RoundRequest(plan.start, np.array([client]), 0, pipeline)).total
        stream = plan.randomness.stream("noise", 0, int(client))
        noise = share(plan.layout.size, std, pipeline.granularity, stream)
        total = [t + int(r) + int(n) for t, r, n in zip(total, row, noise, strict=True)]
    assert max(map(abs, total)) < 2**63  # nothing wraps at this noise
    mean = torch.tensor(total, dtype=torch.float64) * pipeline.granularity / len(survivors)
    assert torch.allclose(run.state.weights - plan.start, mean.float(), rtol=1e-5, atol=1e-7)


def test_a_tracked_clip_is_counted_over_survivors_with_noise_of_its_own():
    plan = plan_for(CASES["ddgauss, clip tracked"], secure="masked", dropout=0.25)
    run = fv.Run(plan, speed=fv.Speed(chunk=1))
    report = next(iter(run))
    cohort = plan.sampling.draw(0, plan.randomness.stream("cohort", 0))
    lost = draw_dropouts(list(cohort), 0.25, plan.randomness.stream("losses", 0)).before_upload
    survivors = np.array([client for client in cohort if client not in lost])
    norms = sum_of(run.engine, RoundRequest(plan.start, survivors, 0, plan.pipeline)).norms
    halves = sum(0.5 if norm <= plan.pipeline.clip.norm else -0.5 for norm in norms)
    count = plan.noise.at().count
    integers = count.integers
    std, grid = integers.share_std, integers.grid.granularity
    assert std * math.sqrt(12) == pytest.approx(0.2 * 12)  # clip_noise, as a share of the cohort
    noise = sum(
        share(1, std, grid, plan.randomness.stream("bits", 0, int(client)))[0] * grid
        for client in survivors
    )
    released = report.figures["below_clip"]
    signs = (1, -1)  # the rotation of one number is a public sign
    assert any(
        released == pytest.approx(0.5 + (halves + sign * noise) / len(survivors)) for sign in signs
    )


def test_the_guarantee_counts_the_fewest_honest_shares_that_are_released():
    """Epsilon is that of a sum of as many shares, accounted without any setting of losses."""
    plan = plan_for(UPDATES, dropout=0.2, min_honest=7)
    guarantee = plan.guarantee
    assert guarantee.honest_shares == 7
    assert "7 honest noise shares" in guarantee.statement
    assert plan.pipeline.granularity is not None
    alone = fv.DiscreteGaussianSum(
        1.0,
        plan.pipeline.granularity,
        plan.noise_multiplier / math.sqrt(12),
        7,
        plan.layout.size,
        None,
    )
    by_hand = fv.account(
        [fv.Release(alone, plan.sampling, 3)],
        privacy_model=type(plan.privacy_model).from_dict(
            plan.privacy_model.to_dict() | {"honest_shares": None}
        ),
        delta=guarantee.delta,
    )
    assert guarantee.epsilon == pytest.approx(by_hand.epsilon, rel=1e-9)
    assert guarantee.epsilon <= 8.0


@pytest.mark.parametrize("name", ["shares", "ddgauss", "one noisy step", "convex steps", "votes"])
def test_more_losses_to_plan_for_never_take_less_noise(name):
    noises, honest = [], []
    for dropout in (0.0, 0.05, 0.2):
        plan = plan_for(CASES[name], dropout=dropout)
        assert plan.guarantee.epsilon <= 20.0
        noises.append(plan.noise_multiplier or 0.0)
        honest.append(plan.guarantee.honest_shares or 0)
        members = 24 if name == "votes" else 12
        colluders = CASES[name].get("privacy.colluders", 0)
        assert honest[-1] == members - colluders - planned_dropouts(members, dropout, colluders)
    assert noises == sorted(noises)
    assert noises[0] < noises[-1]
    assert honest == sorted(honest, reverse=True)


def test_the_noise_counts_on_the_same_shares_on_a_sparse_graph():
    """10 % colluders and 10 % losses of 100: docs/secagg.md gives degree 32."""
    sparse = fv.Aggregation(max_dropout=0.1, sparse=True, honest_server=True).resolve("x", 100, 10)
    complete = fv.Aggregation(max_dropout=0.1).resolve("x", 100, 10)
    assert (sparse.params.topology(100).degree, complete.params.topology(100).degree) == (32, 99)
    assert sparse.honest_shares == complete.honest_shares == 80


@pytest.mark.parametrize(("asked", "taken"), [(1, 2), (2, 2), (3, 3), (7, 7)])
def test_as_many_honest_clients_are_counted_on_as_were_named_but_at_least_two(asked, taken):
    """One honest client alone is hidden by nobody."""
    assert fv.Aggregation().resolve("x", 12, 2, honest_shares=asked).params.min_honest == taken


@pytest.mark.parametrize("mode", ["masked", "ideal"])
def test_a_round_with_too_few_survivors_changes_nothing_and_is_paid_for(tmp_path, mode):
    values = UPDATES | {"training.rounds": 8}
    plan = plan_for(values, secure=mode, dropout=0.3, max_dropout=0.25)
    directory = fv.RunDirectory.create(tmp_path / "r", plan, {"seed": 1})
    run = fv.Run(plan, every=1).keep_in(directory)
    assert run.plan.secure_sums.fewest == 9
    kept, missing = [], 0
    before = run.state.weights
    for report in run:
        came = report.dropouts
        assert bool(came.not_released) == (came.survivors < 9)
        assert torch.equal(run.state.weights, before) == bool(came.not_released)
        assert (report.unprotected_stats is None) == bool(came.not_released)
        before = run.state.weights
        missing += bool(came.not_released)
        kept.append(report.round_number)
    assert kept == list(range(1, 9))
    assert 0 < missing < 8
    assert directory.ledger.remaining == 0
    spent = directory.ledger.guarantee()
    assert spent.epsilon == plan.guarantee.epsilon
    lines = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    assert sum("not_released" in line["dropouts"] for line in lines) == missing


def test_a_run_with_losses_resumed_from_its_directory_ends_the_same(tmp_path):
    values = UPDATES | {"training.rounds": 6}
    plan = plan_for(values, dropout=0.3, max_dropout=0.25)
    whole = finished(plan)
    directory = fv.RunDirectory.create(tmp_path / "r", plan, {"seed": 1})
    first = fv.Run(plan).keep_in(directory)
    for report in first:
        if report.round_number == 3:
            first.save()
            break
    directory.close()
    second = fv.Run(plan).keep_in(fv.RunDirectory.open(tmp_path / "r", plan))
    second.finish()
    assert torch.equal(second.state.weights, whole.state.weights)
    assert second.dropouts == whole.dropouts


def test_a_protected_round_that_breaks_off_while_masking_is_paid_for_and_never_drawn_again(
    tmp_path, monkeypatch
):
    plan = plan_for(UPDATES | {"training.rounds": 4}, seed=None, secure="masked")
    directory = fv.RunDirectory.create(tmp_path / "r", plan, {})
    run = fv.Run(plan).keep_in(directory)
    masked = 0

    def dies(device, vector):
        nonlocal masked
        masked += 1
        raise RuntimeError("out of power")

    reports = iter(run)
    next(reports)
    with monkeypatch.context() as broken:
        broken.setattr("fedveil_federation.secagg.device.DeviceRound.mask", dies)
        with pytest.raises(RuntimeError, match="power"):
            next(reports)
    assert masked == 1
    directory.close()
    again = fv.Run(plan).keep_in(fv.RunDirectory.open(tmp_path / "r", plan))
    assert again.next_round == 2
    assert again.rounds_left == 2  # four were planned, one is done, one paid for nothing
    assert [report.round_number for report in again] == [3, 4]


def test_a_protected_run_shows_who_came_and_how_long_the_protocol_took_and_no_more():
    run = fv.Run(plan_for(UPDATES, seed=None, secure="masked", dropout=0.1))
    for report in run:
        assert report.unprotected_stats is None
        assert report.seconds is None
        assert report.dropouts.cohort == 12
    assert set(run.seconds) == {"enrol", "share", "mask", "add", "confirm", "unmask"}
    assert run.plan.guarantee.certified


@pytest.mark.parametrize(
    ("values", "aggregation", "error", "match"),
    [
        (UPDATES, {"secure": "none"}, fv.PrivacyRefusal, "aggregation.secure"),
        (UPDATES, {"secure": "maybe"}, fv.ConfigError, "aggregation.secure"),
        (UPDATES, {"dropout": 1.0}, fv.ConfigError, "aggregation.dropout"),
        (UPDATES, {"max_dropout": 0.5}, fv.ConfigError, "aggregation.max_dropout"),
        (UPDATES, {"min_honest": 13}, fv.ConfigError, "aggregation.min_honest"),
        (UPDATES, {"sparse": True}, fv.ConfigError, "honest_server"),
        (UPDATES | {"privacy.colluders": 11}, {}, fv.ConfigError, "training.cohort"),
        (UPDATES | {"training.sampling": "poisson"}, {}, fv.PrivacyRefusal, "Poisson"),
        (UPDATES | {"training.cohort": 1}, {}, fv.PrivacyRefusal, "aggregation.secure"),
        (
            UPDATES | {"privacy.arithmetic": "idealised"},
            {"secure": "masked"},
            fv.ConfigError,
            "privacy.arithmetic",
        ),
        (
            UPDATES | {"privacy.trust": "central"},
            {"dropout": 0.1},
            fv.ConfigError,
            "aggregation",
        ),
        (
            UPDATES | {"privacy.trust": "local"},
            {"secure": "masked"},
            fv.ConfigError,
            "aggregation",
        ),
        ({"training.method": "fedavg"}, {"dropout": 0.1}, fv.ConfigError, "aggregation"),
    ],
)
def test_what_no_sum_can_keep_is_refused(values, aggregation, error, match):
    with pytest.raises(error, match=match):
        plan_for(values, **aggregation)


def test_masks_refuse_updates_that_are_made_no_integers_later():
    plan = plan_for(UPDATES, secure="masked")
    with pytest.raises(fv.ConfigError, match=r"privacy\.arithmetic"):
        replace(plan, arithmetic=fv.Arithmetic.IDEALISED)


def test_secure_aggregation_in_one_word_chooses_distributed_trust():
    table = {"aggregation": "secure", "training": {"method": "bounded-sparse"}}
    short = recipes.with_defaults(recipes.parse(table, ["aggregation.dropout=0.2"]))
    assert short.aggregation.secure == "ideal"
    assert short.aggregation.dropout == 0.2
    assert short.privacy.trust == "distributed"
    assert short.training.sampling == "balanced"
    masked = recipes.with_defaults(recipes.parse(table, ["aggregation=masked"]))
    assert masked.aggregation.secure == "masked"
    plan = plan_of(short, FEDERATION)
    assert plan.secure_sums is not None
    assert plan.guarantee.trust == "distributed"


def test_the_command_reports_what_was_lost(tmp_path, capsys):
    words = [
        "run",
        "gradient-noise-dropout",
        "--seed",
        "1",
        "--output",
        str(tmp_path / "r"),
        "--json",
        "--explain",
    ]
    assert main([*words, "--set", "training.rounds=4", "--set", "aggregation.dropout=0.3"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["secure_sums"]
    lines = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    assert found["mode"] == "masked"
    assert found["uploads"] == 80
    assert found["lost"] == sum(20 - line["dropouts"]["survivors"] for line in lines) > 0
    assert {"train", "noise", "mask", "unmask"} <= set(found["seconds"])
    assert f"fewer than {found['fewest_survivors']} survivors" in captured.err.replace("\n", " ")


def test_a_sparse_graph_changes_who_masks_with_whom_and_no_sum():
    values = UPDATES | {"seed": 1, "training.cohort": 40, "training.rounds": 2}
    data = federation_of(DataSection(clients=48))
    weights = []
    for mode, sparse in (("masked", True), ("ideal", True), ("ideal", False)):
        settings = {"secure": mode, "max_dropout": 0.1, "dropout": 0.02}
        settings |= {"sparse": sparse, "honest_server": sparse}
        chosen = recipe_of(values | {"privacy.noise_multiplier": 1.0}, **settings)
        run = finished(plan_of(chosen, data))
        assert run.plan.secure_sums.params.topology(40).complete is not sparse
        assert not any(one.not_released for one in run.dropouts.values())
        weights.append(run.state.weights)
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_nobody_lost_costs_no_noise():
    """Planned without losses, the noise is that of the whole cohort."""
    plan = plan_for(UPDATES)
    assert plan.guarantee.honest_shares == 12
    assert plan.context.secure.fewest == 12


def test_a_guarantee_that_trusts_the_server_says_so():
    said = []
    for honest in (False, True):
        guarantee = plan_for(UPDATES, honest_server=honest).guarantee
        said.append("departs from the protocol: it is declared honest" in guarantee.statement)
    assert said == [False, True]


def test_if_everybody_vanishes_the_model_stays_as_it_began():
    run = finished(plan_for(UPDATES, dropout=0.99))
    assert torch.equal(run.state.weights, run.plan.start)
    assert all(one.not_released for one in run.dropouts.values())


def test_idealised_updates_are_lost_like_integers():
    """The same devices vanish, and next to no noise leaves the same average up to the grid."""
    quiet = UPDATES | {"privacy.noise_multiplier": 1e-3}
    quiet_runs = []
    for arithmetic in ("exact", "idealised"):
        values = quiet | {"privacy.arithmetic": arithmetic}
        quiet_runs.append(finished(plan_for(values, dropout=0.25)))
    exact, idealised = quiet_runs
    assert exact.dropouts == idealised.dropouts
    assert torch.allclose(exact.state.weights, idealised.state.weights, atol=1e-3)


def test_several_processes_mask_what_they_add_in_the_open():
    values = CASES["steps alone"] | {"training.rounds": 2}
    masked, ideal = (
        finished(plan_for(values, secure=mode, dropout=0.1), processes=2)
        for mode in ("masked", "ideal")
    )
    assert masked.engine.name == ideal.engine.name == "processes"
    assert torch.equal(masked.state.weights, ideal.state.weights)


@pytest.mark.parametrize("name", ["gradient-noise-adult", "gradient-noise-dropout"])
def test_the_shipped_recipes_are_recipes(name):
    recipe = recipes.with_defaults(recipes.parse(recipes.read(Path(name))))
    assert recipe.training.method == "gradient-noise"
    assert recipe.aggregation.secure in ("masked", "ideal")
