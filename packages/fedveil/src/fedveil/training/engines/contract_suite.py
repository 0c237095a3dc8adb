"""The contract suite: compares an engine, also one from outside the package, with the reference.

    from fedveil.training.engines.contract_suite import check_engine
    check_engine("mine")  # raises a ContractBroken that says where it differs

Each made-up job is also run by the engine that trains one client after the other through autograd
in the reference loop (`local_sgd`), which the package's own tests hold to a second implementation
in double precision. The engine is run on the jobs that it supports; one that supports none fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.core.errors import FedveilError
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import (
    GradientClip,
    LearningRate,
    LocalStep,
    LocalTraining,
    Schedule,
)
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines.choose import build_engine, supports
from fedveil.training.engines.contract import Cohort, Engine, Job, RoundRequest, summed
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.structure import drawing_from


class _DrawnBack(LocalStep):
    """Draws clients to the shared weights, and to a tenth of them as their state."""

    def initial(self, weights: Tensor) -> Tensor:
        return 0.1 * weights

    def correction(self, moved: Tensor, state: Tensor, broadcast: Tensor | None) -> Tensor:
        return 0.5 * (moved - state)


_SIZES = (7, 1, 12, 5, 5, 3)
_RATE, _FALLING = LearningRate(0.2), LearningRate(0.2, Schedule.INVERSE, 3.0)
_MODELS: dict[str, tuple[Callable[[], nn.Module], Task]] = {
    "linear regression": (lambda: nn.Linear(4, 1), Task.REGRESSION),
    "softmax regression": (lambda: nn.Linear(4, 3), Task.CLASSIFICATION),
    "two layers": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        Task.CLASSIFICATION,
    ),
    "several labels": (lambda: nn.Linear(4, 3), Task.MULTI_LABEL),
}
_RULES = {
    "all records": LocalTraining(_FALLING, steps=3),
    "epochs of batches": LocalTraining(_FALLING, epochs=2, batch_size=4, weight_decay=0.1),
    "momentum, penalty": LocalTraining(
        _RATE, steps=5, batch_size=4, momentum=0.5, penalty=1.0, penalty_radius=0.05
    ),
    "local step": LocalTraining(_RATE, epochs=2, batch_size=4, step=_DrawnBack()),
    "clipped gradients": LocalTraining(_RATE, steps=3, gradient_clip=GradientClip(0.3)),
    "clipped examples, noise": LocalTraining(
        _RATE,
        steps=3,
        batch_size=3,
        gradient_clip=GradientClip(0.5, per_example=True),
        gradient_noise=0.1,
    ),
}
_GRID = 2.0**-20
_PIPELINES = {
    "nothing": UpdatePipeline(),
    "clip": UpdatePipeline(Clip(0.2, 2), weight_cap=6),
    "sparse": UpdatePipeline(Clip(0.2, 2), sparsity=0.5),
    "grid": UpdatePipeline(Clip(0.2, 1), granularity=_GRID),
}
# An engine rounds to single precision, in sums of at most 256 terms and in at most ten steps, none
# of which doubles an error on models this smooth; the weights and updates are about one.
_TOLERANCE = 10 * 256 * 2.0**-24


class ContractBroken(FedveilError):
    """An engine gives other numbers than it must."""


def check_engine(name: str) -> int:
    """Compare the engine of this name with the reference.

    Returns:
        The number of jobs that it was run on.

    Raises:
        ContractBroken: It gives other numbers than it must; the message says where.
    """
    jobs = [(what, job) for what, job in contract_jobs() if supports(job, name) is None]
    if not jobs:
        raise ContractBroken(f"engine {name!r} supports none of the contract's jobs")
    for what, job in jobs:
        # Protected runs are isolated, and on a grid.
        for isolated in (False, True) if job.pipeline.granularity else (False,):
            own = replace(job, isolated=isolated)
            running = build_engine(own, name)
            try:
                _check(f"engine {name!r}, {what}{', isolated' if isolated else ''}", own, running)
            finally:
                running.close()
        if build_engine(job, name).name != name:
            raise ContractBroken(f"engine {name!r} calls itself {build_engine(job, name).name!r}")
    return len(jobs)


def contract_jobs() -> Iterator[tuple[str, Job]]:
    """Yield jobs with every model, rule and pipeline, each with its name."""
    usual = [(rule, "clip") for rule in _RULES]
    usual += [("epochs of batches", pipeline) for pipeline in _PIPELINES if pipeline != "clip"]
    for model in _MODELS:
        for rule, pipeline in (*usual, ("clipped examples, noise", "grid")):
            yield f"{model}, {rule}, {pipeline}", _job(model, rule, pipeline)


def _job(model: str, rule: str, pipeline: str) -> Job:
    build, task = _MODELS[model]
    draw, total = np.random.default_rng(1), sum(_SIZES)
    inputs = draw.normal(size=(total, 4)).astype(np.float32)
    labels = draw.integers(0, 3, total)
    targets = inputs[:, 0].copy() if task is Task.REGRESSION else labels
    if task is Task.MULTI_LABEL:
        targets = draw.integers(0, 2, (total, 3))
    examples = Examples(inputs, targets)
    offsets = np.concatenate([[0], np.cumsum(_SIZES)]).astype(np.int64)
    classes = 0 if task is Task.REGRESSION else 3
    with drawing_from(0):
        module = build()
    federation = Federation(examples, offsets, examples, task, classes)
    layout = layout_of(module)
    return Job(federation, module, layout, _RULES[rule], _PIPELINES[pipeline], Randomness(5))


def _check(what: str, job: Job, engine: Engine) -> None:
    start, cohort = flatten(job.module), np.array([4, 0, 2, 1, 5])
    before = start.clone()
    asked, whole = RoundRequest(start, cohort, 3), job.pipeline.granularity is not None
    for block in engine.updates(asked):
        kind = block.updates.dtype
        _say(whole == (kind == torch.int64), f"{what}: its updates are {kind}")
    found = summed(engine, job, asked)
    _compare(what, job, found, summed(build_engine(job, "sequential"), job, asked))
    again = summed(engine, job, asked)
    _say(torch.equal(found.total, again.total), f"{what}: the same round gives other numbers")
    _say(torch.equal(start, before), f"{what}: it changes the weights it was given")
    empty = summed(engine, job, asked.part(np.arange(0)))
    _say(not bool(empty.total.any()), f"{what}: an empty cohort gives something else than zero")
    nowhere = torch.full_like(start, 3e38)  # from where every step overflows
    lost = summed(engine, job, replace(asked, weights=nowhere)).total
    _say(bool(lost.isfinite().all()), f"{what}: updates that are not finite do not count as zero")
    if job.pipeline.granularity is not None:
        _check_each(what, job, engine, start, cohort)


def _check_each(what: str, job: Job, engine: Engine, start: Tensor, cohort: Cohort) -> None:
    """Single updates on a grid add up to the sum, and keep to the clip of their round."""
    tight = replace(job.pipeline, clip=Clip(0.05, 1))
    seen: dict[int, Tensor] = {}
    asked = RoundRequest(start, cohort, 3, tight, rows=True)
    for block in engine.updates(asked):
        _say(block.rows is not None, f"{what}: a block without the single updates asked for")
        rows = torch.zeros(0) if block.rows is None else block.rows
        seen.update(zip(block.places.tolist(), rows.clone(), strict=True))
    found = summed(engine, job, asked)
    _say(sorted(seen) == list(range(len(cohort))), f"{what}: not each client is in one block")
    whole = torch.stack([seen[place] for place in range(len(cohort))])
    _say(torch.equal(whole.sum(dim=0), found.total), f"{what}: updates do not add up to the sum")
    norms = whole.abs().sum(dim=1) * _GRID
    _say(bool((norms <= 0.05).all()), f"{what}: an update exceeds the round's own clip")


def _compare(what: str, job: Job, found: Block, wanted: Block) -> None:
    grid, count = job.pipeline.granularity, len(found.norms)
    # What differs by rounding may go to the next point of a grid.
    allowed = count * (_TOLERANCE / (grid or 1.0) + (2 if grid else 0))
    pairs = [("sum", found.total, wanted.total, allowed)]
    pairs += [
        (name, getattr(found, name), getattr(wanted, name), _TOLERANCE * 10)
        for name in ("norms", "shaped_norms", "losses")
    ]
    for name, one, other, most in pairs:
        _say(one.shape == other.shape, f"{what}: {name} of shape {list(one.shape)}")
        off = float((one.double() - other.double()).abs().max())
        _say(off <= most, f"{what}: {name} is off by {off:.2g}, more than {most:.2g}")
    _say(found.rejected == wanted.rejected, f"{what}: it rejects {found.rejected} updates")


def _say(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ContractBroken(otherwise)
