"""Unusable examples contribute nothing, in every engine, and nobody else notices them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import nn

import fedveil as fv
from fedveil.data.federation import Examples, Federation, Task
from fedveil.data.unusable import with_marks
from fedveil.methods.moments import moments
from fedveil.training.client.local_training import GradientClip, LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines.choose import ENGINES, build_engine, supports
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.shared_memory import share

from .jobs import FEW, GRIDS, MODELS, RULES, SHAPINGS, SIZES, SLOW, make_job, start_of

EACH = [name for name in ENGINES if name not in ("auto", "processes")]
SOME, ALL = 2, 4  # clients with some unusable examples, and with no others
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


def marked(federation: Federation, wrong: np.ndarray) -> Federation:
    return replace(federation, train=with_marks(federation.train, wrong), verified=True)


def round_of(job: Job, engine: str, cohort: list[int]) -> Block:
    return sum_of(build_engine(job, engine), RoundRequest(start_of(job), np.array(cohort), 3))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("shaping", ["clip", "LUS (Cheng)", "grid"])
@pytest.mark.parametrize(
    "rule",
    ["full batch, three steps, decaying", "two epochs, weight decay", "BLUR, momentum, decay"],
)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", EACH)
def test_a_client_trains_on_its_usable_examples_and_without_any_sends_zero(
    engine: str, model: str, rule: str, shaping: str, isolated: bool
) -> None:
    if model in SLOW and (rule not in FEW or shaping == "clip"):
        pytest.skip("others stand for it")
    pipeline = {**SHAPINGS, **GRIDS}[shaping]
    plain = replace(make_job(model, RULES[rule], pipeline), isolated=isolated)
    if supports(plain, engine) is not None:
        pytest.skip("not for this job")
    wrong = np.zeros(sum(SIZES), bool)
    wrong[OFFSETS[SOME] + np.array([0, 3, 11])] = True
    wrong[OFFSETS[ALL] : OFFSETS[ALL + 1]] = True
    job = replace(plain, federation=marked(plain.federation, wrong))
    everybody = list(range(len(SIZES)))
    found = round_of(job, engine, everybody)
    # The same clients, the first without those rows, and the second not there.
    kept = ~wrong
    kept[OFFSETS[ALL]] = True
    sizes = np.add.reduceat(kept.astype(int), OFFSETS[:-1])
    fewer = replace(
        plain.federation,
        train=plain.federation.train.take(np.flatnonzero(kept)),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
    )
    others = [client for client in everybody if client != ALL]
    wanted = round_of(replace(plain, federation=fewer), engine, others)
    if found.total.dtype == torch.int64 and isolated:
        assert torch.equal(found.total, wanted.total)
    else:
        torch.testing.assert_close(found.total, wanted.total, rtol=1e-4, atol=1e-5)
    assert float(found.shaped_norms[ALL]) == 0


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("model", [*MODELS, "several labels", "bytes"])
@pytest.mark.parametrize("engine", EACH)
def test_an_unusable_record_stays_in_its_batch_with_a_gradient_of_zero(
    engine: str, model: str, isolated: bool
) -> None:
    batch = 6
    clip = GradientClip(0.5, per_example=True)
    rule = LocalTraining(LearningRate(1.0), steps=1, batch_size=batch, gradient_clip=clip)
    usual = "softmax" if model in ("several labels", "bytes") else model
    job = make_job(usual, rule, UpdatePipeline(), (batch,), model == "bytes")
    federation = job.federation
    if model == "several labels":
        targets = np.stack([federation.train.targets == k for k in range(3)], 1).astype(np.int64)
        examples = Examples(federation.train.inputs, targets)
        federation = Federation(examples, federation.offsets, examples, Task.MULTI_LABEL, 3)
    job = replace(job, federation=federation, isolated=isolated)
    if supports(job, engine) is not None:
        pytest.skip("not for this job")
    wrong = np.arange(batch) == 2
    found = round_of(replace(job, federation=marked(federation, wrong)), engine, [0])
    fewer = replace(
        federation,
        train=federation.train.take(np.flatnonzero(~wrong)),
        offsets=np.array([0, batch - 1]),
    )
    wanted = round_of(replace(job, federation=fewer), engine, [0])
    assert found.rejected == 0
    torch.testing.assert_close(found.total, wanted.total, rtol=1e-5, atol=1e-7)
    everything = marked(federation, np.ones(batch, bool))
    nothing = round_of(replace(job, federation=everything), engine, [0])
    assert not nothing.total.any()


def test_worker_processes_know_which_examples_are_usable() -> None:
    job = make_job("softmax", RULES["per example"], UpdatePipeline())
    wrong = np.arange(sum(SIZES)) % 5 == 1
    shared = share(marked(job.federation, wrong))
    try:
        assert (shared.open().train.usable == ~wrong).all()
    finally:
        shared.close()


class Words(nn.Module):
    """A classifier of short texts, whose tokens are stored as bytes."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(tokens, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.embedding(x.long()).mean(1))
        return scores


NOISE = {
    "central": lambda local: fv.dp_fedavg(
        rounds=2, cohort=fv.CohortRule(rate=0.5), local=local, clip=fv.Clip(1.0)
    ),
    "local": lambda local: fv.client_noise(
        rounds=2, cohort=fv.CohortRule(size=4, scheme=fv.Scheme.BALANCED), local=local,
        clip_norm=1.0,
    ),
    "distributed": lambda local: fv.ddgauss(
        rounds=2, cohort=fv.CohortRule(size=6, scheme=fv.Scheme.BALANCED), local=local,
        clip=fv.Clip(1.0),
    ),
    "records": lambda local: fv.dp_sgd(
        rounds=2, cohort=fv.CohortRule(rate=1.0), local=replace(local, batch_size=4),
        clip_norm=1.0, secure_sum=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("kind", ["numbers", "tokens"])
@pytest.mark.parametrize("noise", NOISE)
def test_a_run_goes_to_its_end_whatever_is_unusable(
    noise: str, kind: str, seed: int | None
) -> None:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(96, 4)).astype(np.float32)
    labels, owners = np.arange(96) % 2, np.arange(96) % 12
    if kind == "tokens":
        inputs = draw.integers(0, 9, (96, 4)).astype(np.uint8)
        inputs[owners == 3, 1] = 200  # beyond the Embedding
    else:
        inputs[owners == 3, 1] = np.nan
    labels[owners == 5] = 7
    labels[7::11] = -1
    federation = fv.Federation.from_arrays(inputs, labels, owners, classes=2)
    model = Words(9) if kind == "tokens" else nn.Linear(4, 2)
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=2)
    plan = fv.plan(NOISE[noise](local), federation, model, budget=fv.Budget(epsilon=8.0), seed=seed)
    assert plan.guarantee is not None
    assert plan.guarantee.certified == (seed is None)
    run = fv.Run(plan)
    try:
        run.finish()
        assert torch.isfinite(run.weights).all()
        assert np.isfinite(run.evaluate().loss)
    finally:
        run.close()


@pytest.mark.parametrize("task", [fv.Task.CLASSIFICATION, fv.Task.REGRESSION, fv.Task.MULTI_LABEL])
@pytest.mark.parametrize("noise", [*NOISE, "moments"])
def test_a_run_goes_to_its_end_if_nothing_is_usable(noise: str, task: fv.Task) -> None:
    owners = np.arange(24) % 12
    targets = {
        fv.Task.CLASSIFICATION: np.full(24, 9),
        fv.Task.REGRESSION: np.full(24, np.nan, np.float32),
        fv.Task.MULTI_LABEL: np.full((24, 2), 9),
    }[task]
    classes = None if task is fv.Task.REGRESSION else 2
    inputs = np.ones((24, 4), np.float32)
    federation = fv.Federation.from_arrays(inputs, targets, owners, task=task, classes=classes)
    assert federation.train.usable is not None
    assert not federation.train.usable.any()
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=2)
    method = moments(unit=fv.Unit.RECORD) if noise == "moments" else NOISE[noise](local)
    model = fv.build("auto", federation)
    run = fv.Run(fv.plan(method, federation, model, budget=fv.Budget(epsilon=8.0)))
    try:
        run.finish()
        assert torch.isfinite(run.weights).all()
    finally:
        run.close()
