"""What the parties of a federation agree on before anything runs. All of it is public."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedveil.core.canonical import canonical
from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation
from fedveil_federation.deploy.courier import HUB
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.schemas import (
    ArraySchema,
    RowSchema,
    TableSchema,
    public_examples,
    rows_of,
)

ENGINES = ("https", "flare")  # what can carry the bytes; the first is the default
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class Agreement:
    """Names, the hub's address and public key, and the schema of everybody's rows.

    `columns` (or `arrays`) is the schema as its file has it; `label` names the column to predict,
    or several with commas between them.
    Each site holds out the share `holdout` of its rows to evaluate on; a folder has its own.
    """

    name: str
    address: str  # host:port
    hub: str  # Ed25519, hexadecimal
    sites: tuple[str, ...]  # in the order of their numbers
    label: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)  # instead of label and columns
    holdout: float = 0.0
    engine: str = ENGINES[0]

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
        for name in {HUB, host} & set(self.sites):
            raise ConfigError(
                f"site {name!r}: this name is the hub's, by which sites know it. Choose another."
            )
        if not isinstance(self.holdout, float) or not 0 <= self.holdout < 1:
            raise ConfigError(f"holdout = {self.holdout!r}: need a share in [0, 1)")
        if self.engine not in ENGINES:
            raise ConfigError(f"courier {self.engine!r}: choose from {', '.join(ENGINES)}")
        if not re.fullmatch("[0-9a-f]{64}", self.hub):
            raise ConfigError("hub key: need 64 hexadecimal digits")
        self.facts((1,))  # a schema that cannot be used is refused here

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
    def schema(self) -> RowSchema:
        """How rows become inputs."""
        if self.arrays:
            if self.label or self.columns:
                raise ConfigError("schema: either columns with a label, or arrays")
            return ArraySchema.of(self.arrays)
        return TableSchema(self.label, self.columns)

    def facts(self, sizes: tuple[int, ...]) -> Facts:
        """What a plan says about everybody's data."""
        known = self.schema
        return Facts(
            self.name, str(known.task), len(known.classes), known.shape, sizes, self.digest
        )

    def at_hub(self, sizes: tuple[int, ...], test: Examples | None) -> Federation:
        """The federation as the hub knows it: no rows but public test examples."""
        return self.schema.named(self.facts(sizes).federation(test))

    def public_rows(self, path: Path) -> Examples:
        """All rows of a file or folder."""
        return public_examples(rows_of(self.schema, path, 0.0))

    def rows(self, path: Path, person_column: str | None = None) -> Federation:
        """One owner's rows: a CSV or Parquet file, or a folder that `Federation.save` wrote."""
        return rows_of(self.schema, path, self.holdout, person_column)

    def to_table(self) -> dict[str, Any]:
        """As a document: what `Agreement(**...)` takes."""
        return {**asdict(self), "sites": list(self.sites)}

    @staticmethod
    def of(table: Mapping[str, Any]) -> Agreement:
        try:
            return Agreement(**{**table, "sites": tuple(table["sites"])})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ConfigError(f"federation: not an agreement of this version ({error})") from None
