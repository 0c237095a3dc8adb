"""The documentation site: built without a warning, and read without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT
from tests.paths import python_path
from tests.report.browser import AXE, Page

from fedveil.cli import commands

pytest.importorskip("material", reason="the site needs its tools: make docs")

pytestmark = pytest.mark.slow  # the site is built first


def built() -> Path | None:
    """What `make docs` has built, if nothing that it is made from is newer."""
    page = ROOT / "site" / "404.html"
    folders = ("docs", "notebooks", "results", "benchmarks", "packages", "tools")
    files = [ROOT / "mkdocs.yml", *(f for name in folders for f in (ROOT / name).rglob("*.*"))]
    made = re.compile(r"__pycache__|\.egg-info")
    newest = max(file.stat().st_mtime for file in files if not made.search(str(file)))
    return page.parent if page.exists() and page.stat().st_mtime > newest else None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (ready := built()) is not None:
        return ready
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    path = python_path()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_reference_has_every_command_and_every_public_name(site: Path) -> None:
    import fedveil as fv

    text = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in commands():
        assert f"fedveil {name}" in text
    assert "--client-column" in text
    names = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in fv.__all__:
        assert f"fv.{name}" in names


def test_no_page_loads_anything_from_outside(site: Path) -> None:
    outside = re.compile(r'(?:src|href|url)[=(]\s*["\']?(?:https?:)?//[^"\')\s>]+')
    for page in site.rglob("*.html"):
        text = re.sub(r"<a [^>]*>", "", page.read_text(encoding="utf-8"))  # links are only followed
        assert outside.findall(text) == [], page.name


PAGES = ("index.html", "start.html", "accounting.html", "results.html", "reference/commands.html")


@pytest.mark.parametrize("name", PAGES)
def test_it_opens_from_a_disk_without_an_error_or_a_request(
    site: Path, browser: Page, name: str
) -> None:
    browser.problems.clear()
    for width, scheme in ((1200, "light"), (390, "dark")):
        browser.look(width, 800, prefers_color_scheme=scheme)
        browser.open(site / name)
        assert browser.run("document.querySelector('h1').innerText.length") > 0
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.problems == []
        if AXE.exists():  # .ci/run fetches it
            browser.until("document.querySelectorAll('.md-code__nav:not([role])').length === 0")
            assert browser.violations() == []
