"""What the documentation says, run: each page in a folder of its own, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks_of

PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
# In these folders, and on these pages, everything is run. Elsewhere blocks have tests of their own,
# are excerpts, or take minutes.
FOLDERS = ("tutorials", "how-to", "methods")
RUN_TOO = ("index.md", "start.md", "choose-privacy.md", "methods.md", "accounting.md", "papers.md")
RUN = [page for page in PAGES if page in RUN_TOO or page.split("/")[0] in FOLDERS]


@pytest.mark.parametrize("page", RUN)
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(page):
        block.run(scope, page)
    if page == "choose-privacy.md":
        _same_table(scope["table"])


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN])
def test_commands_are_ones_that_the_parsers_accept(page: str) -> None:
    for block in blocks_of(page):
        block.check()


def test_a_command_that_fails_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        Block("sh", "", "fedveil report nowhere\n").run({}, "page")
    with pytest.raises(AssertionError):
        Block("sh", "", "rm -rf /nothing\n").run({}, "page")
    with pytest.raises(Exception, match="unrecognized"):
        Block("sh", "", "fedveil run --sed 1\n").check()


def _same_table(computed: dict[float, tuple[float, float, float]]) -> None:
    """The figures on the page are those of its own lines, rounded upwards as bounds are."""
    text = (ROOT / "docs" / "choose-privacy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|$", text, re.M)
    assert {float(row[0]) for row in rows} == set(computed)
    for epsilon, *shown in rows:
        for printed, exact in zip(shown, computed[float(epsilon)], strict=True):
            digit = 10.0 ** -len(printed.partition(".")[2])
            assert 0 <= float(printed) - 100 * exact < digit * (1 + 1e-6), epsilon
