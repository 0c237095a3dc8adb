"""The run directory: recipe, ledger, guarantee, metrics, checkpoint and model of one run."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import tomli_w

from fedveil.engine.checkpoint import (
    Checkpoint,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)
from fedveil.errors import BadInput
from fedveil.planning.plan import Plan
from fedveil.privacy.ledger import Header, Ledger
from fedveil.server.optimizers import State


class RunDirectory:
    """An open run directory. Only one process may have it open at a time."""

    def __init__(self, path: Path, plan: Plan, recipe: str, lock: IO[str]) -> None:
        self.path, self._lock = path, lock
        self._fingerprint = fingerprint(recipe, plan.federation)
        ledger = path / "ledger.jsonl"
        self.ledger = Ledger.open(ledger) if ledger.exists() else None
        self._metrics = path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, plan: Plan, recipe: dict[str, Any]) -> RunDirectory:
        """Make a new run directory, whole or not at all."""
        if path.exists():
            raise BadInput(
                f"--output {path}: exists already; resume it with --resume, or choose another"
            )
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        new = [parent for parent in path.parents if not parent.exists()]
        text = tomli_w.dumps(recipe)
        try:
            (partial / "checkpoint").mkdir(parents=True)
            lock = _lock(partial)
            (partial / "recipe.toml").write_text(text, encoding="utf-8")
            if plan.guarantee is not None and plan.setting is not None:
                releases = plan.releases(plan.method.rounds)
                Ledger.create(
                    partial / "ledger.jsonl", Header(plan.setting, plan.guarantee.delta, releases)
                )
                document = json.dumps(plan.guarantee.to_dict(), indent=2) + "\n"
                (partial / "guarantee.json").write_text(document, encoding="utf-8")
            (partial / "metrics.jsonl").touch()
            optimizer: State = plan.optimizer.start(plan.start)
            save_checkpoint(
                partial / "checkpoint" / "state.safetensors",
                Checkpoint(0, plan.start, optimizer),
                fingerprint(text, plan.federation),
                durable=True,
            )
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            for parent in new:
                with suppress(OSError):
                    parent.rmdir()
            raise
        return cls(path, plan, text, lock)

    @classmethod
    def open(cls, path: Path, plan: Plan) -> RunDirectory:
        """Open an existing run directory to go on with it."""
        lock = _lock(path)
        return cls(path, plan, (path / "recipe.toml").read_text(encoding="utf-8"), lock)

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint" / "state.safetensors"

    def load(self) -> Checkpoint:
        """The last stored state. Metrics of later rounds, which will run again, are dropped."""
        checkpoint = load_checkpoint(self._checkpoint, self._fingerprint)
        kept = []
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["round"] <= checkpoint.rounds:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                break  # a line cut short by a crash
        write_atomically(self._metrics, "".join(kept).encode(), durable=False)
        return checkpoint

    def save(self, state: Checkpoint, *, durable: bool) -> None:
        """Replace the stored state."""
        save_checkpoint(self._checkpoint, state, self._fingerprint, durable=durable)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        lines = self._metrics.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def append_metrics(self, document: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(document)) + "\n")

    def write_model(self, data: bytes) -> Path:
        """Write model.safetensors and return its path."""
        path = self.path / "model.safetensors"
        write_atomically(path, data)
        return path

    def close(self) -> None:
        self._lock.close()


def stored_recipe(path: Path) -> dict[str, Any]:
    """The resolved recipe of a run directory."""
    try:
        return tomllib.loads((path / "recipe.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: not a run directory (no recipe.toml)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}/recipe.toml: damaged: {error}") from None


def _lock(path: Path) -> IO[str]:
    """Hold the directory until the file is closed or the process ends, however it ends."""
    file = (path / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BadInput(f"{path}: in use by another run") from None
    return file


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
