"""What the parties of a federation agree on before anything runs. All of it is public."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.canonical import canonical
from fedveil.core.errors import ConfigError
from fedveil.data.encoder import TableEncoder
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.data.partition import IID
from fedveil.data.schema import Column, Kind, parse_schema
from fedveil.data.table import from_table
from fedveil.deploy.facts import Facts

ENGINES = ("flare", "flower")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class Agreement:
    """Names, the hub's address and public key, and the schema of everybody's rows.

    `columns` is the schema as its file has it; `label` names the column to predict. Each site holds
    out the share `holdout` of its rows to evaluate on.
    """

    name: str
    address: str  # host:port
    hub: str  # Ed25519, hexadecimal
    sites: tuple[str, ...]  # in the order of their numbers
    label: str
    columns: Mapping[str, Any]
    holdout: float = 0.0
    engine: str = ENGINES[0]  # what carries the bytes

    def __post_init__(self) -> None:
        for name in (self.name, *self.sites):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"name {name!r}: use 1 to 40 small letters, digits and hyphens between them"
                )
        if len(set(self.sites)) < len(self.sites) or not 2 <= len(self.sites) <= 1000:
            raise ConfigError("sites: need 2 to 1000 different names")
        host, _, port = self.address.rpartition(":")
        if (
            not re.fullmatch(r"[\w.-]{1,64}", host)
            or not port.isdecimal()
            or not 0 < int(port) < 2**16
        ):
            raise ConfigError(f"hub address {self.address!r}: need HOST:PORT, as sites reach it")
        if not isinstance(self.holdout, float) or not 0 <= self.holdout < 1:
            raise ConfigError(f"holdout = {self.holdout!r}: need a share in [0, 1)")
        if self.engine not in ENGINES:
            raise ConfigError(f"engine {self.engine!r}: choose from {', '.join(ENGINES)}")
        if not re.fullmatch("[0-9a-f]{64}", self.hub):
            raise ConfigError("hub key: need 64 hexadecimal digits")
        self.encoder  # noqa: B018  # a schema that cannot be used is refused here

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @cached_property
    def digest(self) -> str:
        """What names the agreement: two that differ anywhere have different ones."""
        return hashlib.sha256(b"fedveil agreement" + canonical(self.to_table())).hexdigest()

    @cached_property
    def encoder(self) -> TableEncoder:
        """How rows become inputs, by the schema alone."""
        known = parse_schema({"columns": self.columns})
        if guessed := [name for name, column in known.items() if column.guess]:
            raise ConfigError(
                f"schema: column {guessed[0]!r} is a guess from somebody's rows; everybody is to "
                "know it, so make it what everybody may know, and delete the mark"
            )
        target = known.pop(self.label, None)
        if target is None or target.kind not in (Kind.CATEGORY, Kind.BOOLEAN, Kind.NUMBER):
            raise ConfigError(
                f"schema: the label {self.label!r} must be in it, as category, boolean or number"
            )
        inputs = {name: column for name, column in known.items() if column.kind is not Kind.IGNORE}
        if not inputs:
            raise ConfigError(f"schema: no column besides {self.label!r} can be used as an input")
        return TableEncoder(inputs, self.label, target)

    @property
    def unit(self) -> float:
        """What one stands for in a number to predict."""
        target = self.encoder.target
        return target.width if target.kind is Kind.NUMBER else 1.0

    def facts(self, sizes: tuple[int, ...]) -> Facts:
        """What a plan says about everybody's data."""
        classes = _classes(self.encoder.target)
        task = Task.CLASSIFICATION if classes else Task.REGRESSION
        shape = (len(self.encoder.features),)
        return Facts(self.name, str(task), len(classes), shape, sizes, self.digest)

    def at_hub(self, sizes: tuple[int, ...], test: Examples | None) -> Federation:
        """The federation as the hub knows it: no rows but public test examples."""
        target, plain = self.encoder.target, self.facts(sizes).federation(test)
        scaling = None
        if plain.task is Task.REGRESSION:
            shift, factor = (np.asarray(x, np.float32) for x in (target.centre, 1 / target.width))
            scaling = Scaling(shift, factor)
        return replace(
            plain,
            class_names=_classes(target),
            features=self.encoder.features,
            encoder=self.encoder,
            target_scaling=scaling,
        )

    def public_rows(self, path: Path) -> Examples:
        """All rows of a file."""
        return replace(self, holdout=0.0).rows(path).train

    def rows(self, path: Path) -> Federation:
        """One owner's rows: a CSV or Parquet file, or a folder that `Federation.save` wrote."""
        if path.is_dir():
            found = Federation.open(path)
            known = self.facts((1,))
            shape = (str(found.task), found.classes, found.input_shape)
            if shape != (known.task, known.classes, known.input_shape) or found.clients != 1:
                raise ConfigError(f"data {path}: not one owner's rows of the agreed schema")
            return found
        schema = {"columns": self.columns}
        return from_table(
            path, label=self.label, schema=schema, partition=IID(1), test_fraction=self.holdout
        )

    def to_table(self) -> dict[str, Any]:
        """As a document: what `Agreement(**...)` takes."""
        return {**asdict(self), "sites": list(self.sites)}

    @staticmethod
    def of(table: Mapping[str, Any]) -> Agreement:
        try:
            return Agreement(**{**table, "sites": tuple(table["sites"])})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"federation: not an agreement of this version ({error})") from None


def _classes(target: Column) -> tuple[str, ...]:
    return ("false", "true") if target.kind is Kind.BOOLEAN else target.categories
