"""What the documentation says, run: each page in a folder of its own, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT, blocks_of, search_less
from tests.docs.prepared import PREPARED, quoted

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
# These pages are followed by tests of their own.
FOLLOWED = {
    "check.md": "packages/fedveil-lab/tests/audit/test_check.py",
    "extending.md": "packages/fedveil/tests/test_extending.py",
    "extending/engine.md": "packages/fedveil/tests/engines/test_extending.py",
    "extending/local-step.md": "packages/fedveil/tests/methods/test_outside_step.py",
    "extending/mechanism.md": "packages/fedveil/tests/privacy/test_outside_mechanism.py",
    "extending/noise.md": "packages/fedveil/tests/methods/test_outside_noise.py",
}
# What is not run, and why; parsers must accept it all the same.
_MINUTES, _MACHINES = "takes minutes", "needs processes that stay: tests/deploy, `make demo`"
NOT_RUN: dict[str, dict[str, str]] = {
    "architecture.md": {"total = run.aggregator.open": "lines of a function, quoted"},
    "attacks.md": {"attack ": f"{_MINUTES}: tests/audit attacks with fewer victims"},
    "audit.md": {"audit ": f"{_MINUTES}: the tutorial does it with fewer games"},
    "data.md": {
        "run --data loans.csv": "README and tutorials/own-table.md have it, and run it",
        "fv.from_texts(": "needs an extra: tests/data/test_collected.py",
        "run = fv.Run(plan, callbacks=": "needs an extra: tests/run/test_callbacks.py",
    },
    "deploy.md": dict.fromkeys(("hub start", "site start", "site members", "site trust"), _MACHINES)
    | dict.fromkeys(
        ("federation status", "federation run", "federation evaluate", "federation statistics"),
        _MACHINES,
    )
    | dict.fromkeys(("predict north/", "evaluate north/", "report north/"), _MACHINES),
    "planner.md": {
        "plan recipe.toml": f"{_MINUTES} with its pilot: tests/plan",
        "run best.toml": "made by the line before it",
        "from pathlib import Path": f"{_MINUTES}: tests/plan",
    },
    "results.md": {"reproduce ": _MINUTES},
    "secagg.md": {
        "run ": "the same with fewer rounds: methods/gradient-noise.md, methods/ddgauss.md"
    },
}


# Searches of quarters of a minute.
SLOW = ("tutorials/own-table.md", "tutorials/rounds-and-steps.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in PAGES
        if page not in FOLLOWED
    ],
)
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(page)
    if not blocks:
        return
    monkeypatch.chdir(tmp_path)
    search_less(monkeypatch)
    scope: dict[str, Any] = {"__name__": "page"}
    if page in PREPARED:
        scope |= PREPARED[page]()
    for block in blocks:
        block.run(scope, page, NOT_RUN.get(page, ()))
    if page == "choose-privacy.md":
        _same_table(scope["table"])


def test_readme_begins_with_the_commands_of_the_page_that_explains_them() -> None:
    section = README.split("## Start")[1].split("\n## ")[0]
    lines = re.findall(r"^    (make run|\.venv/bin/.*)$", section, re.MULTILINE)
    page = [line for one in blocks_of("start.md") for line in one.text.splitlines()]
    assert lines == [line for line in page if " account " not in line]


def test_pages_with_tests_of_their_own_have_them() -> None:
    for page, file in FOLLOWED.items():
        assert f'"{Path(page).name}"' in (ROOT / file).read_text(encoding="utf-8")
        for block in blocks_of(page):
            block.check()


def test_what_is_not_run_is_still_there_and_little() -> None:
    """An exception without a block would hide the next one that begins alike."""
    for page, starts in NOT_RUN.items():
        blocks = blocks_of(page)
        lines = [" ".join(words) for block in blocks for _, words in block.commands()]
        lines += [block.text for block in blocks if block.language == "python"]
        for start in starts:
            assert any(line.startswith(start) for line in lines), f"{page}: {start}"
    (excerpt,) = (one.text for one in blocks_of("architecture.md") if one.language == "python")
    assert quoted(excerpt, "packages/fedveil/src/fedveil/run/round.py")


def _same_table(computed: dict[float, tuple[float, float, float]]) -> None:
    """The figures on the page are those of its own lines, rounded upwards as bounds are."""
    text = (ROOT / "docs" / "choose-privacy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|$", text, re.M)
    assert {float(row[0]) for row in rows} == set(computed)
    for epsilon, *shown in rows:
        for printed, exact in zip(shown, computed[float(epsilon)], strict=True):
            digit = 10.0 ** -len(printed.partition(".")[2])
            assert 0 <= float(printed) - 100 * exact < digit * (1 + 1e-6), epsilon
