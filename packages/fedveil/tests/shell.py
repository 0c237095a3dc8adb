"""Commands in this process: importing everything once is enough."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedveil.cli import console, main


class Done(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON that a successful command printed."""
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def refused(self) -> bool:
        """Return whether it ended as bad input does: exit code 2, one line, and no answer."""
        return (self.code, self.out, len(self.err.strip().splitlines())) == (2, "", 1)


Shell = Callable[..., Done]


def shell(capture: pytest.CaptureFixture[str]) -> Shell:
    """Return a function that calls the command line with its arguments."""
    console.stdout.cache_clear()  # consoles keep the stream that they were made with
    console.stderr.cache_clear()

    def call(*arguments: str | Path) -> Done:
        capture.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capture.readouterr())

    return call
