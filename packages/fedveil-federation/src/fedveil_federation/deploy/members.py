"""Who belongs to a federation: what every party keeps a copy of, and believes nobody else about."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from fedveil.core.canonical import canonical
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
        """What secure sums call this federation; keys are made for it."""
        return f"fedveil/{self.federation}"

    def number(self, site: str) -> int:
        if site not in self.sites:
            raise ConfigError(f"site {site!r} is none of {', '.join(self.names)}")
        return self.names.index(site)

    @property
    def fingerprint(self) -> str:
        """What owners read to each other: the same if they have the same list.

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
