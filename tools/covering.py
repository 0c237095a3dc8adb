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
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(ROOT.glob("packages/*/src"))
TESTS = sorted(ROOT.glob("packages/*"))
_FOLDER = ROOT / ".mutants"
_LINES, _SETTINGS, _TIMES = _FOLDER / "coverage", _FOLDER / "coveragerc", _FOLDER / "times.json"
_SOURCES = _FOLDER / "sources.json"

_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_setup() -> None:
    os.environ["COVERAGE_PROCESS_START"] = str(_SETTINGS)  # read by every process started from here


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        # A test that fails anyway notices nothing: it is left out.
        passed = {name: time for name, time in _seconds.items() if name not in _failed}
        _TIMES.write_text(json.dumps({**_read(_TIMES), **passed}), encoding="utf-8")


def environment(*path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}


def cover(tests: list[str]) -> None:
    """Measure the whole suite, or add some tests to an earlier map."""
    _FOLDER.mkdir(exist_ok=True)
    digests = _digests()
    files = {file for name in tests for file in _files(ROOT / name.partition("::")[0])}
    if tests:
        _refuse_stale(files)
        kept = {test: time for test, time in _read(_TIMES).items() if _file(test) not in files}
        _TIMES.write_text(json.dumps(kept), encoding="utf-8")
    else:
        for old in [*_FOLDER.glob("coverage*"), _TIMES, _SOURCES]:
            old.unlink(missing_ok=True)
    _SETTINGS.write_text(
        f"[run]\nsource = {','.join(map(str, SOURCES))}\ndata_file = {_LINES}\nparallel = true\n"
        "context = ${PYTEST_CURRENT_TEST-}\n",  # names the test in the processes it starts
        encoding="utf-8",
    )
    collect = [
        *(f"--cov={path}" for path in SOURCES),
        "--cov-context=test",
        f"--cov-config={_SETTINGS}",
    ]
    collect += ["--cov-report=", *(["--cov-append"] if tests else [])]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "covering", "-n", "2", *collect, *tests],
        cwd=ROOT,
        env=environment(*SOURCES, *TESTS, Path(__file__).parent),
        check=False,
    )
    _SOURCES.write_text(json.dumps(digests), encoding="utf-8")


def _files(path: Path) -> list[str]:
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in found]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _digests() -> dict[str, str]:
    names = _files(ROOT / "packages")
    return {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in names}


def _refuse_stale(but: Collection[str] = ()) -> None:
    """A map of other lines or other tests would say nothing, so it is not used."""
    known, now = _read(_SOURCES), _digests()
    if not known:
        sys.exit("no coverage map yet: run with --cover (as long as the whole suite)")
    for name in sorted(known.keys() | now.keys()):
        if known.get(name) != now.get(name) and name not in but:
            added = f" {name}" if "/tests/" in name and name in now else ""
            sys.exit(f"{name} changed since it was covered: run with --cover{added}")


class Covering:
    """The stored map."""

    def __init__(self) -> None:
        from coverage import CoverageData

        _refuse_stale()
        self.seconds: dict[str, float] = _read(_TIMES)
        self._data = CoverageData(str(_LINES))
        self._data.read()
        self._files: dict[Path, dict[int, set[str]]] = {}
        self._by_file: dict[str, list[str]] = {}
        for name in self.seconds:
            self._by_file.setdefault(_file(name), []).append(name)

    def tests(self, file: Path, lines: range, on_import: bool) -> list[str]:
        """Tests that execute one of the lines, the nearest first, then the shortest; all tests of
        the file if they run `on_import`, whoever was first. An empty list: none runs them.
        """
        by_line = self._lines(file)
        ran = [by_line[line] for line in lines if line in by_line]
        names = set().union(*(by_line.values() if ran and on_import else ran))
        return sorted(names, key=lambda name: (_distance(file, name), self.seconds[name], name))

    def _lines(self, file: Path) -> dict[int, set[str]]:
        if file not in self._files:
            contexts = self._data.contexts_by_lineno(str(file))
            self._files[file] = {
                line: {test for name in names for test in self._tests(name)}
                for line, names in contexts.items()
            }
        return self._files[file]

    def _tests(self, context: str) -> list[str]:
        """`tests/a.py::b|run` in the test's own process, `tests/a.py::b (call)` in one it started.
        What the set-up of a test makes, its file's other tests may use as well."""
        name, _, when = context.rpartition(" (" if context.endswith(")") else "|")
        if when.startswith("setup"):
            return self._by_file.get(_file(name), [])
        return [name] if name in self.seconds else []


@cache
def _text(test_file: str) -> str:
    return (ROOT / test_file).read_text(encoding="utf-8")


def name_of(file: Path) -> tuple[str, ...]:
    """Return the parts of a module's dotted name."""
    (source,) = (path for path in SOURCES if file.is_relative_to(path))
    return file.relative_to(source).with_suffix("").parts


def _distance(file: Path, test: str) -> int:
    """0: a test file that imports the module, 1: one in its folder's tests, 2: elsewhere."""
    module = name_of(file)
    test_file = _file(test)
    if f"{'.'.join(module)} " in _text(test_file) or module[-1] in Path(test_file).stem:
        return 0
    return 1 if set(module[1:-1]) & set(Path(test_file).parts) else 2
