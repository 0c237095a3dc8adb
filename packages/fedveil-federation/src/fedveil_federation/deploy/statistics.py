"""Statistics across machines: how the values of each column are spread, as one secure sum.

Every record adds one to one cell of every column: of its class, and of the bin or category that its
value falls into. Each site adds its share of discrete Gaussian noise to every cell, and the hub
learns the noisy sum of all tables. Bins come from the agreed schema, hence from nobody's rows, and
one cost covers all columns, crossed with the classes of the label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.data.encoder import TableEncoder, feature_names
from fedveil.data.federation import Federation
from fedveil.data.schema import Column, Kind
from fedveil.methods.parts.noise_placement import Noise
from fedveil_federation.deploy.envelope import Message
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.plan_document import PlanDocument
from fedveil_federation.deploy.plausible import longest_noise
from fedveil_federation.deploy.scoring import Scoring, Table, Tables

BINS = 16  # of a number, between its agreed ends or within three of its deviations
_DEVIATIONS = 3.0
_CLEAR = 4.0  # deviations of noise that a cell must stand out by to be counted on
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Cells:
    """The cells of one column: a bin or a category each, and one for what is none of them."""

    name: str
    column: Column
    start: int  # of its inputs

    @property
    def inputs(self) -> list[str]:
        return feature_names(self.name, self.column)

    @property
    def one_hot(self) -> bool:
        return self.column.kind is Kind.CATEGORY or bool(self.column.cuts)

    @property
    def names(self) -> list[str]:
        """Return the name of each cell; the last one counts values that are missing or unknown."""
        if self.one_hot:
            return [*self.inputs, "other"]
        if self.column.kind is Kind.BOOLEAN:
            return ["false", "true", "missing"]
        edges = self.edges
        return [f"from {low:.4g}" for low in edges[:-1]] + ["missing"]

    @property
    def edges(self) -> Any:
        """Between the bins of a number, in its own unit, [BINS + 1]."""
        known = self.column.min is not None and self.column.max is not None
        reach = self.column.width * (1.0 if known else _DEVIATIONS)
        return self.column.centre + np.linspace(-reach, reach, BINS + 1)

    def codes(self, inputs: Any) -> Ints:
        """The cell of each row, by its encoded inputs."""
        own = inputs[:, self.start : self.start + len(self.inputs)]
        last = len(self.names) - 1
        if self.one_hot:
            found = np.where(own.any(1), own.argmax(1), last)
        elif self.column.kind is Kind.BOOLEAN:
            found = (own[:, 0] > 0.5).astype(np.int64)
        else:
            values = self.column.centre + self.column.width * own[:, 0].astype(np.float64)
            found = np.searchsorted(self.edges[1:-1], values, side="right")
        if self.column.missing and not self.one_hot:
            found = np.where(own[:, -1] > 0.5, last, found)
        return found.astype(np.int64)


@dataclass(frozen=True)
class Statistics(Scoring):
    """The counts that are taken, with the noise on every cell."""

    columns: tuple[Cells, ...] = ()

    @staticmethod
    def about(
        facts: Facts, noise: float, delta: float, colluders: int, encoder: TableEncoder | None
    ) -> Statistics:
        """Return the statistics of an agreed table."""
        if encoder is None:
            raise ConfigError("statistics: of tables only; this federation's rows are arrays")
        found, start = [], 0
        for name, column in encoder.columns.items():
            found.append(Cells(name, column, start))
            start += len(found[-1].inputs)
        return Statistics(facts, noise, delta, colluders, tuple(found))

    def within(self, epsilon: float) -> Statistics:
        """Return them with the least noise, to a hundredth, that costs no more than epsilon."""
        low, high = 0.0, 1.0
        while replace(self, noise=high).guarantee().epsilon > epsilon:
            low, high = high, 2 * high
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            if replace(self, noise=middle).guarantee().epsilon > epsilon:
                low = middle
            else:
                high = middle
        return replace(self, noise=high)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows by class, or one; cells of all columns, one column after the other."""
        crossed = self.facts.task == "classification"
        return self.facts.classes if crossed else 1, sum(len(one.names) for one in self.columns)

    @property
    def asked(self) -> dict[str, Any]:
        return {**super().asked, "columns": True}

    @property
    def parts(self) -> int:
        return len(self.columns)

    def table(self, data: Federation) -> Ints:
        """Count a site's usable rows."""
        rows = data.train.only_usable()
        found = np.zeros(self.shape, np.int64)
        classes = rows.targets if self.shape[0] > 1 else np.zeros(len(rows), np.int64)
        start = 0
        for one in self.columns:
            np.add.at(found, (classes.astype(np.int64), start + one.codes(rows.inputs)), 1)
            start += len(one.names)
        return found

    def described(self, table: Table, classes: Sequence[str]) -> dict[str, Any]:
        """Return a description of the released table: post-processing, at no further cost.

        Raises:
            PrivacyRefusal: honest sites with so many records cannot have made it.
        """
        most = math.sqrt(self.parts) * sum(self.facts.sizes)
        most += longest_noise(Noise.GAUSSIAN, self.noise, table.size)
        if not float(np.linalg.norm(table)) <= most:
            raise PrivacyRefusal(
                f"the table is longer than {most:.4g}: a site sent something else than counts",
                "ask the sites what they run",
            )
        starts = np.cumsum([0, *(len(one.names) for one in self.columns)])
        blocks = np.split(table, starts[1:-1], axis=1)
        found = {
            one.name: self._described(one, block)
            for one, block in zip(self.columns, blocks, strict=True)
        }
        by_class = table.sum(1) / len(self.columns)  # each row is in a cell of every column
        named = dict(zip(classes, by_class.tolist(), strict=True)) if len(by_class) > 1 else {}
        rows = float(by_class.sum())
        return {"columns": found, "classes": named, "rows": rows, "noise": self.noise}

    def _described(self, one: Cells, block: Table) -> dict[str, Any]:
        counts, std = block.sum(0), self.noise * math.sqrt(len(block))
        rows = float(counts.sum())
        said: dict[str, Any] = {
            "kind": str(one.column.kind),
            "missing": min(1.0, max(0.0, float(counts[-1]) / max(1.0, rows))),
            "cells": list(zip(one.names, counts.tolist(), strict=True)),
            "by_class": block.tolist() if len(block) > 1 else [],
            "drowned": not (counts > _CLEAR * std).any(),  # nothing stands out from the noise
        }
        own, held = counts[:-1], float(counts[:-1].sum())
        number = not one.one_hot and one.column.kind is not Kind.BOOLEAN
        if not number or held <= _CLEAR * std * math.sqrt(len(own)):
            return said
        # Means of noisy counts as they are, for leaving out small ones would draw all inwards.
        edges = one.edges
        middles = (edges[1:] + edges[:-1]) / 2
        mean = float(own @ middles) / held
        spread = float(own @ (middles - mean) ** 2) / held + (edges[1] - edges[0]) ** 2 / 12
        reached = np.maximum.accumulate(np.concatenate([[0.0], np.cumsum(own)]))
        quantiles = {
            f"{share:.0%}": float(np.interp(share * reached[-1], reached, edges))
            for share in _QUANTILES
        }
        noise = std * float(np.linalg.norm(middles - mean)) / held
        figures = {"mean": mean, "mean_noise": noise, "std": math.sqrt(max(0.0, spread))}
        return {**said, **figures, "quantiles": quantiles}


class Tallying(Tables):
    """A site's part: its rows, counted by column."""

    def __init__(
        self, document: PlanDocument, asked: Statistics, data: Federation, randomness: Randomness
    ) -> None:
        super().__init__(document, asked, randomness)
        self._asked, self._data = asked, data

    def row(self, request: Message) -> Ints:
        return self._asked.table(self._data).reshape(-1)
