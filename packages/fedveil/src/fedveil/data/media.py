"""Federations from folders of files, one folder a client: pictures, DICOM, NIfTI and texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.containment import silence
from fedveil.core.errors import ConfigError
from fedveil.data.declared import SHAPE
from fedveil.data.encoder import as_text
from fedveil.data.examples import Scaling, Task
from fedveil.data.federation import PICTURES_NOTE, Federation
from fedveil.data.rows import read_table
from fedveil.data.table import from_table

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_DICOM, _NIFTI = (".dcm", ".dicom"), (".nii", ".nii.gz")
_IMAGES = (*_PICTURES, *_DICOM, *_NIFTI)
_TEXTS = (".txt",)
_HALF = np.array(127.5, np.float32)
_PIXELS = Scaling(_HALF, np.float32(1) / _HALF)  # to numbers from -1 to 1
_FAINTEST, _BRIGHTEST = 1, 99  # percentiles of an image's own values that become black and white

# Readers' own logs, some of which go to the terminal: they tell of single files.
_LOGS = ("PIL", "pydicom", "nibabel.global")

Array = npt.NDArray[Any]


def from_images(
    folder: Path | str,
    *,
    size: Sequence[int] = (),
    classes: Sequence[str] = (),
    labels: Path | str | None = None,
    **settings: Any,
) -> Federation:
    """Make a federation from images in folders CLIENT/CLASS/, or CLIENT/ with a table of labels.

    Each image is read by itself. One that cannot be read, or whose class is missing or none of
    those declared, keeps its place and contributes nothing; a client without images is still a
    client. Values of DICOM and NIfTI files are scaled by the image's own percentiles; of a volume,
    the middle slice along its last axis (NIfTI) or its first (DICOM) is taken.

    Args:
        folder: Holds a folder for each client.
        size: Height, width and, if not 3, the number of colours (1: grey) to which every image is
            brought, each by itself; grey images with 3 colours have the same values in each. Left
            out, all must have the size of the first one that can be read, and nothing is certified.
        classes: The names of the classes. Left out, they are taken from the folders or the table,
            and nothing is certified.
        labels: A table of two columns: a file's path behind `folder`, and its class. Client folders
            may then have any folders inside.
        **settings: Further ones of `Federation.from_arrays`.

    Returns:
        The federation; pixels are scaled to numbers from -1 to 1.
    """
    found = _collected(Path(folder), labels, _IMAGES)
    height, width, colours = _size(found.folder, size, found.files)
    inputs = np.zeros((len(found.owners), colours, height, width), np.uint8)
    targets = np.full(len(found.owners), None)
    for place, file in enumerate(found.files):
        pixels = _pixels(file, height, width, colours, resize=bool(size))
        if pixels is not None:
            inputs[place], targets[place] = pixels, found.classes[place]
    made = Federation.from_arrays(
        inputs,
        targets,
        np.array(found.owners),
        class_names=tuple(classes),
        classes=len(classes) or None,
        scaling=_PIXELS,
        name=found.folder.absolute().name,
        **{"task": Task.CLASSIFICATION, **settings},
    )
    made = replace(made, notes=(*made.notes, PICTURES_NOTE))
    return made if size else replace(made, unprotected=(SHAPE, *made.unprotected))


def from_texts(
    folder: Path | str,
    *,
    classes: Sequence[str] = (),
    labels: Path | str | None = None,
    text_encoder: str | None = None,
    **settings: Any,
) -> Federation:
    """Make a federation from texts (`.txt`, UTF-8) in folders, as `from_images` does from images.

    Args:
        folder: Holds a folder for each client.
        classes: The names of the classes. Left out, they are taken from the folders or the table,
            and nothing is certified.
        labels: A table of files and classes, as in `from_images`.
        text_encoder: A frozen public encoder, as in `from_table`.
        **settings: Further ones of `from_table`.

    Returns:
        The federation; each text is a vector of length 1.
    """
    found = _collected(Path(folder), labels, _TEXTS)
    read = [file.read_bytes().decode(errors="replace") for file in found.files]
    missing = len(found.owners) - len(read)
    rows = {"client": found.owners, "text": read + [None] * missing, "class": found.classes}
    known = {"type": "category", "categories": list(classes)}
    schema = {"columns": {"text": {"type": "text"}, "class": known}} if classes else None
    made = from_table(
        rows,
        label="class",
        client_column="client",
        schema=schema,
        text_columns=["text"],
        text_encoder=text_encoder,
        **{"task": Task.CLASSIFICATION, **settings},
    )
    return replace(
        made, name=found.folder.absolute().name, notes=(*made.notes, PICTURES_NOTE), verified=True
    )


@dataclass(frozen=True)
class _Collected:
    """Files of clients, with their owners and classes; a client without files has one more owner
    behind them, and no class."""

    folder: Path
    files: list[Path]
    owners: list[str]
    classes: list[str | None]


def _collected(folder: Path, labels: Path | str | None, kinds: tuple[str, ...]) -> _Collected:
    files = [one for one in media_of(folder, deep=labels is not None) if _is_one(one, kinds)]
    if not files:
        raise ConfigError(f"{folder}: holds no files {kinds[0]} and the like in CLIENT/CLASS/")
    classes: list[str | None] = [file.parent.name for file in files]
    if labels is not None:
        table = read_table(Path(labels))
        if table.num_columns != 2:
            raise ConfigError(f"{labels}: has {table.num_columns} columns. Give two: file, class.")
        paths, names = (as_text(column).to_pylist() for column in table.columns)
        known = dict(zip(paths, names, strict=True))
        classes = [known.get(file.relative_to(folder).as_posix()) for file in files]
    owners = [file.relative_to(folder).parts[0] for file in files]
    there = {one.name for one in folder.iterdir() if one.is_dir() and one.name[0] != "."}
    absent = sorted(there - set(owners))
    return _Collected(folder, files, owners + absent, classes + [None] * len(absent))


def media_of(folder: Path, *, deep: bool = False) -> list[Path]:
    """Return the images and texts in folders CLIENT/CLASS/, or, `deep`, anywhere below CLIENT/.

    They are sorted by client and file name, and the class comes last: a file that gets another
    label must not move the others.
    """
    known = (*_IMAGES, *_TEXTS)
    found = (one for one in folder.glob("*/**/*" if deep else "*/*/*") if _is_one(one, known))
    if deep:
        return sorted(file for file in found if file.relative_to(folder).parts[0][0] != ".")
    return sorted(found, key=lambda file: (file.parts[-3], file.name, file.parts[-2]))


def _is_one(file: Path, kinds: tuple[str, ...]) -> bool:
    return file.name.lower().endswith(kinds) and file.is_file()


def is_text(file: Path) -> bool:
    """Whether a file of `media_of` is a text."""
    return _is_one(file, _TEXTS)


def _library(name: str, extra: str, what: str) -> Any:
    try:
        library = import_module(name)
    except ImportError:
        raise ConfigError(f'{what} need the extra: pip install "fedveil[{extra}]"') from None
    for log in _LOGS:
        logging.getLogger(log).setLevel(logging.CRITICAL + 1)
    return library


def _opened(file: Path) -> Any:
    """An image of Pillow, or None if it cannot be read as one."""
    pillow = _library("PIL.Image", "data", "pictures")
    name = file.name.lower()
    if name.endswith(_DICOM):
        pydicom = _library("pydicom", "medical", "DICOM files")
    elif name.endswith(_NIFTI):
        nibabel = _library("nibabel", "medical", "NIfTI files")
    with suppress(Exception), silence():  # readers raise and warn in many ways
        if name.endswith(_DICOM):
            document = pydicom.dcmread(file)
            values = document.pixel_array
            if document.SamplesPerPixel == 1:
                values = values if values.ndim == 2 else values[len(values) // 2]
                inverted = document.PhotometricInterpretation == "MONOCHROME1"
                return pillow.fromarray(_grey(-values.astype(np.float64) if inverted else values))
            return pillow.fromarray(np.asarray(values, np.uint8))
        if name.endswith(_NIFTI):
            volume = nibabel.load(file).dataobj
            middle = tuple(length // 2 for length in volume.shape[2:])
            return pillow.fromarray(
                _grey(np.asarray(volume[(slice(None), slice(None), *middle)]).T)
            )
        picture = pillow.open(file)
        return pillow.fromarray(_grey(np.asarray(picture))) if picture.mode[0] in "IF" else picture
    return None


def _grey(values: Array) -> npt.NDArray[np.uint8]:
    """Scale an image's values to 0 to 255 by its own percentiles."""
    values = np.asarray(values, np.float64)
    low, high = np.percentile(values, (_FAINTEST, _BRIGHTEST))
    shades = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    grey: npt.NDArray[np.uint8] = np.rint(255 * shades).astype(np.uint8)
    return grey


def _size(folder: Path, size: Sequence[int], files: Sequence[Path]) -> tuple[int, int, int]:
    if not size:
        first = next((one for one in map(_opened, files) if one is not None), None)
        if first is None:
            raise ConfigError(f"{folder}: no picture can be read; give a size for all")
        width, height = first.size
        return height, width, 3
    if len(size) not in (2, 3) or min(size) < 1 or (len(size) == 3 and size[2] not in (1, 3)):
        raise ConfigError(f"{folder}: a size is [height, width] or [height, width, 1 or 3]")
    return size[0], size[1], 3 if len(size) == 2 else size[2]


def _pixels(file: Path, height: int, width: int, colours: int, *, resize: bool) -> Array | None:
    """An image `[colours, height, width]`; None if it cannot be read."""
    picture = _opened(file)
    if picture is None:
        return None
    with picture:
        if not resize and picture.size != (width, height):
            raise ConfigError(
                f"{file}: has {picture.height} x {picture.width} pixels, the first picture "
                f"{height} x {width}; give a size for all, as data.image_size=[{height},{width}]"
            )
        with suppress(Exception), silence():
            converted = picture.convert("RGB" if colours == 3 else "L").resize((width, height))
            return np.asarray(converted).reshape(height, width, colours).transpose(2, 0, 1)
    return None
