"""A federation on disk: one `.npy` file a column and a manifest, opened as memory maps."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.declared import used_again
from fedveil.data.federation import Examples, Federation, Scaling, Task

FORMAT = "fedveil federation 3"
MANIFEST = "federation.json"
_PARTS = {  # columns of a federation that are made of several arrays
    **dict.fromkeys(("train", "test", "validation"), Examples),
    **dict.fromkeys(("scaling", "target_scaling"), Scaling),
}
_PLAIN = ("name", "task", "classes", "class_names", "features", "notes", "public")


def save(federation: Federation, directory: Path) -> Path:
    """Write `directory`, which must not exist; it appears complete or not at all."""
    if directory.exists():
        raise ConfigError(f"{directory}: exists already; name a new directory")
    if federation.featurizer is not None:  # its guarantees say what made the inputs; a file cannot
        raise ConfigError("save: the inputs are features; save the federation they were made of")
    columns: dict[str, Array] = {"offsets": federation.offsets}
    if (owners := federation.owners) is not None:
        columns["owners"] = owners.astype(str) if owners.dtype == object else owners
    for part, kind in _PARTS.items():
        for field in fields(kind):
            value = getattr(getattr(federation, part), field.name, None)
            if value is not None:
                columns[f"{part}.{field.name}"] = value
    about = {
        "format": FORMAT,
        **{key: getattr(federation, key) for key in (*_PLAIN, "records_per_person")},
        # Files lie apart: that training examples are test examples too would not show any more.
        "unprotected": list(dict.fromkeys((*federation.unprotected, *_again(federation)))),
        "encoder": None if federation.encoder is None else federation.encoder.to_dict(),
        "bought": None if federation.bought is None else federation.bought.to_dict(),
    }
    write_columns(directory, columns, MANIFEST, about)
    return directory


def _again(federation: Federation) -> list[str]:
    parts = (federation.test, federation.validation)
    return used_again(federation.train.inputs, *(part.inputs for part in parts if part))


def write_columns(
    directory: Path, columns: Mapping[str, Array], manifest: str, about: Mapping[str, Any]
) -> None:
    """Write one `.npy` file a column, and a manifest with their sizes: all of them or nothing."""
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
    if not (directory / MANIFEST).is_file():
        raise ConfigError(f"{directory}: not a saved federation (no {MANIFEST})")
    try:
        about = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise ConfigError(
                f"{directory}: format {about['format']!r}, this version reads {FORMAT!r}; save it "
                "again"
            )
        columns = map_columns(directory, about["bytes"])
        made: dict[str, Any] = {"validation": None, "scaling": None, "target_scaling": None}
        for part, kind in _PARTS.items():
            own = {f.name: columns.get(f"{part}.{f.name}") for f in fields(kind)}
            if any(column is not None for column in own.values()):
                made[part] = kind(**own)
        plain = {key: about[key] for key in (*_PLAIN, "unprotected")}
        made |= {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        made["task"] = Task(about["task"])
        if about["encoder"] is not None:
            from fedveil.data.encoder import TableEncoder  # brings pyarrow

            made["encoder"] = TableEncoder.from_dict(about["encoder"])
        if about["bought"] is not None:
            from fedveil.data.dp_schema import Bought

            made["bought"] = Bought.from_dict(about["bought"])
        return Federation(
            **made,
            offsets=np.array(columns["offsets"]),
            owners=columns.get("owners"),
            records_per_person=about["records_per_person"],
            verified=True,
        )
    except ConfigError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{directory}: incomplete federation ({error}); save it again") from None


def map_columns(directory: Path, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Memory maps of the columns; each file must have the size that the manifest names."""
    return {name: _map(directory / f"{name}.npy", size) for name, size in sizes.items()}


def _map(path: Path, size: int) -> Array:
    if not path.is_file() or path.stat().st_size != size:
        raise ConfigError(f"{path}: missing, or not {size} bytes; save the federation again")
    try:
        column: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty array cannot be mapped, a broken header cannot be read
        try:
            column = np.load(path, allow_pickle=False)
        except ValueError:
            raise ConfigError(f"{path}: not a NumPy array; save the federation again") from None
    return column
