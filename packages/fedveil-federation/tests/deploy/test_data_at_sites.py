"""Rows at a site come as CSV, Parquet or a folder that Python wrote; images train a CNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv, parquet
from tests.deploy.hospitals import COLUMNS, table

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.data.partition import IID
from fedveil_federation.deploy.agreement import Agreement
from fedveil_federation.deploy.schemas import TableSchema

ARRAYS = {"shape": [12, 12], "classes": ["dark", "bright"], "min": 0, "max": 255}
KNOWN: dict[str, Any] = {"name": "f", "address": "h:1", "hub": "00" * 32, "sites": ("a", "b")}


def test_the_same_rows_from_every_kind_of_file(tmp_path: Path) -> None:
    agreement = Agreement(**KNOWN, label="ill", columns=COLUMNS)
    text = tmp_path / "rows.csv"
    text.write_text(table(40, 1))
    parquet.write_table(csv.read_csv(text), tmp_path / "rows.parquet")
    first = agreement.rows(text)
    first.save(tmp_path / "saved")
    for name in ("rows.parquet", "saved"):
        found = agreement.rows(tmp_path / name)
        assert np.array_equal(found.train.inputs, first.train.inputs)
        assert np.array_equal(found.train.targets, first.train.targets)
        assert found.features == first.features
        assert found.clients == 1


@pytest.mark.parametrize(
    ("column", "entry", "wanted"),
    [
        ("ward", {"separator": ";"}, "'ward' has a separator, which is for the label"),
        ("ill", {"type": "category", "buckets": 4}, "the label 'ill' must be in it"),
        ("notes", {"type": "text"}, "'notes'"),
    ],
)
def test_a_schema_that_no_site_could_read_is_refused_at_once(
    column: str, entry: dict[str, Any], wanted: str
) -> None:
    known = entry if "type" in entry else {**COLUMNS[column], **entry}
    with pytest.raises(ConfigError, match=wanted):
        TableSchema("ill", {**COLUMNS, column: known}).encoder  # noqa: B018


def test_rows_that_are_not_of_the_agreed_schema_are_refused(tmp_path: Path) -> None:
    agreement = Agreement(**KNOWN, label="ill", columns=COLUMNS)
    images(30, 1).save(tmp_path / "images")
    with pytest.raises(ConfigError, match="not one owner's rows of the agreed schema"):
        agreement.rows(tmp_path / "images")
    other = {**COLUMNS, "ward": {**COLUMNS["ward"], "categories": ["c", "d"]}}
    (tmp_path / "rows.csv").write_text(table(40, 1))
    Agreement(**KNOWN, label="ill", columns=other).rows(tmp_path / "rows.csv").save(tmp_path / "o")
    with pytest.raises(ConfigError, match="inputs are not those of the agreed schema"):
        agreement.rows(tmp_path / "o")  # the same shape, and other inputs
    of_images = Agreement(**KNOWN, arrays=ARRAYS)
    assert of_images.rows(tmp_path / "images").scaling is not None
    swapped = Agreement(**KNOWN, arrays={**ARRAYS, "classes": ["bright", "dark"]})
    with pytest.raises(ConfigError, match="classes are not those of the agreed schema"):
        swapped.rows(tmp_path / "images")  # each would be taken for the other
    dark = Agreement(**KNOWN, arrays={**ARRAYS, "min": 1, "max": 100})
    assert dark.at_hub((1, 1), None).scaling is not None
    with pytest.raises(ConfigError, match="values outside 1 to 100"):
        dark.rows(tmp_path / "images")
    with pytest.raises(ConfigError, match="arrays come from a folder"):
        of_images.rows(tmp_path / "rows.csv")


def test_what_a_hub_calls_its_categories_does_nothing_to_an_owner_s_screen(tmp_path: Path) -> None:
    """Remarks are shown before the owner trusts anybody."""
    ward = {"type": "category", "categories": ["\x1b[2J\nFingerprint: 0d6be", "b"]}
    agreement = Agreement(**KNOWN, label="ill", columns={**COLUMNS, "ward": ward})
    (tmp_path / "rows.csv").write_text(table(40, 1))
    (remark,) = agreement.schema.remarks(tmp_path / "rows.csv")
    assert "'ward'" in remark
    assert remark.isprintable()


def images(rows: int, seed: int) -> Federation:
    """One owner's: half of them have a bright corner."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, rows)
    pixels = draw.integers(0, 128, (rows, 12, 12))
    pixels[:, :6, :6] += 120 * labels[:, None, None]
    given = {"classes": 2, "class_names": ("dark", "bright")}
    return Federation.from_arrays(
        pixels.astype(np.uint8), labels, partition=IID(1), test_fraction=0.3, **given
    )
