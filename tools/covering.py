"""Which test executes which line, and how long each takes: the map that `mutants.py` works with.

Also a pytest plugin (`-p covering`), so that processes which a test starts are measured too and
their lines counted for that test.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedveil"
_FOLDER = ROOT / ".mutants"
_LINES, _SETTINGS, _TIMES = _FOLDER / "coverage", _FOLDER / "coveragerc", _FOLDER / "times.json"
_SOURCES = _FOLDER / "sources.json"

_seconds: dict[str, float] = {}


def pytest_runtest_setup() -> None:
    os.environ["COVERAGE_PROCESS_START"] = str(_SETTINGS)  # read by every process started from here


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        known = json.loads(_TIMES.read_text(encoding="utf-8")) if _TIMES.exists() else {}
        _TIMES.write_text(json.dumps({**known, **_seconds}), encoding="utf-8")


def environment(*path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}


def cover(tests: list[str]) -> None:
    """Measure the whole suite, or add some tests to an earlier map."""
    _FOLDER.mkdir(exist_ok=True)
    if not tests:
        for old in [*_FOLDER.glob("coverage*"), _TIMES]:
            old.unlink(missing_ok=True)
    _SETTINGS.write_text(
        f"[run]\nsource = {PACKAGE}\ndata_file = {_LINES}\nparallel = true\n"
        "context = ${PYTEST_CURRENT_TEST-}\n",  # names the test in the processes it starts
        encoding="utf-8",
    )
    collect = [f"--cov={PACKAGE}", "--cov-context=test", f"--cov-config={_SETTINGS}"]
    collect += ["--cov-report=", *(["--cov-append"] if tests else [])]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "covering", "-n", "2", *collect, *tests],
        cwd=ROOT,
        env=environment(ROOT / "src", Path(__file__).parent),
        check=False,
    )
    _SOURCES.write_text(json.dumps(_digests()), encoding="utf-8")


def _digests() -> dict[str, str]:
    return {
        str(file.relative_to(PACKAGE)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(PACKAGE.rglob("*.py"))
    }


class Covering:
    """The stored map."""

    def __init__(self) -> None:
        from coverage import CoverageData

        if not _SOURCES.exists():
            sys.exit("no coverage map yet: run with --cover (as long as the whole suite)")
        if json.loads(_SOURCES.read_text(encoding="utf-8")) != _digests():
            sys.exit("the package changed since it was covered: run with --cover")
        self.seconds: dict[str, float] = json.loads(_TIMES.read_text(encoding="utf-8"))
        self._data = CoverageData(str(_LINES))
        self._data.read()
        self._files: dict[Path, dict[int, set[str]]] = {}

    def tests(self, file: Path, lines: range) -> list[str]:
        """Tests that execute one of the lines, the nearest first, then the shortest.

        Lines that run on import belong to every test of the file. An empty list: none runs them.
        """
        by_line = self._lines(file)
        ran = [by_line[line] for line in lines if line in by_line]
        if not ran:
            return []
        names = set().union(*ran) or set().union(*by_line.values())
        return sorted(names, key=lambda name: (_distance(file, name), self.seconds[name], name))

    def _lines(self, file: Path) -> dict[int, set[str]]:
        if file not in self._files:
            contexts = self._data.contexts_by_lineno(str(file))
            self._files[file] = {
                line: {test for name in names if (test := _test(name)) in self.seconds}
                for line, names in contexts.items()
            }
        return self._files[file]


def _test(context: str) -> str:
    """`tests/a.py::b|run` in the test's own process, `tests/a.py::b (call)` in one it started."""
    name = context.rpartition("|")[0] if "|" in context else context.rpartition(" (")[0]
    return name or context


@cache
def _text(test_file: str) -> str:
    return (ROOT / test_file).read_text(encoding="utf-8")


def _distance(file: Path, test: str) -> int:
    """0: a test file that imports the module, 1: one in its folder's tests, 2: elsewhere."""
    module = file.relative_to(PACKAGE).with_suffix("").parts
    test_file = test.partition("::")[0]
    if f"fedveil.{'.'.join(module)} " in _text(test_file) or module[-1] in Path(test_file).stem:
        return 0
    return 1 if module[0] in Path(test_file).parts else 2
