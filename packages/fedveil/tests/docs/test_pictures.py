"""The figure of what papers claim says what the results say; pictures are small."""

from __future__ import annotations

import html
import json
import re

from tests.docs.blocks import ROOT

from tools.pictures import claims


def test_the_figure_shows_what_the_results_say() -> None:
    """If this fails: python tools/pictures.py claims"""
    drawn = (ROOT / "docs" / "images" / "claims.svg").read_text(encoding="utf-8")
    (described,) = re.findall(r"<dc:description>(.*?)</dc:description>", drawn, re.DOTALL)
    found = claims()
    assert [tuple(one) for one in json.loads(html.unescape(described))] == found
    assert len(found) > 5
    assert any(proved > claimed for _, claimed, proved in found)
    assert any(proved < claimed for _, claimed, proved in found)
