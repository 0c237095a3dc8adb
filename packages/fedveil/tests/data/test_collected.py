"""Federations from data sets of other libraries, frames, and files in folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import fedveil as fv
from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.data.declared import CLASS_NAMES

DRAW = np.random.default_rng(0)
INPUTS, LABELS = DRAW.standard_normal((12, 3)).astype(np.float32), np.arange(12) % 2


class Items(Dataset[Any]):
    """As users write them: a length, and items by number."""

    def __init__(self, rows: slice, as_mapping: bool = False) -> None:
        self.x, self.y, self.as_mapping = INPUTS[rows], LABELS[rows], as_mapping

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        x, y = torch.from_numpy(self.x[place]), int(self.y[place])
        return {"picture": x, "label": y, "id": place} if self.as_mapping else (x, y)


def tensors(rows: slice) -> TensorDataset:
    return TensorDataset(torch.from_numpy(INPUTS[rows]), torch.from_numpy(LABELS[rows]))


HALVES = {"a": slice(0, 7), "b": slice(7, 12)}


@pytest.mark.parametrize("kind", ["items", "mappings", "tensors"])
def test_data_sets_of_clients_are_the_same_as_arrays(kind: str) -> None:
    made: dict[str, Any] = {
        "items": {name: Items(rows) for name, rows in HALVES.items()},
        "mappings": {name: Items(rows, as_mapping=True) for name, rows in HALVES.items()},
        "tensors": {name: tensors(rows) for name, rows in HALVES.items()},
    }
    keys = {"keys": ("picture", "label")} if kind == "mappings" else {}
    found = fv.from_datasets(made[kind], **keys, classes=2)
    expected = fv.Federation.from_arrays(INPUTS, LABELS, ["a"] * 7 + ["b"] * 5, classes=2)
    assert np.array_equal(found.train.inputs, expected.train.inputs)
    assert np.array_equal(found.test.targets, expected.test.targets)
    assert list(found.owners) == ["a", "b"]


def test_tensors_of_other_kinds_and_targets_in_a_column() -> None:
    """bfloat16, sparse, and [examples, 1], which is one target for each example."""
    inputs = torch.tensor([[0.5, 0.0], [1.0, 2.0], [0.0, 0.25], [4.0, 0.0]])
    labels = torch.tensor([0, 1, 1, 0])
    plain = fv.from_datasets([TensorDataset(inputs, labels)] * 2, classes=2)
    for own, targets in (
        (inputs.bfloat16(), labels),
        (inputs.to_sparse(), labels),
        (inputs, labels[:, None]),
    ):
        found = fv.from_datasets([TensorDataset(own, targets)] * 2, classes=2)
        assert (found.train.inputs == plain.train.inputs).all()
        assert (found.train.targets == plain.train.targets).all()
        assert (found.task, found.classes) == (plain.task, 2)
    numbers = fv.from_datasets([TensorDataset(inputs, labels[:, None].float())] * 2)
    assert numbers.task == "regression"
    assert numbers.train.targets.ndim == 1
    three = labels[:, None].expand(4, 3)
    several = fv.from_datasets([TensorDataset(inputs, three)] * 2, task="multi-label", classes=3)
    assert several.classes == 3
    assert several.unusable == 0
    assert fv.from_datasets([TensorDataset(inputs, three)] * 2, classes=2).unusable == 8


@pytest.mark.parametrize(
    ("datasets", "keys", "said"),
    [
        ({}, None, "no client has any items"),
        ([Items(slice(0, 0))], None, "no client has any items"),
        ([Items(slice(0, 3), as_mapping=True)], None, r"keys=\(input, target\)"),
        ([Items(slice(0, 3), as_mapping=True)], ("x", "label"), "KeyError: 'x'"),
        ([[(1.0, 2.0, 3.0)]], None, "must be pairs"),
        ([iter([(0.0, 1)])], None, "has no items by number"),
    ],
)
def test_what_is_no_data_set_is_named(datasets: Any, keys: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fv.from_datasets(datasets, keys=keys)


class HuggingFace:
    """What `datasets.Dataset` has: rows that were selected are others than those stored."""

    def __init__(self, table: pa.Table, chosen: list[int]) -> None:
        self.data, self._chosen, self._arrow = table, chosen, False
        self.column_names = table.column_names

    def with_format(self, kind: str) -> HuggingFace:
        other = HuggingFace(self.data, self._chosen)
        other._arrow = kind == "arrow"
        return other

    def __getitem__(self, which: slice) -> Any:
        assert self._arrow
        assert which == slice(None)
        return self.data.take(pa.array(self._chosen))


class Stream:
    """What polars and pandas have: an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._table.__arrow_c_stream__(schema)


TABLE = pa.table(
    {
        "who": ["a", "a", "b", "b", "b", "c", "c", "c"] * 3,
        "age": np.arange(24.0),
        "ward": ["x", "y"] * 12,
        "ill": ["no", "no", "yes"] * 8,
    }
)


def frames() -> Iterator[tuple[str, Any]]:
    yield "arrow", TABLE
    yield "mapping", TABLE.to_pydict()
    yield "stream", Stream(TABLE)
    backwards = TABLE.take(pa.array(range(23, -1, -1)))
    yield "hugging face", HuggingFace(backwards, list(range(23, -1, -1)))


@pytest.mark.parametrize(
    ("kind", "frame"), list(frames()), ids=["arrow", "mapping", "stream", "hf"]
)
def test_frames_are_the_same_as_a_file(kind: str, frame: Any, tmp_path: Path) -> None:
    from pyarrow import csv

    csv.write_csv(TABLE, tmp_path / "t.csv")
    names = {"label": "ill", "client_column": "who"}
    expected, found = fv.from_table(tmp_path / "t.csv", **names), fv.from_table(frame, **names)
    assert np.array_equal(found.train.inputs, expected.train.inputs)
    assert np.array_equal(found.train.targets, expected.train.targets)
    assert found.features == expected.features
    assert found.unprotected == expected.unprotected


def test_splits_of_a_data_set_are_named() -> None:
    splits = HuggingFace(TABLE, [])
    splits.column_names = {"train": ["x"], "test": ["x"]}  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="name one split of the data: train, test"):
        fv.from_table(splits, label="y", client_column="who")
    with pytest.raises(ConfigError, match=r"a table is needed .* not int"):
        fv.from_table(3, label="y", client_column="who")


def pictures(root: Path, clients: int) -> Path:
    """Dark and bright pictures, of height 6 and width 4."""
    for client in range(clients):
        for label, light in (("dark", 30), ("light", 220)):
            folder = root / f"clinic {client}" / label
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = DRAW.integers(light - 30, light + 30, (6, 4, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def test_pictures_in_folders(tmp_path: Path) -> None:
    root = pictures(tmp_path, 2)
    found = fv.from_images(root, test_fraction=0.0)
    assert found.input_shape == (3, 6, 4)
    assert list(found.owners) == ["clinic 0", "clinic 1"]
    assert found.class_names == ("dark", "light")
    assert CLASS_NAMES in found.unprotected
    with Image.open(root / "clinic 0" / "dark" / "0.png") as first:
        assert np.array_equal(found.train.inputs[0], np.asarray(first).transpose(2, 0, 1))
    seen = found.model_inputs(found.train.inputs)
    assert -1 <= seen.min() < -0.5 < 0.5 < seen.max() <= 1
    declared = fv.from_images(root, classes=["light", "dark"], size=(2, 2, 1), test_fraction=0.0)
    assert declared.unprotected == ()
    assert declared.input_shape == (1, 2, 2)
    assert declared.class_names == ("light", "dark")
    assert declared.train.targets[0] == 1


def test_another_label_of_a_picture_moves_no_other_picture(tmp_path: Path) -> None:
    root = pictures(tmp_path, 2)
    for place, file in enumerate(sorted(root.glob("*/*/*"))):  # every file a name of its own
        file.rename(file.with_name(f"{(7 * place) % 11}-{place}.png"))
    known = {"classes": ["light", "dark"], "size": (2, 2, 1), "test_fraction": 0.0}
    before = fv.from_images(root, **known)
    moved = min((root / "clinic 0" / "dark").iterdir())
    moved.rename(root / "clinic 0" / "light" / moved.name)
    after = fv.from_images(root, **known)
    assert np.array_equal(before.train.inputs, after.train.inputs)
    assert np.sum(before.train.targets != after.train.targets) == 1


def test_pictures_that_do_not_fit_are_named(tmp_path: Path) -> None:
    root = pictures(tmp_path / "all", 1)
    assert fv.from_images(root, classes=["dark", "other"]).unusable == 4
    with pytest.raises(ConfigError, match=r"a size is \[height, width\]"):
        fv.from_images(root, size=(3,))
    with pytest.raises(ConfigError, match="holds no files"):
        fv.from_images(tmp_path / "nothing")
    (root / "clinic 1" / "dark").mkdir(parents=True)
    other = root / "clinic 1" / "dark" / "z.png"
    Image.new("RGB", (5, 5)).save(other)
    with pytest.raises(
        ConfigError, match=r"z\.png: has 5 x 5 pixels, the first picture 6 x 4; give a"
    ):
        fv.from_images(root)
    assert fv.from_images(root, size=(6, 4)).clients == 2
    other.write_bytes(b"no picture")
    assert fv.from_images(root).unusable == 1


def test_the_command_trains_on_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = pictures(tmp_path / "clinics", 3)
    settings = ("training.rounds=4", "training.local_steps=1", "training.learning_rate=0.01")
    options = [f"--set={one}" for one in (*settings, "privacy.clip_norm=1", "privacy.epsilon=50")]
    given = ["--data", str(root), "--classes", "dark,light", "--seed", "1", *options]
    output = tmp_path / "run"
    assert main(["run", *given, "--output", str(output)]) == 0
    printed = capsys.readouterr()
    assert "3 clients, 72 inputs" in printed.err
    model = fv.load_run(output)
    dark = np.full((1, 3, 6, 4), 30, np.uint8)
    assert model.predict(dark).tolist() == ["dark"]
    assert model.predict(255 - dark).tolist() == ["light"]


def test_classes_of_files_may_come_from_a_table(tmp_path: Path) -> None:
    """Pictures lie in any folders of a client then; one that nobody labels contributes nothing."""
    root = pictures(tmp_path / "clinics", 2)
    (tmp_path / "clinics" / "clinic 2" / "deep").mkdir(parents=True)
    files = sorted(str(file.relative_to(root)) for file in root.glob("*/*/*.png"))
    rows = [f"{file},{'light' if 'light' in file else 'dark'}" for file in files[1:]]
    (tmp_path / "labels.csv").write_text("\n".join(["file,class", *rows]) + "\n")
    known = {"classes": ["dark", "light"], "size": (6, 4), "test_fraction": 0.0}
    usual, found = (
        fv.from_images(root, **known, **more) for more in ({}, {"labels": tmp_path / "labels.csv"})
    )
    assert found.clients == 3
    assert found.unusable == 2  # the one without a label, and the client without pictures
    made = [
        sorted(zip(map(bytes, part.inputs), part.targets.tolist(), strict=True))
        for part in (usual.train.only_usable(), found.train.only_usable())
    ]
    assert set(made[1]) < set(made[0])
    assert len(made[1]) == len(made[0]) - 1


def test_medical_images_are_grey_in_three_channels(tmp_path: Path) -> None:
    """DICOM and NIfTI: scaled by their own values, volumes by their middle slice."""
    pydicom, nibabel = pytest.importorskip("pydicom"), pytest.importorskip("nibabel")
    from pydicom.dataset import FileDataset, FileMetaDataset

    slope = np.linspace(-500, 1500, 24).reshape(6, 4).astype(np.int16)
    grey = np.rint(255 * np.clip((slope - np.percentile(slope, 1))
                                 / np.subtract(*np.percentile(slope, (99, 1))), 0, 1))  # fmt: skip
    volume = np.stack([np.zeros_like(slope), slope, np.zeros_like(slope)], axis=2)
    for client in ("a", "b"):
        (tmp_path / client / "ill").mkdir(parents=True)
        scan = nibabel.Nifti1Image(volume.transpose(1, 0, 2), np.eye(4))
        nibabel.save(scan, tmp_path / client / "ill" / "1.nii.gz")
        for name, kind in (("2.dcm", "MONOCHROME2"), ("3.dcm", "MONOCHROME1")):
            meta = FileMetaDataset()
            meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
            image = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
            image.Rows, image.Columns, image.SamplesPerPixel = 6, 4, 1
            image.PhotometricInterpretation, image.PixelRepresentation = kind, 1
            image.BitsAllocated, image.BitsStored, image.HighBit = 16, 16, 15
            image.PixelData = (slope if kind[-1] == "2" else -slope).tobytes()
            image.save_as(tmp_path / client / "ill" / name)
        (tmp_path / client / "ill" / "4.dcm").write_bytes(b"no image")
    found = fv.from_images(tmp_path, size=(6, 4), classes=["ill", "well"], test_fraction=0.0)
    assert found.unprotected == ()
    assert found.train.usable.tolist() == [True, True, True, False] * 2
    for image in found.train.inputs[:3]:
        assert (image == grey).all()


def test_texts_in_folders(tmp_path: Path) -> None:
    (tmp_path / "letters.py").write_text(
        "def encoder(): return lambda text: [text.count(one) for one in 'aeiou'] + [1]"
    )
    for client in ("north", "south"):
        for label, said in (("ill", "fever"), ("well", "all good")):
            (tmp_path / "notes" / client / label).mkdir(parents=True)
            for place in range(3):
                file = tmp_path / "notes" / client / label / f"{label}-{place}.txt"
                file.write_text(f"{said} {place * 'a'}")
    (tmp_path / "notes" / "east").mkdir()
    encoder = f"{tmp_path}/letters.py:encoder"
    found = fv.from_texts(
        tmp_path / "notes", classes=["ill", "well"], text_encoder=encoder, test_fraction=0.0
    )
    assert (found.clients, found.sizes.tolist()) == (3, [1, 6, 6])
    assert found.unprotected == ()
    assert found.unusable == 1
    assert found.train.targets[1:7].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(found.train.inputs[1], np.array([0, 2, 0, 0, 0, 1]) / 5**0.5)
