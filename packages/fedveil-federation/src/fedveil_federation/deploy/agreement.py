"""What the parties of a federation agree on before anything runs. All of it is public."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from fedveil.core.canonical import canonical
from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation
from fedveil_federation.deploy.courier import COURIERS, HUB, place_of
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.schemas import (
    ArraySchema,
    RowSchema,
    TableSchema,
    public_examples,
    rows_of,
)


@dataclass(frozen=True)
class Members:
    """A federation's name, its hub's public key, and each site's, in the order of their numbers.

    The hub relays key cards and plans. Because identities are pinned here, by every site itself, it
    cannot make sites up.
    """

    federation: str
    hub: bytes  # Ed25519
    sites: Mapping[str, bytes]  # name -> Ed25519
    agreement: str = ""  # digest of what they have agreed on

    def __post_init__(self) -> None:
        if not 1 <= len(self.federation.encode()) <= 100:
            raise ConfigError(f"federation = {self.federation!r}: need a name of 1 to 100 bytes")
        keys = (self.hub, *self.sites.values())
        if any(len(key) != 32 for key in keys) or len(set(keys)) < len(keys):
            raise ConfigError("members: hub and sites need a public key each, 32 bytes, all apart")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sites)

    @property
    def pinned(self) -> dict[int, bytes]:
        """Identities by number."""
        return dict(enumerate(self.sites.values()))

    @property
    def secagg_name(self) -> str:
        """The federation's name in secure sums; keys are made for it."""
        return f"fedveil/{self.federation}"

    def number(self, site: str) -> int:
        if site not in self.sites:
            raise ConfigError(f"site {site!r} is none of {', '.join(self.names)}")
        return self.names.index(site)

    @property
    def fingerprint(self) -> str:
        """A number that owners read to each other: equal if they have the same list.

        200 bits: a hub may make up keys for two lists until their fingerprints agree, which takes
        the square root of all there are.
        """
        digest = hashlib.sha256(b"fedveil members" + canonical(self._document)).hexdigest()
        return "-".join(digest[at : at + 5] for at in range(0, 50, 5))

    @property
    def _document(self) -> dict[str, Any]:
        listed = [{"name": name, "identity": key.hex()} for name, key in self.sites.items()]
        named = {"federation": self.federation, "hub": self.hub.hex()}
        return {**named, "agreement": self.agreement, "site": listed}

    def to_text(self) -> str:
        return tomli_w.dumps(self._document)

    @staticmethod
    def of(text: str) -> Members:
        try:
            document: dict[str, Any] = tomllib.loads(text)
            listed = document["site"]
            sites = {str(one["name"]): bytes.fromhex(one["identity"]) for one in listed}
            if len(sites) < len(listed):
                raise ValueError("two sites of one name")
            hub = bytes.fromhex(document["hub"])
            return Members(document["federation"], hub, sites, str(document["agreement"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"members: the list cannot be read: {error}") from None


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
    engine: str = COURIERS[0]

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
        place_of(self.engine)  # an unknown courier is refused here
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
        """The agreement's digest: two that differ anywhere have different ones."""
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
        """Return a plan's public facts about everybody's data."""
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
