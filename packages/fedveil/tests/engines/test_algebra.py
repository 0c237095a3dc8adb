"""Algebra is used where it pays, is what the steps one by one are, and keeps within its memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines import dual as grams
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.algebra import AlgebraEngine
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.dual import costs
from fedveil.training.engines.moments import moments_of
from fedveil.training.models.flat import Slot, layout_of
from fedveil.training.models.zoo import Linear

from .jobs import RULES, SIZES, make_job, start_of
from .reference import train

MOMENTS, DUAL, ROWS = range(3)


def check(engine: AlgebraEngine, cohort: list[int], round_number: int = 0) -> None:
    """A round is that of the reference, and of an engine that has no history."""
    job, request = engine.job, RoundRequest(start_of(engine.job), np.array(cohort), round_number)
    result = sum_of(engine, request)
    fresh = sum_of(build_engine(job, "algebra"), request)
    assert torch.equal(result.total, fresh.total), "the history of a run shows in its sums"
    clients = [train(job, start_of(job), client, round_number) for client in cohort]
    expected = torch.stack([client.update for client in clients]).sum(0)
    assert float((result.total - expected).norm()) <= sum(one.update_error for one in clients)
    for loss, client in zip(result.losses.tolist(), clients, strict=True):
        assert abs(loss - client.loss) <= client.loss_error


def algebra(job: Job) -> AlgebraEngine:
    engine = build_engine(job, "algebra")
    assert isinstance(engine, AlgebraEngine)
    return engine


@pytest.mark.parametrize(
    ("model", "rule", "sizes", "ways"),
    [
        ("linear", "full batch, one step", (80, 2), {MOMENTS, DUAL}),  # 3 features
        ("linear", "full batch, three steps, decaying", (80, 80), {ROWS}),  # another map each round
        ("linear", "one epoch of batches", (80, 80), {ROWS}),  # batches are not the whole
        ("wide softmax", "steps over several epochs", SIZES, {DUAL}),  # 36 features
    ],
)
def test_each_client_goes_the_cheapest_way(
    model: str, rule: str, sizes: tuple[int, ...], ways: set[int]
) -> None:
    engine = algebra(make_job(model, RULES[rule], UpdatePipeline(Clip(0.2, 2)), sizes))
    assert set(engine.divide(np.array(sizes)).tolist()) == ways


def test_clients_with_few_examples_go_through_the_dual() -> None:
    rule = LocalTraining(LearningRate(0.1), epochs=5, batch_size=10)
    first = Affine(Slot("w", (200, 784), 0), Slot("b", (200,), 156_800))
    by_rows, by_dual = costs(rule, first, np.array([10, 50, 600, 100_000]))
    assert (by_dual < by_rows).tolist() == [True, True, True, False]


def test_an_update_that_cancels_is_still_clipped_at_its_norm() -> None:
    """Two records almost alike with opposite labels pull the weights apart in almost the same
    direction: the coefficients are large, the update is small."""
    base = np.random.default_rng(0).normal(size=300).astype(np.float32) * 30
    inputs = np.stack([base, base + 1e-4, base, base + 2e-4]).astype(np.float32)
    examples = Examples(inputs, np.array([0, 1, 0, 1]))
    federation = Federation(examples, np.array([0, 2, 4]), examples, Task.CLASSIFICATION, 2)
    module = Linear(300, 2)
    rule, pipeline = LocalTraining(LearningRate(0.02), steps=1), UpdatePipeline(Clip(1e-6, 2))
    job = Job(federation, module, layout_of(module), rule, pipeline, Randomness(1))
    start = torch.zeros(job.layout.size)
    result = sum_of(build_engine(job, "algebra"), RoundRequest(start, np.array([0, 1]), 0))
    for place in (0, 1):
        one = sum_of(build_engine(job, "algebra"), RoundRequest(start, np.array([place]), 0))
        client = train(job, start, place, 0)
        assert client.norm > 1e-6  # it is clipped
        assert float(result.norms[place]) == pytest.approx(client.norm, rel=0.05)
        assert float(one.total.norm()) <= 1e-6 * 1.01


@pytest.mark.parametrize("bias", [None, 0, 70])
def test_moments_are_those_of_each_clients_own_records(bias: int | None) -> None:
    sizes, draw = (7, 1, 300, 5, 5), np.random.default_rng(0)
    inputs = draw.normal(size=(sum(sizes), 70)).astype(np.float32)
    examples = Examples(inputs, draw.normal(size=sum(sizes)).astype(np.float32))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    federation = Federation(examples, offsets, examples, Task.REGRESSION, 0)
    slot = None if bias is None else Slot("b", (1,), bias)
    layer = Affine(Slot("w", (1, 70), int(bias == 0)), slot)
    clients = np.array([3, 2, 0])
    found = moments_of(federation, layer, clients, federation.sizes[clients])
    for client, own in zip(clients, found, strict=True):
        rows = slice(*federation.offsets[client : client + 2])
        ones = [] if bias is None else [np.ones((sizes[client], 1))]
        columns = [inputs[rows], *ones] if bias != 0 else [*ones, inputs[rows]]
        whole = np.hstack([*columns, examples.targets[rows][:, None]]).astype(np.float64)
        np.testing.assert_allclose(own, whole.T @ whole / len(whole), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("pipeline", [UpdatePipeline(), UpdatePipeline(Clip(0.2, 1))])
def test_a_whole_round_in_one_product_is_the_steps_one_by_one(
    steps: int, decay: float, pipeline: UpdatePipeline
) -> None:
    rule = LocalTraining(LearningRate(0.3), steps=steps, weight_decay=decay)
    engine = algebra(make_job("linear", rule, pipeline, (80, 60, 40, 80)))
    assert set(engine.divide(engine.job.federation.sizes)) == {MOMENTS}
    for cohort in ([2, 0], [3, 2, 1, 0], [0, 1, 2, 3], [1]):  # some known by then, some not
        check(engine, cohort)


@pytest.mark.parametrize("model", ["wide softmax", "softmax without bias"])
@pytest.mark.parametrize("sizes", [(7, 1, 3, 2), (4, 4, 4, 4)], ids=str)
def test_kept_gram_matrices_change_nothing(
    model: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grams, "_WORTH", 0)
    job = make_job(model, RULES["steps over several epochs"], UpdatePipeline(Clip(0.2, 2)), sizes)
    assert grams.GramCache.fit(job.federation)
    kept = algebra(job)
    for cohort in ([0, 2], [3, 2, 1, 0], [1], [0, 1, 2, 3]):  # some known by then, some not
        check(kept, cohort, 5)


def test_gram_matrices_are_kept_only_if_they_are_small_beside_the_data() -> None:
    for size, kept in ((4, True), (30, False)):
        job = make_job("wide softmax", RULES["momentum"], UpdatePipeline(), (size, size))
        assert grams.GramCache.fit(job.federation) is kept
