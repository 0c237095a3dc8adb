"""Data that a pilot may look at: a public source, a public file, or made-up data of the same shape.

Private data are never a proxy. A recipe that trains on a file is taken to be private. A named
source is public, but where the settings of a run were chosen on the very rows that it protects, its
guarantee says so and is not certified. That other data are public is declared, and stands in the
guarantee: rows are not compared, because a refusal would tell that a row is in the protected data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.data.assignment import generator, offsets_of
from fedveil.data.federation import Federation
from fedveil.data.folder import shared_file
from fedveil.data.partition import PARTITIONS, Partition, named
from fedveil.data.sources import SOURCES
from fedveil.planning.assemble import federation_of
from fedveil.planning.recipe import DataSection, Recipe
from fedveil.tune.synthetic_proxy import MOST_CLIENTS, Scales, synthetic_proxy


class NotPublic(PrivacyRefusal):
    """Data that were called public are the protected data, by their name or their file."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: scores and settings taken from it would be releases without noise",
            "name data of other people, from a public source (fedveil data list) or file",
        )


SYNTHETIC = "synthetic"
_TABLES = (".csv", ".gz", ".parquet", ".tsv", ".txt")
_HELD_OUT = 0.15  # of a recipe's own public data, to score trials on
_MOST_HELD_OUT = 5000
_SOME_RECORDS = 20  # of a made-up client, if nobody says how many


@dataclass(frozen=True)
class Proxy:
    """Public data for trials; its test part scores them. `source` says where it comes from.

    looked_at: names of the data that settings found here depend on.
    """

    federation: Federation
    source: str
    notes: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()


def proxy_of(
    recipe: Recipe, name: str | None, federation: Federation, records: int | None = None
) -> Proxy:
    """Return public data for the trials of a recipe.

    Args:
        recipe: The recipe.
        name: A public source, or a public file that is read as the recipe reads its own, or
            `synthetic` for made-up data. None is the recipe's own source, which is public; where
            the recipe reads a file, which counts as private, None is `synthetic`.
        federation: The recipe's real data.
        records: Records of a made-up client, if publicly known.

    Raises:
        NotPublic: The named data are the protected ones.
    """
    if name == SYNTHETIC or (name is None and recipe.data.file is not None):
        return _made_up(recipe, federation, records)
    if name is None or (recipe.data.file is None and name == recipe.data.source):
        # The true test part stays unseen, or the expected result would flatter itself.
        own = recipe.data.source
        return Proxy(_scored_on_train(federation), f"{own} (public)", looked_at=(own,))
    found = federation_of(_public_section(recipe, name))
    source = f"{found.name} (public)"
    where = str(Path(name).absolute()) if Path(name).exists() else name
    notes: tuple[str, ...] = ()
    if found.input_shape != federation.input_shape or found.classes != federation.classes:
        notes = (
            f"the proxy has inputs of shape {list(found.input_shape)} and {found.classes} classes, "
            f"the recipe's data {list(federation.input_shape)} and {federation.classes}: a rough "
            "guide only",
        )
    return Proxy(found, source, notes, (where,))


def with_look(recipe: Recipe, looked_at: Iterable[str]) -> Recipe:
    """Return the recipe that remembers what its settings were tried out on."""
    names = tuple(dict.fromkeys((*recipe.privacy.tuned_on, *looked_at)))
    return replace(recipe, privacy=replace(recipe.privacy, tuned_on=names))


def some_clients(federation: Federation, clients: int, seed: int) -> Federation:
    """Choose clients at random, with all their examples; the rest stays as it was."""
    if clients >= federation.clients:
        return federation
    draw = generator(seed, "some clients")
    return of_clients(
        federation, np.sort(draw.choice(federation.clients, size=clients, replace=False))
    )


def of_clients(federation: Federation, chosen: npt.NDArray[np.integer[Any]]) -> Federation:
    """Return the federation of these clients, in this order, with all its other examples."""
    rows = [np.arange(federation.offsets[i], federation.offsets[i + 1]) for i in chosen]
    owners = None if federation.owners is None else federation.owners[chosen]
    epsilons = federation.own_epsilons
    if epsilons is not None and federation.train.persons is None:  # they are the clients' own
        epsilons = epsilons[chosen]
    return replace(
        federation,
        train=federation.train.take(np.concatenate(rows)),
        offsets=offsets_of(federation.sizes[chosen]),
        owners=owners,
        own_epsilons=epsilons,
        verified=True,
    )


def _public_section(recipe: Recipe, name: str) -> DataSection:
    data, path = recipe.data, Path(name)
    if path.suffix.lower() not in _TABLES:
        return DataSection(source=name, directory=data.directory)
    if not path.exists():
        raise ConfigError(f"--proxy {name}: no such file")
    if data.file is not None and shared_file(path, Path(data.file)) is not None:
        raise NotPublic(f"{name} is a private file itself")
    return replace(data, file=name)


def _made_up(recipe: Recipe, federation: Federation, records: int | None) -> Proxy:
    """Make data up in the recipe's shape.

    Of a named source, its clients' sizes and the scale of its values are taken too, unless the user
    says how many records a client has: then nothing of the source is looked at.
    """
    notes = ["made-up data rank settings; what is reached on them says little about real data"]
    looked_at: tuple[str, ...] = ()
    scales: Scales | None = None
    if records is None and recipe.data.file is None:
        looked_at = (recipe.data.source,)
        records = max(1, round(len(federation.train) / federation.clients))
        scales = Scales.of(federation)
    if records is None:
        records = _SOME_RECORDS
        notes.append(
            f"clients were taken to have {records} records each; how many they have is private, so "
            "say --records if you know it from elsewhere"
        )
    clients = recipe.privacy.public_clients or min(federation.clients, MOST_CLIENTS)
    partition = _partition(recipe.data, clients)
    made = synthetic_proxy(federation, records, clients=clients, scales=scales, partition=partition)
    return Proxy(made, f"synthetic, {records} records a client", tuple(notes), looked_at)


def _partition(data: DataSection, clients: int) -> Partition | None:
    """Return the rule by which a recipe deals records to this many artificial clients.

    None where clients are real owners, or made up themselves.
    """
    own = SOURCES[data.source].partition if data.file is None and data.source in SOURCES else None
    usual = next((name for name, kind in PARTITIONS.items() if type(own) is kind), "owner")
    name = data.partition or usual
    if name == "owner":
        return None
    alpha = getattr(own, "alpha", None) if data.alpha is None else data.alpha
    return named(name, clients=clients, **({"alpha": alpha} if name == "dirichlet" else {}))


def _scored_on_train(federation: Federation) -> Federation:
    """Return the federation with a part of every client's training examples as its test part."""
    sizes = federation.sizes
    draw = generator(0, "pilot scores")
    share = min(_HELD_OUT, _MOST_HELD_OUT / len(federation.train))
    out = draw.random(len(federation.train)) < share
    firsts = federation.offsets[:-1]
    emptied = np.add.reduceat(out.astype(np.int64), firsts) == sizes
    out[firsts[emptied]] = False
    if not out.any():
        raise ConfigError(
            f"--proxy: {federation.name} is too small to hold anything out; name another"
        )
    kept = sizes - np.add.reduceat(out.astype(np.int64), firsts)
    return replace(
        federation,
        train=federation.train.take(np.flatnonzero(~out)),
        offsets=offsets_of(kept),
        test=federation.train.take(np.flatnonzero(out)),
        verified=True,
    )
