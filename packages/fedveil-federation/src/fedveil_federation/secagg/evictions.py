"""What a server holds against devices over many rounds, in a file beside its rounds' logs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil_federation.secagg.blame import exposed

NAME = "devices.json"
VERSION = 1
SUSPICIONS = 3  # rounds in which a device contradicts more others than may lie, until it must go


@dataclass
class HeldAgainst:
    """By device: why it was evicted; the rounds (hex digests) in which it was suspect; whom it has
    ever contradicted."""

    evicted: dict[int, str] = field(default_factory=dict)
    suspicions: dict[int, set[str]] = field(default_factory=dict)
    odds: dict[int, set[int]] = field(default_factory=dict)

    def contradictions(
        self, plan: bytes, odds: Mapping[int, set[int]], suspects: Collection[int], liars: int
    ) -> None:
        """Note who was at odds with whom in a round; who lies in too many rounds must go.

        `suspects`: who lies by this round alone; `liars`: how many devices may.
        """
        for device, others in odds.items():
            self.odds.setdefault(device, set()).update(others)
        for device in (exposed(self.odds, liars) & odds.keys()).union(suspects):
            rounds = self.suspicions.setdefault(device, set())
            rounds.add(plan.hex())
            if len(rounds) >= SUSPICIONS:
                self.evicted.setdefault(device, f"at odds with others in {SUSPICIONS} rounds")

    @classmethod
    def load(cls, folder: Path | None) -> HeldAgainst:
        """What was kept in a folder; nothing if there is none."""
        if folder is None or not (path := folder / NAME).exists():
            return cls()
        try:
            document = json.loads(path.read_bytes())
            if document["version"] != VERSION:
                raise ValueError(f"version {document['version']}")
            return cls(
                {int(device): str(why) for device, why in document["evicted"].items()},
                {int(device): set(rounds) for device, rounds in document["suspicions"].items()},
                {int(device): set(map(int, others)) for device, others in document["odds"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}: damaged ({error}); without it evicted devices would take part again"
            ) from None

    def keep(self, folder: Path | None) -> None:
        """On disk when it returns, if there is a folder and anything to keep."""
        if folder is None or not (self.evicted or self.odds or self.suspicions):
            return
        document = {
            "version": VERSION,
            "evicted": self.evicted,
            "suspicions": {device: sorted(rounds) for device, rounds in self.suspicions.items()},
            "odds": {device: sorted(others) for device, others in self.odds.items()},
        }
        path = folder / NAME
        data = json.dumps(document, indent=1).encode()
        try:
            if not path.exists() or path.read_bytes() != data:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(path, data)
                path.chmod(0o600)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
