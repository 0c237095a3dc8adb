"""Every engine gives what the obvious one-client-at-a-time reference gives.

To hold a new method to the contract, add its local rule or shaping to `jobs.py`: one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import nn

from fedveil.data.federation import Federation
from fedveil.privacy.clipping import Clip
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import ENGINES, build_engine, supports
from fedveil.training.engines.contract import Engine, Job, RoundRequest, task_of
from fedveil.training.models.flat import layout_of

from .jobs import FEW, GRIDS, MODELS, RULES, SHAPINGS, SIZES, SLOW, make_job, start_of
from .reference import Client, train

EACH = [name for name in ENGINES if name not in ("auto", "processes")]  # processes: own file
EVERYBODY = range(len(SIZES))
ALL = np.arange(len(SIZES))


def engine_for(name: str, job: Job, chunk: int | None = 3) -> Engine:
    obstacle = supports(job, name)
    if obstacle is not None:
        pytest.skip(obstacle)
    return build_engine(job, name, chunk)


def check(engine: str, job: Job, cohort: Sequence[int] = EVERYBODY, round_number: int = 2) -> None:
    start = start_of(job)
    result = sum_of(
        engine_for(engine, job), RoundRequest(start, np.array(cohort, dtype=np.int64), round_number)
    )
    clients = trained(replace(job, isolated=False), tuple(cohort), round_number)
    expected = sum((c.update for c in clients), torch.zeros(len(start)).double())
    assert float((result.total - expected).norm()) <= sum(c.update_error for c in clients)
    order = job.pipeline.clip.order if job.pipeline.clip else 2
    for place, client in enumerate(clients):
        shaped = float(torch.linalg.vector_norm(client.update, ord=order))
        assert abs(float(result.norms[place]) - client.norm) <= client.norm_error
        assert abs(float(result.shaped_norms[place]) - shaped) <= client.norm_error
        assert abs(float(result.losses[place]) - client.loss) <= client.loss_error
    assert result.rejected == 0


# Engines vary fastest below: those of one job meet in one process, and share its reference.
@cache
def trained(job: Job, cohort: tuple[int, ...], round_number: int) -> list[Client]:
    """What the reference says, once for all engines."""
    return [train(job, start_of(job), client, round_number) for client in cohort]


RULED = [(m, r) for m in MODELS for r in RULES if m not in SLOW or r in FEW]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize(("model", "rule"), RULED, ids=[f"{m}-{r}" for m, r in RULED])
def test_every_engine_equals_the_reference_on_every_rule(
    engine: str, model: str, rule: str
) -> None:
    check(engine, make_job(model, RULES[rule], UpdatePipeline(Clip(0.2, 2))))


@pytest.mark.parametrize("engine", ["algebra", "mlp"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp"])
def test_isolated_clients_train_as_the_reference_does(engine: str, model: str, rule: str) -> None:
    job = make_job(model, RULES[rule], UpdatePipeline(Clip(0.2, 2)))
    check(engine, replace(job, isolated=True))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("pipeline", SHAPINGS)
@pytest.mark.parametrize("model", ["linear", "softmax", "wide softmax", "mlp", "own module", "cnn"])
def test_every_engine_equals_the_reference_on_every_shaping(
    engine: str, model: str, pipeline: str
) -> None:
    rule = RULES["full batch, three steps, decaying" if model == "linear" else "momentum"]
    check(engine, make_job(model, rule, SHAPINGS[pipeline]))


@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("cohort", [[], [1], [6], [0, 2, 7], [7, 0, 5]], ids=str)
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp", "own module"])
def test_cohorts_of_any_size_and_order(engine: str, model: str, cohort: list[int]) -> None:
    rule = RULES["full batch, three steps, decaying" if model == "linear" else "drop last"]
    check(engine, make_job(model, rule, SHAPINGS["capped weights"]), cohort)


@pytest.mark.parametrize("engine", EACH)
def test_scaled_bytes_and_memory_maps_train_like_plain_arrays(engine: str, tmp_path: Path) -> None:
    job = make_job("softmax", RULES["two epochs, weight decay"], SHAPINGS["clip"], bytes_=True)
    mapped = Federation.open(job.federation.save(tmp_path / "saved"))
    assert isinstance(mapped.train.inputs, np.memmap)
    for rule in ("two epochs, weight decay", "fewer steps than an epoch has"):
        check(engine, replace(job, rule=RULES[rule]))
        check(engine, replace(job, rule=RULES[rule], federation=mapped))


@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp", "own module"])
def test_chunk_size_does_not_matter(engine: str, model: str) -> None:
    rule = RULES["full batch, one step" if model == "linear" else "two epochs, weight decay"]
    job = make_job(model, rule, SHAPINGS["clip"])
    start = start_of(job)
    sums = [
        sum_of(engine_for(engine, job, c), RoundRequest(start, ALL, 0)).total for c in (1, 2, 8)
    ]
    allowed = sum(client.update_error for client in trained(job, tuple(EVERYBODY), 0))
    for other in sums[1:]:
        assert float((other - sums[0]).norm()) <= allowed


@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp", "own module"])
def test_the_integer_sum_is_the_exact_sum_of_snapped_updates(engine: str, model: str) -> None:
    grid = 2.0**-20
    rule = RULES["full batch, one step" if model == "linear" else "momentum"]
    job = make_job(model, rule, UpdatePipeline(Clip(0.2, 2), granularity=grid))
    start, running = start_of(job), engine_for(engine, job)
    total = sum_of(running, RoundRequest(start, ALL, 0)).total
    assert total.dtype == torch.int64
    alone = [sum_of(running, RoundRequest(start, np.array([c]), 0)) for c in EVERYBODY]
    # Which clients share a chunk may move a float by one bit and so an integer by one step.
    assert (total - sum(one.total for one in alone)).abs().max() <= len(EVERYBODY)
    for one in alone:
        squares = sum(int(v) ** 2 for v in one.total)
        assert 0 < squares * grid**2 <= 0.2**2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("pipeline", GRIDS)
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp", "own module"])
def test_every_engine_puts_the_same_update_on_the_grid(
    engine: str, model: str, pipeline: str
) -> None:
    rule = RULES["full batch, three steps, decaying" if model == "linear" else "momentum"]
    job = make_job(model, rule, GRIDS[pipeline])
    start = start_of(job)
    result = sum_of(engine_for(engine, job), RoundRequest(start, ALL, 3))
    wanted = sum_of(build_engine(job, "sequential"), RoundRequest(start, ALL, 3))
    assert result.total.dtype == torch.int64
    assert len(result.total) == job.pipeline.width(job.layout)
    # What differs by rounding errors may be rounded to the neighbouring grid point as well.
    clients = trained(job, tuple(EVERYBODY), 3)
    allowed = 2 * sum(client.update_error for client in clients) / (job.pipeline.granularity or 1)
    assert (result.total - wanted.total).abs().max() <= 2 * len(SIZES) + allowed
    assert wanted.total.abs().max() > 20 * len(SIZES)
    for got, other, client in zip(result.norms, wanted.norms, clients, strict=True):
        assert abs(float(got - other)) <= 2 * client.norm_error


@pytest.mark.parametrize("engine", EACH)
def test_every_engine_casts_the_same_votes(engine: str) -> None:
    plain = make_job("mlp", RULES["momentum"], UpdatePipeline())
    questions = torch.from_numpy(plain.federation.train.inputs[:20])
    ballot = UpdatePipeline(ballot=Ballot(plain.module, questions, 3))
    job = replace(plain, pipeline=ballot)
    votes = sum_of(engine_for(engine, job), RoundRequest(start_of(job), ALL, 3)).total.view(20, 3)
    wanted = sum_of(
        build_engine(job, "sequential"), RoundRequest(start_of(job), ALL, 3)
    ).total.view(20, 3)
    assert torch.equal(votes.sum(dim=1), torch.full((20,), float(len(SIZES))).double())
    assert torch.equal(votes, wanted)


@pytest.mark.parametrize("engine", EACH)
@pytest.mark.parametrize("model", ["linear", "softmax", "wide softmax", "mlp", "own module"])
@pytest.mark.parametrize(
    "rule",
    [
        LocalTraining(LearningRate(1e38), steps=3),
        LocalTraining(LearningRate(40.0), steps=30, weight_decay=1.0),  # by -39 in every step
    ],
    ids=["steps", "decay"],
)
def test_a_client_whose_update_is_not_finite_counts_as_zero(
    engine: str, model: str, rule: LocalTraining
) -> None:
    job = make_job(model, rule, SHAPINGS["clip"])
    result = sum_of(engine_for(engine, job), RoundRequest(start_of(job), ALL, 0))
    assert result.rejected > 0
    assert torch.isfinite(result.total).all()
    assert float(result.total.norm()) <= 0.2 * (len(SIZES) - result.rejected) + 1e-6


def test_single_updates_are_shown_on_a_grid_only() -> None:
    """Without one, engines may know nothing but a sum, and who takes rows would miss some."""
    job = make_job("softmax", RULES["one epoch of batches"], UpdatePipeline(Clip(0.2, 2)))
    start = start_of(job)
    with pytest.raises(ValueError, match="grid"):
        task_of(job, RoundRequest(start, ALL, 0, rows=True))
    on_grid = replace(job, pipeline=UpdatePipeline(Clip(0.2, 2), granularity=2.0**-22))
    task_of(on_grid, RoundRequest(start, ALL, 0, rows=True))
    task_of(job, RoundRequest(start, ALL, 0))


@pytest.mark.parametrize("engine", EACH)
def test_a_round_may_bring_a_shaping_of_its_own(engine: str) -> None:
    own = UpdatePipeline(Clip(0.05, 2), granularity=2.0**-22)
    planned = make_job("softmax", RULES["one epoch of batches"], UpdatePipeline(Clip(0.2, 2)))
    direct = make_job("softmax", RULES["one epoch of batches"], own)
    start = start_of(planned)
    expected = sum_of(engine_for(engine, direct), RoundRequest(start, ALL, 1))
    result = sum_of(engine_for(engine, planned), RoundRequest(start, ALL, 1, own))
    assert torch.equal(result.total, expected.total)
    assert torch.equal(result.shaped_norms, expected.shaped_norms)


@pytest.mark.parametrize("engine", EACH)
def test_rounds_repeat_bit_for_bit_and_leave_the_weights_alone(engine: str) -> None:
    job = make_job("wide softmax", RULES["momentum"], SHAPINGS["clip"])
    start = start_of(job)
    before, running = start.clone(), engine_for(engine, job)
    first = sum_of(running, RoundRequest(start, ALL, 3))
    sum_of(running, RoundRequest(start, ALL, 4))
    again = sum_of(running, RoundRequest(start, ALL, 3))
    fresh = sum_of(engine_for(engine, job), RoundRequest(start, ALL, 3))
    assert torch.equal(start, before)
    assert torch.equal(first.total, again.total)
    assert torch.equal(first.total, fresh.total)


@pytest.mark.parametrize("engine", ["sequential", "generic"])
def test_dropout_follows_the_seed_and_leaves_the_callers_generator_alone(engine: str) -> None:
    module = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    job = make_job("mlp", RULES["momentum"], SHAPINGS["clip"])
    job = replace(job, module=module, layout=layout_of(module))
    start = start_of(job)
    torch.manual_seed(7)
    first = sum_of(build_engine(job, engine, 3), RoundRequest(start, ALL, 3))
    untouched = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(untouched, torch.rand(1))
    again = sum_of(build_engine(job, engine, 3), RoundRequest(start, ALL, 3))
    other = sum_of(build_engine(job, engine, 3), RoundRequest(start, ALL, 4))
    assert torch.equal(first.total, again.total)
    assert not torch.equal(first.total, other.total)
