"""Clients with secret coins: who trains changes one summand and nothing else that anybody sees."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from tests.methods.reference import federation

import fedveil as fv
from fedveil.core.arrays import Ints
from fedveil.core.randomness import Randomness
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import parse, with_defaults
from fedveil.privacy.sampling import SecretPoisson
from fedveil.privacy.secure_sums.aggregation import COUNT, UPDATE
from fedveil.run.aggregator import _InTheOpen
from fedveil.run.guarantees import recipe_of

masked = pytest.importorskip("fedveil_federation.secagg.masked")

ALARM = 1e-9  # how often each statistical test below fails for nothing, at most
METHODS = ("dp-fedavg", "ddgauss", "bounded-sparse")
Coin = Callable[[int, int], bool]


def planned(data: fv.Federation | None = None, seed: int | None = 5, **changed: Any) -> fv.Plan:
    """A plan with secret coins; keys with double underscores for dots."""
    values: dict[str, Any] = {
        "training.method": "dp-fedavg",
        "training.sampling": "secret-poisson",
        "training.rate": 0.4,
        "training.rounds": 2,
        "training.local_steps": 2,
        "training.learning_rate": 3.0,
        "model.name": "logistic",
        "privacy.trust": "distributed",
        "privacy.noise_multiplier": 0.5,
        "privacy.clip_norm": 1.0,
        "privacy.delta": 1e-5,
        "aggregation.secure": "masked",
        "seed": seed,
    }
    values |= {name.replace("__", "."): value for name, value in changed.items()}
    if values["training.method"] == "ddgauss":
        values["privacy.trust"] = None  # its own
    kept = {name: value for name, value in values.items() if value is not None}
    return plan_of(with_defaults(parse({}, values=kept)), data or federation())


@contextmanager
def coins(coin: Coin) -> Iterator[None]:
    """Fix what the coin of each round and client says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecretPoisson, "coin", lambda self, _, number, client: coin(number, client))
        yield


class Watched:
    """A run of a masked plan, with what every client has sent: (round, purpose, client)."""

    def __init__(self, plan: fv.Plan) -> None:
        self.rows: dict[tuple[int, str, int], Ints] = {}
        self.sent: dict[tuple[int, str, int], Ints] = {}
        self.shares: dict[tuple[int, str, int], Ints] = {}
        real = fv.RoundNoise.upload

        def upload(at: fv.RoundNoise, client: int, row: Ints) -> Ints:
            key = at.round_number, at.purpose, client
            assert key not in self.rows
            self.rows[key], self.sent[key] = row.copy(), real(at, client, row)
            self.shares[key] = at.integers.grid.centre(self.sent[key] - row)
            return self.sent[key]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fv.RoundNoise, "upload", upload)
            self.run = fv.Run(plan)
            self.reports = list(self.run)


# Each law is checked on the honest program, and must notice the faults planted below.


def each_client_has_a_coin_of_its_own() -> None:
    rate, rounds, clients = 0.3, 1500, 4
    sampling, randomness = SecretPoisson(rate, clients), Randomness(7)
    tossed = np.array(
        [[sampling.coin(randomness, t, i) for i in range(clients)] for t in range(rounds)]
    )
    low, high = binom.interval(1 - ALARM / clients, rounds, rate)
    assert (low <= tossed.sum(0)).all()
    assert (tossed.sum(0) <= high).all()
    pairs = [(i, j) for i in range(clients) for j in range(i)]
    low, high = binom.interval(1 - ALARM / len(pairs), rounds, rate**2)
    for i, j in pairs:
        assert low <= (tossed[:, i] & tossed[:, j]).sum() <= high
    low, high = binom.interval(1 - ALARM, (rounds - 1) * clients, rate**2)
    # From one round to the next they are tossed anew; neighbours overlap, so twice the room.
    both = (tossed[1:] & tossed[:-1]).sum()
    assert low - (high - low) <= both <= high + (high - low)


def everybody_sends_a_share_that_does_not_depend_on_the_coin() -> None:
    with coins(lambda number, client: client in (1, 4)):
        some = Watched(planned())
    with coins(lambda number, client: client in (1, 2, 4)):
        more = Watched(planned())
    everybody = {(number, UPDATE, client) for number in range(2) for client in range(6)}
    assert set(some.rows) == set(more.rows) == everybody
    for at in everybody:
        assert np.array_equal(some.shares[at], more.shares[at])
        assert np.count_nonzero(some.shares[at]) > len(some.shares[at]) / 2
        assert bool(some.rows[at].any()) == (at[2] in (1, 4))
    for client in range(6):  # in the first round: from then on the weights differ
        first = 0, UPDATE, client
        assert np.array_equal(some.rows[first], more.rows[first]) == (client != 2)


def masked_and_ideal_sums_release_the_same() -> None:
    ways = [fv.Run(planned(aggregation__secure=mode)) for mode in ("masked", "ideal")]
    for run in ways:
        run.finish()
    assert torch.equal(ways[0].state.weights, ways[1].state.weights)
    assert not torch.equal(ways[0].state.weights, ways[0].plan.start)


LAWS = (
    each_client_has_a_coin_of_its_own,
    everybody_sends_a_share_that_does_not_depend_on_the_coin,
    masked_and_ideal_sums_release_the_same,
)


@pytest.mark.parametrize("law", LAWS)
def test_law(law):
    law()


def _shared_coin(patch: pytest.MonkeyPatch) -> None:
    real = SecretPoisson.coin
    patch.setattr(SecretPoisson, "coin", lambda self, of, t, i: real(self, of, t, i // 2))


def _one_coin_for_all_rounds(patch: pytest.MonkeyPatch) -> None:
    real = SecretPoisson.coin
    patch.setattr(SecretPoisson, "coin", lambda self, of, t, i: real(self, of, 0, i))


def _silent(patch: pytest.MonkeyPatch) -> None:
    def add_nothing(self: Any, places: Ints) -> None:
        for client in self.clients[places]:
            self._begun.add(int(client), np.zeros(self._summands.width, np.int64))

    patch.setattr(masked._Masked, "add_nothing", add_nothing)


def _no_share_in_the_open(patch: pytest.MonkeyPatch) -> None:
    def add_nothing(self: Any, places: Ints) -> None:
        self.clients = np.delete(self.clients, places)

    patch.setattr(_InTheOpen, "add_nothing", add_nothing)


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (_shared_coin, LAWS[0]),
        (_one_coin_for_all_rounds, LAWS[0]),
        (_silent, LAWS[1]),
        (_silent, LAWS[2]),
        (_no_share_in_the_open, LAWS[2]),
    ],
)
def test_planted_faults_are_noticed(fault, law, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        law()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_divisor_is_public_whatever_the_coins_say(method, dropout):
    """Recomputed from what was sent: all of it, over the rate times all who sent."""
    data = federation(sizes=(4,) * 12)
    ways = {"training__method": method, "training__rounds": 1, "aggregation__dropout": dropout}
    for trained in ((), (0,), range(12)):
        with coins(lambda number, client, who=tuple(trained): client in who):
            seen = Watched(planned(data, **ways))
        plan = seen.run.plan
        sum_of = plan.private_noise.at()
        total = np.sum(list(seen.sent.values()), axis=0)
        average = sum_of.decode(sum_of.integers.grid.centre(total)) / (0.4 * len(seen.sent))
        moved = seen.run.state.weights - plan.start
        assert torch.allclose(moved, average, rtol=1e-4, atol=1e-6)
        assert seen.reports[0].dropouts.survivors == len(seen.sent)


def test_a_tracked_clips_count_rests_on_the_updates_coin_and_is_one_event_with_it():
    tracked = {"privacy__clip_quantile": 0.5, "privacy__clip_noise": 0.5}
    with coins(lambda number, client: client == 1):
        seen = Watched(planned(**tracked))
    for (_, purpose, client), row in seen.rows.items():
        assert bool(row.any()) == (client == 1), purpose
    assert {purpose for _, purpose, _ in seen.rows} == {UPDATE, COUNT}
    (release,) = seen.run.plan.releases(2)
    assert isinstance(release.mechanism, fv.PoissonSampled)
    assert len(release.mechanism.mechanisms) == 2
    apart = [
        fv.Release(fv.PoissonSampled(0.4, one), release.sampling, 2)
        for one in release.mechanism.mechanisms
    ]
    assert seen.run.plan.privacy_model is not None
    wrong = fv.account(apart, privacy_model=seen.run.plan.privacy_model, delta=1e-5)
    assert seen.run.plan.guarantee.epsilon > wrong.epsilon


def test_what_a_protected_run_shows_does_not_tell_who_trained():
    """Nothing but what follows from the released weights depends on the coins."""
    shown = []
    for trained in ((), (2,), range(6)):
        with coins(lambda number, client, who=tuple(trained): client in who):
            run = fv.Run(planned(seed=None, evaluation__every=1))
            shown.append([report_of(one) for one in run])
            assert set(run.seconds) == {"enrol", "share", "mask", "add", "confirm", "unmask"}
        assert run.guarantee.certified
    assert shown[0] == shown[1] == shown[2]
    assert all("unprotected_stats" not in line and "seconds" not in line for line in shown[0])


def report_of(report: fv.RoundReport) -> dict[str, Any]:
    """A line of metrics.jsonl without what is computed from the released weights."""
    line = json.loads(json.dumps(report.to_dict()))
    return {key: value for key, value in line.items() if key not in ("loss", "accuracy")}


@pytest.mark.parametrize("method", METHODS)
def test_golden(method):
    """q = 0.01, z = 1.1, T = 1000: 1.515 by PLD, 1.725 by RDP, 534.9 without credit."""
    data = federation(sizes=(1,) * 100)
    ways = {"training__method": method, "training__rounds": 1000, "training__rate": 0.01}
    found = planned(data, seed=None, privacy__noise_multiplier=1.1, **ways).guarantee
    assert found.certified
    assert (found.trust, found.adjacency) == (fv.Trust.DISTRIBUTED, fv.Adjacency.ZERO_OUT)
    assert 1.725 - 1e-3 <= found.epsilon <= 1.725 * 1.03  # rounding on the grid, if any
    if method != "ddgauss":  # whose shares are integers always
        ideal = {"privacy__arithmetic": "idealised", "aggregation__secure": "ideal"}
        smooth = planned(data, privacy__noise_multiplier=1.1, **ways, **ideal).guarantee
        assert smooth.epsilon == pytest.approx(1.515, abs=2e-3)
        assert not smooth.certified
    ways |= {"training__sampling": "everyone", "training__rate": None}
    bare = planned(data, seed=None, privacy__noise_multiplier=1.1, **ways).guarantee
    assert bare.epsilon > 534


def test_continuous_shares_of_everybody_add_up_to_the_same_noise():
    """Also where trials draw all of them at once; those who do not train add theirs."""
    ideal = {"privacy__arithmetic": "idealised", "aggregation__secure": "ideal"}
    data = federation(classes=100, sizes=(1,) * 20)
    plan = planned(data, privacy__noise_multiplier=2.0, training__rounds=1, **ideal)
    nothing, everybody = torch.zeros(plan.layout.size), np.arange(20)
    for noise in (
        plan.private_noise,
        replace(plan.private_noise, one_draw=True).fit(plan.private_noise.facts),
    ):
        at = replace(noise.at(), cohort=everybody, randomness=Randomness(8))
        spread = float(noise.protect(at, nothing).std()) / 2.0
        assert spread == pytest.approx(1, abs=6 / math.sqrt(2 * plan.layout.size))  # 6 sigma
    with coins(lambda number, client: False):
        run = fv.Run(plan)
        run.finish()
    moved = float((run.state.weights - plan.start).std())
    assert moved * 0.4 * 20 / 2.0 == pytest.approx(1, abs=6 / math.sqrt(2 * plan.layout.size))


def test_chengs_algorithm_is_certified_as_printed_towards_the_server_as_well():
    recipe = recipe_of(Path("bounded-sparse-shares"), [])
    plan = plan_of(recipe, federation_of(recipe.data))
    found = plan.guarantee
    assert found.certified
    assert found.trust is fv.Trust.DISTRIBUTED
    assert 7.9 < found.epsilon <= 8
    # The noise that a trusted server would add to the cohorts that it draws itself, or nearly.
    central = recipe_of(Path("bounded-sparse"), [])
    trusted = plan_of(central, federation_of(central.data)).noise_multiplier
    assert 1 <= plan.noise_multiplier / trusted < 1.1


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"privacy__trust": "central", "aggregation__secure": None}, fv.PrivacyRefusal),
        ({"privacy__trust": "local", "aggregation__secure": None}, fv.PrivacyRefusal),
        ({"privacy__adjacency": "replace"}, fv.PrivacyRefusal),
        ({"privacy__public_clients": 9}, fv.ConfigError),
        ({"training__rate": 1.5}, fv.ConfigError),
        ({"training__method": "gradient-noise", "training__batch_size": 2}, fv.PrivacyRefusal),
        ({"aggregation__secure": "none", "seed": None}, fv.PrivacyRefusal),
    ],
)
def test_what_has_no_proof_is_refused(changed, kind):
    with pytest.raises(kind):
        planned(**{"seed": 1} | changed)


def test_a_hub_cannot_tell_coins_better_than_the_noise_of_all_allows():
    """It knows everything but one client's coin and the shares: the best test on the masked sum.

    Its advantage is that of a Gaussian of multiplier z, by the shares of all who upload, and not
    that of the shares of those who train.
    """
    clients, games, z = 6, 4000, 0.8
    plan = planned(privacy__noise_multiplier=z, training__rounds=1)
    at = plan.private_noise.at()
    row = np.zeros(games, np.int64)
    loud = int(1.0 / at.integers.grid.granularity)  # the whole clip on one coordinate
    coin = np.random.default_rng(1).random(games) < 0.5
    row[coin] = loud
    total = np.zeros(games, np.int64)
    for client in range(clients):
        mine = row if client == 0 else np.zeros(games, np.int64)
        total += at.integers.noisy(mine, Randomness(2).stream("noise", 0, client))
    guess = at.integers.grid.centre(total) > loud / 2
    right = math.erf(1 / (2 * z) / math.sqrt(2)) / 2 + 0.5
    low, high = binom.interval(1 - ALARM, games, right)
    assert low <= (guess == coin).sum() <= high
