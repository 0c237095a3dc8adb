"""Does a clip hold for the worst that can be put in? Each probe has one right answer.

Client level: updates that overflow, are not finite or are as long as numbers get are shaped by the
program, and must come out no longer than the clip that is accounted, or than a ballot. Record
level: one record of a client is replaced by another, of any label and with inputs as large as
numbers get, the client takes one step in the run's own engine, and the two updates must be no
further apart than what is accounted; a person is replaced with all its records. Afterwards: two
rounds are played by the run's own code with different updates and the same releases; all that is
stored must be the same, bit for bit. In none of them is a record of the federation looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.randomness import Randomness
from fedveil.core.units import Unit
from fedveil.data.columns import Array
from fedveil.data.federation import Examples, Federation, Task
from fedveil.methods.parts.local_steps import rates
from fedveil.methods.parts.noise_placement import Bounded
from fedveil.planning.plan import Plan
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.run.round import play_round
from fedveil.run.run import Run
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import TrainedClients, UpdatePipeline, shape_rows
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Cohort, Job, RoundRequest, summed
from fedveil_lab.audit.stand_ins import StandIns, on_release

_ROUNDING = 1e-5  # float32 norms of many numbers are off by less
_HUGE = 3e38  # near the largest float32
_RECORDS = 8  # of the client whose record is replaced
_LABELS = 10  # that the other record may have


@dataclass(frozen=True)
class Probe:
    """How far one unit got, and how far it may get by what was accounted."""

    what: str
    reached: float
    allowed: float

    @property
    def broken(self) -> bool:
        return not self.reached <= self.allowed * (1 + _ROUNDING)  # what is no number broke it


def probes(plan: Plan) -> tuple[Probe, ...]:
    """Run all probes that apply to a plan."""
    if plan.noise is None or plan.guarantee is None:
        return ()
    if plan.noise.bounded is Bounded.GRADIENT:
        return (*_of_records(plan), *_of_releases(plan))
    if plan.guarantee.unit is not Unit.CLIENT:
        return ()
    return _of_updates(plan) if plan.method.voting else (*_of_updates(plan), *_of_releases(plan))


def _of_updates(plan: Plan) -> tuple[Probe, ...]:
    shape = plan.pipeline
    clip = (shape.clip or plan.context.clip) if plan.context else shape.clip
    if shape.ballot is not None:
        clip = Clip(math.sqrt(len(shape.ballot.inputs)))
    if clip is None:
        return ()
    width = plan.layout.size
    chance = torch.Generator().manual_seed(0)
    spread = torch.randn(width, generator=chance)
    single = torch.zeros(width)
    single[0] = 1.0
    holed = spread.clone()
    holed[0] = math.nan
    infinite = spread.clone()
    infinite[-1] = math.inf
    tried = {
        "an update a million times too long": 1e6 * clip.norm * spread,
        "one coordinate as large as numbers get": _HUGE * single,
        "all coordinates as large as numbers get": _HUGE * spread.sign(),
        "an update with a NaN": holed,
        "an update with an infinity": infinite,
        "a NaN in an update that is too long": 1e6 * clip.norm * holed,
        "an update just above the clip": (1 + 1e-6) * clip.norm * spread / spread.norm(),
        "the smallest numbers there are": 1e-45 * spread.sign(),
    }
    allowed = _longest(plan, shape, clip.norm)
    sizes = np.array([plan.federation.sizes[0]])
    senders = TrainedClients(np.array([0]), sizes, plan.start, 0, Randomness(0))
    found = []
    for what, update in tried.items():
        row = shape_rows(update[None].clone(), shape, plan.layout, senders, update[None]).total
        step = 1.0 if row.is_floating_point() else shape.granularity or 1.0
        reached = step * float(torch.linalg.vector_norm(row.double(), ord=clip.order))
        found.append(Probe(what, reached, allowed))
    return tuple(found)


def _longest(plan: Plan, shape: UpdatePipeline, clip: float) -> float:
    """Return the norm that is accounted: random rounding has one of its own."""
    mechanism = plan.releases(plan.method.rounds)[0].mechanism
    if isinstance(mechanism, DiscreteGaussianSum):
        return mechanism.grid_sensitivity()[0] * mechanism.granularity
    return clip


def _of_records(plan: Plan) -> tuple[Probe, ...]:
    """Replace one of a few records or persons, and compare the two updates of one step."""
    clip, batch, context = plan.local.gradient_clip, plan.local.batch_size, plan.context
    if clip is None or batch is None or context is None or plan.federation.task is Task.SEQUENCE:
        return ()
    rule = replace(plan.local, steps=1, epochs=None, gradient_noise=0.0, gradient_grid=None)
    rule = replace(rule, batch_size=min(batch, _RECORDS), weight_decay=0.0, penalty=0.0)
    if rule.batch_rate is not None:
        rule = replace(rule, batch_rate=1.0)  # the replaced record is in the batch for sure
    allowed = 2 * clip.norm / (rule.batch_size or 1) * rates(context, 0)[0]
    inputs, targets = _made_up(plan.federation)
    shape = inputs.shape[1:]
    signs = np.where(np.arange(math.prod(shape)) % 2, 1.0, -1.0).reshape(shape)
    tried = {
        "an ordinary record replaced by another": (inputs[0], inputs[1]),
        "a record of zeros replaced by a loud one": (0 * inputs[0], 1e4 * signs),
        "a loud record replaced by its opposite": (1e4 * signs, -1e4 * signs),
        "a record whose gradient overflows": (inputs[0], 1e30 * signs),
        "a record as large as numbers get": (inputs[0], _HUGE * signs),
    }

    def apart(one: Array, other: Array, label: Any) -> float:
        """How far the update moves if the first record becomes the other one, with that label."""
        steps = (
            _one_step(plan, rule, inputs, targets, record, own)
            for record, own in ((one, targets[0]), (other, label))
        )
        before, after = steps
        return float(torch.linalg.vector_norm((before - after).double(), ord=clip.order))

    if rule.per_person:
        tried = {f"{what}, with all of a person's": pair for what, pair in tried.items()}
    found = [Probe(what, apart(*pair, targets[0]), allowed) for what, pair in tried.items()]
    for label in range(min(plan.federation.codes, _LABELS)):
        reached = apart(1e4 * signs, -1e4 * signs, label)
        found.append(Probe(f"a loud record replaced by one of class {label}", reached, allowed))
    return tuple(found)


def _made_up(like: Federation) -> tuple[Array, Array]:
    """Return made-up records: what probes reach is written down, so no real one is used."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(_RECORDS, *like.input_shape)).astype(np.float32)
    if like.task is Task.REGRESSION:
        return inputs, draw.normal(size=_RECORDS).astype(np.float32)
    more = like.train.targets.shape[1:]  # several labels
    return inputs, np.arange(_RECORDS * math.prod(more)).reshape(-1, *more) % like.codes


def _one_step(
    plan: Plan, rule: LocalTraining, inputs: Array, targets: Array, record: Array, label: Any
) -> Tensor:
    own, labels, persons = inputs.copy(), targets.copy(), None
    own[0], labels[0] = record, label
    if rule.per_person:  # of whom each has its record three times
        own, labels = np.repeat(own, 3, axis=0), np.repeat(labels, 3, axis=0)
        persons = np.repeat(np.arange(len(inputs)), 3)
    federation = Federation(
        Examples(own, labels, None, persons),
        np.array([0, len(own)], np.int64),
        plan.federation.test,
        plan.federation.task,
        plan.federation.classes,
        verified=True,
    )
    job = Job(
        federation, plan.module, plan.layout, rule, UpdatePipeline(), Randomness(0), isolated=True
    )
    engine = build_engine(job, processes=1)
    try:
        return summed(engine, job, RoundRequest(plan.start, np.array([0]), 0)).total
    finally:
        engine.close()


def _of_releases(plan: Plan) -> tuple[Probe, ...]:
    """Play rounds in which all clients send something else and the same is released."""
    released: list[Tensor] = []
    one, other = (_stored(plan, way, released) for way in (1.0, -1.0))
    apart = sum(
        0.0 if torch.equal(one[name], other[name]) else 1.0 for name in one.keys() & other.keys()
    )
    what = "other updates with the same releases: stored values that change"
    return (Probe(what, apart + len(one.keys() ^ other.keys()), 0.0),)


def _stored(plan: Plan, way: float, released: list[Tensor]) -> dict[str, Tensor]:
    """Return the files that two rounds leave; they release `released`, or are noted there."""
    run = Run(replace(plan, seed=0), every=10**9)
    nobody = np.zeros(plan.federation.clients, np.bool_)

    def send(clients: Cohort, number: int, shape: UpdatePipeline) -> tuple[Tensor, Tensor]:
        updates = torch.full((len(clients), plan.layout.size), way)
        return updates * (1.5 - way / 2), updates

    run.engine = StandIns(run, nobody, send)
    places = iter(range(10**9))

    def same(private: Tensor) -> Tensor:
        place = next(places)
        if place == len(released):
            released.append(private)
        return released[place].clone()

    on_release(run, same)
    try:
        for _ in range(min(2, plan.method.rounds)):
            play_round(run, last=False)
        return {"weights": run.state.weights, **run.state.optimizer}
    finally:
        run.close()
