"""Checkpoints: one file, replaced atomically, that says which run it belongs to.

It holds the shared weights, the server optimiser's state, how many rounds are done, and what the
ledger was like then. There is no generator state to keep: every stream is keyed by its round.
Nothing in a protected run's checkpoint is un-noised, not even a hash of data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomically
from fedveil.data.federation import Federation
from fedveil.run.evidence import Seen
from fedveil.training.server.optimizers import State

FORMAT = "fedveil-checkpoint-3"


@dataclass(frozen=True)
class Checkpoint:
    """The state between two rounds."""

    rounds: int  # how many are done
    weights: Tensor  # [parameters]
    optimizer: State


def save_checkpoint(
    path: Path, checkpoint: Checkpoint, run: str, seen: Seen | None, *, durable: bool
) -> None:
    """Write a checkpoint of the run with this fingerprint, which has `seen` its ledger."""
    tensors = {"weights": checkpoint.weights}
    tensors |= {f"optimizer.{name}": value for name, value in checkpoint.optimizer.items()}
    metadata = {
        "format": FORMAT,
        "run": run,
        "rounds": str(checkpoint.rounds),
        **({} if seen is None else seen.to_metadata()),
    }
    metadata["digest"] = content_digest(tensors, metadata)
    write_atomically(path, save(tensors, metadata), durable=durable)


def load_checkpoint(path: Path, run: str) -> Checkpoint:
    """Read a checkpoint back.

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
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fingerprint(recipe: bytes, federation: Federation | None) -> str:
    """Identify what a run is made from: its recipe, and offsets, targets and some inputs.

    Whatever is written down is a release, and a hash of data answers every guess about them: for a
    protected run the federation is left out (None).
    """
    digest = hashlib.sha256(recipe)
    if federation is not None:
        train = federation.train
        some = train.inputs[:: max(1, len(train) // 1000)]
        for column in (federation.offsets, train.targets, some):
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
