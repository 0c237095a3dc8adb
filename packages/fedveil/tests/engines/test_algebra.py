"""Algebra is used where it pays, stays exact under cancellation, and keeps within its memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LearningRate, LocalTraining, Schedule
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines import algebra as ways
from fedveil.training.engines import dual as grams
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.algebra import AlgebraEngine
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.dual import Dual, Span, costs
from fedveil.training.engines.moments import Moments
from fedveil.training.models.flat import Slot, layout_of
from fedveil.training.models.zoo import Linear

from .jobs import GRIDS, RULES, SHAPINGS, SIZES, make_job, start_of
from .reference import train


def algebra(model: str, rule: str) -> AlgebraEngine:
    engine = build_engine(make_job(model, RULES[rule], UpdatePipeline(Clip(0.2, 2))), "algebra")
    assert isinstance(engine, AlgebraEngine)
    return engine


def test_each_client_goes_the_cheapest_way() -> None:
    sizes = np.array(SIZES)
    moments, dual = algebra("linear", "full batch, three steps, decaying").divide(sizes)
    assert moments.sum() > 4  # 3 features, 4 weights: nearly everybody has more records
    moments, dual = algebra("wide softmax", "steps over several epochs").divide(sizes)
    assert not moments.any()
    assert dual.all()  # 36 features: everybody has fewer records
    moments, dual = algebra("softmax", "fewer steps than an epoch has").divide(sizes)
    assert not dual[6]  # 20 records, 4 of them used
    moments, dual = algebra("linear", "one epoch of batches").divide(sizes)
    assert not moments[sizes > 4].any()  # batches are not the whole


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


def test_moments_are_kept_only_if_they_are_small_beside_the_records() -> None:
    """A client's moments are a matrix of s + 1 rows, for s weights; its records 10 numbers each."""
    with_bias = Affine(Slot("w", (1, 10), 0), Slot("b", (1,), 10)), 10
    single = Affine(Slot("w", (1, 1), 0), None), 1
    for (layer, width), records in ((with_bias, 29), (single, 8)):  # 2 * 144 beside 290, 2 * 4
        examples = Examples(np.zeros((9, width), np.float32), np.zeros(9, np.float32))
        federation = Federation(examples, np.array([0, 4, 9]), examples, Task.REGRESSION, 0)
        kept = Moments(federation, layer).keeps(np.array([records, records - 1]))
        assert kept.tolist() == [True, False]


@pytest.mark.parametrize("width", [3, 70])
def test_moments_are_those_of_each_clients_own_records(width: int) -> None:
    sizes, draw = (7, 1, 300, 5, 5), np.random.default_rng(0)  # the third is kept if narrow
    inputs = draw.normal(size=(sum(sizes), width)).astype(np.float32)
    examples = Examples(inputs, draw.normal(size=sum(sizes)).astype(np.float32))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    federation = Federation(examples, offsets, examples, Task.REGRESSION, 0)
    moments = Moments(federation, Affine(Slot("w", (1, width), 0), Slot("b", (1,), width)))
    for clients in ([2, 0], [3, 2, 1], list(range(5))):  # some known by then, some not
        ids = np.array(clients)
        second, first, square = moments.of(ids, federation.sizes[ids])
        for place, client in enumerate(clients):
            rows = slice(*federation.offsets[client : client + 2])
            x = np.c_[inputs[rows], np.ones(sizes[client])].astype(np.float64)
            y = examples.targets[rows].astype(np.float64)
            own = second[:, place] if moments.narrow else second[place]
            np.testing.assert_allclose(own, x.T @ x / len(x), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(first[place], x.T @ y / len(x), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(square[place], (y * y).mean(), rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    "pipeline", [UpdatePipeline(), UpdatePipeline(Clip(0.2, 1)), UpdatePipeline(weight_cap=50)]
)
def test_a_whole_course_in_one_product_is_the_steps_one_by_one(
    steps: int, decay: float, pipeline: UpdatePipeline
) -> None:
    rule = LocalTraining(LearningRate(0.3), steps=steps, weight_decay=decay)
    job = make_job("linear", rule, pipeline, (80, 60, 40, 80))
    engine = build_engine(job, "algebra")
    assert isinstance(engine, AlgebraEngine)
    assert engine.moments is not None
    assert engine.moments.unrolled is not None
    assert engine.moments.unrolled.takes(job.federation.sizes).all()
    start = start_of(job)
    for cohort in ([2, 0], [3, 2, 1, 0], [0, 1, 2, 3], [1]):  # some known by then, some not
        result = sum_of(engine, RoundRequest(start, np.array(cohort), 0))
        fresh = sum_of(build_engine(job, "algebra"), RoundRequest(start, np.array(cohort), 0))
        assert torch.equal(result.total, fresh.total), "the history of a run shows in its sums"
        clients = [train(job, start, client, 0) for client in cohort]
        expected = torch.stack([client.update for client in clients]).sum(0)
        allowed = sum(client.update_error for client in clients)
        assert float((result.total - expected).norm()) <= allowed
        for loss, client in zip(result.losses.tolist(), clients, strict=True):
            assert abs(loss - client.loss) <= client.loss_error


def test_a_course_is_for_rates_that_never_change() -> None:
    falling = LearningRate(0.3, Schedule.INVERSE, decay=2.0)
    job = make_job("linear", LocalTraining(falling, steps=2), UpdatePipeline(), (80, 80))
    engine = build_engine(job, "algebra")
    assert isinstance(engine, AlgebraEngine)
    assert engine.moments is not None
    assert engine.moments.unrolled is None


@pytest.mark.parametrize("model", ["wide softmax", "softmax without bias"])
@pytest.mark.parametrize("sizes", [(7, 1, 3, 2), (4, 4, 4, 4)], ids=str)
def test_kept_gram_matrices_change_nothing(
    model: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grams, "_WORTH", 0)
    job = make_job(model, RULES["steps over several epochs"], UpdatePipeline(Clip(0.2, 2)), sizes)
    assert grams.GramCache.fit(job.federation)
    start, kept = start_of(job), build_engine(job, "algebra")
    for cohort in ([0, 2], [3, 2, 1, 0], [1], [0, 1, 2, 3]):  # some known by then, some not
        result = sum_of(kept, RoundRequest(start, np.array(cohort), 5))
        fresh = sum_of(build_engine(job, "algebra"), RoundRequest(start, np.array(cohort), 5))
        assert torch.equal(result.total, fresh.total), "the history of a run shows in its sums"
        clients = [train(job, start, client, 5) for client in cohort]
        expected = torch.stack([client.update for client in clients]).sum(0)
        allowed = sum(client.update_error for client in clients)
        assert float((result.total - expected).norm()) <= allowed


def test_gram_matrices_are_kept_only_if_they_are_small_beside_the_data() -> None:
    few = make_job("wide softmax", RULES["momentum"], UpdatePipeline(), (4, 4))
    many = make_job("wide softmax", RULES["momentum"], UpdatePipeline(), (30, 30))
    assert grams.GramCache.fit(few.federation)
    assert not grams.GramCache.fit(many.federation)


@pytest.mark.parametrize("gap", [1e-3, 1e-4, 1e-5])
def test_what_steps_and_decay_cancel_is_measured_and_not_lost(gap: float) -> None:
    """Steps along an input and decay of weights along the same input take each other back: both
    are thousands of times longer than what is left, and so are the rounding errors of its norm."""
    draw = np.random.default_rng(2)
    x = torch.from_numpy(draw.normal(size=(3, 1, 300)).astype(np.float32) * 30)
    layer = Affine(Slot("w", (1, 300), 0), None)
    start = (x[0, 0] / 7).clone()
    x[1], x[2] = x[0], x[0] * 2
    gram, sizes = torch.bmm(x, x.mT), np.ones(3, np.int64)
    dual = Dual(layer, Task.REGRESSION, x, torch.zeros(3, 1), sizes, 1, start, gram)
    span = Span(torch.tensor([1.0, -1.0, 0.5])[:, None, None], torch.zeros(3))
    span.shift.copy_(-7 * (1 + gap) * torch.tensor([1.0, -1.0, 1.0]))
    wanted = (span.coefficients.double() * x.double())[:, 0] + span.shift.double()[
        :, None
    ] * start.double()
    found = dual.norms(span)
    # Written out in single precision, each number is off by two roundings of the larger terms.
    slack = 4 * 2.0**-24 * float(x[0].norm())
    for norm, row in zip(found, wanted, strict=True):
        assert abs(float(norm) - float(row.norm())) <= slack
        assert slack < float(row.norm()) / 10


FIRST = Affine(Slot("w", (200, 784), 0), Slot("b", (200,), 156_800))


def test_clients_with_few_examples_go_through_the_dual() -> None:
    rule = LocalTraining(LearningRate(0.1), epochs=5, batch_size=10)
    by_rows, by_dual = costs(rule, FIRST, np.array([10, 50, 600, 100_000]))
    assert (by_dual < by_rows).tolist() == [True, True, True, False]


def test_rules_beyond_plain_descent_keep_their_weights_as_rows() -> None:
    for name, rule in RULES.items():
        engine = build_engine(make_job("wide mlp", rule, UpdatePipeline()), "mlp")
        assert isinstance(engine, AlgebraEngine if rule.plain else RowEngine), name


@pytest.mark.parametrize("pipeline", [*SHAPINGS.values(), *GRIDS.values()], ids=[*SHAPINGS, *GRIDS])
def test_both_ways_give_the_same_sum(
    pipeline: UpdatePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients through the dual against all clients as rows."""
    job = make_job("wide mlp", RULES["two epochs, weight decay"], pipeline)
    cohort, start = np.arange(len(SIZES)), start_of(job)
    results = []
    for cheap, dear in ((1, 0), (0, 1)):
        flat = np.ones(len(SIZES))
        monkeypatch.setattr(
            ways,
            "costs",
            lambda *_, flat=flat, cheap=cheap, dear=dear: (flat * cheap, flat * dear),
        )
        results.append(sum_of(build_engine(job, "mlp"), RoundRequest(start, cohort, 3)))
    dual, rows = results
    torch.testing.assert_close(dual.norms, rows.norms, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(dual.losses, rows.losses, rtol=1e-4, atol=1e-6)
    if pipeline.rounding_beta is not None:
        return  # rounding at random turns the smallest difference into a step
    units = 0.0 if pipeline.granularity is None else 2.0 * len(SIZES)  # of the grid
    torch.testing.assert_close(
        dual.total, rows.total, rtol=1e-4, atol=max(1e-6, units), check_dtype=True
    )


def test_an_update_that_is_not_finite_counts_as_zero() -> None:
    rule = LocalTraining(LearningRate(1e30), epochs=2, batch_size=4)
    job = make_job("wide mlp", rule, UpdatePipeline(Clip(0.2, 2)))
    result = sum_of(build_engine(job, "mlp"), RoundRequest(start_of(job), np.arange(len(SIZES)), 0))
    assert result.rejected > 0
    assert bool(torch.isfinite(result.total).all())
    assert float(result.total.norm()) <= 0.2 * len(SIZES)
