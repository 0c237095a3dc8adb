"""Every engine gives what the obvious one-client-at-a-time reference gives.

To hold a new method to the contract, add its local rule or shaping to RULES or SHAPINGS: one line.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.data.federation import Examples, Federation, Task
from fedveil.engine.choose import ENGINES, build_engine, choose
from fedveil.engine.contract import Job
from fedveil.local.rule import GradientClip, LearningRate, LocalRule, Schedule
from fedveil.local.shaping import Shaping
from fedveil.models.flat import flatten, layout_of
from fedveil.models.zoo import ChannelsFirst, Linear, Mlp, SmallCnn
from fedveil.privacy.clipping import Clip
from fedveil.randomness import Randomness

from .reference import client_update

SIZES = [7, 1, 12, 5, 5, 3, 20, 2]
RATE = LearningRate(0.2)
DECAY = LearningRate(0.2, Schedule.INVERSE, 3.0)

RULES = {
    "full batch, one step": LocalRule(RATE, steps=1),
    "full batch, three steps, decaying": LocalRule(DECAY, steps=3),
    "one epoch of batches": LocalRule(RATE, epochs=1, batch_size=4),
    "two epochs, weight decay": LocalRule(RATE, epochs=2, batch_size=4, weight_decay=0.1),
    "steps over several epochs": LocalRule(RATE, steps=9, batch_size=3),
    "drop last": LocalRule(RATE, steps=5, batch_size=4, drop_last=True),
    "momentum": LocalRule(RATE, epochs=2, batch_size=4, momentum=0.9),
    "FedProx": LocalRule(RATE, epochs=2, batch_size=4, penalty=0.5),
    "BLUR": LocalRule(RATE, steps=8, batch_size=4, penalty=2.0, penalty_radius=0.3),
    "projection (Liang)": LocalRule(RATE, epochs=2, batch_size=4, projection_radius=0.1),
    "whole gradient, L2 (Fu)": LocalRule(DECAY, steps=4, gradient_clip=GradientClip(0.5)),
    "whole gradient, L1 (Fu)": LocalRule(DECAY, steps=4, gradient_clip=GradientClip(0.5, 1)),
    "per example, noisy (Hu)": LocalRule(
        RATE,
        steps=4,
        batch_size=3,
        gradient_clip=GradientClip(0.5, per_example=True),
        gradient_noise=0.3,
        weight_decay=0.1,
    ),
}
SHAPINGS = {
    "nothing": Shaping(),
    "clip": Shaping(Clip(0.2, 2)),
    "clip L1": Shaping(Clip(0.2, 1)),
    "capped weights": Shaping(Clip(0.2, 2), weight_cap=6),
    "LUS": Shaping(Clip(0.2, 2), sparsity=0.7),
}
MODELS = {
    "linear": lambda: Linear(12, 1),
    "softmax": lambda: Linear(12, 3),
    "mlp": lambda: Mlp(12, (5, 4), 3),
    "cnn": lambda: ChannelsFirst(SmallCnn((1, 4, 4), 3)),
}


def make_job(model: str, rule: LocalRule, shaping: Shaping, sizes: list[int] = SIZES) -> Job:
    draw = np.random.default_rng(1)
    shape = (4, 4) if model == "cnn" else (12,)
    inputs = draw.normal(size=(sum(sizes), *shape)).astype(np.float32)
    task = Task.REGRESSION if model == "linear" else Task.CLASSIFICATION
    targets = (
        draw.normal(size=sum(sizes)).astype(np.float32)
        if task is Task.REGRESSION
        else draw.integers(0, 3, sum(sizes))
    )
    examples = Examples(inputs, targets)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    classes = 0 if task is Task.REGRESSION else 3
    federation = Federation(examples, offsets, examples, task, classes)
    torch.manual_seed(0)
    module: nn.Module = MODELS[model]()
    return Job(federation, module, layout_of(module), rule, shaping, Randomness(5))


def fits(engine: str, job: Job) -> bool:
    return engine != "auto"


def start_of(job: Job) -> torch.Tensor:
    return flatten(job.module) + 0.1 * torch.randn(
        job.layout.size, generator=torch.Generator().manual_seed(3)
    )


def check(engine: str, job: Job, cohort: np.ndarray, round: int = 2) -> None:
    start = start_of(job)
    chunk = None if engine == "sequential" else 3
    result = build_engine(job, engine, chunk).round_sum(start, cohort, round)
    updates = [client_update(job, start, int(client), round) for client in cohort]
    expected = torch.stack(updates).double().sum(0) if updates else torch.zeros(len(start))
    torch.testing.assert_close(result.total.double(), expected.double(), rtol=1e-4, atol=3e-6)
    assert len(result.norms) == len(result.losses) == len(cohort)
    order = job.shaping.clip.order if job.shaping.clip else 2
    for i, update in enumerate(updates):
        norm = float(torch.linalg.vector_norm(update, ord=order))
        assert float(result.shaped_norms[i]) == pytest.approx(norm, rel=1e-3, abs=1e-6)


EACH = [name for name in ENGINES if name != "auto"]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", EACH)
def test_every_engine_equals_the_reference_on_every_rule(
    engine: str, model: str, rule: LocalRule
) -> None:
    job = make_job(model, rule, Shaping(Clip(0.2, 2)))
    check(engine, job, np.arange(len(SIZES)))


@pytest.mark.parametrize("shaping", SHAPINGS.values(), ids=SHAPINGS.keys())
@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
@pytest.mark.parametrize("engine", EACH)
def test_every_engine_equals_the_reference_on_every_shaping(
    engine: str, model: str, shaping: Shaping
) -> None:
    check(engine, make_job(model, RULES["one epoch of batches"], shaping), np.arange(len(SIZES)))


@pytest.mark.parametrize("cohort", [[], [1], [6], [0, 2, 7]], ids=str)
@pytest.mark.parametrize("engine", EACH)
def test_small_cohorts(engine: str, cohort: list[int]) -> None:
    job = make_job("softmax", RULES["one epoch of batches"], SHAPINGS["clip"])
    check(engine, job, np.array(cohort, dtype=np.int64))


@pytest.mark.parametrize("engine", EACH)
def test_chunk_size_does_not_matter(engine: str) -> None:
    job = make_job("mlp", RULES["two epochs, weight decay"], SHAPINGS["clip"])
    start, cohort = start_of(job), np.arange(len(SIZES))
    sums = [build_engine(job, engine, c).round_sum(start, cohort, 0).total for c in (1, 2, 8)]
    for other in sums[1:]:
        torch.testing.assert_close(other, sums[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", EACH)
def test_the_integer_sum_is_the_exact_sum_of_snapped_updates(engine: str) -> None:
    grid = 2.0**-20
    job = make_job("softmax", RULES["one epoch of batches"], Shaping(Clip(0.2, 2), granularity=grid))
    start, cohort = start_of(job), np.arange(len(SIZES))
    engine_ = build_engine(job, engine, 3)
    total = engine_.round_sum(start, cohort, 0).total
    assert total.dtype == torch.int64
    alone = [engine_.round_sum(start, np.array([c]), 0) for c in cohort]
    # Which clients share a chunk may move a float by one bit and so an integer by one step.
    assert (total - sum(one.total for one in alone)).abs().max() <= len(cohort)
    for one in alone:
        squares = sum(int(v) ** 2 for v in one.total)
        assert squares * grid**2 <= 0.2**2


@pytest.mark.parametrize("engine", EACH)
def test_a_client_whose_update_is_not_finite_counts_as_zero(engine: str) -> None:
    job = make_job("softmax", LocalRule(LearningRate(1e38), steps=3), SHAPINGS["clip"])
    result = build_engine(job, engine, 3).round_sum(start_of(job), np.arange(len(SIZES)), 0)
    assert result.rejected > 0
    assert torch.isfinite(result.total).all()


@pytest.mark.parametrize("engine", EACH)
def test_a_round_may_bring_a_shaping_of_its_own(engine: str) -> None:
    own = Shaping(Clip(0.05, 2), granularity=2.0**-22)
    planned = make_job("softmax", RULES["one epoch of batches"], Shaping(Clip(0.2, 2)))
    direct = make_job("softmax", RULES["one epoch of batches"], own)
    start, cohort = start_of(planned), np.arange(len(SIZES))
    expected = build_engine(direct, engine, 3).round_sum(start, cohort, 1)
    result = build_engine(planned, engine, 3).round_sum(start, cohort, 1, own)
    assert torch.equal(result.total, expected.total)
    assert torch.equal(result.shaped_norms, expected.shaped_norms)


def test_auto_picks_a_runnable_engine_and_says_why() -> None:
    for model in MODELS:
        job = make_job(model, RULES["one epoch of batches"], SHAPINGS["clip"])
        choice = choose(job)
        assert choice.name in EACH
        assert choice.reason
