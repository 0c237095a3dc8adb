"""What a library warns of while it reads one private picture does not reach the terminal."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image


def folder(root: Path, odd: str) -> None:
    draw = np.random.default_rng(0)
    for client in range(4):
        for name in "ab":
            place = root / "pictures" / f"c{client}" / name
            place.mkdir(parents=True)
            for number in range(3):
                pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{name}{number}.png")
    target = root / "pictures" / "c1" / "a" / "a1.png"
    if odd == "huge":
        parts = ((b"IHDR", struct.pack(">IIBBBBB", 10000, 9500, 1, 0, 0, 0, 0)), (b"IEND", b""))
        chunks = (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in parts
        )
        target.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    if odd == "palette":
        picture = Image.fromarray(draw.integers(0, 3, (8, 8), dtype=np.uint8), "P")
        picture.putpalette([0, 0, 0, 9, 9, 9, 5, 5, 5] + [0] * 759)
        picture.save(target, transparency=bytes([0, 128, 255]))


def said(root: Path, odd: str) -> str:
    folder(root, odd)
    command = ["run", "--data", "pictures", "--classes", "a,b", "--unit", "record", "--quiet"]
    keys = {
        "data.image_size": "[8,8]",
        "data.test_fraction": "0",
        "training.method": "dp-sgd",
        "training.rounds": "1",
        "training.learning_rate": "0.1",
        "privacy.clip_norm": "1",
    }
    for key, value in keys.items():
        command += ["--set", f"{key}={value}"]
    found = subprocess.run(
        [sys.executable, "-m", "fedveil", *command, "--output", "r", "--no-report"],
        cwd=root,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "certified" in found.stdout
    return found.stderr


def test_no_single_picture_shows_on_the_terminal(tmp_path: Path) -> None:
    kinds = ("plain", "huge", "palette")
    for kind in kinds:
        (tmp_path / kind).mkdir()
    usual, *others = (said(tmp_path / kind, kind) for kind in kinds)
    assert others == [usual, usual]
