"""Finished runs on disk, one file each: written whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Store:
    """A directory of outcomes by key. A file that is there is complete."""

    directory: Path

    def find(self, key: str) -> Outcome | None:
        """Return the outcome of a finished run; None if it is yet to be run."""
        try:
            text = self._path(key).read_text(encoding="utf-8")
            outcome: Outcome = json.loads(text)
        except (FileNotFoundError, json.JSONDecodeError):  # e.g. a disk that was full
            return None
        return outcome

    def keep(self, key: str, outcome: Outcome) -> None:
        """Store an outcome; after this returns, a crash of the machine does not lose it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(outcome, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}.json"
