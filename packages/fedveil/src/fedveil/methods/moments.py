"""Moments: a linear model from one noisy release of second moments.

    cohort   everybody, once
    client   sums x x' and x y' over its records (unit person: sums their persons' means;
             unit client: takes their mean)
    server   noisy sum of these -> ridge regression, or discriminant analysis for classes

There are no rounds, no learning rate and no clip to tune, and nothing can diverge: everything after
the release is post-processing. AdaSSP (Wang 2018) is of this kind; here one release serves both
moments, and the ridge follows from the size of the noise.

What is sent. A record is `x = (1, inputs) / row_norm`, shortened to length 1 and rounded to a grid
of step g = 2^-12 without becoming longer (`snap_rows`); its target is a vector `y` on the same grid
of length at most b = 3/4. The record's vector is

    phi(x, y) = 5 x_i^2;   7 x_i x_j for i < j;   5 x_i y_k                     (steps of g^2)

so entries are whole numbers, and sums of them are exact in any order.

Sensitivity. 49 sum_{i<j} d_ij^2 <= 25 * 2 sum_{i<j} d_ij^2 for any symmetric d, so distances
between vectors phi are at most 5 times those between (x x', x y') in the Frobenius norm.

    zero-out   |x x'|^2 + |x y'|^2 = |x|^4 + |x|^2 |y|^2 <= 1 + b^2 = (5/4)^2.
    replace    With r = |x|, s = |z| and t = |<x, z>|, and as |<y, w>| <= b^2,
               |x x' - z z'|^2 + |x y' - z w'|^2
                   <= r^4 + s^4 - 2 t^2 + b^2 (r^2 + s^2) + 2 b^2 t
                   <= 2 + 2 b^2 + max_t (2 b^2 t - 2 t^2) = 2 + 2 b^2 + b^4 / 2 = (2 + b^2)^2 / 2.

So no vector is longer than L = 5 (1 + b^2 / 2), and no two are further apart than sqrt(2) L. The
mean of a client's or person's records is a convex combination of such vectors, rounded towards
zero, and obeys the same two bounds. A person counts at the first of its clients alone. (Rounding
may bring two means apart by less than a grid step in each coordinate; L is enlarged by that, which
is less than 1e-4 of it.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedveil.core.arguments import check_fields, one_of, optional, positive
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data.encoder import OneHot
from fedveil.data.federation import Federation, Task
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.method import CohortRule, Method, Scheme
from fedveil.methods.parts.noise_placement import Bounded, default_adjacency
from fedveil.methods.parts.sent_once import SentOnceNoise
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import CHANGE, COLLUSION, Key, method
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import NoisyMoments
from fedveil.privacy.noise.grid import snap_rows
from fedveil.privacy.releases import PrivacyModel
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.engines.affine import Affine, affine_stack
from fedveil.training.models.flat import layout_of
from fedveil.training.server.averaging import Average
from fedveil.training.server.optimizers import State

Floats = npt.NDArray[np.float64]

_GRID = 2.0**-12  # of records; their moments are whole numbers of its square
_TARGET = 0.75  # b: length of a target
_ONCE, _TWICE = 5, 7  # factors of squares and of mixed products: 7 / 5 is just below sqrt(2)
_LENGTH = _ONCE * (1 + _TARGET**2 / 2)  # L
_ROWS = 4096  # records multiplied together: exact in double precision
_WIDEST = 2**24  # numbers in a vector: its rounding is then less than the 2^-12 that is counted
_FARTHEST = 3.0  # standard deviations at which a target is cut off
# Chosen on the tables CHOSEN_ON of benchmarks/own_data_peers.py, and _VISIBLE also on one other.
_RIDGE = 0.3  # times what the noise adds to the largest eigenvalue of x x'
_STRONGER = (1.0, 3.0, 10.0, 30.0, 100.0)  # times the ridge, where noise hides the signal
_REMAINING = 0.3  # of the noise on x x' that is thought to reach a solution
_SMOOTH = 3.0  # weight of differences between neighbouring bins, beside the ridge
_VISIBLE = 1.5  # standard deviations of noise that the square of an input must exceed to be used
_EXPLAINED = 0.9  # canonical correlation of classes and inputs, squared, at most


def _steps(length: float) -> float:
    """How far vectors of this length may be apart, with the rounding of means counted in."""
    return length + 2.0**-12


@dataclass(frozen=True)
class SecondMoments:
    """The second moments of one client's records or persons: `ClientStatistic`.

    Attributes:
        inputs: How many numbers a record has.
        task: What is predicted.
        outputs: How many numbers, classes or labels there are.
        row_norm: The length of `(1, inputs)` that becomes 1; longer records are shortened.
        target_bound: The largest target of a regression, in its stored unit.
        unit: Whose moments a client adds up: those of its records, the means of its persons, or
            the mean of them all.
    """

    inputs: int
    task: Task
    outputs: int
    row_norm: float
    target_bound: float
    unit: Unit

    @property
    def size(self) -> int:
        """How many entries `x` has."""
        return self.inputs + 1

    @property
    def width(self) -> int:
        return self.size * (self.size + 1) // 2 + self.size * self.outputs

    @property
    def granularity(self) -> float:
        return _GRID**2

    def prepare(self, inputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Ints:
        return np.concatenate([self.rows(inputs), self.labels(targets)], axis=1)

    def __call__(self, records: Ints, persons: Ints | None = None) -> Ints:
        if self.unit is not Unit.PERSON:
            whole = self._sum(records)
            return whole if self.unit is Unit.RECORD else _mean(whole, len(records))
        if persons is None:
            raise ValueError("nobody has said which person each record is of")
        sizes = np.diff(persons)
        alone = persons[:-1][sizes == 1]  # their means are sums
        whole = self._sum(records[alone])
        for start, size in zip(persons[:-1][sizes > 1], sizes[sizes > 1], strict=True):
            whole += _mean(self._sum(records[start : start + size]), size)
        return whole

    def _sum(self, records: Ints) -> Ints:
        """Return the sum of the records' vectors."""
        total = np.zeros((self.size, self.size + self.outputs), dtype=np.int64)
        for start in range(0, len(records), _ROWS):
            part = records[start : start + _ROWS].astype(np.float64)
            total += (part[:, : self.size].T @ part).astype(np.int64)
        square, mixed = total[:, : self.size], total[:, self.size :]
        return np.concatenate(
            [_ONCE * np.diag(square), _TWICE * square[self._above], _ONCE * mixed.ravel()]
        )

    @cached_property
    def _above(self) -> tuple[Ints, Ints]:
        """Where the entries above the diagonal are."""
        return np.triu_indices(self.size, 1)

    def rows(self, inputs: npt.NDArray[Any]) -> Ints:
        """Return records `[records, inputs + 1]` on the grid, none longer than 1."""
        flat = inputs.reshape(len(inputs), self.inputs)  # of clients that have none, too
        ones = np.ones((len(flat), 1), dtype=np.float64)
        rows = np.concatenate([ones, flat.astype(np.float64)], axis=1) / self.row_norm
        return np.asarray(snap_rows(rows, _GRID, Clip(1.0)), dtype=np.int64)

    def labels(self, targets: npt.NDArray[Any]) -> Ints:
        """Return targets `[records, outputs]` on the grid, none longer than b.

        Of C classes they are the corners of a simplex around zero; of several labels, plus or minus
        one each.
        """
        if self.task is Task.REGRESSION:
            bounded = np.clip(targets.astype(np.float64) / self.target_bound, -1.0, 1.0)[:, None]
        elif self.task is Task.MULTI_LABEL:
            bounded = (2.0 * targets - 1.0) / math.sqrt(self.outputs)
        else:
            bounded = (np.eye(self.outputs)[targets] - 1 / self.outputs) * self._simplex
        return np.trunc(bounded * (_TARGET / _GRID)).astype(np.int64)

    @property
    def _simplex(self) -> float:
        return 1 / math.sqrt(1 - 1 / self.outputs)

    def matrices(self, released: Floats) -> tuple[Floats, Floats]:
        """Return the moments `x x'` and `x y'` that a released vector stands for.

        Targets are in their own unit again: numbers, or 0 and 1 for each class or label.
        """
        size, above = self.size, self._above
        squares, mixed = np.split(released, [size + len(above[0])])
        moments = np.zeros((size, size))
        moments[above] = squares[size:] / _TWICE
        moments += moments.T + np.diag(squares[:size] / _ONCE)
        products = mixed.reshape(size, self.outputs) / (_ONCE * _TARGET)
        count = moments[:, :1] * self.row_norm  # of x with the constant 1
        if self.task is Task.REGRESSION:
            return moments, products * self.target_bound
        if self.task is Task.MULTI_LABEL:
            return moments, (products * math.sqrt(self.outputs) + count) / 2
        products = products - products.mean(axis=1, keepdims=True)  # they add up to zero
        return moments, products / self._simplex + count / self.outputs


def _mean(whole: Ints, records: int) -> Ints:
    """Return a sum's mean, rounded towards zero."""
    found: Ints = np.sign(whole) * (np.abs(whole) // max(1, records))
    return found


@dataclass(frozen=True, eq=False)
class Ridge:
    """The server's step: a linear model from released moments.

    Inputs that nobody seems to have are left out, for their moments are noise. Of the inputs of one
    column at most one is 1, so mixed products within it are zero; where exactly one is, the inputs
    of a column add up to the constant, and moments are projected to where this holds. Negative
    eigenvalues are noise too. What is left is solved with a ridge as large as the noise, and
    neighbouring bins of a number are drawn together.

    Classes get the linear discriminants that belong to the same least squares problem.
    """

    statistic: SecondMoments
    layer: Affine
    columns: tuple[OneHot, ...]
    noise_std: float  # on each entry of the released average
    ridge: float

    def start(self, weights: Tensor) -> State:
        return {}

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """Return the weights that follow from the released average `update` `[width]`."""
        moments, products = self.statistic.matrices(update.double().numpy())
        solution = self._solve(moments, products)
        if self.statistic.task is not Task.REGRESSION:
            solution = self._discriminants(moments, products, solution)
        own = torch.from_numpy(solution / self.statistic.row_norm).to(weights.dtype)
        fitted = weights.clone()
        self.layer.weight_of(fitted).copy_(own[1:].T)
        bias = self.layer.bias_of(fitted)
        if bias is not None:
            bias.copy_(own[0])
        return fitted, {}

    def _solve(self, moments: Floats, products: Floats) -> Floats:
        """Return coefficients `[size, outputs]` of x."""
        noise = self.noise_std / _ONCE
        visible = np.diag(moments) > _VISIBLE * noise
        visible[0] = True
        kept = np.flatnonzero(visible)
        moments, products = moments[np.ix_(kept, kept)].copy(), products[kept]
        penalty, contrasts = np.eye(len(kept)), []
        penalty[0, 0] = 0.01  # the constant is hardly shrunk
        for column in self.columns:
            inside = (kept > column.start) & (kept <= column.stop)  # 0 is the constant
            own = np.flatnonzero(inside)
            diagonal = np.diag(np.diag(moments)[own])
            moments[np.ix_(own, own)] = diagonal
            if column.complete and len(own):
                contrast = np.where(inside, 1.0, 0.0)
                contrast[0] = -1.0
                contrasts.append(contrast)
            bins = own[kept[own] <= column.start + column.ordered]
            steps = np.diff(np.eye(len(bins)), axis=0)
            penalty[np.ix_(bins, bins)] += _SMOOTH * steps.T @ steps
        if contrasts:
            basis = np.linalg.qr(np.array(contrasts).T)[0]
            within = np.eye(len(kept)) - basis @ basis.T
            moments, products = within @ moments @ within, within @ products
        values, vectors = np.linalg.eigh(moments)
        moments = (vectors * np.maximum(values, 0.0)) @ vectors.T
        ridge = self.ridge * noise * math.sqrt(len(kept)) + 1e-9 * max(values[-1], 1e-30)
        tried = []
        for times in _STRONGER:
            inverse = np.linalg.inv(moments + times * ridge * penalty)
            fitted = inverse @ products
            tried.append((_risk(moments, products, fitted, inverse, noise), fitted))
        solution = np.zeros((self.statistic.size, self.statistic.outputs))
        solution[kept] = min(tried, key=lambda one: one[0])[1]
        return solution

    def _discriminants(self, moments: Floats, products: Floats, solution: Floats) -> Floats:
        """Return coefficients of log odds from those that predict 0 and 1 by least squares."""
        if self.statistic.task is Task.CLASSIFICATION:
            return self._of_classes(moments, products, solution)
        found = np.empty_like(solution)
        constant = np.zeros(len(solution))
        constant[0] = self.statistic.row_norm  # predicts 1
        for label in range(self.statistic.outputs):
            truth, products_of = solution[:, label], products[:, label]
            others = moments[:, 0] * self.statistic.row_norm - products_of
            pair = self._of_classes(
                moments,
                np.stack([others, products_of], axis=1),
                np.stack([constant - truth, truth], axis=1),
            )
            found[:, label] = pair[:, 1] - pair[:, 0]
        return found

    def _of_classes(self, moments: Floats, products: Floats, solution: Floats) -> Floats:
        """Linear discriminant analysis by optimal scoring (Hastie, Tibshirani, Buja 1994).

        With shares p of the classes, and K the covariance of predictions and classes, the log odds
        are G (f - p) + log p - diag(D^-1 K G) / 2 of the predictions f, where D = diag(p) and
        G = D^-1/2 (1 - D^-1/2 K D^-1/2)^-1 D^-1/2.
        """
        norm = self.statistic.row_norm
        total = max(float(moments[0, 0]) * norm**2, self.noise_std, 1e-30)
        shares = np.maximum(products[0] * norm / total, 1e-3)
        shares = shares / shares.sum()
        root = np.sqrt(shares)
        covariance = solution.T @ products / total - np.outer(shares, shares)
        scaled = (covariance + covariance.T) / 2 / np.outer(root, root)
        values, vectors = np.linalg.eigh(scaled)
        values = np.clip(values, 0.0, _EXPLAINED)
        inverse = (vectors / (1 - values)) @ vectors.T
        covariance = (vectors * values) @ vectors.T * np.outer(root, root)
        odds = inverse / np.outer(root, root)
        found: Floats = solution @ odds
        offset = np.diag(covariance @ odds) / shares / 2
        found[0] += norm * (np.log(shares) - odds @ shares - offset)
        return found


def _risk(
    moments: Floats, products: Floats, fitted: Floats, inverse: Floats, noise: float
) -> float:
    """Estimate the squared error that a solution adds to the true moments, up to a constant.

    On the noisy moments it looks too small, for it was fitted to their noise too. By how much, to
    second order, follows from the noise (as in Stein's unbiased risk estimate): noise n on products
    takes 2 n^2 tr A^-1 off, for the solution moves by A^-1 n; symmetric noise on x x' takes off
    n^2 (|s|^2 tr A^-1 + s' A^-1 s) of each solution s. Of the latter a part counts: negative
    eigenvalues and impossible products were removed from x x' before.
    """
    seen = np.sum(fitted * (moments @ fitted)) - 2 * np.sum(fitted * products)
    trace = float(np.trace(inverse))
    of_products = 2 * trace * products.shape[1]
    of_squares = np.sum(fitted**2) * trace + np.sum(fitted * (inverse @ fitted))
    return float(seen + noise**2 * (of_products + _REMAINING * of_squares))


@dataclass(frozen=True)
class MomentNoise(SentOnceNoise):
    """Gaussian noise of std z L on the sum of moments, by a trusted aggregator or in shares.

    `row_norm`, `target_bound` and `ridge` are as in `moments`.
    """

    unit: Unit = Unit.RECORD
    row_norm: float | None = None
    target_bound: float | None = None
    ridge: float = _RIDGE

    bounded = Bounded.STATISTIC
    length = _LENGTH
    step = _GRID**2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, unit=one_of(Unit), ridge=positive)
        check_fields(self, row_norm=optional(positive), target_bound=optional(positive))
        if self.unit is not Unit.CLIENT and self.adjacency is Adjacency.ADD_REMOVE:
            raise PrivacyRefusal(
                f"moments for unit {self.unit} under add-remove: how many {self.unit}s there are "
                "is public here",
                "use privacy.adjacency zero-out, which costs the same, or replace",
            )

    def statistic(self, federation: Federation, module: nn.Module) -> SecondMoments:
        layer = _layer(federation, module)
        encoder = federation.encoder
        columns = layer.inputs if encoder is None else len(encoder.columns)
        ranged = encoder is not None and encoder.target.max is not None
        bound = 1.0 if ranged else _FARTHEST
        made = SecondMoments(
            inputs=layer.inputs,
            task=federation.task,
            outputs=layer.outputs,
            row_norm=self.row_norm or math.sqrt(1 + columns),
            target_bound=self.target_bound or bound,
            unit=self.unit,
        )
        if made.width > _WIDEST:
            raise ConfigError(
                f"training.method: {layer.inputs:,} inputs have {made.width:,} moments, more than "
                f"{_WIDEST:,}. Use fewer inputs, or method dp-sgd."
            )
        return made

    @property
    def server(self) -> Ridge:
        facts = self.facts
        encoder = facts.federation.encoder
        return Ridge(
            self.statistic(facts.federation, facts.module),
            _layer(facts.federation, facts.module),
            () if encoder is None else encoder.one_hot,
            self._whole_std / facts.sampling.expected_cohort,
            self.ridge,
        )

    def privacy_model(self) -> PrivacyModel:
        if self.facts.local.loss is not None:
            raise ConfigError(
                "training.class_weights: moments have no loss to weigh. Use method dp-sgd or "
                "dp-fedavg."
            )
        usual, clients = self.adjacency or Adjacency.ZERO_OUT, self.facts.clients
        if self.trust is Trust.DISTRIBUTED:
            return self._in_shares(self.unit, usual)
        if self.trust is Trust.LOCAL and (clients > 1 or self.unit is Unit.CLIENT):
            raise PrivacyRefusal(
                f"moments of {clients} clients for unit {self.unit} under local trust: each would "
                "add as much noise as all of them together need",
                "use privacy.trust distributed (secure sum), or central for unit client",
            )
        if self.unit is Unit.CLIENT:
            usual = default_adjacency(self.facts, self.adjacency)
        most = 1 if self.unit is Unit.PERSON else None
        return PrivacyModel(
            self.unit, usual, self.trust, colluders=self.colluders, contributions=most
        )

    def undivided(self) -> Mechanism:
        return NoisyMoments(self.facts.noise_multiplier * _LENGTH / _steps(_LENGTH))

    def accounted_length(self) -> float:
        # Under replace the step doubles it: sqrt(2) L is how far two vectors are apart.
        replaced = self.privacy_model().adjacency is Adjacency.REPLACE
        return _steps(_LENGTH / math.sqrt(2) if replaced else _LENGTH)

    def bits(self) -> int:
        return 64  # hold the moments of 10^10 records, whatever the noise: no data decide on them


def _layer(federation: Federation, module: nn.Module) -> Affine:
    """The one layer of a linear model; refuses any other model."""
    found = affine_stack(module, layout_of(module), federation)
    why = found if isinstance(found, str) else "it has several layers"
    if isinstance(found, str) or len(found) > 1:
        raise ConfigError(
            f"model.name: moments fit a linear model, and {why}. Use model auto, linear or "
            "logistic, or method dp-sgd."
        )
    return found[0]


def moments(
    *,
    unit: Unit = Unit.RECORD,
    trust: Trust | None = None,
    adjacency: Adjacency | None = None,
    colluders: int = 0,
    honest_shares: int | None = None,
    public_clients: int | None = None,
    row_norm: float | None = None,
    target_bound: float | None = None,
    ridge: float = _RIDGE,
) -> Method:
    """Make a method that fits a linear model to one noisy release of second moments.

    Args:
        unit: Whether single records are protected, or all records of a person or of a client
            together.
        trust: Who adds noise: everybody a share under a secure sum (`DISTRIBUTED`, usual for
            records and persons), a trusted aggregator (`CENTRAL`, usual for clients), or a single
            owner of all records (`LOCAL`).
        adjacency: The change that is hidden; None takes the usual one for unit and trust.
        colluders: Clients that work with the server; their noise protects nobody.
        honest_shares: How many noise shares are sure to be in the sum.
        public_clients: The number of clients, if it was declared in public.
        row_norm: The length that records are shortened to; None takes the root of one plus the
            number of columns.
        target_bound: The largest number to predict, in its stored unit; None takes the label's
            public range, or three standard deviations.
        ridge: How strongly to shrink, in units of what the noise suggests.

    Returns:
        The method; `fv.plan` fits it to data.
    """
    usual = Trust.CENTRAL if unit is Unit.CLIENT else Trust.DISTRIBUTED
    placement = MomentNoise(
        trust or usual,
        adjacency,
        colluders,
        honest_shares,
        unit=unit,
        row_norm=row_norm,
        target_bound=target_bound,
        ridge=ridge,
    )
    return Method(
        name="moments",
        rounds=1,
        cohort=CohortRule(Scheme.EVERYONE, clients=public_clients),
        local=LocalTraining(LearningRate(1.0), steps=1),
        placement=placement,
    )


@method(
    "moments",
    what="a linear model from one noisy sum of second moments; nothing to tune",
    source="after AdaSSP, Wang 2018",
    protects="one record of one client (or, unit person or client, all of its data)",
    towards="everybody; unit client: everybody but the trusted aggregator",
    keys=("privacy.unit", "privacy.public_clients", *CHANGE, *COLLUSION),
    own=(
        Key("row_norm", float | None, None, "length that records (1, inputs) are shortened to"),
        Key("target_bound", float | None, None, "largest number to predict, in its stored unit"),
        Key("ridge", float, _RIDGE, "how strongly to shrink, in units of what the noise suggests"),
    ),
    trust=Trust.DISTRIBUTED,
    sampling="everyone",
    unit=Unit.RECORD,
)
def from_recipe(recipe: Recipe) -> Method:
    privacy, server = recipe.privacy, recipe.server
    if server.average not in (None, Average.NONE) or server.schedule != "constant":
        raise ConfigError(
            "server: moments leave one model. Remove server.average and server.schedule."
        )
    unit = Unit.RECORD if privacy.unit is None else one_of(Unit)("privacy.unit", privacy.unit)
    usual = Trust.CENTRAL if unit is Unit.CLIENT else Trust.DISTRIBUTED
    return moments(
        unit=unit,
        trust=parts.trust(recipe, usual),
        adjacency=parts.adjacency(recipe),
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
        public_clients=privacy.public_clients,
        **recipe.method,
    )
