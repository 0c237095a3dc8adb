"""Where persons are protected, the mean gradient of a person's records is clipped once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedveil.core.randomness import Randomness, Stream
from fedveil.data.federation import Examples, Federation
from fedveil.training.client.batches import draw_batches, unit_sizes
from fedveil.training.client.local_training import GradientClip, LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine, supports
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.pieces import PackedPersons
from fedveil.training.engines.processes import ProcessEngine
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.losses import ClassWeights, example_losses

from .sums import sum_of

CLIP, BATCH = 0.2, 16
CLIPPED = GradientClip(CLIP, per_example=True, sites_per_person=1)
RULE = LocalTraining(LearningRate(1.0), steps=1, batch_size=BATCH, gradient_clip=CLIPPED)
NASTY = (np.nan, np.inf, 3e38, -3e38, 1.8e19, 1e15, 2.5e-23, 1e-38, -0.0)


class OwnCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(torch.randn(6, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(x.flatten(1) @ self.first))
        return found


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "softmax": (lambda: nn.Linear(6, 3), (6,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,)),
    "own code": (OwnCode, (6,)),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)),
        (1, 5, 4),
    ),
}


def federation_of(
    shape: tuple[int, ...], counts: tuple[int, ...] = (1, 2, 3, 5, 8, 70, 1, 4), clients: int = 1
) -> Federation:
    """Persons with these numbers of records, client by client in turn."""
    draw = np.random.default_rng(3)
    persons = np.repeat(np.arange(len(counts)), counts)
    inputs = draw.standard_normal((len(persons), *shape)).astype(np.float32)
    targets = draw.integers(0, 3, len(persons))
    order = draw.permutation(len(persons))
    return Federation.from_arrays(
        inputs[order],
        targets[order],
        (persons % clients)[order],
        persons=persons[order],
        classes=3,
        test=(inputs[:1], targets[:1]),
    )


def job_of(
    module: nn.Module, federation: Federation, isolated: bool, rule: LocalTraining = RULE
) -> Job:
    made = (federation, module, layout_of(module), rule, UpdatePipeline(), Randomness(1))
    return Job(*made, isolated)


def gradient(job: Job, engine: str = "auto", round_number: int = 0) -> Tensor:
    """The sum of the only client's clipped gradients."""
    request = RoundRequest(flatten(job.module), np.array([0]), round_number)
    return -BATCH * sum_of(build_engine(job, engine), request).total


def by_hand(module: nn.Module, federation: Federation) -> Tensor:
    """The same by autograd in double precision, a person at a time."""
    module, total = copy.deepcopy(module).double(), 0.0
    for person in np.unique(federation.train.persons):
        own = federation.train.persons == person
        inputs = torch.from_numpy(federation.train.inputs[own]).double()
        targets = torch.from_numpy(federation.train.targets[own])
        loss = example_losses(federation.task, module(inputs), targets, None).mean()
        each = torch.autograd.grad(loss, list(module.parameters()))
        found = torch.cat([one.flatten() for one in each])
        total = total + found * min(1.0, CLIP / float(found.norm()))
    return total


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("engine", ["auto", "mlp", "generic", "sequential"])
@pytest.mark.parametrize("model", MODELS)
def test_a_persons_mean_gradient_is_clipped_once(model: str, engine: str, isolated: bool) -> None:
    build, shape = MODELS[model]
    torch.manual_seed(1)
    module, federation = build(), federation_of(shape)
    job = job_of(module, federation, isolated)
    if supports(job, engine) is not None:
        pytest.skip("not for this model")
    wanted = by_hand(module, federation)
    torch.testing.assert_close(gradient(job, engine).double(), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_whoever_else_is_there_does_not_show_in_a_persons_gradient(model: str) -> None:
    """Bit for bit: everybody else contributes nothing, for being not finite, or is not there."""
    build, shape = MODELS[model]
    torch.manual_seed(1)
    module, federation = build(), federation_of(shape, (2, 3, 2, 1, 5, 2, 9, 2))
    train = federation.train
    for person in (0, 2, 4, 7):
        own = train.persons == person
        alone = replace(
            federation,
            train=train.take(np.flatnonzero(own)),
            offsets=np.array([0, int(own.sum())]),
            verified=True,
        )
        wanted = gradient(job_of(module, alone, isolated=True))
        assert wanted.any()
        for bad in (np.nan, np.inf):
            inputs = train.inputs.copy()
            inputs[~own] = bad
            among = replace(federation, train=replace(train, inputs=inputs), verified=True)
            assert torch.equal(gradient(job_of(module, among, isolated=True)), wanted)


@pytest.mark.parametrize("model", ["softmax", "mlp", "own code"])
def test_a_replaced_person_moves_the_sum_by_two_clips_at_most(model: str) -> None:
    """Whatever its records are, and however many: those that cancel each other as well."""
    build, shape = MODELS[model]
    torch.manual_seed(1)
    module, draw = build(), np.random.default_rng(5)
    federation = federation_of(shape, (2, 3, 2, 1, 5, 2))
    train = federation.train
    before = gradient(job_of(module, federation, isolated=True)).double()
    for trial in range(12):
        count = int(draw.choice((1, 2, 6, 66)))
        inputs = draw.choice(NASTY, (count, *shape)).astype(np.float32)
        targets = draw.integers(0, 3, count)
        if trial % 3 == 0 and count > 1:  # two huge gradients, one against the other
            inputs[:2], targets[:2] = 1e15, (0, 1)
        rest = train.take(np.flatnonzero(train.persons != 1))
        joined = Examples(
            np.concatenate([rest.inputs, inputs]),
            np.concatenate([rest.targets, targets]),
            persons=np.append(rest.persons, np.full(count, 9)),
        )
        other = replace(federation, train=joined, offsets=np.array([0, len(joined)]), verified=True)
        after = gradient(job_of(module, other, isolated=True)).double()
        assert float((after - before).norm()) <= 2 * CLIP * (1 + 1e-5)


@pytest.mark.parametrize("ignored", range(3))
def test_a_class_without_weight_stops_nobody(ignored: int) -> None:
    """A person of another number of records does not take its client's contribution along."""
    weights = tuple(float(one != ignored) for one in range(3))
    rule = replace(RULE, loss=ClassWeights(weights))
    found = []
    for count in (2, 1):
        torch.manual_seed(1)
        module = MODELS["softmax"][0]()
        federation = federation_of((6,), (3, 3, 5, 3, 8, count))
        inputs = np.ones_like(federation.train.inputs)
        targets = np.full(len(inputs), (ignored + 1) % 3)
        train = replace(federation.train, inputs=inputs, targets=targets)
        job = job_of(module, replace(federation, train=train), isolated=True, rule=rule)
        found.append(gradient(job).double())
    assert float(found[0].norm()) > 5 * CLIP
    assert float((found[1] - found[0]).norm()) <= 2 * CLIP * (1 + 1e-5)


def test_no_failure_counts_as_nothing_from_a_whole_client() -> None:
    """It would move the sum by what all persons of the client have contributed."""
    job = job_of(MODELS["softmax"][0](), federation_of((6,)), isolated=True)
    with (
        patch.object(PackedPersons, "_parts", side_effect=RuntimeError("out of order")),
        pytest.raises(RuntimeError, match="out of order"),
    ):
        gradient(job)


def test_simulated_and_protected_runs_give_the_same_with_a_shared_seed() -> None:
    torch.manual_seed(1)
    module, federation = MODELS["mlp"][0](), federation_of((6,), (1, 2, 3, 4) * 8)
    rule = replace(RULE, steps=3, batch_rate=0.4)
    for number in range(3):
        pair = [
            gradient(job_of(module, federation, isolated, rule), round_number=number)
            for isolated in (False, True)
        ]
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-6)


def coins(rule: LocalTraining, federation: Federation, rounds: int) -> np.ndarray:
    """Who is in the batch of the only client, `[rounds, persons]`."""
    sizes, client = unit_sizes(federation, rule), np.array([0])
    found = np.zeros((rounds, int(sizes[0])), np.bool_)
    for number in range(rounds):
        drawn = draw_batches(client, sizes, rule, number, Randomness(4))
        found[number, drawn.positions[0, 0][drawn.mask[0, 0]]] = True
    return found


def independent(found: np.ndarray, rate: float) -> bool:
    """Whether single coins and pairs of them come as often as they should. Deviations of five
    standard errors: of 6 persons' 21 frequencies, one in 80,000 tests fails for nothing."""
    counts = found.T.astype(float) @ found / len(found)
    wanted = np.full_like(counts, rate**2)
    np.fill_diagonal(wanted, rate)
    return bool((np.abs(counts - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / len(found))).all())


def test_every_person_has_a_coin_of_its_own() -> None:
    """With all of its records or none, and a coin that two persons share is noticed."""
    rule, federation = replace(RULE, batch_rate=0.3), federation_of((6,), (1, 5, 2, 9, 1, 3))
    assert independent(coins(rule, federation, 2000), 0.3)
    real = Stream.coins

    def shared(self: Stream, count: int, rate: float) -> np.ndarray:
        return np.repeat(real(self, count, rate)[::2], 2)[:count]

    with patch.object(Stream, "coins", shared):
        assert not independent(coins(rule, federation, 2000), 0.3)


def test_records_beyond_a_persons_sites_contribute_nothing() -> None:
    """A person at three clients counts at the first ones by their names, wherever it is."""
    torch.manual_seed(1)
    module, draw = MODELS["softmax"][0](), np.random.default_rng(2)
    inputs = draw.standard_normal((6, 6)).astype(np.float32)
    owners, persons = ["a", "a", "b", "b", "c", "c"], [1, 2, 1, 3, 1, 4]
    federation = Federation.from_arrays(
        inputs, [0, 1, 2, 0, 1, 2], owners, persons=persons, classes=3, test_fraction=0.0
    )
    for sites, counted in ((1, [1, 1, 0, 1, 0, 1]), (2, [1, 1, 1, 1, 0, 1]), (3, [1] * 6)):
        clip = replace(CLIPPED, sites_per_person=sites)
        job = job_of(module, federation, True, replace(RULE, gradient_clip=clip))
        usable = job.federation.train.usable
        assert (np.ones(6) if usable is None else usable).tolist() == counted
        for client in range(3):
            wanted = torch.zeros(layout_of(module).size, dtype=torch.float64)
            for row in range(2 * client, 2 * client + 2):
                if counted[row]:
                    one = replace(federation, train=federation.train.take(np.array([row])),
                                  offsets=np.array([0, 1]), verified=True)  # fmt: skip
                    wanted += by_hand(module, one)
            request = RoundRequest(flatten(module), np.array([client]), 0)
            found = -BATCH * sum_of(build_engine(job, "auto"), request).total.double()
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_processes_compute_the_same() -> None:
    torch.manual_seed(1)
    module = MODELS["mlp"][0]()
    federation = federation_of((6,), (1, 2, 3, 4) * 8, clients=4)
    job = job_of(module, federation, True, replace(RULE, batch_rate=0.4))
    request = RoundRequest(flatten(module), np.arange(4), 0)
    engine = build_engine(job, "mlp", processes=2)
    assert isinstance(engine, ProcessEngine)
    try:
        assert torch.equal(
            sum_of(engine, request).total, sum_of(build_engine(job, "mlp"), request).total
        )
    finally:
        engine.close()
