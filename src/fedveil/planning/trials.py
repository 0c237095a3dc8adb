"""What was tried and how it went: kept in memory, and in a file from which a search can go on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fedveil.errors import BadInput
from fedveil.planning.rehearsal import Outcome, Trial
from fedveil.planning.space import Candidate

VERSION = 1


class Trials:
    """Outcomes by trial. With a path, every outcome is a line of that file as soon as it is known.

    `about` says which question the trials answer; a file about another one is refused. A search
    that is started again with its file asks the same things in the same order, so it goes on
    where it was stopped.
    """

    def __init__(self, path: Path | None = None, about: Mapping[str, Any] | None = None) -> None:
        self._known: dict[Trial, Outcome] = {}
        self._file: IO[str] | None = None
        self.found = 0  # outcomes that were in the file
        if path is not None:
            header = json.loads(json.dumps({"version": VERSION, "about": dict(about or {})}))
            self._open(path, header)

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> list[tuple[Trial, Outcome]]:
        return list(self._known.items())

    def get(self, trial: Trial) -> Outcome | None:
        return self._known.get(trial)

    def add(self, trial: Trial, outcome: Outcome) -> None:
        self._known[trial] = outcome
        if self._file is not None:
            self._file.write(json.dumps({**trial.to_dict(), "outcome": _plain(outcome)}) + "\n")
            self._file.flush()

    @property
    def work(self) -> int:
        """Local steps of all clients in all trials."""
        return sum(outcome.work for outcome in self._known.values())

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self._known.values())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith("\n"):
            lines.pop()  # cut short when the search was stopped
        if not lines:
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        else:
            try:
                if json.loads(lines[0]) != header:
                    raise BadInput(
                        f"--journal {path}: is about another recipe, proxy or search; name a new "
                        "file"
                    )
                for line in lines[1:]:
                    trial, outcome = _read(json.loads(line))
                    self._known[trial] = outcome
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, BadInput):
                    raise
                raise BadInput(f"--journal {path}: cannot be read: {error}") from None
            path.write_text("".join(lines), encoding="utf-8")
        self.found = len(self._known)
        self._file = path.open("a", encoding="utf-8")


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "loss": outcome.loss if math.isfinite(outcome.loss) else None,
        "accuracy": outcome.accuracy,
        "work": outcome.work,
        "seconds": round(outcome.seconds, 4),
    }


def _read(document: Mapping[str, Any]) -> tuple[Trial, Outcome]:
    result = document["outcome"]
    loss = math.inf if result["loss"] is None else float(result["loss"])
    trial = Trial(
        Candidate(**document["candidate"]),
        float(document["epsilon"]),
        float(document["share"]),
        int(document["seed"]),
        float(document["noise"]),
    )
    return trial, Outcome(loss, result["accuracy"], int(result["work"]), float(result["seconds"]))
