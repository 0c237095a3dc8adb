"""What is committed under results/ can be drawn and shown again without running anything."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedveil.cli import main
from reproduction.writing import as_json, html

RESULTS = Path(__file__).parents[2] / "results"
WRITTEN = [
    path for path in sorted(RESULTS.glob("*.json")) if "experiment" in json.loads(path.read_text())
]


def test_every_result_has_its_charts_and_its_page() -> None:
    assert len(WRITTEN) > 30
    for path in WRITTEN:
        described = json.loads(path.read_text(encoding="utf-8"))
        page = html(described)
        assert page.count("<svg") == len(described["charts"]) > 0, path.name
        assert as_json(described) == path.read_text(encoding="utf-8"), path.name
        for chart in described["charts"]:
            bars = any(len(p) > 2 for series in chart["series"] for p in series["points"])
            assert bars == ("bars" in chart), path.name


def test_numbers_on_one_line_are_the_same_document() -> None:
    values = {"a": [1.5, -2e-7, None], "b": [[1, 2], []], "c": "[ 1 ]", "d": ["x", 1], "e": [{}]}
    text = as_json(values)
    assert json.loads(text) == values
    assert '"a": [1.5, -2e-07, null]' in text


def test_a_page_and_a_picture_are_drawn_again_from_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(RESULTS / "cheng-where.json", tmp_path)
    words = ["reproduce", "cheng-where", "--report", "--results", str(tmp_path)]
    assert main(words) == 0
    assert (tmp_path / "cheng-where.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "cheng-where.html").read_text(encoding="utf-8")
    (inside,) = re.findall(r'id="document">(.*?)</script>', page, re.DOTALL)
    stored = json.loads((tmp_path / "cheng-where.json").read_text(encoding="utf-8"))
    assert list(json.loads(inside)["charts"].values()) == stored["charts"]
    assert main([*words, "--scale", "full"]) == 2  # what is there is of another scale
    assert "no run of scale full" in capsys.readouterr().err
