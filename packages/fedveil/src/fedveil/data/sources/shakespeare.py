"""Shakespeare's plays by speaking role: every character predicts the next (Liang et al.)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import count, one_of
from fedveil.core.errors import ConfigError
from fedveil.data.assignment import offsets_of
from fedveil.data.columns import Array
from fedveil.data.federation import Examples
from fedveil.data.sources.files import Arrays
from fedveil.data.sources.formats import parse_example, read_federated_sqlite, reading
from fedveil.data.sources.source import Pool, described

# LEAF's eighty characters, in its order: a vocabulary known beforehand, not taken from the text.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
_UNKNOWN = CHARACTERS.index(" ")


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Places in the vocabulary; what is not in it reads as a blank."""
    table = np.full(256, _UNKNOWN, np.uint8)
    table[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    codes: npt.NDArray[np.uint8] = table[np.minimum(points, 255)]
    return codes


def decode_roles(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    with reading(path):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            users = json.load(file)["users"]
        return _joined({str(user["user"]): list(user["speeches"]) for user in users})


def decode_database(paths: Mapping[str, Path]) -> Arrays:
    """TensorFlow Federated's Shakespeare: the lines of 715 roles, training lines first."""
    (path,) = paths.values()
    lines: dict[str, dict[str, list[str]]] = {}
    with reading(path):
        for part, role, message in read_federated_sqlite(path, ("train", "test")):
            snippet = parse_example(message)["snippets"][0].decode("utf-8")
            lines.setdefault(role, {"train": [], "test": []})[part].append(snippet)
    return _joined({role: parts["train"] + parts["test"] for role, parts in lines.items()})


def _joined(speeches: Mapping[str, list[str]]) -> Arrays:
    """All text in one column of codes, and where each role's begins."""
    texts = [encode("\n".join(lines)) for lines in speeches.values()]
    if not texts:
        raise ConfigError("shakespeare: the file has no roles; get it again")
    return {
        "text": np.concatenate(texts),
        "offsets": offsets_of(np.array([len(text) for text in texts])),
        "roles": np.array(list(speeches)),
    }


def build(arrays: Arrays, copy: str, *, predict: str = "all", stride: int | None = None) -> Pool:
    """Windows of 80 characters of one role each.

    `predict="all"`: targets `[n, 80]`, every character's successor. `predict="last"`: targets
    `[n, 1]`, the character after the window alone. Windows begin `stride` characters apart, by
    default 80 (no overlap) for all and 1 for the last, which is LEAF's count of samples.
    """
    one_of(("all", "last"))("predict", predict)
    step = count("stride", stride if stride is not None else LENGTH if predict == "all" else 1)
    starts, owner = _starts(np.asarray(arrays["offsets"]), step)
    windows = np.lib.stride_tricks.sliding_window_view(arrays["text"], LENGTH + 1)
    chosen: Array = windows[starts]  # [n, 81]
    targets = chosen[:, 1:] if predict == "all" else chosen[:, LENGTH:]
    return Pool(
        train=Examples(np.ascontiguousarray(chosen[:, :LENGTH]), targets.astype(np.int64)),
        owners=arrays["roles"][owner],
        class_names=tuple(CHARACTERS),
    )


def _starts(
    offsets: npt.NDArray[np.int64], step: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each window begins and whose it is; a window never leaves its role's text."""
    lengths = np.diff(offsets)
    counts = np.maximum(0, (lengths - LENGTH - 1) // step + 1)
    owner = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return offsets[owner] + within * step, owner


SHAKESPEARE = described("shakespeare", build, roles=decode_roles, tff=decode_database)
