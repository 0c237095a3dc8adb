"""Federated evaluation: how good a model is on rows that the sites hold out, as one secure sum.

Every record that a site holds out adds one to one cell of a table: of its class and the model's
answer, with two classes of its class and the model's score in so many bins, and for numbers of how
far off the model is. With several labels, each has a table of its own. Each site adds its share of
discrete Gaussian noise to every cell, and the hub learns the noisy sum of all tables. A record
moves one count of a table to another cell, which is what the cost is accounted for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data.federation import Examples, Federation, Task
from fedveil.methods.recipes.sections import ModelSection
from fedveil.planning.assemble import model_of
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyIntegers
from fedveil.privacy.sampling import Everyone
from fedveil.privacy.secure_sums.aggregation import UPDATE, Aggregation, SecureSums
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.run.evaluation import rows_at_once
from fedveil.training.models.flat import layout_of, load
from fedveil.training.models.frozen import start_from
from fedveil_federation.deploy.envelope import Message
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.plan_document import PlanDocument, seen
from fedveil_federation.deploy.work import Work, weights_of
from fedveil_federation.secagg.privacy_terms import PrivacyTerms

BINS = 20  # of scores between 0 and 1; even, so that one half lies between two of them
# Bins of errors, in half ranges or deviations of the target's schema. What is farther off counts as
# FARTHEST: bins of large errors that nobody makes would only add noise. Bins grow with the error.
ERRORS, FARTHEST = 16, 2.0
_EDGES = FARTHEST * (np.arange(ERRORS + 1) / ERRORS) ** 2
_GRID = ModularGrid(1.0, 32)
Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """What is counted, with how much noise. `noise`: std on every cell of the sum. `colluders`:
    sites that may work with the hub, and whose noise does not count."""

    facts: Facts
    noise: float
    delta: float
    colluders: int = 0

    def __post_init__(self) -> None:
        if type(self.colluders) is not int or self.colluders < 0:
            raise ConfigError(f"colluders = {self.colluders!r}: need a whole number")
        if not (math.isfinite(self.noise) and self.noise > 0 and 0 < self.delta < 1):
            raise ConfigError("evaluation: noise must be above 0, delta in (0, 1)")
        if self.facts.task == Task.SEQUENCE:
            raise ConfigError("evaluation: of classes and numbers; texts are evaluated at the hub")

    @property
    def asked(self) -> dict[str, Any]:
        """Return the part of a plan that only evaluations have."""
        return {"noise": self.noise, "colluders": self.colluders, "columns": False}

    @property
    def parts(self) -> int:
        """To how many cells each record adds one."""
        return self.facts.classes if self.facts.task == Task.MULTI_LABEL else 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows by true class; columns by answer, or by the score of the second of two classes.
        For numbers one row, by error. Of several labels each has two rows: false, and true."""
        if self.facts.task == Task.REGRESSION:
            return 1, ERRORS
        classes = self.facts.classes
        if self.facts.task == Task.MULTI_LABEL:
            return 2 * classes, BINS
        return (2, BINS) if classes == 2 else (classes, classes)

    @property
    def sums(self) -> SecureSums:
        """All sites, or nothing is released."""
        wanted = Aggregation(secure=SecureMode.MASKED)
        return wanted.resolve(self.facts.name, len(self.facts.sizes), self.colluders)

    @property
    def share_std(self) -> float:
        return self.noise / math.sqrt(len(self.facts.sizes))

    @property
    def integers(self) -> NoisyIntegers:
        return NoisyIntegers(_GRID, self.share_std)

    def terms(self, run: str) -> dict[str, PrivacyTerms]:
        """One record adds one to so many cells: that is its part's norm."""
        sites, width, parts = len(self.facts.sizes), math.prod(self.shape), self.parts
        norm = 1.0 if parts == 1 else math.nextafter(math.sqrt(parts), math.inf)
        counts = DiscreteGaussianSum(norm, 1.0, self.share_std, sites, width, rounding_beta=None)
        model = PrivacyModel(
            Unit.RECORD,
            Adjacency.REPLACE,
            Trust.DISTRIBUTED,
            colluders=self.colluders,
            honest_shares=self.sums.honest_shares,
        )
        return {UPDATE: PrivacyTerms(Release(counts, Everyone(sites), 1), model, run)}

    def guarantee(self) -> Guarantee:
        """Return the guarantee of this release alone."""
        terms = self.terms("")[UPDATE]
        return account([terms.release], privacy_model=terms.privacy_model, delta=self.delta)


class Tables(Work):
    """A site's part in one secure sum of tables."""

    def __init__(self, document: PlanDocument, asked: Scoring, randomness: Randomness) -> None:
        super().__init__(document, asked.terms(document.digest), asked.sums, 1, 1)
        self._scoring, self._randomness = asked, randomness

    def schedule(self, number: int) -> list[int]:
        return list(range(len(self.document.facts.sizes)))

    def summands(self, request: Message) -> CountSum:
        return CountSum(self._scoring, self._randomness)


class Counting(Tables):
    """A site's held-out rows, counted by how a model does on them."""

    def __init__(
        self,
        document: PlanDocument,
        scoring: Scoring,
        model: ModelSection,
        data: Federation,
        randomness: Randomness,
    ) -> None:
        super().__init__(document, scoring, randomness)
        self._data, self._model = data, model
        like = seen(model, document.facts.federation())
        self._shape, self._module = like.input_shape, model_of(model, like).eval()
        if model.start is not None:
            start_from(self._module, model.start)
        self._layout = layout_of(self._module)

    def row(self, request: Message) -> Ints:
        load(self._module, weights_of(request.part(1), self._layout.size))
        rows = held_out(seen(self._model, self._data))
        batch = rows_at_once(self._module, self._shape)
        return _counts(self._module, rows, self._scoring, batch).reshape(-1)


@dataclass(frozen=True)
class CountSum:
    """The one sum of an evaluation, for hub and sites."""

    scoring: Scoring
    randomness: Randomness
    round_number: int = 0
    purpose: str = UPDATE

    @property
    def width(self) -> int:
        return math.prod(self.scoring.shape)

    @property
    def integer(self) -> bool:
        return True

    @property
    def clip_norm(self) -> None:
        return None

    @property
    def integers(self) -> NoisyIntegers:
        return self.scoring.integers

    @property
    def word(self) -> int:
        return self.integers.word

    def upload(self, client: int, row: Ints) -> Ints:
        stream = self.randomness.stream("evaluation", 0, client)
        return self.integers.noisy(row, stream)

    def decode(self, whole: Ints) -> Tensor:
        return torch.from_numpy(self.integers.values(whole))

    def protect(self, total: Tensor, clients: Ints) -> Tensor:
        raise ValueError("counts are summed under masks")


@torch.inference_mode()
def _counts(module: torch.nn.Module, rows: Examples, scoring: Scoring, batch: int) -> Ints:
    """Return a table of whole numbers: each usable row adds one to one cell, whatever the model
    says."""
    found = np.zeros(scoring.shape, np.int64)
    for begin in range(0, len(rows), batch):
        part = slice(begin, begin + batch)
        inputs = torch.from_numpy(np.ascontiguousarray(rows.inputs[part], np.float32))
        scores, targets = module(inputs).double(), np.asarray(rows.targets[part])
        if scoring.facts.task == Task.REGRESSION:
            errors = np.abs(scores.reshape(-1).numpy() - targets)
            errors = np.nan_to_num(errors, nan=FARTHEST, posinf=FARTHEST)
            columns = np.searchsorted(_EDGES[1:-1], errors, side="right")
            targets = np.zeros(len(targets), np.int64)
        elif scoring.facts.task == Task.MULTI_LABEL:
            columns = _binned(scores.reshape(targets.shape).sigmoid())
            targets = targets.astype(np.int64) + 2 * np.arange(scoring.facts.classes)
        elif scoring.facts.classes == 2:
            columns = _binned(scores.softmax(-1)[:, 1])
        else:
            columns = torch.nan_to_num(scores).argmax(-1).numpy()
        counted = 1 if rows.usable is None else rows.usable[part].astype(np.int64)
        if scoring.facts.task == Task.MULTI_LABEL:
            counted = np.reshape(counted, (-1, 1))
        np.add.at(found, (np.where(counted, targets, 0).astype(np.int64), columns), counted)
    return found


def _binned(chance: Tensor) -> Ints:
    """The bins that scores between 0 and 1 fall into."""
    bins: Ints = (torch.nan_to_num(chance, nan=0.0) * BINS).long().clamp(0, BINS - 1).numpy()
    return bins


def figures(
    scoring: Scoring, table: Table, unit: float = 1.0, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Return figures from the released table: post-processing, at no further cost.

    `unit`: of the target's schema, what a number of one stands for. `names`: of several labels.
    """
    if scoring.facts.task == Task.REGRESSION:
        return _errors(scoring.noise, table[0], unit)
    if scoring.facts.task != Task.MULTI_LABEL:
        return {**_answers(scoring.noise, table), "noise": scoring.noise}
    each = [_answers(scoring.noise, own) for own in np.split(table, scoring.facts.classes)]
    found: dict[str, Any] = {
        name: statistics.fmean(one[name] for one in each) for name in ("rows", "accuracy", "auc")
    }
    noise = math.hypot(*(one["accuracy_noise"] for one in each)) / len(each)
    named = dict(zip(names or map(str, range(len(each))), each, strict=True))
    return {**found, "accuracy_noise": noise, "labels": named, "noise": scoring.noise}


def _answers(noise: float, table: Table) -> dict[str, Any]:
    """Of classes, or of one label; `accuracy_noise` is a standard deviation."""
    rows, auc, split = float(table.sum()), None, table
    right = len(table)  # cells that count right answers
    if table.shape == (2, BINS):
        split = np.stack([table[:, : BINS // 2].sum(1), table[:, BINS // 2 :].sum(1)], axis=1)
        auc, right = _area(table), BINS
    share = float(np.trace(split)) / rows if rows > 0 else math.nan
    spread = math.sqrt(right * (1 - share) ** 2 + (table.size - right) * share**2)
    return {
        "rows": rows,
        "accuracy": share,
        "accuracy_noise": noise * spread / rows if rows > 0 else math.nan,
        "auc": auc,
        "confusion": split.round(1).tolist(),
    }


def _errors(noise: float, counts: npt.NDArray[np.float64], unit: float) -> dict[str, Any]:
    """Means over bins, as if errors were even within each; `_noise` is a standard deviation."""
    low, high, rows = _EDGES[:-1], _EDGES[1:], float(counts.sum())
    found: dict[str, Any] = {"rows": rows, "noise": noise}
    means = {"mae": (low + high) / 2, "mse": (low**2 + low * high + high**2) / 3}
    for name, each in means.items():
        mean = float(counts @ each) / rows if rows > 0 else math.nan
        spread = noise * float(np.linalg.norm(each - mean)) / rows if rows > 0 else math.nan
        if name == "mse":  # noise may have made it negative
            name, mean = "rmse", math.sqrt(max(mean, 0.0))
            spread = spread / (2 * mean) if mean > 0 else math.nan
        found |= {name: unit * mean, f"{name}_noise": unit * spread}
    return found


def _area(table: Table) -> float:
    """The chance that a score of the second class lies above one of the first, ties one half."""
    first, second = table
    below = np.cumsum(first) - first
    pairs = float(first.sum() * second.sum())
    return float(second @ (below + first / 2)) / pairs if pairs > 0 else math.nan


def held_out(data: Federation) -> Examples:
    """Return a site's rows that nothing is trained on, as a model sees them.

    Unusable ones keep their places, for a model's answer to a row can depend on where it stands in
    how large a batch.
    """
    return replace(data.test, inputs=data.model_inputs(data.test.inputs))
