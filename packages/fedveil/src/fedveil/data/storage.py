"""A federation on disk: one `.npy` file a column and a manifest, opened as memory maps."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.declared import UNLABELLED, used_again
from fedveil.data.federation import Examples, Federation, Scaling, Task

if TYPE_CHECKING:
    from fedveil.data.dp_schema import Bought
    from fedveil.data.encoder import TableEncoder

FORMAT = "fedveil federation 3"
_BEFORE = "fedveil federation 2"  # left out rows without a label before they were dealt
MANIFEST = "federation.json"


def save(federation: Federation, directory: Path) -> Path:
    """Write `directory`, which must not exist; it appears complete or not at all."""
    if directory.exists():
        raise ConfigError(f"{directory}: exists already; name a new directory")
    if federation.featurizer is not None:  # its guarantees say what made the inputs; a file cannot
        raise ConfigError("save: the inputs are features; save the federation they were made of")
    about = {
        "format": FORMAT,
        "name": federation.name,
        "task": str(federation.task),
        "classes": federation.classes,
        "class_names": list(federation.class_names),
        "features": list(federation.features),
        "notes": list(federation.notes),
        # Files lie apart: that training examples are test examples too would not show any more.
        "unprotected": list(dict.fromkeys((*federation.unprotected, *_again(federation)))),
        "public": federation.public,
        "records_per_person": federation.records_per_person,
        "encoder": None if federation.encoder is None else federation.encoder.to_dict(),
        "bought": None if federation.bought is None else federation.bought.to_dict(),
    }
    write_columns(directory, _columns(federation), MANIFEST, about)
    return directory


def _again(federation: Federation) -> list[str]:
    parts = (federation.test, federation.validation)
    return used_again(federation.train.inputs, *(part.inputs for part in parts if part))


def write_columns(
    directory: Path, columns: Mapping[str, Array], manifest: str, about: Mapping[str, Any]
) -> None:
    """One `.npy` file a column, and a manifest with their sizes: all of them or nothing."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for name, column in columns.items():
            np.save(partial / f"{name}.npy", column, allow_pickle=False)
        sizes = {name: (partial / f"{name}.npy").stat().st_size for name in columns}
        text = json.dumps({**about, "bytes": sizes}, indent=2)
        (partial / manifest).write_text(text, encoding="utf-8")
        os.chmod(partial, 0o755)  # mkdtemp makes it private
        os.replace(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(directory: Path) -> Federation:
    """Map the columns of a saved federation; nothing is read until it is used."""
    manifest = _manifest(directory)
    columns = map_columns(directory, manifest["bytes"])

    def examples(part: str) -> Examples:
        usable = columns.get(f"{part}.usable")
        known = None if usable is None else np.asarray(usable, dtype=np.bool_)
        persons = columns.get(f"{part}.persons")
        named = None if persons is None else np.asarray(persons, dtype=np.int64)
        return Examples(columns[f"{part}.inputs"], columns[f"{part}.targets"], known, named)

    def scaling(name: str) -> Scaling | None:
        if f"{name}.shift" not in columns:
            return None
        parts = (columns[f"{name}.{part}"].astype(np.float32) for part in ("shift", "factor"))
        return Scaling(*parts)

    try:
        return Federation(
            train=examples("train"),
            offsets=np.array(columns["offsets"]),
            test=examples("test"),
            task=Task(manifest["task"]),
            classes=int(manifest["classes"]),
            name=str(manifest["name"]),
            validation=examples("validation") if "validation.inputs" in columns else None,
            scaling=scaling("scaling"),
            target_scaling=scaling("target_scaling"),
            notes=tuple(manifest["notes"]),
            unprotected=(*manifest["unprotected"], *_left_out(manifest)),
            public=bool(manifest.get("public", True)),  # then the guarantee rests on it
            owners=columns.get("owners"),
            records_per_person=manifest.get("records_per_person"),
            class_names=tuple(manifest["class_names"]),
            features=tuple(manifest["features"]),
            encoder=_encoder(manifest.get("encoder")),
            bought=_bought(manifest.get("bought")),
            verified=True,
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{directory}: incomplete federation ({error}); save it again") from None


def _left_out(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """What a table owes to its rows if an earlier version saved it."""
    earlier = manifest["format"] == _BEFORE and manifest.get("encoder") is not None
    return (UNLABELLED,) if earlier else ()


def _encoder(document: Mapping[str, Any] | None) -> TableEncoder | None:
    if document is None:
        return None
    from fedveil.data.encoder import TableEncoder  # brings pyarrow

    return TableEncoder.from_dict(document)


def _bought(document: Mapping[str, Any] | None) -> Bought | None:
    if document is None:
        return None
    from fedveil.data.dp_schema import Bought

    return Bought.from_dict(document)


def _columns(federation: Federation) -> dict[str, Array]:
    columns: dict[str, Array] = {"offsets": federation.offsets}
    parts = {
        "train": federation.train,
        "test": federation.test,
        "validation": federation.validation,
    }
    for part, examples in parts.items():
        if examples is not None:
            columns[f"{part}.inputs"] = examples.inputs
            columns[f"{part}.targets"] = examples.targets
            if examples.usable is not None:
                columns[f"{part}.usable"] = examples.usable
            if examples.persons is not None:
                columns[f"{part}.persons"] = examples.persons
    if federation.owners is not None:
        owners = federation.owners
        columns["owners"] = owners.astype(str) if owners.dtype == object else owners
    scalings = {"scaling": federation.scaling, "target_scaling": federation.target_scaling}
    for name, scaling in scalings.items():
        if scaling is not None:
            columns[f"{name}.shift"], columns[f"{name}.factor"] = scaling.shift, scaling.factor
    return columns


def _manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{directory}: not a saved federation (no {MANIFEST})")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] not in (FORMAT, _BEFORE):
            raise ConfigError(
                f"{path}: format {manifest['format']!r}, this version reads {FORMAT!r}"
            )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: not a readable manifest; save the federation again") from None
    return manifest


def map_columns(directory: Path, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Memory maps of the columns; each file must have the size that the manifest names."""
    return {name: _map(directory, name, size) for name, size in sizes.items()}


def _map(directory: Path, name: str, size: int) -> Array:
    path = directory / f"{name}.npy"
    if not path.is_file():
        raise ConfigError(f"{path}: missing; save the federation again")
    if path.stat().st_size != size:
        raise ConfigError(
            f"{path}: {path.stat().st_size} bytes, not {size}; save the federation again"
        )
    try:
        column: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty array cannot be mapped, a broken header cannot be read
        try:
            column = np.load(path, allow_pickle=False)
        except ValueError:
            raise ConfigError(f"{path}: not a NumPy array; save the federation again") from None
    return column
