"""The run directory: recipe, ledger, guarantee, metrics, checkpoint, model and result of one run.

The ledger says what was paid for, and `guarantee.json` what was promised. A checkpoint keeps the
ledger's run id, its number of lines and its head at the time of writing; metrics number the rounds
that were shown. A ledger that lacks any of these was cut, changed or taken from elsewhere: whatever
takes a guarantee from a ledger goes through `examined`.

Checkpoints hold the shared weights, the server optimiser's state and how many rounds are done.
There is no generator state to keep: every stream is keyed by its round. Nothing in a protected
run's checkpoint is un-noised, not even a hash of data.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import tomli_w
from safetensors import SafetensorError, safe_open

from fedveil.core.canonical import plain
from fedveil.core.errors import ConfigError
from fedveil.core.files import sync_directory, write_atomically
from fedveil.privacy import ledger_anchor
from fedveil.privacy.accounting import account
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.ledger import Header, Inconsistent, Ledger, read

if TYPE_CHECKING:  # torch and data are loaded only by those that train
    from torch import Tensor

    from fedveil.data.federation import Federation
    from fedveil.planning.plan import Plan
    from fedveil.training.server.optimizers import State

LEDGER, PROMISE, RECIPE = "ledger.jsonl", "guarantee.json", "recipe.toml"
METRICS, MODEL, RESULT = "metrics.jsonl", "model.safetensors", "result.json"
CHECKPOINT = Path("checkpoint") / "state.safetensors"
FORMAT = "fedveil-checkpoint-3"
_KEPT = (  # of a finished run's result
    *("accuracy", "rmse", "loss", "baseline", "scores", "rounds", "released_rounds"),
    *("planned_rounds", "engine", "warnings", "certify", "columns", "effects"),
)
_PACKAGES = ("fedveil", "torch", "numpy", "scipy", "dp-accounting", "cryptography")


@dataclass(frozen=True)
class Checkpoint:
    """The state between two rounds."""

    rounds: int  # how many are done
    weights: Tensor  # [parameters]
    optimizer: State


class RunDirectory:
    """An open run directory. Only one process may have it open at a time."""

    def __init__(
        self, path: Path, plan: Plan, recipe: bytes, lock: IO[str], ledger: Ledger | None
    ) -> None:
        self.path, self._lock, self.ledger, self._recipe = path, lock, ledger, recipe
        self._fingerprint = _fingerprint(plan, recipe)
        self.lost = 0  # protected rounds that were begun and not stored, as `load` found

    @staticmethod
    def check_new(path: Path) -> None:
        if path.exists():
            raise ConfigError(
                f"--output {path}: exists already; resume it with --resume, or choose another"
            )

    @classmethod
    def create(cls, path: Path | str, plan: Plan, recipe: dict[str, Any]) -> RunDirectory:
        """Make a new run directory, whole or not at all.

        Args:
            path: Where; it must not exist yet.
            plan: What will run. Its guarantee is written down before anything is computed.
            recipe: The resolved recipe.
        """
        path = Path(path)
        cls.check_new(path)
        text = tomli_w.dumps(recipe).encode()
        header, ledger = _header(plan, text), None
        with new_folder(path) as partial:
            (partial / CHECKPOINT).parent.mkdir()
            lock = _lock(partial)
            write_atomically(partial / RECIPE, text)
            if header is not None and plan.guarantee is not None:
                ledger = Ledger.create(partial / LEDGER, header)
                write_json(partial / PROMISE, plan.guarantee.to_dict())
            (partial / METRICS).touch()
            start = Checkpoint(0, plan.start, plan.optimizer.start(plan.start))
            run = _fingerprint(plan, text)
            save_checkpoint(partial / CHECKPOINT, start, run, ledger, durable=True)
        return cls(path, plan, text, lock, None if header is None else Ledger.open(path / LEDGER))

    @classmethod
    def open(cls, path: Path | str, plan: Plan, *, moved: bool = False) -> RunDirectory:
        """Open an existing run directory to continue its run.

        Args:
            path: The directory.
            plan: The plan of its recipe.
            moved: The user's declaration that this copy is the only one that will continue.

        Raises:
            ConfigError: Another process has it open, or it promises something else than the plan.
        """
        path = Path(path)
        lock = _lock(path)
        try:
            text = (path / RECIPE).read_bytes()
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

    def load(self) -> Checkpoint:
        """Return the last stored state.

        A simulation redoes the rounds after it, and their metrics are dropped. Protected rounds
        that were reserved and not stored may have left: they are `lost`, and not drawn again.
        """
        state = load_checkpoint(self.path / CHECKPOINT, self._fingerprint)
        lines = [line for line in self.metrics() if line["round"] <= state.rounds]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.path / METRICS, text.encode(), durable=False)
        ledger = self.ledger
        if ledger is not None and not ledger.repeatable and ledger.reserved > state.rounds:
            self.lost = ledger.reserved - state.rounds
            self.save(state, durable=True)  # from now on the checkpoint knows of them
        return state

    def save(self, state: Checkpoint, *, durable: bool) -> None:
        """Replace the stored state."""
        path = self.path / CHECKPOINT
        save_checkpoint(path, state, self._fingerprint, self.ledger, durable=durable)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl."""
        return metrics(self.path)

    def append_metrics(self, document: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl, or nothing at all."""
        path = self.path / METRICS
        line = (json.dumps(plain(document)) + "\n").encode()
        with path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                raise

    def finish(self, model: bytes, result: Mapping[str, Any]) -> None:
        """Write the model and the public part of a result, with the versions of this process.

        Args:
            model: The model file.
            result: The document that `fedveil run --json` prints.
        """
        write_atomically(self.path / MODEL, model)
        shown_result = {name: result[name] for name in _KEPT if name in result}
        write_json(self.path / RESULT, {**shown_result, "versions": versions()})
        self.close()

    def close(self) -> None:
        self._lock.close()


def write_json(path: Path, document: Any) -> None:
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode())


def free_path(path: Path) -> Path:
    """Return a path that does not exist yet: this one, or one with a number behind it."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(one for one in chain([path], numbered) if not one.exists())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, named once it is whole; after an error nothing stays."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    new = [parent for parent in path.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
        yield partial
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


def _header(plan: Plan, recipe: bytes) -> Header | None:
    """Return what the ledger of a plan begins with; None if the plan promises nothing."""
    if plan.privacy_model is None or plan.delta is None:
        return None
    rounds = plan.method.rounds
    releases = plan.releases(rounds)
    counted = any(release.counted_participations < release.rounds for release in releases)
    own_budgets: tuple[object, ...] = () if plan.scales is None else (plan.scales,)
    if plan.rates and plan.federation.own_epsilons is not None:
        own_budgets = (*own_budgets, plan.rates, plan.federation.own_epsilons.tolist())
    clients, owners = "", plan.federation.owners
    if (counted or own_budgets) and owners is not None:
        # The clients' names in their order, which no guarantee hides.
        clients = sha256(json.dumps([str(owner) for owner in owners]).encode()).hexdigest()
    if own_budgets:  # who pays less must stay the same when the run goes on
        clients = sha256(" ".join(map(str, (clients, *own_budgets))).encode()).hexdigest()
    digest = sha256(recipe).hexdigest()
    return Header(plan.privacy_model, plan.delta, releases, rounds, digest, clients)


def _fingerprint(plan: Plan, recipe: bytes) -> str:
    return fingerprint(recipe, None if plan.protected else plan.federation)


def fingerprint(recipe: bytes, federation: Federation | None) -> str:
    """Identify what a run is made from: its recipe, and offsets, targets and some inputs.

    Whatever is written down is a release, and a hash of data answers every guess about them: for a
    protected run the federation is left out (None).
    """
    digest = sha256(recipe)
    if federation is not None:
        train = federation.train
        some = train.inputs[:: max(1, len(train) // 1000)]
        for column in (federation.offsets, train.targets, some):
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _lock(path: Path) -> IO[str]:
    """Hold the directory until the file is closed or the process ends, however it ends."""
    file = (path / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(f"{path}: in use by another run") from None
    return file


# What the files say, for whoever reads them.


def stored_recipe(path: Path) -> dict[str, Any]:
    """Return the resolved recipe of a run directory."""
    try:
        return tomllib.loads((path / RECIPE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not a run directory (no {RECIPE})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}/{RECIPE}: damaged: {error}") from None


def read_result(path: Path) -> dict[str, Any] | None:
    """Return the stored result of a run directory; None if the run has not finished."""
    try:
        return dict(json.loads((path / RESULT).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path / RESULT}: damaged ({error}); resume the run") from None


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:  # run from a source tree
            installed[name] = "not installed"
    return installed


def metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics. The last may have been cut short by a crash."""
    documents = []
    lines = _contents(path / METRICS).splitlines(keepends=True)
    for number, line in enumerate(lines):
        try:
            document = json.loads(line)
            int(document["round"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines) - 1 and not line.endswith(b"\n"):
                break
            raise Inconsistent(f"{path / METRICS}, line {number + 1}: damaged") from None
        documents.append(document)
    return documents


def examined(path: Path) -> Ledger:
    """Compare everything in a directory with its ledger, and return the ledger.

    The header of the ledger, not the directory's name, says whether this is a run: a run promises
    to follow a recipe, and a purchase (`run.purchase`) has none.

    Args:
        path: a run directory, or that of a purchase.

    Returns:
        The ledger as it stood after everything else was read. A run writes the ledger first, so
        one that goes on meanwhile is no contradiction.

    Raises:
        Inconsistent: if a file is missing, damaged, or contradicts the ledger.
    """
    examine = _examined_run if read(path / LEDGER).header.recipe else _examined_purchase
    ledger = examine(path)
    header = ledger.header
    proved = account(header.planned, privacy_model=header.privacy_model, delta=header.delta)
    try:
        promised = Guarantee.from_dict(json.loads(_contents(path / PROMISE)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Inconsistent(f"{path / PROMISE}: cannot be read ({error})") from None
    if promised != proved:
        raise Inconsistent(
            f"{path}: the ledger's plan proves epsilon {proved.epsilon:.6g}, {PROMISE} says "
            f"something else; do not rely on this run"
        )
    return ledger


def _examined_run(path: Path) -> Ledger:
    checkpoint = f"checkpoint {path / CHECKPOINT}"
    last_shown = max((int(line["round"]) for line in metrics(path)), default=0)
    stored = _metadata(path / CHECKPOINT)
    try:
        done, lines = int(stored["rounds"]), int(stored.get("ledger_lines", 0))
    except (KeyError, ValueError):
        raise Inconsistent(f"{checkpoint}: damaged") from None
    noted = ledger_anchor.noted(stored["ledger_run"]) if "ledger_run" in stored else None
    ledger = read(path / LEDGER)
    if ledger.header.recipe != sha256(_contents(path / RECIPE)).hexdigest():
        raise Inconsistent(f"{path / RECIPE}: not the recipe that this run promised to follow")
    if stored.get("ledger_run") != ledger.run:
        raise Inconsistent(f"{checkpoint}: belongs to another run's ledger")
    ledger.check_note(noted)
    if done > ledger.reserved_at(lines, stored.get("ledger_head", "")):
        raise Inconsistent(f"{checkpoint}: has {done} rounds, more than the ledger had then")
    if last_shown > (ledger.reserved if ledger.repeatable else done):
        raise Inconsistent(
            f"{path / METRICS}: shows round {last_shown}, which ledger and checkpoint do not have; "
            "do not rely on this run"
        )
    return ledger


def _examined_purchase(path: Path) -> Ledger:
    """Examine a ledger without a recipe: it was paid in one go, and nothing was trained."""
    ledger = read(path / LEDGER)
    ledger.check_note(ledger.noted())
    for name in (RECIPE, METRICS, CHECKPOINT, MODEL):
        if (path / name).exists():
            raise Inconsistent(
                f"ledger {path / LEDGER}: belongs to no run, but {name} stands beside it; do not "
                "rely on this directory"
            )
    if ledger.remaining:
        raise Inconsistent(
            f"ledger {path / LEDGER}: lacks the line of what was paid; do not rely on it"
        )
    return ledger


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Inconsistent(f"{path}: cannot be read ({error.strerror})") from None


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a checkpoint, without loading its tensors."""
    try:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except FileNotFoundError:
        message = f"checkpoint {path}: missing; without it the ledger is not whole"
        raise Inconsistent(message) from None
    except (OSError, SafetensorError) as error:
        raise Inconsistent(f"checkpoint {path}: cannot be read, it is damaged ({error})") from None


def save_checkpoint(
    path: Path, checkpoint: Checkpoint, run: str, ledger: Ledger | None, *, durable: bool
) -> None:
    """Write a checkpoint.

    Args:
        path: The file.
        checkpoint: The state between two rounds.
        run: The fingerprint of the run.
        ledger: The ledger as it is now; None if the run promises nothing.
        durable: Whether to wait until the disk has it.
    """
    from safetensors.torch import save

    tensors = {"weights": checkpoint.weights}
    tensors |= {f"optimizer.{name}": value for name, value in checkpoint.optimizer.items()}
    metadata = {"format": FORMAT, "run": run, "rounds": str(checkpoint.rounds)}
    if ledger is not None:
        metadata |= {"ledger_run": ledger.run, "ledger_lines": str(ledger.lines)}
        metadata["ledger_head"] = ledger.head
    metadata["digest"] = content_digest(tensors, metadata)
    write_atomically(path, save(tensors, metadata), durable=durable)


def load_checkpoint(path: Path, run: str) -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: The file.
        run: The fingerprint of the run that it must belong to.

    Raises:
        ConfigError: It is damaged, or of another run.
    """
    metadata, tensors = read_tensors(path, f"checkpoint {path}")
    if metadata.get("format") != FORMAT or "weights" not in tensors:
        raise ConfigError(f"checkpoint {path}: not one of ours (format {metadata.get('format')!r})")
    if metadata.pop("digest", None) != content_digest(tensors, metadata):
        raise ConfigError(f"checkpoint {path}: damaged, its contents do not match their digest")
    if metadata.get("run") != run:
        raise ConfigError(f"checkpoint {path}: belongs to another recipe or other data")
    weights = tensors.pop("weights")
    state = {name.removeprefix("optimizer."): value for name, value in tensors.items()}
    return Checkpoint(int(metadata["rounds"]), weights, state)


def read_tensors(path: Path, what: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a safetensors file.

    Args:
        path: The file.
        what: Its name in errors.

    Raises:
        ConfigError: It is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except FileNotFoundError:
        raise ConfigError(f"{what}: no such file; is this a run directory?") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{what}: cannot be read, it is damaged ({error})") from None


def content_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of tensors by name and of text metadata."""
    from torch import uint8

    digest = sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(uint8).numpy().data)
    return digest.hexdigest()
