"""The run directory: recipe, ledger, guarantee, metrics, checkpoint and model of one run."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import tomllib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import tomli_w

from fedveil.core.errors import ConfigError
from fedveil.core.files import sync_directory, write_atomically
from fedveil.planning.plan import Plan
from fedveil.privacy.ledger import Header, Inconsistent, Ledger
from fedveil.run.checkpoint import (
    Checkpoint,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
)
from fedveil.run.evidence import (
    CHECKPOINT,
    LEDGER,
    METRICS,
    MODEL,
    Seen,
    clients_digest,
    examined,
    metrics,
    recipe_digest,
)


class RunDirectory:
    """An open run directory. Only one process may have it open at a time."""

    def __init__(
        self, path: Path, plan: Plan, recipe: bytes, lock: IO[str], ledger: Ledger | None
    ) -> None:
        self.path, self._lock, self.ledger, self._recipe = path, lock, ledger, recipe
        self._fingerprint = _fingerprint(plan, recipe)
        self._metrics = path / METRICS
        self.lost = 0  # protected rounds that were begun and not stored, as `load` found

    @staticmethod
    def check_new(path: Path) -> None:
        if path.exists():
            raise ConfigError(
                f"--output {path}: exists already; resume it with --resume, or choose another"
            )

    @classmethod
    def create(cls, path: Path | str, plan: Plan, recipe: dict[str, Any]) -> RunDirectory:
        """Make a new run directory, whole or not at all."""
        path = Path(path)
        cls.check_new(path)
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        new = [parent for parent in path.parents if not parent.exists()]
        text = tomli_w.dumps(recipe).encode()
        header, seen = _header(plan, text), None
        try:
            (partial / CHECKPOINT).parent.mkdir(parents=True)
            lock = _lock(partial)
            write_atomically(partial / "recipe.toml", text)
            if header is not None and plan.guarantee is not None:
                seen = Seen.of(Ledger.create(partial / LEDGER, header))
                document = json.dumps(plan.guarantee.to_dict(), indent=2) + "\n"
                write_atomically(partial / "guarantee.json", document.encode())
            (partial / METRICS).touch()
            start = Checkpoint(0, plan.start, plan.optimizer.start(plan.start))
            run = _fingerprint(plan, text)
            save_checkpoint(partial / CHECKPOINT, start, run, seen, durable=True)
            sync_directory(partial)
            partial.rename(path)
            for parent in [path.parent, *(made.parent for made in new)]:
                sync_directory(parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            for parent in new:
                with suppress(OSError):
                    parent.rmdir()
            raise
        ledger = None if header is None else Ledger.open(path / LEDGER)
        return cls(path, plan, text, lock, ledger)

    @classmethod
    def open(cls, path: Path | str, plan: Plan, *, moved: bool = False) -> RunDirectory:
        """Open an existing run directory to go on with it.

        `moved` is the user's word that this copy is the only one that will go on.
        """
        path = Path(path)
        lock = _lock(path)
        try:
            text = (path / "recipe.toml").read_bytes()
            header, ledger = _header(plan, text), None
            if header is not None:
                if examined(path).header != header:
                    raise Inconsistent(
                        f"{path}: its ledger promises something else than this recipe gives now; "
                        "go on with the data and the version of fedveil that began the run"
                    )
                ledger = Ledger.open(path / LEDGER, moved=moved)
            elif (path / LEDGER).exists():
                raise Inconsistent(f"{path}: has a ledger, but its recipe promises nothing")
        except BaseException:
            lock.close()
            raise
        return cls(path, plan, text, lock, ledger)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that is not the one whose promise is kept here."""
        if _header(plan, self._recipe) != (None if self.ledger is None else self.ledger.header):
            raise ConfigError(f"{self.path}: was opened for another plan than this run's")

    @property
    def _checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    def load(self) -> Checkpoint:
        """Return the last stored state.

        A simulation redoes the rounds after it, and their metrics are dropped. Protected rounds
        that were reserved and not stored may have left: they are `lost`, and not drawn again.
        """
        state = load_checkpoint(self._checkpoint, self._fingerprint)
        kept = [line for line in metrics(self.path) if line["round"] <= state.rounds]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self._metrics, text.encode(), durable=False)
        ledger = self.ledger
        if ledger is not None and not ledger.repeatable and ledger.reserved > state.rounds:
            self.lost = ledger.reserved - state.rounds
            self.save(state, durable=True)  # from now on the checkpoint knows of them
        return state

    def save(self, state: Checkpoint, *, durable: bool) -> None:
        """Replace the stored state."""
        seen = None if self.ledger is None else Seen.of(self.ledger)
        save_checkpoint(self._checkpoint, state, self._fingerprint, seen, durable=durable)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        return metrics(self.path)

    def append_metrics(self, document: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl, or nothing at all."""
        line = (json.dumps(_finite(document)) + "\n").encode()
        with self._metrics.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._metrics))
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                raise

    def write_model(self, data: bytes) -> Path:
        """Write model.safetensors and return its path."""
        path = self.path / MODEL
        write_atomically(path, data)
        return path

    def close(self) -> None:
        self._lock.close()


def _header(plan: Plan, recipe: bytes) -> Header | None:
    """Return what the ledger of a plan begins with; None if the plan promises nothing."""
    if plan.privacy_model is None or plan.delta is None:
        return None
    rounds = plan.method.rounds
    releases = plan.releases(rounds)
    counted = any(release.counted_participations < release.rounds for release in releases)
    clients = clients_digest(plan.federation) if counted or plan.scales is not None else ""
    if plan.scales is not None:  # who pays less must stay the same when the run goes on
        clients = sha256(f"{clients} {tuple(plan.scales)}".encode()).hexdigest()
    return Header(plan.privacy_model, plan.delta, releases, rounds, recipe_digest(recipe), clients)


def _fingerprint(plan: Plan, recipe: bytes) -> str:
    return fingerprint(recipe, None if plan.protected else plan.federation)


def stored_recipe(path: Path) -> dict[str, Any]:
    """Return the resolved recipe of a run directory."""
    try:
        return tomllib.loads((path / "recipe.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not a run directory (no recipe.toml)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}/recipe.toml: damaged: {error}") from None


def _lock(path: Path) -> IO[str]:
    """Hold the directory until the file is closed or the process ends, however it ends."""
    file = (path / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"{path}: in use by another run") from None
    return file


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
