"""Statistics that are bought: what they find, what they cost, and what one unit can do to them."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from pyarrow import parquet
from scipy.special import log_ndtr

import fedveil as fv
from fedveil.cli import main
from fedveil.core.units import Adjacency, Entropy, Trust, Unit
from fedveil.data import dp_schema, statistics
from fedveil.data.dp_schema import Offer, affordable, buy
from fedveil.data.schema import Column, Kind
from fedveil.data.statistics import (
    BINS,
    GRID,
    ROW,
    Range,
    Voters,
    coarse_codes,
    range_of,
    spread_votes,
    threshold,
)
from fedveil.privacy.accounting import account
from fedveil.privacy.mechanisms import NoisySelection, NoisyVotes
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import Everyone
from fedveil.privacy.translation import step_of

NASTY = ("inf", "-inf", "nan", "1e999", "-1e999", "-0", "3e38", "1e-38", "0", "1,5", "1.234,5")
NASTY += (
    "2020-01-31",
    "2020-13-45",
    "1850-01-01",
    "true",
    "x" * 300,
    "é",
    "7.0",
    "07",
    "NULL ",
    " ",
)


def cells(draw: np.random.Generator, rows: int) -> list[str | None]:
    """Numbers, text, dates and gaps, and now and then something nasty."""
    kinds = draw.integers(0, 5, rows)
    found: list[str | None] = []
    for kind in kinds:
        if kind == 0:
            found.append(f"{draw.normal() * 10.0 ** draw.integers(-8, 14):.6g}")
        elif kind == 1:
            found.append(f"word{draw.integers(6)}")
        elif kind == 2:
            found.append(f"{draw.integers(1880, 2120)}-0{draw.integers(1, 10)}-11")
        elif kind == 3:
            found.append(None)
        else:
            found.append(str(draw.choice(NASTY)))
    return found


class World:
    """One world without noise: what enters it, what was drawn, and what it is accounted as.

    The proof couples two worlds by the same noisy values, so the second one sees the ranges that
    the first one found.
    """

    def __init__(self, table: dict[str, Any], clients: Any, offer: Offer, first: World | None):
        self.stds: list[float] = []
        self.ranges: list[Range] = []
        self.sums: list[Any] = []
        self._first, self._offer, seen = first, offer, []
        votes = Voters.votes
        self._whole = ROW if offer.unit is Unit.RECORD else GRID

        def noted(voters: Voters, codes: Any, bins: int) -> Any:
            found = votes(voters, codes, bins)
            seen.append(found / voters.whole)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dp_schema, "protect_sum", self._central)
            patch.setattr(dp_schema, "discrete_gaussian", self._share)
            patch.setattr(statistics, "range_of", self._range)
            patch.setattr(Voters, "votes", noted)
            self.paid = buy(table, "c0", clients, offer, ".").bought
        width = len(table)
        self.sums = [np.concatenate(seen[:width]), np.concatenate(seen[width:])]

    def _central(self, total: Any, std: float, grid: float, stream: object) -> Any:
        self.stds.append(std)
        return total

    def _share(self, stream: object, count: int, std: float) -> Any:
        self.stds.append(std * math.sqrt(self._offer.shares) / self._whole)
        return np.zeros(count, np.int64)

    def _range(self, votes: Any, std: float, units: float) -> Range:
        self.ranges.append(range_of(votes, 0.0, units))
        return self.ranges[-1] if self._first is None else self._first.ranges[len(self.ranges) - 1]


OFFERED = [
    (unit, trust)
    for unit in (Unit.CLIENT, Unit.PERSON, Unit.RECORD)
    for trust in (Trust.CENTRAL, Trust.DISTRIBUTED)
]


@pytest.mark.parametrize(("unit", "trust"), OFFERED)
@pytest.mark.parametrize("seed", range(8))
def test_one_unit_moves_the_votes_by_no_more_than_was_accounted(
    unit: Unit, trust: Trust, seed: int
) -> None:
    """The program against its own claim: a replaced record, person or client moves what enters the
    noise by at most the sensitivity that each release is charged with."""
    draw = np.random.default_rng(seed)
    rows, width = int(draw.integers(2, 60)), int(draw.integers(1, 6))
    clients = np.unique(np.sort(draw.integers(0, 5, rows)), return_inverse=True)[1]
    by_row = unit is Unit.RECORD
    offer = Offer(unit, trust, 7.0, 1e-6, int(clients.max()) + 1, 1)
    one = {f"c{i}": cells(draw, rows) for i in range(width)}
    two = {name: list(values) for name, values in one.items()}
    changed = [int(draw.integers(rows))] if by_row else np.flatnonzero(clients == clients[0])
    for values in two.values():
        for row in changed:
            values[row] = cells(draw, 1)[0]
    first, second = None, None
    for values in (one, two):
        table = {name: pa.chunked_array([column], pa.string()) for name, column in values.items()}
        first, second = second, World(table, clients, offer, second)
    assert first is not None
    assert second is not None
    most = 1 if unit is Unit.PERSON else None
    model = PrivacyModel(unit, Adjacency.REPLACE, offer.trust, contributions=most)
    assert first.paid.releases[:2] == second.paid.releases[:2]
    for place, release in enumerate(first.paid.releases[:2]):
        moved = float(np.linalg.norm(first.sums[place] - second.sums[place]))
        step: Any = step_of(release, model)
        in_shares = trust is Trust.DISTRIBUTED
        allowed = step.l2 / step.share_std / math.sqrt(step.shares) if in_shares else 1 / step.noise
        assert first.stds[0] == second.stds[0]
        assert moved / first.stds[0] <= allowed * (1 + 1e-12)


@pytest.mark.parametrize("failure", [1e-4, 1e-7, 1e-12, 1e-15, 1e-18])
@pytest.mark.parametrize("std", [0.3, 1.0, 20.0])
def test_a_value_of_one_unit_alone_is_published_with_the_stated_probability(
    failure: float, std: float
) -> None:
    """Exactly: t values of weight 1 / sqrt(t), each with its own noise, for every t."""
    bound = threshold(20, std, failure)
    chances = [
        -math.expm1(t * float(log_ndtr((bound - 1 / math.sqrt(t)) / std))) for t in range(1, 21)
    ]
    assert max(chances) == pytest.approx(failure, rel=1e-3, abs=0)  # and no more noise than needed
    assert threshold(1, 1.0, 0.5) == pytest.approx(1.0)


def test_every_unit_spreads_a_vote_of_length_one() -> None:
    """A client with t values gives each 1 / sqrt(t), and names its 20 most frequent alone."""
    values = [f"v{i}" for i in range(25)] + ["v3"] * 3 + ["a", "b", "a"]
    clients = np.array([0] * 28 + [1] * 3)
    names, votes = spread_votes(pa.chunked_array([values]), Voters(clients), 20)
    found = dict(zip(names, votes / GRID, strict=True))
    assert found["a"] == pytest.approx(1 / math.sqrt(2), abs=1e-5)
    assert found["v3"] == pytest.approx(1 / math.sqrt(20), abs=1e-5)
    own = [found[name] for name in found if name.startswith("v")]
    assert sum(value > 0 for value in own) == 20
    assert sum(value**2 for value in own) <= 1
    assert spread_votes(pa.chunked_array([values]), Voters(None), 20)[1].max() == 4 * GRID


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
def test_a_cell_with_many_classes_is_still_one_vote(unit: Unit) -> None:
    """One row or client more moves all votes by a length of one at most, however many classes its
    cells name, and however often."""
    draw = np.random.default_rng(3)
    for _ in range(40):
        cells = [
            ";".join(f"t{i}" for i in draw.integers(0, 60, draw.integers(0, 50))) for _ in range(12)
        ]
        clients = draw.integers(0, 4, 12)
        last = clients == clients[-1] if unit is Unit.CLIENT else np.arange(12) == 11
        worlds = []
        for kept in (np.ones(12, bool), ~last):
            own = [cell for cell, keep in zip(cells, kept, strict=True) if keep]
            voters = Voters(clients[kept] if unit is Unit.CLIENT else None)
            names, votes = spread_votes(pa.chunked_array([own], pa.string()), voters, 20, ";")
            worlds.append(Counter(dict(zip(names, (votes / GRID).tolist(), strict=True))))
        moved = [worlds[0][name] - worlds[1][name] for name in {*worlds[0], *worlds[1]}]
        assert math.sqrt(sum(one**2 for one in moved)) <= 1
        assert min(moved, default=0) >= 0
        assert sum(one > 0 for one in moved) <= 20


def test_votes_of_many_clients_are_those_of_each_alone() -> None:
    draw = np.random.default_rng(0)
    clients, codes = draw.integers(0, 40, 900), draw.integers(0, 9, 900)
    words = [f"w{code}" if code else None for code in codes]
    names, votes = spread_votes(pa.chunked_array([words]), Voters(clients), 3)
    expected = Counter()
    for client in range(40):
        own = Counter(word for word, one in zip(words, clients, strict=True) if one == client)
        own.pop(None, None)
        top = sorted(own, key=lambda word: (-own[word], word))[:3]
        expected.update(dict.fromkeys(top, math.floor(GRID / math.sqrt(len(top)))))
    assert dict(zip(names, votes.tolist(), strict=True)) == {n: expected[n] for n in names}


@pytest.mark.parametrize("factor", [1, 2])
def test_selection_costs_its_gaussian_and_its_failure(factor: int) -> None:
    """Closed form: epsilon of all Gaussians together at what is left of delta."""
    adjacency = Adjacency.REPLACE if factor == 2 else Adjacency.ZERO_OUT
    model = PrivacyModel(Unit.CLIENT, adjacency, Trust.CENTRAL)
    votes, picked = NoisyVotes(5.0), NoisySelection(4.0, 2e-6)
    releases = [Release(votes, Everyone(), 1), Release(picked, Everyone(), 1)]
    found = account(releases, privacy_model=model, delta=1e-5)
    mu = math.sqrt(factor * (1 / 25 + 1 / 16))
    assert found.epsilon == pytest.approx(get_epsilon_gaussian(1 / mu, 8e-6), rel=1e-9)
    spent = account(releases, privacy_model=model, delta=2e-6)
    assert math.isinf(spent.epsilon)


def big(rows: int, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    income = np.exp(draw.normal(10.5, 0.7, rows))
    day = np.datetime64("2015-01-01") + draw.integers(0, 900, rows)
    table: dict[str, list[str]] = {
        "income": [f"{value:.2f}" for value in income],
        "year": [str(value) for value in draw.integers(1960, 2005, rows)],
        "when": [str(value) for value in day],
        "job": [f"job{value}" for value in draw.integers(0, 12, rows)],
        "gap": [str(v) if v > 1 else "" for v in draw.integers(0, 9, rows)],
        "empty": [""] * rows,
        "ill": [("no", "yes")[value] for value in draw.integers(0, 2, rows)],
    }
    return {n: pa.chunked_array([[v or None for v in w]], pa.string()) for n, w in table.items()}


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
def test_what_is_bought_is_about_right(unit: Unit) -> None:
    """Kinds, centres within a third of a deviation, deviations of the bulk within a half."""
    table, rows = big(20_000), 20_000
    clients = np.arange(rows) % 5000
    trust = Trust.DISTRIBUTED if unit is Unit.RECORD else Trust.CENTRAL
    offer = Offer(unit, trust, 8.0, 1e-6, 5 if unit is Unit.RECORD else 5000, seed=3)
    found = buy(table, "ill", clients, offer, ".")
    columns, paid = found.columns, found.bought
    kinds = {name: column.kind for name, column in columns.items()}
    wanted = {"income": Kind.NUMBER, "year": Kind.NUMBER, "when": Kind.DATE, "gap": Kind.NUMBER}
    assert wanted | {"job": Kind.CATEGORY} == {n: kinds[n] for n in kinds if n != "ill"}
    assert columns["gap"].missing
    assert not columns["year"].missing
    for name in ("income", "year", "when"):
        values = table[name].to_numpy(zero_copy_only=False)
        if name == "when":
            numbers = values.astype("datetime64[D]").astype(float)
        else:
            numbers = values.astype(float)
        column = columns[name]
        assert abs(column.centre - numbers.mean()) < 0.35 * numbers.std()
        assert 0.4 < column.width / numbers.std() < 1.5
    if unit is Unit.CLIENT:
        assert columns["ill"] == Column(Kind.CATEGORY, categories=("no", "yes"))
    else:
        assert "ill" not in columns  # nobody may pick names from a secure sum
    assert paid.entropy is Entropy.SEEDED
    assert affordable(offer, 5000, len(table))
    assert not affordable(offer, 50, len(table))


SECTION = ("--client-column", "site", "--label", "ill", "--classes", "no,yes", "--quiet")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of them, with a job that one patient alone has."""
    folder = tmp_path_factory.mktemp("hospitals")
    draw, lines = np.random.default_rng(1), ["site,age,pressure,job,ill"]
    for row in range(4500):
        age, job = draw.normal(50, 15), f"job{draw.integers(5)}"
        pressure = draw.normal(120, 15) + 0.3 * (age - 50)
        ill = "yes" if (age - 50) / 15 + (pressure - 120) / 15 + draw.normal() > 0 else "no"
        lines.append(
            f"h{row % 3},{age:.0f},{pressure:.1f},{job if row != 7 else 'astronaut'},{ill}"
        )
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_run_is_certified_without_a_schema(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three hospitals, default command, classes declared: a certified epsilon that holds the
    statistics too, a good model, and nothing in its files that one patient alone has."""
    out = hospitals / "run"
    assert (
        main(["run", "--data", str(hospitals / "visits.csv"), *SECTION, "--output", str(out)]) == 0
    )
    capsys.readouterr()
    guarantee = fv.Guarantee.from_dict(json.loads((out / "guarantee.json").read_text()))
    assert guarantee.certified, guarantee.reason
    assert guarantee.unit is Unit.RECORD
    assert 3.5 < guarantee.epsilon <= 4
    assert len(guarantee.releases) == 3  # two kinds of votes beside the training
    alone = account(
        guarantee.releases[:1], privacy_model=guarantee.privacy_model, delta=guarantee.delta
    )
    assert alone.epsilon < guarantee.epsilon  # the votes were paid for
    scores = json.loads((out / "result.json").read_text())["scores"]
    assert scores["accuracy"] > scores["constant"]["accuracy"] + 0.2
    for file in out.rglob("*"):
        assert not file.is_file() or b"astronaut" not in file.read_bytes(), file
    assert main(["account", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(guarantee.epsilon)
    assert main(["run", "--resume", str(out), "--quiet"]) == 0  # nothing is bought again
    assert json.loads((out / "guarantee.json").read_text()) == guarantee.to_dict()
    capsys.readouterr()
    model = fv.load_run(out)
    frame = {"age": [80, 20], "pressure": [150.0, 90.0], "job": ["job1", "never seen"]}
    assert model.predict(frame).tolist() == ["yes", "no"]


def test_a_purchase_that_came_to_nothing_is_in_a_ledger(
    hospitals: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed or interrupted, once or twice: what it cost stands beside where the run would be, from
    before the first noise is drawn, and is accounted as the run would have accounted it."""
    table, output = str(hospitals / "visits.csv"), hospitals / "broken"
    command = ["run", "--data", table, *SECTION, "--output", str(output)]
    found: list[bool] = []

    def interrupted(*args: Any) -> Any:
        found.append((hospitals / "broken.bought" / "ledger.jsonl").exists())
        raise KeyboardInterrupt

    def failed(*args: Any, **settings: Any) -> Any:
        raise fv.ConfigError("something that depends on what was bought")

    monkeypatch.setattr(dp_schema, "summaries", interrupted)
    assert main(command) == 130
    assert found == [True]
    monkeypatch.undo()
    said = capsys.readouterr().err
    assert "interrupted" in said
    assert "failed" not in said
    original = dp_schema.summaries
    monkeypatch.setattr(dp_schema, "summaries", lambda *args: failed(original(*args)))
    assert main(command) == 2
    assert "fedveil account" in capsys.readouterr().err
    monkeypatch.undo()
    kept = sorted(path.name for path in hospitals.glob("broken*"))
    assert kept == ["broken.bought", "broken.bought-2"]
    assert main(["account", str(hospitals / "broken.bought-2"), "--json"]) == 0
    paid = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    capsys.readouterr()
    whole = json.loads((output / "guarantee.json").read_text())
    statistics_alone = [r for r in whole["releases"] if r in paid["releases"]]
    assert statistics_alone == paid["releases"]
    assert 0 < paid["epsilon"] < whole["epsilon"]
    assert sorted(path.name for path in hospitals.glob("broken*")) == ["broken", *kept]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", ["1e300", "-1e308", "1e39", "1e999"])
def test_no_label_stops_a_run_by_its_size(tmp_path: Path, odd: str) -> None:
    """Whoever sees a run end, or warn, would know that such a label is there."""
    draw = np.random.default_rng(0)
    rows = [f"c{i % 300},{draw.normal():.3f},{10 + 3 * draw.normal():.3f}" for i in range(3000)]
    rows[7] = f"c7,0.5,{odd}"
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["who,x,y", *rows]) + "\n")
    number = {"type": "number", "mean": 10, "std": 3}
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 0.5, 1e-6, 300)
    for known in ({"schema": {"columns": {"x": number, "y": number}}}, {"offer": offer}):
        found = fv.from_table(path, label="y", client_column="who", **known)
        assert len(found.train) + len(found.test) == 3000
        assert found.unprotected == ()


NASTY_COLUMNS = {
    "text": pa.array([*NASTY, "9" * 5000, "1e99999999999", "x" * 100_000, "\x00"], pa.string()),
    "float": pa.array([np.inf, -np.inf, np.nan, 1.7e308, -1.7e308, 5e-324], pa.float64()),
    "whole": pa.array([2**63 - 1, -(2**63), 0], pa.int64()),
    "unsigned": pa.array([2**64 - 1, 0], pa.uint64()),
    "moment": pa.array([2**63 - 1, -(2**63), 0], pa.int64()).view(pa.timestamp("us")),
    "not UTF-8": pa.Array.from_buffers(
        pa.string(), 2, pa.array([b"\xff\xfe", b"ok"], pa.binary()).buffers()
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", NASTY_COLUMNS)
def test_no_cell_stops_a_purchase_or_makes_it_warn(tmp_path: Path, kind: str) -> None:
    """Whatever can be stored: each cell is read by itself, or is missing."""
    rows, column = 300, NASTY_COLUMNS[kind]
    table = {"who": [f"c{i % 60}" for i in range(rows)], "y": ["no", "yes"] * 150}
    usual = pa.array([1, 2, 3] * 100, pa.int64()).cast(column.type)
    if kind == "float":
        usual = pc.multiply(usual, 0.001)  # by such a scale the largest numbers overflow
    values = pa.chunked_array([column, usual[: rows - len(column)]], column.type)
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({**table, "x": values}), path)
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 0.5, 1e-6, 60, seed=1)
    found = fv.from_table(path, label="y", client_column="who", classes=("no", "yes"), offer=offer)
    assert len(found.train) + len(found.test) == rows
    assert np.isfinite(found.train.inputs).all()


def test_shares_of_many_clients_cost_what_they_should() -> None:
    """2,000 noise shares on a grid cost within 1 % of one Gaussian of the same size."""
    rows = {"a": pa.chunked_array([["1"] * 10]), "c0": pa.chunked_array([["2"] * 10])}
    offer = Offer(Unit.RECORD, Trust.DISTRIBUTED, 12.0, 1e-6, 2000, seed=1)
    paid = buy(rows, "c0", np.zeros(10, np.int64), offer, ".").bought
    model = PrivacyModel(Unit.RECORD, Adjacency.REPLACE, Trust.DISTRIBUTED)
    found = account(paid.releases, privacy_model=model, delta=1e-6).epsilon
    one = PrivacyModel(Unit.RECORD, Adjacency.REPLACE, Trust.LOCAL)
    plain = Release(fv.DiscreteGaussian(12.0), Everyone(), 2)
    assert found == pytest.approx(account([plain], privacy_model=one, delta=1e-6).epsilon, rel=0.01)


def test_statistics_are_for_the_run_they_were_bought_for(hospitals: Path) -> None:
    """Not for another unit, not with a seed in a protected run, not without their price."""
    offer = Offer(Unit.RECORD, Trust.DISTRIBUTED, 8.0, 1e-6, 3, seed=1)
    federation = fv.from_table(
        hospitals / "visits.csv",
        label="ill",
        client_column="site",
        classes=("no", "yes"),
        offer=offer,
    )
    assert federation.unprotected == ()
    again = fv.Federation.open(federation.save(hospitals / "saved"))
    assert again.bought == federation.bought
    method = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(rate=1.0),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=1),
        clip=fv.Clip(1.0),
    )
    model = fv.build("logistic", federation)
    with pytest.raises(fv.PrivacyRefusal, match="bought for unit record"):
        fv.plan(method, federation, model, budget=fv.Budget(epsilon=4), seed=1)
    rows = fv.dp_sgd(
        rounds=2,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=1, batch_size=64),
        clip_norm=1.0,
    )
    with pytest.raises(fv.PrivacyRefusal, match="noise from a seed"):
        fv.plan(rows, federation, model, budget=fv.Budget(epsilon=4))
    planned = fv.plan(rows, federation, model, budget=fv.Budget(epsilon=4), seed=1)
    assert planned.guarantee is not None
    assert planned.guarantee.epsilon <= 4
    assert federation.bought is not None
    assert set(federation.bought.releases) <= set(planned.guarantee.releases)


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("shares", [1, 2])
def test_nobody_buys_from_owners_who_add_all_noise_themselves(unit: Unit, shares: int) -> None:
    """Unless there is one alone, whose rows or persons are protected."""
    if unit is not Unit.CLIENT and shares == 1:
        Offer(unit, Trust.LOCAL, 8.0, 1e-6, shares)
        return
    with pytest.raises(fv.PrivacyRefusal, match="not offered"):
        Offer(unit, Trust.LOCAL, 8.0, 1e-6, shares)


def test_a_bin_far_from_all_others_is_no_range() -> None:
    """Noise lifts some of hundreds of empty bins of hundreds of purchases above four deviations. A
    scale that reached there would be useless, and the model with it."""
    draw, std = np.random.default_rng(0), 60.0
    votes = np.zeros(BINS)
    filled = coarse_codes(pa.chunked_array([[1500.0, 2200.0, 2900.0]]), ".")
    votes[filled] = 1600.0
    for _ in range(300):
        found = range_of(votes + std * draw.standard_normal(BINS), std, 4800.0).coarse
        assert found is not None
        assert 300 < found.edges[0] < found.edges[-1] < 9000


def test_nothing_is_bought_for_a_table_without_inputs() -> None:
    paid: list[Any] = []
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 1.0, 1e-6, pay=paid.append)
    frame = {"who": list("abcd") * 5, "y": list("pq") * 10, "x": pa.array([[0.5]] * 20)}
    for classes in ((), ("p", "q")):
        with pytest.raises(fv.ConfigError, match="no column besides 'y' can be used as an input"):
            fv.from_table(frame, label="y", client_column="who", classes=classes, offer=offer)
    assert not paid
