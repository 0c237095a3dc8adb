"""Who belongs to a federation: what every party keeps a copy of, and believes nobody else about."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedveil.core.errors import ConfigError


@dataclass(frozen=True)
class Members:
    """A federation's name, its hub's public key, and each site's, in the order of their numbers.

    The hub relays key cards and plans. Because identities are pinned here, by every site itself, it
    cannot make sites up.
    """

    federation: str
    hub: bytes  # Ed25519
    sites: Mapping[str, bytes]  # name -> Ed25519

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
        """What secure sums call this federation; keys are made for it."""
        return f"fedveil/{self.federation}"

    def number(self, site: str) -> int:
        if site not in self.sites:
            raise ConfigError(f"site {site!r} is none of {', '.join(self.names)}")
        return self.names.index(site)

    def write(self, path: Path) -> None:
        listed = [{"name": name, "identity": key.hex()} for name, key in self.sites.items()]
        document = {"federation": self.federation, "hub": self.hub.hex(), "site": listed}
        path.write_text(tomli_w.dumps(document), encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Members:
        try:
            document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
            listed = document["site"]
            sites = {str(one["name"]): bytes.fromhex(one["identity"]) for one in listed}
            if len(sites) < len(listed):
                raise ValueError("two sites of one name")
            return Members(document["federation"], bytes.fromhex(document["hub"]), sites)
        except OSError as error:
            raise ConfigError(f"members {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"members {path}: cannot be read: {error}") from None
