"""The code blocks of a page, and what it means to run one."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.paths import ROOT

from fedveil.cli import commands, main, parser_of
from fedveil.planning import recipe as recipes
from fedveil_federation.deploy.policy import Policy

_FENCE = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$'
    r"|(?P<indented>(?:^ {4}(?:\.venv/bin/)?(?:fedveil|make) [^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
_NOT_OURS = ("make", "pip", "python", "export")  # that pages may name and tests do not run
_DRAWN = ("text", "mermaid")  # what is printed, and diagrams


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command of a shell block: its program and its words."""
        if self.language != "sh":
            return
        joined = self.text.replace("\\\n", " ").replace("&&", "\n")
        for line in filter(None, map(str.strip, joined.splitlines())):
            if not line.startswith("#"):
                program, *words = shlex.split(line, comments=True)
                yield Path(program).name, words

    def run(self, scope: dict[str, Any], page: str, not_run: Collection[str] = ()) -> None:
        """All of it, but for commands and blocks that begin as one of `not_run` does."""
        if self.title:
            Path(self.title).write_text(self.text, encoding="utf-8")
        elif self.language == "sh":
            for program, words in self.commands():
                assert program in ("fedveil", *_NOT_OURS), f"{page}: what is {program}?"
                if program != "fedveil":
                    continue
                if any(" ".join(words).startswith(start) for start in not_run):
                    _accepted(words)
                else:
                    assert main(words) == 0, words
        elif self.language == "python":
            if not self.text.startswith(tuple(not_run)):
                exec(compile(self.text, page, "exec"), scope)
        elif self.language == "toml":
            scope.get("read", _recipe)(self.text)
        else:
            assert self.language in _DRAWN, f"{page}: a block of {self.language or 'what'}?"

    def check(self) -> None:
        """What can be known of commands without running them."""
        for program, words in self.commands():
            if program == "fedveil":
                _accepted(words)


def _accepted(words: list[str]) -> None:
    assert words[0] in commands()
    parser_of(words[0]).parse_args(words[1:])  # raises on what it does not accept


def _recipe(text: str) -> None:
    """An excerpt of a recipe, or of a site's policy: its keys are known, its values possible."""
    given = tomllib.loads(text)
    if "allow" in given:
        Policy.of({"budget": {"epsilon": 1.0}, **given})
    else:
        recipes.parse(given)


def search_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are looked for with little effort: pages are tested here, not the search."""
    monkeypatch.setattr("fedveil.tune.defaults.EFFORT", 500.0)
    monkeypatch.setattr("fedveil.tune.defaults._FRESH", (1, 1))
    monkeypatch.setattr("fedveil.tune.advice.EFFORT", 500.0)
    monkeypatch.setattr("fedveil.tune.advice.PILOT", 500.0)


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0, f"{page}: a block without an end"
    made = []
    for found in _FENCE.finditer(text):
        language, inside = found["language"] or "", found["text"] or found["indented"]
        shell = not language and re.match(r"\s*(\.venv/bin/)?(fedveil|make|export) ", inside)
        made.append(Block("sh" if shell else language or "text", found["title"] or "", inside))
    return made
