"""Neighbouring tables, from the file to what a purchase tells of them.

One owner's rows, or one row, are replaced or removed. Both worlds get the same noisy values, as
the proof couples them. Then what enters the noise moves by no more than each release is charged
with, and all that follows (columns, kinds, scales, classes, how another owner's rows are read) is
the same in both.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data import dp_schema
from fedveil.data.dp_schema import Offer
from fedveil.data.statistics import Voters
from fedveil.data.table import from_table
from fedveil.privacy.releases import PrivacyModel
from fedveil.privacy.translation import step_of

NUMBERS = ("0", "-0", "1e-38", "3e38", "-7.5", "1e999", "nan", "inf", "1,5", "12", "7.0", "07")
WORDS = ("red", "blue", "", "é", "x" * 200, "2020-01-31", "1850-05-05", "true", " NULL ", "a;b")
LABELS = ("no", "yes")


def written(path: Path, rows: list[tuple[str, list[str]]], *, sites: bool = False) -> Path:
    """Write the rows of owners; with sites, each owner has rows at two of them."""
    width, seen = len(rows[0][1]), Counter[str]()
    place = ["site"] if sites else []
    lines = [",".join(["who", *place, *(f"c{i}" for i in range(width - 1)), "y"])]
    for owner, cells in rows:
        seen[owner] += 1
        place = [f"s{(int(owner[1:]) + seen[owner] % 2) % 3}"] if sites else []
        lines.append(",".join(f'"{cell}"' for cell in (owner, *place, *cells)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class World:
    """A purchase whose noisy values are those of the first world."""

    def __init__(self, path: Path, offer: Offer, first: World | None) -> None:
        self.entered: list[tuple[Any, float]] = []  # integers over a whole vote, and std
        self.noisy: list[Any] = []
        self._first, self._draw = first, np.random.default_rng(9)
        columns, protect = dp_schema.summaries, dp_schema.protect_sum

        def coupled(table: Any, voters: Any, noisy: Any, std: float, *rest: Any) -> Any:
            def again(votes: Any) -> Any:
                noisy(votes)  # which writes down what it costs
                return self._couple(votes / voters.whole, std)

            return columns(table, voters, again, std, *rest)

        def selected(total: Any, std: float, grid: float, stream: object) -> Any:
            if total.ndim == 1 and grid == 1.0 / dp_schema.GRID and len(self.entered) == 2:
                return self._couple(total * grid, std) / grid
            return protect(total, std, grid, stream)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dp_schema, "summaries", coupled)
            patch.setattr(dp_schema, "protect_sum", selected)
            self.federation = from_table(
                path,
                label="y",
                client_column="site" if offer.unit is Unit.PERSON else "who",
                person_column="who" if offer.unit is Unit.PERSON else None,
                # In a secure sum nobody can pick names: there they are declared.
                classes=LABELS if offer.trust is Trust.DISTRIBUTED else (),
                offer=offer,
                test_fraction=0.0,
            )

    def _couple(self, votes: Any, std: float) -> Any:
        self.entered.append((votes, std))
        if self._first is None:
            noise = std * self._draw.standard_normal(votes.shape)
            self.noisy.append(votes + noise)
        else:
            self.noisy.append(self._first.noisy[len(self.noisy)])
        return self.noisy[-1]

    def rows_of(self, owner: str) -> bytes:
        place = list(map(str, self.federation.owners)).index(owner)
        start, stop = self.federation.offsets[place : place + 2]
        part = slice(start, stop)
        train = self.federation.train
        return train.inputs[part].tobytes() + train.targets[part].tobytes()


def cells(draw: np.random.Generator, width: int) -> list[str]:
    found = []
    for column in range(width - 1):
        nasty = draw.random() < 0.2
        if nasty:
            found.append(str(draw.choice(NUMBERS + WORDS)))
        elif column % 2:
            found.append(str(draw.choice(WORDS[:2])))
        else:
            found.append(f"{draw.normal(50 * column, 5):.2f}")
    return [*found, str(draw.choice(LABELS))]


@pytest.mark.parametrize("how", ["replaced", "removed"])
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("seed", range(5))
def test_neighbours_move_a_purchase_by_what_it_is_charged(
    tmp_path: Path, unit: Unit, how: str, seed: int
) -> None:
    draw, width = np.random.default_rng(seed), 2 + seed % 4
    owners = [f"o{i}" for i in range(8) for _ in range(int(draw.integers(30, 60)))]
    rows = [(owner, cells(draw, width)) for owner in owners]
    touched = {i for i, owner in enumerate(owners) if owner == "o3"}
    trust, noise = Trust.CENTRAL, 0.03
    if unit is Unit.RECORD:
        touched = {int(draw.integers(len(rows)))}
        trust, noise = Trust.DISTRIBUTED, 2.0
    elif unit is Unit.PERSON and seed % 2:
        trust = Trust.DISTRIBUTED
    other = [
        (owner, cells(draw, width) if i in touched else own)
        for i, (owner, own) in enumerate(rows)
        if how == "replaced" or i not in touched
    ]
    if how == "replaced" and unit is not Unit.RECORD:  # of another size, too
        other += [("o3", cells(draw, width)) for _ in range(40)]
    offer = Offer(unit, trust, noise, 1e-6, shares=8, seed=1)
    sites = unit is Unit.PERSON
    one = World(written(tmp_path / "one.csv", rows, sites=sites), offer, None)
    two = World(written(tmp_path / "two.csv", other, sites=sites), offer, one)

    adjacency = Adjacency.REPLACE if how == "replaced" else Adjacency.ZERO_OUT
    if unit is Unit.RECORD:
        adjacency = Adjacency.REPLACE  # the one that is offered there
    most = 1 if unit is Unit.PERSON else None
    model = PrivacyModel(unit, adjacency, trust, contributions=most)
    paid = one.federation.bought, two.federation.bought
    assert paid[0] is not None
    assert paid[1] is not None
    assert paid[0].releases == paid[1].releases
    assert len(paid[0].releases) == len(one.entered)
    for release, (mine, std), (theirs, same) in zip(
        paid[0].releases, one.entered, two.entered, strict=True
    ):
        assert std == same
        step: Any = step_of(release, model)
        if trust is Trust.CENTRAL:
            allowed = 1 / step.noise
        else:
            allowed = step.l2 / step.share_std / math.sqrt(step.shares)
        moved = float(np.linalg.norm(mine - theirs)) / std
        assert moved <= allowed * (1 + 1e-12)

    told, also = one.federation, two.federation
    assert told.encoder == also.encoder
    assert told.class_names == also.class_names
    assert told.features == also.features
    assert told.notes == also.notes
    assert told.unprotected == also.unprotected
    others = {f"o{i}" for i in range(8)} - {owners[i] for i in touched}
    for owner in () if sites else others:  # sites mix the rows of owners
        assert one.rows_of(owner) == two.rows_of(owner)


def test_the_harness_sees_a_client_that_votes_twice(tmp_path: Path) -> None:
    """Planted: shares of a client add up to two. The check above must fail."""
    draw = np.random.default_rng(0)
    rows = [(f"o{i % 8}", [f"{draw.normal():.2f}", str(draw.choice(LABELS))]) for i in range(320)]
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 0.03, 1e-6, seed=1)
    votes = Voters.votes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Voters, "votes", lambda *args: 2 * votes(*args))
        one = World(written(tmp_path / "one.csv", rows), offer, None)
        two = World(written(tmp_path / "two.csv", [r for r in rows if r[0] != "o3"]), offer, one)
    model = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL)
    assert one.federation.bought is not None
    step: Any = step_of(one.federation.bought.releases[0], model)
    moved = float(np.linalg.norm(one.entered[0][0] - two.entered[0][0])) / one.entered[0][1]
    assert moved > 1 / step.noise
