"""Who owns which example: ways to deal a pool of examples to clients.

A partition is a frozen description; `assign` turns it into row numbers and offsets. All of them are
vectorised over clients, never leave a client without examples, and draw from a public seed, which
has nothing to do with the randomness that protects anybody.

Real owners (`ByOwner`) are kept apart: what is drawn for one depends on the seed, its name and its
own number of rows. The other partitions deal one pool of rows to artificial clients.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import check_fields, positive
from fedveil.core.errors import ConfigError
from fedveil.data.assignment import Assignment, Owners, Rows, generator, group, offsets_of


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """Options of every partition: a fixed number of examples a client, or a cap."""

    examples_per_client: int | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 1 and field.type != "float":
                raise ConfigError(f"{field.name}={value}: must be at least 1")
        if self.cap is not None and self.examples_per_client is not None:
            raise ConfigError(
                f"cap={self.cap} and examples_per_client={self.examples_per_client}: give only one"
            )


@dataclass(frozen=True)
class IID(_Limits):
    """Every client gets a uniformly random share; sizes differ by at most one."""

    clients: int

    def assign(self, labels: npt.NDArray[np.generic], owners: object, seed: int) -> Assignment:
        rows = generator(seed, "deal").permutation(len(labels))
        return _deal(rows, self.clients, self.examples_per_client, self.cap, "IID")


@dataclass(frozen=True)
class SortedSlices(_Limits):
    """Examples sorted by target, cut into equal slices, one a client (Fu et al., section VI-A).

    With `per_client` the slices have exactly that many examples, drawn at random from the pool
    before sorting; without `clients`, as many clients as the pool allows.
    """

    clients: int | None = None
    per_client: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients is None and not (self.per_client or self.examples_per_client):
            raise ConfigError("SortedSlices needs clients, per_client or both")

    def assign(self, labels: npt.NDArray[np.generic], owners: object, seed: int) -> Assignment:
        _need_one_label_each(labels, "SortedSlices")
        rows = generator(seed, "deal").permutation(len(labels))  # ties fall at random
        fixed = self.per_client or self.examples_per_client
        clients = self.clients if self.clients is not None else len(rows) // (fixed or 1)
        if fixed is not None:
            _need_examples(len(rows), clients, fixed, "SortedSlices")
            rows = rows[: clients * fixed]
        rows = rows[np.argsort(labels[rows], kind="stable")]
        dealt = _deal(rows, clients, None, None, "SortedSlices")
        return _limit(dealt, self.cap, seed)


@dataclass(frozen=True)
class Dirichlet(_Limits):
    """Label mixes that differ between clients; smaller `alpha`, more different.

    Each class is shared out in proportions drawn from Dirichlet(alpha) over the clients, so sizes
    differ too. Or `balanced` (implied by `examples_per_client`): each client draws its own mix of
    classes from Dirichlet(alpha) and fills it as long as the classes last; all sizes are equal.
    """

    clients: int
    alpha: float
    balanced: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, alpha=positive)

    def assign(self, labels: npt.NDArray[np.generic], owners: object, seed: int) -> Assignment:
        _need_one_label_each(labels, "Dirichlet")
        if not np.issubdtype(labels.dtype, np.integer):
            raise ConfigError("Dirichlet deals by class, but targets are numbers: use SortedSlices")
        _need_examples(len(labels), self.clients, self.examples_per_client or 1, "Dirichlet")
        draw = generator(seed, "deal")
        classes, codes = np.unique(labels, return_inverse=True)
        each = self.examples_per_client
        if each is None and self.balanced:
            each = len(labels) // self.clients
        if each is None:
            client = self._shares_of_classes(codes, len(classes), draw)
            _fill_empty(client, self.clients, draw)
            rows = np.argsort(client, kind="stable")
            sizes = np.bincount(client, minlength=self.clients)
        else:
            rows = self._mixes_of_clients(codes, len(classes), each, draw)
            sizes = np.full(self.clients, each)
        return _limit(Assignment(rows, offsets_of(sizes)), self.cap, seed)

    def _shares_of_classes(self, codes: Rows, classes: int, draw: np.random.Generator) -> Rows:
        """The client of every row: classes are independent of each other."""
        client = np.empty(len(codes), dtype=np.int64)
        for label in range(classes):
            ladder = np.cumsum(_dirichlet(self.alpha, self.clients, draw))
            members = np.flatnonzero(codes == label)
            places = np.sort(draw.random(len(members))) * ladder[-1]  # sorted: a faster search
            client[draw.permutation(members)] = np.searchsorted(ladder, places, side="right")
        return client

    def _mixes_of_clients(
        self, codes: Rows, classes: int, each: int, draw: np.random.Generator
    ) -> Rows:
        """Rows by client. A class that runs out leaves the mixes; the others fill its place."""
        mixes = np.stack(
            [_log_gamma(self.alpha, self.clients, draw) for _ in range(classes)], axis=1
        )
        mixes = np.exp(mixes - mixes.max(axis=1, keepdims=True))
        supply = np.bincount(codes, minlength=classes)
        granted = np.zeros((self.clients, classes), dtype=np.int64)
        missing = np.full(self.clients, each)
        while (needy := np.flatnonzero(missing)).size:
            left = supply - granted.sum(axis=0)
            chances = mixes[needy] * (left > 0)
            hopeless = chances.sum(axis=1) <= 0  # its classes are gone: take what there is
            chances[hopeless] = left
            chances /= chances.sum(axis=1, keepdims=True)
            wish = draw.multinomial(missing[needy], chances)
            before = np.cumsum(wish, axis=0) - wish
            grant = np.clip(
                left - before, 0, wish
            )  # first come, first served; ends one class or all
            granted[needy] += grant
            missing[needy] -= grant.sum(axis=1)
        shuffled = draw.permutation(len(codes))
        by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
        first = np.cumsum(supply) - supply
        picked = [
            by_class[first[label] : first[label] + granted[:, label].sum()]
            for label in range(classes)
        ]
        client = np.concatenate(
            [np.repeat(np.arange(self.clients), granted[:, label]) for label in range(classes)]
        )
        return np.concatenate(picked)[np.argsort(client, kind="stable")].astype(np.int64)


@dataclass(frozen=True)
class ByOwner(_Limits):
    """Every owner is a client, in sorted order of the owner column.

    `at_least` leaves out owners with fewer examples, `clients` keeps that many owners drawn at
    random by their names, `examples_per_client` also leaves out owners that have fewer.
    """

    clients: int | None = None
    at_least: int = 1

    def assign(
        self,
        labels: npt.NDArray[np.generic],
        owners: npt.ArrayLike | Owners | None,
        seed: int,
    ) -> Assignment:
        if owners is None:
            raise ConfigError(
                "ByOwner: these data name no owners; use IID, Dirichlet or SortedSlices"
            )
        entries = np.size(owners.codes if isinstance(owners, Owners) else owners)
        if entries != len(labels):
            raise ConfigError(f"owners: {entries} entries for {len(labels)} examples")
        everyone = group(owners)
        least = max(self.at_least, self.examples_per_client or 1)
        enough = everyone.sizes >= least
        if not enough.any():
            raise ConfigError(
                f"no owner has {least} examples: the largest has {everyone.sizes.max()}; "
                "lower at_least or examples_per_client"
            )
        if self.clients is not None:
            able = np.flatnonzero(enough)
            if self.clients > len(able):
                raise ConfigError(
                    f"clients={self.clients}: only {len(able)} owners have enough examples; ask "
                    "for fewer"
                )
            # By their own words: one owner more takes the place of at most one other.
            words = everyone.client_words(seed, "choose owners")[able]
            enough[:] = False
            enough[able[np.argsort(words, kind="stable")[: self.clients]]] = True
        kept = everyone if enough.all() else everyone.keep(np.repeat(enough, everyone.sizes))
        return _limit(kept, self.examples_per_client or self.cap, seed)


Partition = IID | Dirichlet | SortedSlices | ByOwner

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "sorted": SortedSlices,
    "owner": ByOwner,
}


def named(name: str, **settings: Any) -> Partition:
    """The partition of a recipe: `named("dirichlet", clients=100, alpha=0.1)`."""
    if name not in PARTITIONS:
        near = get_close_matches(name, PARTITIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PARTITIONS)}"
        raise ConfigError(f"partition {name!r} is unknown: {hint}")
    kind = PARTITIONS[name]
    known = {field.name: field.default is MISSING for field in fields(kind)}
    if unknown := [setting for setting in settings if setting not in known]:
        raise ConfigError(f"partition {name!r} has no {unknown[0]!r}; it has {', '.join(known)}")
    if lacking := [setting for setting in known if known[setting] and setting not in settings]:
        raise ConfigError(f"partition {name!r} needs {' and '.join(lacking)}")
    return kind(**settings)


def _need_one_label_each(labels: npt.NDArray[np.generic], who: str) -> None:
    if labels.ndim != 1:
        raise ConfigError(
            f"{who} needs one label for each example; for sequences use IID or ByOwner"
        )


def _need_examples(examples: int, clients: int, each: int, who: str) -> None:
    if clients < 1 or examples < clients * each:
        raise ConfigError(
            f"{who}: {clients} clients with {each} examples each need {clients * each} examples, "
            f"there are {examples}"
        )


def _deal(rows: Rows, clients: int, each: int | None, cap: int | None, who: str) -> Assignment:
    """Consecutive shares of `rows`, equal up to one, or of `each` rows."""
    _need_examples(len(rows), clients, each or 1, who)
    if each is None:
        each, extra = divmod(len(rows), clients)
        sizes = np.full(clients, each) + (np.arange(clients) < extra)
    else:
        sizes = np.full(clients, each)
    dealt = Assignment(rows[: sizes.sum()].astype(np.int64, copy=False), offsets_of(sizes))
    return dealt if cap is None else dealt.keep(dealt.positions < cap)


def _limit(dealt: Assignment, most: int | None, seed: int) -> Assignment:
    """At most that many rows a client, drawn at random, in their old order."""
    if most is None or dealt.sizes.max() <= most:
        return dealt
    chosen = np.zeros(len(dealt.rows), dtype=bool)
    chosen[dealt.lottery(seed, "cap")[dealt.positions < most]] = True
    return dealt.keep(chosen)


def _fill_empty(client: Rows, clients: int, draw: np.random.Generator) -> None:
    """Give every client without rows one row that its owner can spare, in place."""
    empty = np.flatnonzero(np.bincount(client, minlength=clients) == 0)
    if not empty.size:
        return
    order = draw.permutation(len(client))
    _, first = np.unique(client[order], return_index=True)  # a random row of each: it stays
    spare = np.delete(order, first)
    client[spare[: len(empty)]] = empty


def _log_gamma(alpha: float, count: int, draw: np.random.Generator) -> npt.NDArray[np.float64]:
    """Logarithms of Gamma(alpha) draws; small alphas would underflow without the logarithm.

    G(alpha) has the law of G(alpha + 1) * U**(1/alpha).
    """
    exponential = draw.standard_exponential(count)  # -log U
    return np.asarray(np.log(draw.standard_gamma(alpha + 1, count)) - exponential / alpha)


def _dirichlet(alpha: float, count: int, draw: np.random.Generator) -> npt.NDArray[np.float64]:
    logs = _log_gamma(alpha, count, draw)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())
