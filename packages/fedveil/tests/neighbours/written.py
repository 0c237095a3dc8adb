"""(f): everything that a run writes is released, so nothing of it may show the changed unit.

The same world is run twice, and its neighbour once, all with the same noisy values. What differs
between the first two is random by itself (ids, digests over them); all else must be the same in the
third.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from safetensors import safe_open

from fedveil.core.errors import FedveilError
from fedveil.core.units import Adjacency

from .cases import Case
from .checks import Violation
from .values import Client
from .worlds import World, play, scratch


def files_differ(case: Case, clients: Sequence[Client], first: World) -> list[Violation]:
    """What the files of this neighbour tell that those of the first world do not."""
    folder = Path(tempfile.mkdtemp(prefix="neighbours-", dir=scratch()))
    state = patch.dict(os.environ, {"XDG_STATE_HOME": str(folder)})
    try:
        with state:
            for name in ("one", "again"):
                play(case, case.clients, first, folder / name)
            neighbour = play(case, clients, first, folder / "two")
        by_presence = first.plan.privacy_model.adjacency is Adjacency.ADD_REMOVE
        if neighbour.failure or (set(neighbour.names) != set(first.names) and not by_presence):
            return []
        one, again, two = (dict(leaves(folder / name)) for name in ("one", "again", "two"))
    except FedveilError:
        return []
    finally:
        shutil.rmtree(folder)
    random = {key for key in one.keys() | again.keys() if one.get(key) != again.get(key)}
    wrong = (key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    return [
        Violation("f", f"files differ in {key}: {one.get(key)!r} and {two.get(key)!r}")
        for key in sorted(wrong)
        if key not in random
    ]


def leaves(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every value in the files of a run directory, by file and place."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            with safe_open(path, framework="np") as file:
                yield from _flat(f"{name}: metadata", file.metadata())
                for key in file.keys():  # noqa: SIM118
                    yield f"{name}: {key}", file.get_tensor(key).tobytes()
        elif path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text().splitlines()):
                yield from _flat(f"{name}:{number + 1}", json.loads(line))
        elif path.suffix == ".json":
            yield from _flat(name, json.loads(path.read_text()))
        elif path.suffix == ".toml":
            yield from _flat(name, tomllib.loads(path.read_text()))
        elif path.suffix in (".html", ".txt", ".md"):
            yield from _flat(name, path.read_text().splitlines())
        else:
            yield name, path.read_bytes()


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _flat(f"{name}[{place}]", inner)
    else:
        yield name, value
