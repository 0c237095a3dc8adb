"""The official file formats, on small files written here by other means than the readers'."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from tests.data.format_writers import database, example, idx

from fedveil.core.errors import ConfigError
from fedveil.data.sources.cifar10 import read_mosaic
from fedveil.data.sources.formats import (
    parse_example,
    read_cifar_archive,
    read_federated_sqlite,
    read_idx,
    read_npz,
    read_svhn_mat,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("dtype", "kind"), [(np.uint8, 8), (np.int32, 12), (np.float32, 13)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_come_back_as_written(tmp_path, dtype, kind, suffix):
    array = RNG.integers(0, 200, (5, 3, 4)).astype(dtype)
    data = idx(array, kind)
    path = tmp_path / f"x-idx3{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    read = read_idx(path)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(idx(np.zeros((5, 3), np.uint8), 8), mtime=0)[:-9],
        gzip.compress(idx(np.zeros((5, 3), np.uint8), 8)[:-1], mtime=0),
        gzip.compress(b"\0\0\x77\x01" + bytes(8), mtime=0),
        gzip.compress(b"\0", mtime=0),
        b"not gzip",
        b"",
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, data):
    path = tmp_path / "x.gz"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"x\.gz"):
        read_idx(path)


def cifar_archive(tmp_path):
    """An archive of five batches of two images and a test batch, and what it should hold."""
    images = RNG.integers(0, 256, (12, 32, 32, 3)).astype(np.uint8)
    labels = RNG.integers(0, 10, 12)
    path = tmp_path / "binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
            rows = slice(2 * i, 2 * i + 2)
            flat = images[rows].transpose(0, 3, 1, 2).reshape(2, 3072)
            data = np.concatenate([labels[rows, None].astype(np.uint8), flat], axis=1).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches/{name}.bin")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path, images, labels


def test_a_cifar_archive_holds_its_images_and_a_cut_one_is_refused(tmp_path):
    path, images, labels = cifar_archive(tmp_path)
    read = read_cifar_archive(path)
    np.testing.assert_array_equal(read["x_train"], images[:10])
    np.testing.assert_array_equal(read["y_train"], labels[:10])
    np.testing.assert_array_equal(read["x_test"], images[10:])
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ConfigError, match=r"binary\.tar\.gz"):
        read_cifar_archive(path)


def test_mosaics_are_cut_row_by_row(tmp_path):
    images = RNG.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    rows = [np.concatenate(list(images[3 * r : 3 * r + 3]), axis=1) for r in range(2)]
    path = tmp_path / "m.webp"
    Image.fromarray(np.concatenate(rows)).save(path, lossless=True)
    np.testing.assert_array_equal(read_mosaic(path), images)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ConfigError, match=r"m\.webp"):
        read_mosaic(path)


def test_svhn_labels_ten_mean_zero_and_images_come_first_axis_first(tmp_path):
    images = RNG.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9], [10]])})
    read, labels = read_svhn_mat(path)
    np.testing.assert_array_equal(read, images)
    np.testing.assert_array_equal(labels, [0, 1, 9, 0])
    path.write_bytes(b"MATLAB 5.0" + bytes(300))
    with pytest.raises(ConfigError, match=r"train_32x32\.mat"):
        read_svhn_mat(path)


def test_serialized_examples_come_apart_again():
    pixels = RNG.random(784).astype(np.float32)
    parsed = parse_example(example(pixels=pixels, label=[61], snippets=b"To be, or not"))
    np.testing.assert_array_equal(parsed["pixels"], pixels)
    assert parsed["label"] == [61]
    assert parsed["snippets"] == [b"To be, or not"]
    assert parse_example(example(big=[2**40, 300, 0]))["big"] == [2**40, 300, 0]


def test_federated_databases_are_read_by_client_and_split(tmp_path):
    rows = [("a", "w2", b"1"), ("b", "w1", b"2"), ("a", "w1", b"3"), ("c", "w1", b"4")]
    path = database(tmp_path / "x.sqlite.lzma", rows)
    assert list(read_federated_sqlite(path, ("a", "b"))) == [rows[1], rows[2], rows[0]]
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ConfigError, match=r"x\.sqlite\.lzma"):
        list(read_federated_sqlite(path, ("a",)))


def test_archives_of_arrays_must_hold_what_is_asked_for(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3))
    assert set(read_npz(path, ("x",), optional=("z",))) == {"x"}
    with pytest.raises(ConfigError, match="lacks the array 'y'"):
        read_npz(path, ("x", "y"))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ConfigError, match=r"a\.npz"):
        read_npz(path, ("x",))
