"""Secret batches: what is drawn, what one record moves, and what it is charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import binom, norm
from tests.engines.sums import sum_of
from torch import nn

import fedveil as fv
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import parse, with_defaults
from fedveil.run.run import job_of
from fedveil.training.client import batches
from fedveil.training.client.batches import draw_batches
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.engines.pieces import in_pieces

ALARM = 1e-9  # how often each statistical test below fails for nothing, at most
DELTA = 1e-5
EVERYONE = fv.CohortRule(fv.Scheme.EVERYONE)


def sites(count: int, records: int, width: int = 3, seed: int = 0) -> fv.Federation:
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count * records, width)).astype(np.float32)
    targets = (inputs[:, 0] > 0).astype(np.int64)
    owners = np.repeat(np.arange(count), records)
    return fv.Federation.from_arrays(inputs, targets, owners, classes=2)


def planned(
    federation: fv.Federation,
    *,
    rate: float | None = 0.1,
    batch: int = 8,
    rounds: int = 1,
    steps: int = 1,
    noise: float = 1.0,
    module: nn.Module | None = None,
    seed: int | None = None,
    cohort: fv.CohortRule = EVERYONE,
    **settings: object,
) -> fv.Plan:
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=steps, batch_size=batch, batch_rate=rate)
    make = fv.dp_sgd if steps == 1 else fv.gradient_noise
    method = make(rounds=rounds, cohort=cohort, local=local, clip_norm=1.0, **settings)  # type: ignore[arg-type, operator]
    module = module or nn.Linear(federation.input_shape[0], 2)
    budget = fv.Budget(noise_multiplier=noise, delta=DELTA)
    return fv.plan(method, federation, module, budget=budget, seed=seed)


def poisson_epsilon(rate: float, noise: float, steps: int) -> float:
    """The same by another library's accountant alone."""
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return float(accountant.compose(event, steps).get_epsilon(DELTA))


def test_three_hospitals_have_the_epsilon_that_everybody_reports() -> None:
    federation = sites(3, 10_000)
    hospitals = {"rate": 0.0256, "batch": 256, "rounds": 782}
    central = planned(federation, trusted=True, secure_sum=False, **hospitals).guarantee
    assert central is not None
    assert central.epsilon == pytest.approx(4.517, rel=0.005)
    assert (central.unit, central.adjacency) == (fv.Unit.RECORD, fv.Adjacency.ZERO_OUT)
    assert central.certified
    shares = planned(federation, noise=1 / math.sqrt(3), **hospitals).guarantee
    assert shares is not None
    assert shares.certified
    assert 5.075 <= shares.epsilon <= 5.075 * 1.03  # RDP, and rounding on the grid
    shuffled = planned(federation, noise=1 / math.sqrt(3), **hospitals | {"rate": None}).guarantee
    assert shuffled is not None
    assert shuffled.epsilon > 5 * shares.epsilon


@pytest.mark.parametrize(("rate", "steps", "rounds"), [(0.02, 1, 200), (0.1, 4, 25), (1.0, 2, 3)])
def test_local_steps_are_charged_one_by_one_with_the_sites_own_noise(
    rate: float, steps: int, rounds: int
) -> None:
    settings = {"rate": rate, "steps": steps, "rounds": rounds, "noise": 2.0}
    plan = planned(sites(4, 200), secure_sum=steps > 1, **settings)
    assert plan.guarantee is not None
    expected = poisson_epsilon(rate, 2.0, rounds * steps)
    assert plan.guarantee.epsilon == pytest.approx(expected, rel=0.01)
    assert plan.guarantee.trust is fv.Trust.LOCAL


def test_every_record_has_a_coin_of_its_own() -> None:
    sizes, rate, rounds = np.array([300, 40]), 0.2, 400
    rule = fv.LocalTraining(fv.LearningRate(1), steps=2, batch_size=9, batch_rate=rate)
    seen = np.zeros((2, 2, 300), np.int64)
    pairs = 0
    for number in range(rounds):
        batches = draw_batches(np.array([5, 9]), sizes, rule, number, Randomness(3))
        for client in range(2):
            for step in range(2):
                positions, mask = batches.at(step)
                own = positions[client][mask[client]]
                assert len(np.unique(own)) == len(own)
                assert own.max(initial=0) < sizes[client]
                seen[client, step, own] += 1
        chosen = [set(batches.at(s)[0][0][batches.at(s)[1][0]]) for s in range(2)]
        pairs += len(chosen[0] & chosen[1])
    for client, size in enumerate(sizes):
        low, high = binom.interval(1 - ALARM / 700, rounds, rate)
        assert low <= seen[client, :, :size].min()
        assert seen[client, :, :size].max() <= high
        assert not seen[client, :, size:].any()
    low, high = binom.interval(1 - ALARM, rounds * 300, rate**2)  # of two steps, independent
    assert low <= pairs <= high


def test_coins_are_new_in_every_protected_draw() -> None:
    rule = fv.LocalTraining(fv.LearningRate(1), steps=1, batch_size=9, batch_rate=0.5)
    drawn = [
        draw_batches(np.array([0]), np.array([200]), rule, 0, Randomness(None)) for _ in range(2)
    ]
    first, second = (one.positions[one.mask].tolist() for one in drawn)
    assert first != second  # alike once in 2^200


WIDE = 107
NASTY = (0.0, 1.0, -1e-38, 3e38, -3e38, 1e30, 1e19, math.inf, -math.inf, math.nan, 1e-45)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDE, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(WIDE, 33), nn.Tanh(), nn.Linear(33, 3)),
    "module": lambda: nn.Sequential(
        nn.Linear(WIDE, 30), nn.LayerNorm(30), nn.GELU(), nn.Linear(30, 3)
    ),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, WIDE)),
        nn.Conv1d(1, 4, 9, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(100, 3),
    ),
}


@pytest.mark.parametrize("trust", ["shares", "trusted"])
@pytest.mark.parametrize("name", MODELS)
def test_one_record_moves_a_sum_by_what_it_is_charged(
    name: str, trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nasty values, the same coins of all others, up to the integers that noise is added to.

    A record is in a batch, is there without a contribution, or is not there: any two of these sums
    are neighbours in the proof. That it is zero or missing must not show in what others contribute.
    """
    draw, worst = np.random.default_rng(4), 0.0
    told: dict[str, object] = {"trusted": True, "secure_sum": False} if trust == "trusted" else {}
    torch.manual_seed(11)
    module = MODELS[name]()
    for trial in range(3):
        inputs = draw.normal(size=(2 * 150, WIDE)).astype(np.float32)
        odd = draw.random(inputs.shape) < 0.002
        inputs[odd] = draw.choice(NASTY, odd.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            inputs[draw.random(len(inputs)) < 0.2] *= 1e15  # whose roundings are other classes
        targets = draw.integers(0, 3, len(inputs))
        target = int(draw.integers(150))
        inputs[target] = draw.normal(size=WIDE)
        sums = []
        for zeroed, there in ((False, True), (True, True), (False, False)):
            rows = inputs.copy()
            if zeroed:
                rows[target] = np.nan
            federation = fv.Federation.from_arrays(
                rows, targets, np.repeat([0, 1], 150), classes=3, test_fraction=0.0
            )
            plan = planned(federation, rate=0.5, batch=75, module=module, **told)
            assert plan.guarantee is not None
            assert plan.guarantee.certified
            monkeypatch.setattr(batches, "_poisson_batches", with_coin(target, there))
            job, at = job_of(plan, Randomness(100 + trial)), plan.noise.at()  # type: ignore[union-attr]
            assert job.isolated
            request = RoundRequest(plan.start, np.array([0, 1]), 0, at.pipeline)
            sums.append(np.asarray(sum_of(build_engine(job), request).total, np.float64) * at.grid)
        full, nothing, absent = sums
        allowed = charged(plan)
        slack = allowed - 0.5 / 75  # rate times clip over batch
        assert np.linalg.norm(nothing - absent) <= slack
        moved = float(np.linalg.norm(full - absent))
        assert max(moved, float(np.linalg.norm(full - nothing))) <= allowed
        worst = max(worst, moved / allowed)
    assert worst > 0.5  # the bound is not far away


def with_coin(target: int, there: bool) -> Callable[..., batches.Batches]:
    """Draw batches in which one record of the first client is for sure, or is not."""

    def drawn(clients: Ints, sizes: Ints, rule: fv.LocalTraining, *others: Any) -> batches.Batches:
        found = DRAWN(clients, sizes, rule, *others)
        own = found.positions[0, 0][found.mask[0, 0]]
        if 0 not in clients + others[1]._first:
            return found
        own = np.union1d(own, [target]) if there else np.setdiff1d(own, [target])
        mask = (np.arange(max(1, len(own))) < len(own))[None, None]
        positions = np.zeros(mask.shape, np.int64)
        positions[0, 0, : len(own)] = own
        return replace(found, positions=positions, mask=mask)

    return drawn


DRAWN = batches._poisson_batches


def charged(plan: fv.Plan) -> float:
    """What one record may move the sum of updates by, from the mechanism that is accounted."""
    mechanism = plan.noise.mechanism().mechanisms[0]  # type: ignore[union-attr, attr-defined]
    if isinstance(mechanism, fv.Gaussian):
        return plan.noise._scale(0) / mechanism.noise_multiplier  # type: ignore[union-attr, attr-defined, no-any-return]
    return mechanism.grid_sensitivity()[0] * mechanism.granularity  # type: ignore[no-any-return]


def test_empty_batches_are_rounds_like_any_other() -> None:
    for seed in (1, None):
        plan = planned(sites(2, 5), rate=1e-9, batch=1, rounds=3, noise=0.5, seed=seed)
        weights = [plan.start]
        run = fv.Run(plan)
        for _ in run:
            weights.append(run.state.weights)
        assert len(weights) == 4
        assert all(not torch.equal(before, after) for before, after in pairwise(weights))
        assert all(bool(torch.isfinite(one).all()) for one in weights)


def recipe(**training: object) -> fv.Recipe:
    told = {"method": "dp-sgd", "sampling": "everyone", "rounds": 3, **training}
    table = {
        "data": {"source": "digits", "clients": 3},
        "training": told,
        "privacy": {"epsilon": 4.0, "clip_norm": 1.0},
        "seed": 1,
    }
    return with_defaults(parse(table))


def test_a_recipe_decides_what_it_leaves_open() -> None:
    federation = federation_of(recipe().data)
    records = len(federation.train)

    def local(**training: object) -> fv.LocalTraining:
        return plan_of(recipe(**training), federation).method.local

    by_size = local(batch_size=32)
    assert by_size.batch_rate == pytest.approx(32 * 3 / records)
    by_rate = local(batch_rate=0.1)
    assert by_rate.batch_size == round(0.1 * records / 3)
    assert local(batch_size=32, batches="shuffled").batch_rate is None
    assert local().batch_rate is None  # all records of a site in every step
    assert local(batch_size=32, batch_rate=0.5).batch_rate == 0.5
    both = recipe(batch_size=32, batch_rate=0.5)
    both = replace(both, privacy=replace(both.privacy, trust="central", adjacency="replace"))
    assert plan_of(both, federation).method.local.batch_rate == 0.5


@pytest.mark.parametrize(
    ("training", "key"),
    [
        ({"batches": "poisson"}, "training.batches"),
        ({"batches": "secret"}, "training.batches"),
        ({"batch_rate": 1.5, "batch_size": 4}, "training.batch_rate"),
        ({"batch_rate": 0.0, "batch_size": 4}, "training.batch_rate"),
        ({"batches": "shuffled", "batch_rate": 0.1}, "training.batch_rate"),
        ({"method": "dp-fedavg", "local_steps": 1, "batch_rate": 0.1}, "training.batch"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(training: dict[str, object], key: str) -> None:
    federation = federation_of(recipe().data)
    with pytest.raises(ConfigError, match=key):
        plan_of(recipe(**training), federation)


TRUSTED: dict[str, object] = {"trusted": True, "secure_sum": False}


@pytest.mark.parametrize(
    "settings",
    [
        {"adjacency": fv.Adjacency.REPLACE},
        {"adjacency": fv.Adjacency.ADD_REMOVE},
        # One record more takes another one's place in a shuffled batch.
        {"adjacency": fv.Adjacency.ADD_REMOVE, "rate": None, **TRUSTED},
        {"steps": 2, **TRUSTED},  # the noise would not cover what follows the first step
    ],
    ids=str,
)
def test_what_has_no_proof_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PrivacyRefusal):
        planned(sites(3, 20), **settings)


def test_a_trusted_server_may_hide_a_replaced_record() -> None:
    plans = [
        planned(sites(3, 500), rate=0.05, rounds=50, noise=1.5, adjacency=change, **TRUSTED)
        for change in (fv.Adjacency.ZERO_OUT, fv.Adjacency.REPLACE)
    ]
    zeroed, replaced = (plan.guarantee.epsilon for plan in plans if plan.guarantee is not None)
    assert zeroed < replaced < poisson_epsilon(0.05, 0.75, 50) * 1.2


class Uneven:
    """A kernel that rounds otherwise from the sixth place on, as vector instructions may."""

    def __call__(
        self, weights: torch.Tensor, batch: Any, clip: Any, denominator: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = batch[0]
        counts = torch.ones(inputs.shape[:2]) if batch[2] is None else batch[2]
        worth = torch.where(torch.arange(inputs.shape[1]) < 5, 1.0, 1.0 + 2.0**-20)
        total = (counts * worth * inputs.sum(dim=2)).sum(dim=1)
        return total[:, None].expand_as(weights) / denominator, torch.zeros(len(inputs))


def test_a_kernel_that_tells_places_apart_gets_smaller_pieces() -> None:
    plan = planned(sites(2, 50), rate=0.5, batch=25)
    job = job_of(plan, Randomness(1))
    clip, weights = job.rule.gradient_clip, plan.start[None]
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(1, 9, 3, generator=draw)
    order = torch.tensor([8, 3, 0, 5, 1, 2, 7, 6, 4])
    targets = torch.zeros(1, 9, dtype=torch.int64)
    found = {}
    for name, gradients in (
        ("plain", Uneven()),
        ("in pieces", in_pieces(job, Uneven(), autograd=False)),
    ):
        found[name] = [
            gradients(weights, (inputs[:, rows], targets, None), clip, 1.0)[0].double()
            for rows in (torch.arange(9), order)
        ]
    one, other = found["in pieces"]
    torch.testing.assert_close(one, other, atol=0, rtol=1e-7)
    assert not torch.allclose(*found["plain"], atol=0, rtol=1e-7)


def seen_epsilon(rate: float, noise: float, rounds: int) -> float:
    """What a record costs if its client's presence shows, and only that of the record is hidden.

    The client's other records add so much that everybody knows in which rounds it came, k of them
    with a binomial law; there the record has a Gaussian of its own each time.
    """

    def delta(epsilon: float) -> float:
        counts = np.arange(1, rounds + 1)
        mu = np.sqrt(counts) / noise
        each = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(binom.pmf(counts, rounds, rate) @ each)

    return float(brentq(lambda epsilon: delta(epsilon) - DELTA, 1e-3, 200))


@pytest.mark.parametrize(
    "cohort",
    [
        fv.CohortRule(fv.Scheme.POISSON, rate=0.05),
        fv.CohortRule(fv.Scheme.FIXED, size=5),
        fv.CohortRule(fv.Scheme.CAPPED, rate=0.05, cap=20),
    ],
    ids=lambda rule: str(rule.scheme),
)
def test_a_secret_cohort_of_clients_hides_no_record(cohort: fv.CohortRule) -> None:
    settings: dict[str, Any] = {"rate": None, "batch": 4, "rounds": 200, "noise": 1.1}
    made = planned(sites(100, 4), cohort=cohort, **settings, **TRUSTED).guarantee
    assert made is not None
    assert made.epsilon >= seen_epsilon(0.05, 1.1, 200)


def replace_rate(plan: fv.Plan) -> fv.Guarantee:
    """The guarantee of the same plan with shuffled batches."""
    local = replace(plan.method.local, batch_rate=None)
    method = replace(plan.method, local=local)
    budget = fv.Budget(noise_multiplier=plan.noise_multiplier, delta=DELTA)
    made = fv.plan(method, plan.federation, nn.Linear(3, 2), budget=budget).guarantee
    assert made is not None
    return made


def test_another_record_changes_nobody_elses_coin() -> None:
    rule = fv.LocalTraining(fv.LearningRate(1), steps=1, batch_size=9, batch_rate=0.3)

    def batch(sizes: list[int], clients: list[int]) -> list[set[int]]:
        drawn = draw_batches(np.array(clients), np.array(sizes), rule, 2, Randomness(1))
        positions, mask = drawn.at(0)
        return [set(p[m].tolist()) for p, m in zip(positions, mask, strict=True)]

    first, second = batch([50, 60], [0, 1])
    assert batch([60], [1]) == [second]
    longer = batch([51, 60], [0, 1])
    assert longer[1] == second
    assert longer[0] - {50} == first


def test_a_protected_run_ends_where_the_simulation_does() -> None:
    """Without noise to speak of and with all records, batches are no secret, and steps agree."""
    federation, ends, module = sites(2, 60), [], nn.Linear(3, 2)
    told = {"rate": 1.0, "batch": 60, "rounds": 4, "noise": 1e-4}
    for seed in (1, None):
        plan = planned(federation, seed=seed, module=module, **told)
        run = fv.Run(plan)
        for _ in run:
            pass
        ends.append(run.state.weights)
    torch.testing.assert_close(*ends, atol=2e-3, rtol=0)


@pytest.mark.parametrize("adjacency", [fv.Adjacency.REPLACE, fv.Adjacency.ADD_REMOVE])
def test_shares_have_no_proof_for_other_changes(adjacency: fv.Adjacency) -> None:
    with pytest.raises(PrivacyRefusal):
        planned(sites(3, 20), adjacency=adjacency)


def test_a_trusted_server_does_not_hide_that_a_record_is_there() -> None:
    """One record more takes another one's place in a shuffled batch."""
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=1, batch_size=4)
    method = fv.dp_sgd(
        rounds=2,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=local,
        clip_norm=1.0,
        trusted=True,
        secure_sum=False,
        adjacency=fv.Adjacency.ADD_REMOVE,
    )
    budget = fv.Budget(noise_multiplier=1.1, delta=DELTA)
    with pytest.raises(PrivacyRefusal):
        fv.plan(method, sites(3, 10), nn.Linear(3, 2), budget=budget)


@pytest.mark.parametrize("seed", [1, None])
def test_a_round_to_which_nobody_comes_asks_the_engine_and_has_noise(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=1)
    cohort = fv.CohortRule(rate=1e-9)
    method = fv.dp_fedavg(rounds=2, cohort=cohort, local=local, clip=fv.Clip(1.0))
    budget = fv.Budget(noise_multiplier=2.0, delta=DELTA)
    run = fv.Run(fv.plan(method, sites(20, 2), nn.Linear(3, 2), budget=budget, seed=seed))
    asked, real = [], run.engine.updates
    monkeypatch.setattr(run.engine, "updates", lambda part: asked.append(part) or real(part))
    weights = [run.state.weights]
    for _ in run:
        weights.append(run.state.weights)
    assert [len(part.cohort) for part in asked] == [0, 0]
    assert all(not torch.equal(before, after) for before, after in pairwise(weights))
