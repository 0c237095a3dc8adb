"""Progress is shown to whoever waits, and tells nobody how many rows there are."""

from __future__ import annotations

import io
import re
import sys

import pytest

from fedveil.core import progress


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_bar_and_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At client level the number of rows is private, and so is the time that they take."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    blocks = list(progress.in_blocks(range(2055), 1024, "features"))
    assert [len(block) for block in blocks] == [1024, 1024, 7]
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", terminal.getvalue())
    assert "features" in shown
    assert not re.search(r"\d", shown)


def test_quiet_hides_the_bar_and_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet command in a program of one's own must not silence what comes after it."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.hidden():
        assert len(list(progress.in_blocks(range(5), 2, "features"))) == 3
    assert terminal.getvalue() == ""
    list(progress.in_blocks(range(5), 2, "features"))
    assert "features" in terminal.getvalue()
