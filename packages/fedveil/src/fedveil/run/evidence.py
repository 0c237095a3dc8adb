"""Whether the files of a directory with a ledger tell one story.

The ledger says what was paid for, and `guarantee.json` what was promised. A checkpoint keeps the
ledger's run id, its number of lines and its head at the time of writing; metrics number the rounds
that were shown. A ledger that lacks any of these was cut, changed or taken from elsewhere.

Everything that takes a guarantee from a ledger goes through `examined`, whatever the directory is
called: a run, or statistics that were bought for a run that never began (`run.purchase`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from fedveil.privacy import ledger_anchor
from fedveil.privacy.accounting import account
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.ledger import Inconsistent, Ledger, read

if TYPE_CHECKING:
    from fedveil.data.federation import Federation

LEDGER = "ledger.jsonl"
PROMISE = "guarantee.json"
RECIPE = "recipe.toml"
METRICS = "metrics.jsonl"
MODEL = "model.safetensors"
CHECKPOINT = Path("checkpoint") / "state.safetensors"


@dataclass(frozen=True)
class Seen:
    """What a checkpoint has seen of the run's ledger when it was written."""

    run: str
    lines: int
    head: str

    @classmethod
    def of(cls, ledger: Ledger) -> Seen:
        return cls(ledger.run, ledger.lines, ledger.head)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Seen | None:
        """Read it from a checkpoint; None for a run that promises nothing and so has no ledger."""
        if "ledger_run" not in metadata:
            return None
        lines = int(metadata["ledger_lines"])
        return cls(metadata["ledger_run"], lines, metadata["ledger_head"])

    def to_metadata(self) -> dict[str, str]:
        return {
            "ledger_run": self.run,
            "ledger_lines": str(self.lines),
            "ledger_head": self.head,
        }


def recipe_digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def clients_digest(federation: Federation) -> str:
    """Return a digest of the clients' names in their order; empty where the data name nobody.

    No guarantee hides these names.
    """
    if federation.owners is None:
        return ""
    names = json.dumps([str(owner) for owner in federation.owners])
    return hashlib.sha256(names.encode()).hexdigest()


def examined(path: Path) -> Ledger:
    """Compare everything in a directory with its ledger, and return the ledger.

    The header of the ledger, not the directory's name, says whether this is a run: a run promises
    to follow a recipe, and a purchase has none.

    Args:
        path: a run directory, or that of a purchase.

    Returns:
        The ledger as it stood after everything else was read. A run writes the ledger first, so
        one that goes on meanwhile is no contradiction.

    Raises:
        Inconsistent: if a file is missing, damaged, or contradicts the ledger.
    """
    whole = _examined_run if read(path / LEDGER).header.recipe else _examined_purchase
    ledger = whole(path)
    header = ledger.header
    proved = account(header.planned, privacy_model=header.privacy_model, delta=header.delta)
    if _promised(path) != proved:
        raise Inconsistent(
            f"{path}: the ledger's plan proves epsilon {proved.epsilon:.6g}, {PROMISE} says "
            f"something else; do not rely on this run"
        )
    return ledger


def _examined_run(path: Path) -> Ledger:
    shown = max((int(line["round"]) for line in metrics(path)), default=0)
    metadata = _metadata(path / CHECKPOINT)
    try:
        seen, done = Seen.from_metadata(metadata), int(metadata["rounds"])
    except (KeyError, ValueError):
        raise Inconsistent(f"checkpoint {path / CHECKPOINT}: damaged") from None
    noted = None if seen is None else ledger_anchor.noted(seen.run)
    ledger = read(path / LEDGER)
    if ledger.header.recipe != recipe_digest(_contents(path / RECIPE)):
        raise Inconsistent(f"{path / RECIPE}: not the recipe that this run promised to follow")
    if seen is None or seen.run != ledger.run:
        raise Inconsistent(f"checkpoint {path / CHECKPOINT}: belongs to another run's ledger")
    ledger.check_note(noted)
    if done > ledger.reserved_at(seen.lines, seen.head):
        raise Inconsistent(
            f"checkpoint {path / CHECKPOINT}: has {done} rounds, more than the ledger had then"
        )
    if shown > (ledger.reserved if ledger.repeatable else done):
        raise Inconsistent(
            f"{path / METRICS}: shows round {shown}, which ledger and checkpoint do not have; do "
            "not rely on this run"
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


def _promised(path: Path) -> Guarantee:
    try:
        return Guarantee.from_dict(json.loads(_contents(path / PROMISE)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Inconsistent(f"{path / PROMISE}: cannot be read ({error})") from None


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Inconsistent(f"{path}: cannot be read ({error.strerror})") from None


def metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics. The last may have been cut short by a crash."""
    found = []
    lines = _contents(path / METRICS).splitlines(keepends=True)
    for number, line in enumerate(lines):
        try:
            document = json.loads(line)
            int(document["round"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines) - 1 and not line.endswith(b"\n"):
                break
            raise Inconsistent(f"{path / METRICS}, line {number + 1}: damaged") from None
        found.append(document)
    return found


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file, without loading its tensors."""
    try:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except FileNotFoundError:
        raise Inconsistent(f"checkpoint {path}: missing; without it the ledger is not whole") from (
            None
        )
    except (OSError, SafetensorError) as error:
        raise Inconsistent(f"checkpoint {path}: cannot be read, it is damaged ({error})") from None
