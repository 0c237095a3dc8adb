"""Settings of the whole test suite."""

import os
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.paths import python_path
from tests.report.browser import Page, installed
from tests.shell import Shell, shell

# No test asserts a wall-clock time: a busy machine is not a defect.
settings.register_profile("fedveil", deadline=None)
settings.load_profile("fedveil")

# Processes that tests start import the packages and `tests` of this checkout.
os.environ["PYTHONPATH"] = python_path()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`sampled(n)`: the first case of a test and one in n of the others, by name; more are slow."""
    seen = set()
    for item in items:
        mark, test = item.get_closest_marker("sampled"), item.nodeid.partition("[")[0]
        if mark and test in seen and zlib.crc32(item.name.encode()) % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        seen.add(test)


@pytest.fixture(autouse=True, scope="session")
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Notes about ledgers go where the tests' runs are, not into the user's home."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def fedveil(capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command line, called in this process."""
    return shell(capsys)


@pytest.fixture(scope="session")
def browser() -> Iterator[Page]:
    """One tab for all tests of pages: a browser takes seconds to start."""
    program = installed()
    if program is None:
        pytest.skip("no Chromium here: install it with apt-get install chromium")
    page = Page(program)
    yield page
    page.close()
